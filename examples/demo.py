"""`make demo`: real jobs on a private MongoDB, in real processes, and a table of what happened."""

import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

import shop

from recruiter import ArchivedJob, JobHandle
from recruiter.embedded import EmbeddedServer

SHOP = str(Path(shop.__file__))
console = Console(highlight=False)


def main() -> int:
    console.print("Starting a private MongoDB, a recruiter, a worker and a cleaner …")
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        target = server.uri.replace("/?", "/demo?")
        shop.recruiter.point_at(target)
        fleet = subprocess.Popen(
            [sys.executable, "-m", "recruiter.cli.main", "start", "all", "--bootstrap", SHOP, "--processes", "2"],
            env={**os.environ, "RECRUITER_TARGET": target, "RECRUITER_LOG_LEVEL": "error"},
        )
        try:
            rows = run_jobs(Path(folder))
        finally:
            fleet.terminate()
            fleet.wait()
        show(rows)
        shop.recruiter.close()
    return 0


def run_jobs(folder: Path) -> list[tuple[str, ArchivedJob]]:
    store = shop.recruiter.store
    while not any(worker.ready for worker in store.roster.read()):
        time.sleep(0.05)
    jobs: dict[str, JobHandle[Any]] = {}
    jobs["a job"] = shop.send_welcome.enqueue("ada@example.org", "Ada")
    jobs["a coroutine"] = shop.resize.enqueue("cat.png", 640)
    jobs["a workable"] = (
        shop.HttpRequest("https://example.org", {"a": 1}).as_job_of(shop.recruiter).in_background().execute()
    )
    jobs["another method"] = (
        shop.HttpRequest("https://example.org", {}).as_job_of(shop.recruiter).in_background().ping()
    )
    jobs["retried"] = shop.charge.enqueue(7, 12.5, str(folder / "bank"))
    jobs["in two seconds"] = shop.remind.job("Bob").schedule_in("2 seconds").enqueue()
    jobs["takes a second"] = shop.build_report.enqueue(1.0)
    jobs["fails for good"] = shop.divide.enqueue(1, 0)
    jobs["kills its process"] = shop.crash.enqueue()
    jobs["cancelled"] = shop.remind.job("Eve").schedule_in("1 hour").enqueue()
    shop.recruiter.cancel(jobs["cancelled"].id, by="demo", reason="Eve was faster")
    started = time.monotonic()
    shop.resize.enqueue_many([(f"{number}.png", 100) for number in range(2000)])
    rows = [(title, handle.wait(timeout="60s")) for title, handle in jobs.items()]
    rows.append(("every second", last_of("stock")))
    while store.archived.collection.count_documents({"task": "resize"}) < 2000:
        time.sleep(0.05)
    console.print(f"… 2,000 quick jobs ran meanwhile, within {time.monotonic() - started:.1f} s.\n")
    return rows


def last_of(urn: str) -> ArchivedJob:
    """The occurrence of a repeated job that ended last."""
    while (last := shop.recruiter.scheduler(urn).last()) is None:
        time.sleep(0.05)
    return last


def show(rows: list[tuple[str, ArchivedJob]]) -> None:
    table = Table(title="What happened", title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("job", no_wrap=True)
    table.add_column("runs", justify="right")
    table.add_column("after", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("result or failure", overflow="fold")
    for title, ended in rows:
        last = ended.last_execution
        waited = last.started_at - ended.created_at if last and last.started_at else None
        told = (last.message if last and last.message else ended.reason) or ""
        table.add_row(
            title,
            str(len(ended.executions)),
            f"{waited / timedelta(milliseconds=1):,.0f} ms" if waited is not None else "",
            f"[{'green' if ended.done else 'red'}]{ended.state}[/]",
            str(ended.result) if ended.done else f"{ended.why}: {told}",
        )
    console.print(table)
    console.print("The collection `recruiter.archived` keeps all of them, with arguments, times and tracebacks.")


if __name__ == "__main__":
    sys.exit(main())
