"""Hints for words of other systems. Cyclopts itself suggests the nearest command or option for a misspelt word."""

from __future__ import annotations

from typing import Final

from cyclopts import CycloptsError, UnknownCommandError, UnknownOptionError

_EXPLAIN = "`recruiter job show ID` says why a job is not running"
_RECOVER = "`recruiter job recover ID` runs an ended job again, `recruiter flow retry ID` the failed steps of a flow"
_REMOVE = "`recruiter job remove ID` removes an ended job, `recruiter job cancel ID` cancels one that has not ended"
_PURGE = (
    "`recruiter job remove --everything` removes all ended jobs, `recruiter job cancel --everything` cancels all "
    "others; both take filters instead"
)
_GROUPS = "queues are called groups: `recruiter group list`, `recruiter start worker --work-on GROUP`"
_STOP = (
    "stop a worker with SIGTERM (kill PID, systemctl stop, docker stop): it finishes its jobs. `recruiter worker drain "
    "WORKER` lets it finish and gives it no new ones"
)
_STATE = "`recruiter doctor` checks everything; `recruiter top` and `recruiter analytics` show figures"

COMMAND_WORDS: Final = {
    "explain": _EXPLAIN,
    "why": _EXPLAIN,
    "retry": _RECOVER,
    "requeue": _RECOVER,
    "rerun": _RECOVER,
    "delete": _REMOVE,
    "rm": _REMOVE,
    "purge": _PURGE,
    "clear": _PURGE,
    "queue": _GROUPS,
    "queues": _GROUPS,
    "stop": _STOP,
    "kill": _STOP,
    "status": _STATE,
    "stats": _STATE,
    "list": "`recruiter job list`, `recruiter worker list`, `recruiter group list`",
    "ls": "`recruiter job list`, `recruiter worker list`, `recruiter group list`",
    "run": "`recruiter start worker` runs jobs; `recruiter job run ID` makes a postponed job due",
    "start": "`recruiter start worker`",
}
"""By the word that is no command, wherever it stands."""

OPTIONS: Final = {
    "--status": "write --state",
    "--queue": f"{_GROUPS}, --group",
    "--since": "write --within 2h: how far back to count, in whole minutes",
    "--json": "write --output json",
    "--format": "write --output json",
    "--force": "write --yes",
}
"""By an option that the command does not have."""


def hint(error: CycloptsError) -> str | None:
    """What to type instead of the word that the command line does not know."""
    if isinstance(error, UnknownOptionError):
        return OPTIONS.get(error.token.keyword or error.token.value)
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        return COMMAND_WORDS.get(error.unused_tokens[0])
    return None
