"""`recruiter`: the command, its groups, and what an error looks like to a person."""

from __future__ import annotations

import os
import sys

from cyclopts import App, CycloptsError

import recruiter
from recruiter.cli import analytics, dev, doctor, group, health, job, limit, prepare, scheduler, start, top, worker
from recruiter.errors import ApplicationError, InvalidFilter, RecruiterError, SettingsError, StoreError

app = App(
    name="recruiter",
    help="The job queue and scheduler for Python people who already run MongoDB.",
    version=recruiter.__version__,
)
app.command(start.app)
app.command(job.app)
app.command(scheduler.app)
app.command(worker.app)
app.command(group.app)
app.command(limit.app)
app.command(analytics.analytics)
app.command(top.top)
app.command(dev.dev)
app.command(doctor.doctor)
app.command(health.health_, name="health")
app.command(prepare.prepare)


def main() -> None:
    """Exit codes: 0 fine, 1 error, 2 usage, 3 the application cannot be loaded, 4 MongoDB cannot be used."""
    try:
        code = app(sys.argv[1:], exit_on_error=False, result_action="return_int_as_exit_code_else_zero")
        sys.exit(code)
    except CycloptsError:
        sys.exit(2)  # said already
    except RecruiterError as error:
        print(f"recruiter: {error}", file=sys.stderr)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read this has seen enough, as in `recruiter job list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def exit_code(error: RecruiterError) -> int:
    match error:
        case SettingsError() | InvalidFilter():
            return 2
        case ApplicationError():
            return 3
        case StoreError():
            return 4
        case _:
            return 1


if __name__ == "__main__":
    main()
