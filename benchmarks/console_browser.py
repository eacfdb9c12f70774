"""The cost of the web console in a browser: first load, a page of 50 jobs, and the heap after an hour's updates.

    python benchmarks/console_browser.py [--updates N]

An open page gets an update every two seconds at most: 1,800 updates per hour. Here they come as fast as
the console can send them: a producer enqueues all the time, and pages are read without rest. The heap, nodes and
listeners are counted after the garbage has been collected. Needs chromium.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from recruiter import Recruiter
from recruiter.embedded import EmbeddedServer
from recruiter.web import dashboard, live, pages
from recruiter.web.server import served
from tests.web.conftest import FLAGS, chromium

PLACES = ("", "jobs", "flows", "schedules", "workers", "groups", "problems", "help")
WATCHED = {"overview": "?within=1h", "jobs": "jobs"}
COUNTS = (
    """() => { window.updates = 0; document.addEventListener("recruiter:content", () => { window.updates += 1; }); }"""
)
DRAWN = """() => { const html = document.getElementById("content").outerHTML, times = [];
    for (let n = 0; n < 20; n++) {
      const place = document.createElement("div"), began = performance.now();
      place.innerHTML = html; document.getElementById("main").append(place); place.getBoundingClientRect();
      times.push(performance.now() - began); place.remove(); }
    return times.sort((a, b) => a - b)[10]; }"""


def first_load(browser: Browser, url: str) -> tuple[float, int]:
    """Kilobytes over the wire, and requests, of a browser that has never been here."""
    context = browser.new_context()
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    sizes: dict[str, float] = {}
    asked: list[str] = []
    session.on("Network.loadingFinished", lambda event: sizes.update({event["requestId"]: event["encodedDataLength"]}))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url, wait_until="load")
    page.wait_for_timeout(1000)
    context.close()
    return sum(sizes.values()) / 1024, len(asked)


def in_use(session: CDPSession) -> tuple[float, dict[str, Any]]:
    """MiB of the heap, and how many nodes and listeners there are."""
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    return session.send("Runtime.getHeapUsage")["usedSize"] / 2**20, session.send("Memory.getDOMCounters")


def watched(browser: Browser, url: str, updates: int) -> None:
    context = browser.new_context(bypass_csp=True)  # its own policy would not let it be asked
    page = context.new_page()
    session = context.new_cdp_session(page)
    page.goto(url)
    page.evaluate(COUNTS)
    began = time.monotonic()
    for wanted in (updates // 10, updates // 2, updates):
        page.wait_for_function(f"window.updates >= {wanted}", timeout=1_000_000)
        heap, dom = in_use(session)
        print(
            f"{page.evaluate('window.updates'):9,} {heap:9.2f} {dom['nodes']:9,} {dom['jsEventListeners']:9,}"
            f" {time.monotonic() - began:9.0f}",
            flush=True,
        )
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1_800)
    updates = parser.parse_args().updates
    with EmbeddedServer() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        with Recruiter(server.uri.replace("/?", "/browser?")) as recruiter:
            for number in range(60):
                recruiter.job("resize", {"picture": f"cat-{number}.jpg", "width": 640}).enqueue()
            with served(dashboard(recruiter, access=lambda: "ada", actions=True)) as address:
                print(f"{'page':12} {'KB':>6} {'requests':>9}")
                for place in PLACES:
                    kilobytes, requests = first_load(browser, address + place)
                    print(f"{place or 'overview':12} {kilobytes:6.1f} {requests:9}", flush=True)
                page = browser.new_page()
                page.goto(f"{address}jobs")
                print(f"\n50 jobs are laid out in {page.evaluate(DRAWN):.1f} ms, the median of 20")
                page.close()
            live.REST = 0
            for name in WATCHED:
                pages.PAGES[name] = replace(pages.PAGES[name], period=0.02)
            over = threading.Event()
            producer = threading.Thread(target=_produce, args=(recruiter, over))
            producer.start()
            try:
                with served(dashboard(recruiter, access=lambda: "ada", actions=True)) as address:
                    print(f"\n{'updates':>9} {'heap MiB':>9} {'nodes':>9} {'listeners':>9} {'seconds':>9}")
                    for place in WATCHED.values():
                        watched(browser, address + place, updates)
            finally:
                over.set()
                producer.join()
        browser.close()


def _produce(recruiter: Recruiter, over: threading.Event) -> None:
    while not over.wait(0.02):
        recruiter.job("resize", {"picture": "cat.jpg", "width": 640}).enqueue()


if __name__ == "__main__":
    main()
