"""Takes screenshots of every page of the web console, in light and dark, with real jobs of a real fleet.

    python docs/_site/pictures.py [--folder docs/pictures]

Needs chromium and the requirements of the tests. Takes about five minutes.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from recruiter.embedded import EmbeddedServer  # noqa: E402
from tests.web.conftest import FLAGS, chromium  # noqa: E402
from tests.web.world import APPLICATION, World, fill, world  # noqa: E402

WIDE, PHONE = (1280, 800), (390, 800)
CONSOLE: dict[str, Any] = {"actions": True, "title": "shop@prod"}
SETTLED = 3_500
"""Milliseconds until charts are drawn and the first update has arrived."""


def places(shop: World, ids: dict[str, str]) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Name, address and size of each picture."""
    late = shop.recruiter.jobs.list(state="failed", error="TimeoutError", limit=1, minimal=True)
    failed = late.jobs[0].id
    for name, place in {
        "overview": "?within=15m",
        "jobs": f"jobs?state=failed&limit=14&open={failed}",
        "job-running": f"job?id={ids['running']}",
        "job-failed": f"job?id={failed}",
        "job-retried": f"job?id={ids['retried']}",
        "tasks": "tasks?within=15m",
        "flows": "flows",
        "flow": f"flow?id={ids['flow']}",
        "schedules": "schedules",
        "workers": "workers",
        "groups": "groups",
        "problems": "problems",
    }.items():
        yield name, place, WIDE
    yield "phone-overview", "?within=15m", PHONE
    yield "phone-flow", f"flow?id={ids['flow']}", PHONE
    yield "phone-jobs", "jobs?state=failed", PHONE
    yield "phone-job", f"job?id={failed}", PHONE


def a_busy_quarter(shop: World) -> None:
    """Creates a few minutes of traffic for the charts."""
    until = time.monotonic() + 150
    number = 1000
    while time.monotonic() < until:
        for _ in range(20 + number % 37):
            number += 1
            shop.recruiter.job("charge", {"order": number, "amount": 12.5, "card_token": "tok_1"}).enqueue()
            if number % 3 == 0:
                shop.recruiter.job("resize", {"picture": f"cat-{number}.jpg", "width": 640}).enqueue()
        time.sleep(1)


def some_flows(shop: World, showcase: Any) -> str:
    """Starts three flows: one ends, one fails, one keeps running. Returns the id of the last."""
    recruiter, gate = shop.recruiter, shop.folder / "reached"
    gate.write_text("0.45")
    for name, order in (("checkout 4217", 1), ("checkout 4218", 4)):  # the second card is refused
        flow = recruiter.flow(name, owner="ada")
        paid = flow.add(showcase.charge, order, 19.9)
        flow.add(showcase.resize, f"invoice-{order}.png", 640, after=paid)
        flow.start()
    flow = recruiter.flow("catalogue of spring", owner="grace")
    original = flow.add(showcase.resize, "cover.jpg", 4096)
    sizes = [flow.add(showcase.resize, "cover.jpg", 64 * number, after=original) for number in range(1, 25)]
    proof = flow.add(showcase.climb, str(gate), after=original)
    printed = flow.add(showcase.resize, "catalogue.pdf", 2048, after=[*sizes, proof])
    flow.add(showcase.send_newsletter, "readers@shop.example", 13, after=printed)
    flow.add(showcase.daily_report, after=printed)
    handle = flow.start()
    shop.until(lambda: any(step.state == "running" for step in handle.steps()))
    return str(handle.id)


def take(browser: Browser, shop: World, ids: dict[str, str], folder: Path, only: list[str]) -> None:
    for scheme in ("light", "dark"):
        for name, place, (width, height) in places(shop, ids):
            if only and name not in only:
                continue
            size = {"width": width, "height": height}
            scale = 2 if width < 500 else 1
            context = browser.new_context(
                viewport=size,  # type: ignore[arg-type]
                color_scheme=scheme,
                device_scale_factor=scale,
                timezone_id="Europe/London",  # a schedule of the showcase has another zone
            )
            page = context.new_page()
            page.goto(shop.url + place)
            page.wait_for_timeout(SETTLED)
            page.screenshot(path=folder / f"console-{name}-{scheme}.png")
            context.close()
            print(f"console-{name}-{scheme}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--quick", action="store_true", help="skip the minutes of traffic")
    parser.add_argument("--only", nargs="*", default=[], help="take only these pictures: overview, flow, phone-job, …")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        # Tracebacks contain the path of the application, so a copy hides the path of this checkout.
        application = Path(shutil.copy(APPLICATION, Path(folder, "shop.py")))
        sys.path.insert(0, folder)
        showcase = importlib.import_module("shop")
        uri = server.uri.replace("/?", "/shop?")
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        everything = world(
            uri, Path(folder), processes=4, application=application, recruiter=showcase.recruiter, **CONSOLE
        )
        with everything as shop:
            if not given.quick:
                a_busy_quarter(shop)
            ids = fill(shop, 60)
            for urn in ("report:daily", "stock:sync", "invoices:remind"):
                for _ in range(4):
                    shop.recruiter.scheduler(urn).run_now()
            ids["flow"] = some_flows(shop, showcase)
            take(browser, shop, ids, given.folder, given.only)
        browser.close()


if __name__ == "__main__":
    main()
