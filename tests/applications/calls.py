"""A program that runs jobs in its own process: `calls.py run|run_all|watch TASK`. Prints what became of them."""

from __future__ import annotations

import sys

# By the name that the fleet knows it by: this program runs beside it, from the same folder.
from jobs import recruiter  # type: ignore[import-not-found,unused-ignore]

from recruiter.log import LogOptions, configure, log_events


def main(way: str, task: str) -> None:
    configure(LogOptions("debug", "text", "caller"))
    recruiter.listen(log_events("caller"))
    answer = getattr(recruiter, way)(task)
    for report in answer if isinstance(answer, list) else [answer]:
        print(report, flush=True)
    print("came back", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
