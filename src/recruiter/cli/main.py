"""`recruiter`: the command, its subcommands, and how an error is printed.

A command's module is imported when the command is used, so that `recruiter --help` and shell completion are quick. That
is why each command has its help here too; a test checks that it is the one of the module.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final, Literal

from cyclopts import App, CycloptsError

from recruiter import __version__
from recruiter.cli.hints import hint
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
    "start": ("start:app", "Start one of the processes, or all of them."),
    "job": ("job:app", "Find jobs, look at them, change, cancel, recover and remove them."),
    "scheduler": ("scheduler:app", "List and control repeatable jobs."),
    "flow": ("flow:app", "List and control flows: jobs that wait for others."),
    "worker": ("worker:app", "List workers, drain them, resume them."),
    "group": ("group:app", "List groups of jobs, pause and resume them, share them fairly."),
    "limit": ("limit:app", "Limit how many jobs run at once, or start in a period."),
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
        "It listens on this machine only and is read-only. RECRUITER_WEB_USERS=ada:secret,bob:other sets the users.",
    ),
    "metrics": (
        "web:metrics",
        "Metrics for Prometheus at /metrics: jobs, workers, leader, limits and schedules of the whole fleet.\n\n"
        "Each scrape reads MongoDB, at most every five seconds. Run one of these for each database. If "
        "RECRUITER_METRICS_TOKEN is set, scrapers must send it (`Authorization: Bearer`).",
    ),
    "dev": (
        "dev:dev",
        "Starts a private MongoDB, a recruiter, a worker, a cleaner and the web console, with your FILE loaded.\n\n"
        "For development. When a Python file changes, the application is loaded again. Ctrl-C ends everything when the "
        "running jobs have finished; a second Ctrl-C ends everything at once.",
    ),
    "doctor": (
        "doctor:doctor",
        "Checks MongoDB, the fleet and the jobs, and says what to do. Exit code 1 if a person must act now.",
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
"""Each command: where its function or group is, and the help it has there."""

for _name, (_place, _help) in COMMANDS.items():
    app.command(f"recruiter.cli.{_place}", name=_name, help=_help)


_AS_EXIT_CODE: Final = "return_int_as_exit_code_else_zero"


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Prints the completion script for a shell.

    Parameters
    ----------
    shell
        The shell. For bash: recruiter completion bash > ~/.local/share/bash-completion/completions/recruiter
    """
    write_script(app.generate_completion(prog_name="recruiter", shell=shell))


def main() -> None:
    """The command `recruiter`."""
    run(sys.argv[1:])


def run(arguments: Sequence[str]) -> None:
    """Ends the process. Exit codes: 0 fine, 1 error, 2 usage, 3 the application cannot be loaded, 4 MongoDB cannot be
    used."""
    write_anything()
    debug = "--debug" in arguments or os.environ.get("RECRUITER_LOG_LEVEL") == "debug"
    arguments = [argument for argument in arguments if argument != "--debug"]
    if (command := _command_for(arguments)) is not None:
        say(f"recruiter: the command is `{command}`", stderr=True)
        sys.exit(2)
    try:
        said = console(stderr=True)
        sys.exit(app(arguments, exit_on_error=False, error_console=said, result_action=_AS_EXIT_CODE))
    except CycloptsError as error:  # said already
        if (told := hint(error)) is not None:
            say(f"recruiter: {told}", stderr=True)
        sys.exit(2)
    except RecruiterError as error:
        print_error(error)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough, as in `recruiter job list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # the last resort: nobody is shown a traceback without asking for it
        _unexpected(error, debug)
        sys.exit(1)


def _command_for(arguments: Sequence[str]) -> str | None:
    """The command to type for one of Recruiter for PHP: `start:worker`, `bko:analytics`, `help start:worker`."""
    first, second = [*arguments, "", ""][:2]
    if first == "help" or ":" in first:
        words = (second if first == "help" else first).removeprefix("bko:").split(":")
        if words[0] in COMMANDS or words == [""]:
            return " ".join(["recruiter", *filter(None, words), *(["--help"] if first == "help" else [])])
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


if __name__ == "__main__":
    main()
