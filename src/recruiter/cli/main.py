"""`recruiter`: the command, its subcommands, and how an error is printed.

A module is imported when its command is used, so that `recruiter --help` and shell completion are quick. So the help of
each command is here; the module has the help of its options and subcommands.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final, Literal

from cyclopts import App, CycloptsError, UnknownCommandError, UnknownOptionError

from recruiter import __version__
from recruiter.cli.output import console, exit_code, print_error, say, write_anything, write_script
from recruiter.domain.text import mask, said_by
from recruiter.errors import RecruiterError

app = App(
    name="recruiter",
    help="The job queue and scheduler for Python people who already run MongoDB.",
    help_epilogue="With `--debug`, or RECRUITER_LOG_LEVEL=debug, an unexpected error shows its traceback.",
    version=__version__,
)

COMMANDS: Final = {
    "start": ("start:app", "Start a single process, or all of them."),
    "job": ("job:app", "Find jobs, look at them, change, cancel, recover and remove them."),
    "scheduler": ("scheduler:app", "List and control repeatable jobs."),
    "flow": ("flow:app", "List and control flows: jobs that wait for others."),
    "worker": ("worker:app", "List workers, drain them, resume them."),
    "group": ("group:app", "List groups of jobs, pause and resume them, share them fairly."),
    "limit": ("limit:app", "Limit how many jobs run concurrently, or start in a period."),
    "analytics": (
        "analytics:analytics",
        "Counts waiting, running and recently ended jobs, with how late they started and how long they took.",
    ),
    "top": (
        "top:top",
        "Shows throughput, queues, workers, running jobs and the last failures, live. Press q or Ctrl-C to end.",
    ),
    "web": (
        "web:web",
        "The web console: overview, jobs, workers, groups and limits, schedules and problems, live; and a JSON API.\n\n"
        "It listens on this machine only, is read-only, and opens with the printed link, which contains a new token. "
        "RECRUITER_WEB_USERS=ada:secret,bob:other sets users with passwords instead.",
    ),
    "metrics": (
        "web:metrics",
        "Metrics for Prometheus at /metrics: jobs, workers, leader, limits and schedules of the whole fleet.\n\n"
        "Each scrape reads MongoDB, at most every five seconds. Run one such process for each database. If "
        "RECRUITER_METRICS_TOKEN is set, scrapers must send it (`Authorization: Bearer`).",
    ),
    "dev": (
        "dev:dev",
        "Starts a private MongoDB, a recruiter, a worker, a cleaner and the web console, with your FILE loaded.\n\n"
        "For development. When a Python file changes, the application is loaded again. Ctrl-C ends everything when the "
        "running jobs have finished; a second Ctrl-C ends everything immediately.",
    ),
    "doctor": (
        "doctor:doctor",
        "Checks MongoDB, the fleet and the jobs, and explains what to do. Exit code 1 if a person must act now.",
    ),
    "health": (
        "health:health_",
        "Checks that MongoDB accepts writes and that processes of this host are alive. Exit code 0, 1, or 4 "
        "without MongoDB. With a health port and without a role, it asks the process on that port instead, which costs "
        "little.",
    ),
    "init": ("dev:init", "Writes a small project that works: an application, its test, and files to deploy it."),
    "shell": (
        "dev:shell",
        "A Python shell with the names of the application and `recruiter`, connected to the MongoDB that you name.",
    ),
    "import": (
        "import_:import_",
        "Copies waiting jobs and schedules of another program into this database.\n\n"
        "Stop the other program first. Its documents are not changed. Importing again creates no job twice. "
        "With --bootstrap, jobs get the defaults of your tasks: retries, timeout, group, tags.",
    ),
    "completion": ("main:completion", "Prints the completion script for a shell."),
    "prepare": (
        "doctor:prepare",
        "Creates the collections, indexes and validators. Processes do it too when they start, with enough rights.",
    ),
}
"""Each command: its function or group, and its help."""

for _name, (_place, _help) in COMMANDS.items():
    app.command(f"recruiter.cli.{_place}", name=_name, help=_help)


_AS_EXIT_CODE: Final = "return_int_as_exit_code_else_zero"


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """`recruiter completion`.

    Args:
        shell: The shell. For bash: recruiter completion bash > ~/.local/share/bash-completion/completions/recruiter
    """
    write_script(app.generate_completion(prog_name="recruiter", shell=shell))


def main() -> None:
    run(sys.argv[1:])


def run(arguments: Sequence[str]) -> None:
    """Runs a command line and ends the process. Exit codes: 0 fine, 1 error, 2 usage, 3 the application cannot be
    loaded, 4 MongoDB cannot be used."""
    write_anything()
    debug = "--debug" in arguments or os.environ.get("RECRUITER_LOG_LEVEL") == "debug"
    arguments = [argument for argument in arguments if argument != "--debug"]
    if (command := _command_of_php(arguments)) is not None:
        say(f"recruiter: the command is `{command}`", stderr=True)
        sys.exit(2)
    try:
        errors_to = console(stderr=True)
        sys.exit(app(arguments, exit_on_error=False, error_console=errors_to, result_action=_AS_EXIT_CODE))
    except CycloptsError as error:  # it is printed already
        if (hint := _hint(error)) is not None:
            say(f"recruiter: {hint}", stderr=True)
        sys.exit(2)
    except RecruiterError as error:
        print_error(error)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough, as in `recruiter job list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # the last resort: a traceback only with --debug
        _unexpected(error, debug)
        sys.exit(1)


def _command_of_php(arguments: Sequence[str]) -> str | None:
    """How a command of Recruiter for PHP is called here: `start:worker` is `recruiter start worker`, `bko:analytics` is
    `recruiter analytics`, `help start:worker` is `recruiter start worker --help`. None for any other command."""
    first, second = [*arguments, "", ""][:2]
    is_help = first == "help"
    words = (second if is_help else first).removeprefix("bko:").split(":")
    if (is_help or ":" in first) and (words[0] in COMMANDS or words == [""]):
        return " ".join(["recruiter", *filter(None, words), *(["--help"] if is_help else [])])
    return None


def _unexpected(error: Exception, debug: bool) -> None:
    if debug:
        say(mask("".join(traceback.format_exception(error))), stderr=True)
    what = f"{type(error).__name__}: {mask(said_by(error))}"
    hint = "" if debug else " `--debug` shows where it happened."
    say(
        f"recruiter: unexpected error: {what}. A document may be malformed (`recruiter doctor` names it), or this is a "
        f"bug in Recruiter: please report it.{hint}",
        stderr=True,
    )


# -- hints for words of other systems; cyclopts suggests the nearest word for a misspelt one --------------------------

_EXPLAIN = "`recruiter job show ID` says why a job is not running"
_RECOVER = "`recruiter job recover ID` runs an ended job again, `recruiter flow recover ID` the failed steps of a flow"
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

_COMMAND_WORDS: Final = {
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
"""Hints by the unknown word, in any position."""

_OPTION_WORDS: Final = {
    "--status": "write --state",
    "--queue": f"{_GROUPS}, --group",
    "--since": "write --within 2h: how far back to count, in whole minutes",
    "--json": "write --output json",
    "--format": "write --output json",
    "--force": "write --yes",
}
"""By an option that the command does not have."""


def _hint(error: CycloptsError) -> str | None:
    """The correct words for an unknown word of the command line."""
    if isinstance(error, UnknownOptionError):
        return _OPTION_WORDS.get(error.token.keyword or error.token.value)
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        return _COMMAND_WORDS.get(error.unused_tokens[0])
    return None


if __name__ == "__main__":
    main()
