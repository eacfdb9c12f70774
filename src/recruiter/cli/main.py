"""`recruiter`: the command, its groups, and what an error looks like to a person."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final

from cyclopts import App, CycloptsError

import recruiter
from recruiter.cli import (
    analytics,
    dev,
    doctor,
    flow,
    group,
    health,
    job,
    limit,
    metrics,
    scheduler,
    start,
    top,
    web,
    worker,
)
from recruiter.cli.output import console, exit_code, print_error, say, write_anything
from recruiter.domain.text import mask, said_by
from recruiter.errors import RecruiterError

app = App(
    name="recruiter",
    help="The job queue and scheduler for Python people who already run MongoDB.",
    help_epilogue="With `--debug`, or RECRUITER_LOG_LEVEL=debug, an unexpected error shows its traceback.",
    version=recruiter.__version__,
)
app.command(start.app)
app.command(job.app)
app.command(scheduler.app)
app.command(flow.app)
app.command(worker.app)
app.command(group.app)
app.command(limit.app)
app.command(analytics.analytics)
app.command(top.top)
app.command(web.web)
app.command(metrics.metrics)
app.command(dev.dev)
app.command(doctor.doctor)
app.command(health.health_, name="health")
app.command(doctor.prepare)


_AS_EXIT_CODE: Final = "return_int_as_exit_code_else_zero"


def main() -> None:
    """Exit codes: 0 fine, 1 error, 2 usage, 3 the application cannot be loaded, 4 MongoDB cannot be used."""
    write_anything()
    arguments = sys.argv[1:]
    debug = "--debug" in arguments or os.environ.get("RECRUITER_LOG_LEVEL") == "debug"
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        said = console(stderr=True)
        sys.exit(app(arguments, exit_on_error=False, error_console=said, result_action=_AS_EXIT_CODE))
    except CycloptsError:
        sys.exit(2)  # said already
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
