"""The console in a real browser, with real data from a real fleet."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from http import HTTPStatus
from itertools import product
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import HTTPException

from recruiter import Recruiter
from recruiter.domain.statistics import Depth
from recruiter.web import dashboard
from recruiter.web.access import BasicAuth, LocalToken
from recruiter.web.server import served
from tests.applications import showcase
from tests.conftest import eventually
from tests.web.world import World

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

PAGES = {
    "overview": "",
    "jobs": "jobs?limit=8",
    "nothing": "jobs?task=no_such_task",
    "tasks": "tasks",
    "schedules": "schedules",
    "flows": "flows",
    "workers": "workers",
    "groups": "groups",
    "problems": "problems",
    "help": "help",
}
SECONDS = 1000
pytestmark = pytest.mark.timeout(180)


class Watched:
    """A browser that remembers what its pages complained about, and which hosts they asked."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.complaints: list[str] = []
        self.requests: list[str] = []
        context.on("console", lambda said: self._note(said.type, said.text))
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        context.on("request", lambda request: self.requests.append(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def open(self, place: str) -> Page:
        page = self.context.new_page()
        page.goto(self.url + place)
        return page


@pytest.fixture
def watched(browser: Browser, shop: World) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, timezone_id="Europe/Rome")
    context.set_default_timeout(20 * SECONDS)
    made = Watched(context, shop.url)
    yield made
    context.close()
    assert made.complaints == [], "a page complained"
    assert {url.partition("/")[0] for url in made.requests} <= {"http:"}
    assert all(url.startswith(shop.url) for url in made.requests), "a page asked another host"


def expect(seen: Any) -> Any:
    from playwright.sync_api import expect as promised  # noqa: PLC0415 - half a second for each who collects

    return promised(seen)


@pytest.fixture
def nothing_stays_paused(shop: World) -> Iterator[None]:
    yield
    controls = shop.recruiter.controls
    controls.allow_starts()
    for group in ("billing", "images", "reports"):
        controls.resume_group(group)


def rows(page: Page) -> Any:
    return page.locator("#rows tr[data-row]")


class TestPages:
    def test_the_overview_says_what_is_the_matter_with_numbers_and_charts(
        self, watched: Watched, filled: dict[str, str]
    ) -> None:
        del filled
        page = watched.open("")
        expect(page.locator("#sentence")).to_contain_text("41 jobs of group mail wait: group mail is paused by ada")
        expect(page.locator("#sentence")).to_contain_text("the mail server is down")
        expect(page.locator(".chart canvas")).to_have_count(3)
        expect(page.get_by_role("link", name="mail / send_newsletter")).to_be_visible()
        expect(page.get_by_role("link", name="showcase.CardRefused")).to_be_visible()
        expect(page.locator(".figures")).to_contain_text("failed")

    def test_each_of_the_four_figures_has_its_line_and_its_meaning(
        self, watched: Watched, shop: World, filled: dict[str, str]
    ) -> None:
        del filled
        now = shop.recruiter.store.clock.now()
        for minutes in range(12):
            shop.recruiter.store.queues.sample(Depth(now - timedelta(minutes=minutes), 40 + minutes, 1, 3))
        page = watched.open("?within=15m")
        expect(page.locator(".figure .spark path")).to_have_count(4)
        due = page.locator(".figure .term").first
        expect(due).to_have_attribute("title", re.compile("no worker holds"))
        due.click()
        expect(page).to_have_url(re.compile("help#due$"))
        expect(page.locator("#due")).to_be_in_viewport()

    def test_on_a_phone_the_menu_folds(self, browser: Browser, shop: World) -> None:
        page = browser.new_page(viewport={"width": 375, "height": 800})
        page.goto(f"{shop.url}workers")
        menu, schedules = page.locator(".fold"), page.locator("header nav").get_by_role("link", name="Schedules")
        expect(menu).to_contain_text("Workers")
        expect(schedules).to_be_hidden()
        menu.click()
        schedules.click()
        expect(page).to_have_url(re.compile("schedules$"))
        expect(page.locator("header nav")).to_be_hidden()
        page.set_viewport_size({"width": 1440, "height": 900})
        expect(menu).to_be_hidden()
        expect(schedules).to_be_visible()
        page.close()

    def test_an_error_leads_to_its_jobs(self, watched: Watched, filled: dict[str, str]) -> None:
        del filled
        page = watched.open("")
        page.get_by_role("link", name="showcase.CardRefused").click()
        expect(rows(page).first).to_contain_text("the bank refused")
        assert all("CardRefused" in text for text in rows(page).all_text_contents())

    def test_a_running_job_has_its_progress_log_and_life(self, watched: Watched, filled: dict[str, str]) -> None:
        page = watched.open(f"job?id={filled['running']}")
        expect(page.locator("#sentence")).to_contain_text("running on")
        expect(page.locator(".log")).to_contain_text("reads of mouse-7")
        page.locator("#find").fill("chunk 3 of")
        page.locator("#find").press("Enter")
        expect(page.locator(".log li")).to_have_count(1)
        page.go_back()
        at_its_end = "list => list.scrollTop + list.clientHeight >= list.scrollHeight - 24"
        eventually(lambda: page.locator(".log").evaluate(at_its_end))  # its newest line can be seen
        expect(page.locator(".timeline rect")).not_to_have_count(0)
        expect(page.locator(".life")).to_contain_text("attempt 1 runs")

    def test_a_job_that_waits_says_for_what(self, watched: Watched, filled: dict[str, str]) -> None:
        page = watched.open(f"job?id={filled['behind']}")
        expect(page.locator("#sentence")).to_contain_text("task align is at its limit of 1")

    def test_a_failed_job_has_its_traceback_with_libraries_folded(
        self, watched: Watched, filled: dict[str, str]
    ) -> None:
        del filled
        page = watched.open("jobs?state=failed&task=charge")
        rows(page).first.locator(".task a").click()
        expect(page.locator(".attempt")).to_contain_text("CardRefused")
        expect(page.locator(".trace")).to_contain_text("showcase.py")
        page.locator(".tabs").get_by_role("link", name="arguments").click()
        page.locator(".timeline a").last.click()  # a part of its life leads to what happened then
        expect(page).to_have_url(re.compile("#attempt-1$"))
        expect(page.locator("#attempt-1")).to_be_in_viewport()
        page = watched.open("jobs?state=failed&error=TimeoutError&task=charge")
        rows(page).first.locator(".task a").click()
        folded = page.locator(".trace details")
        expect(folded).to_contain_text("frame")
        expect(folded.locator("pre")).to_be_hidden()
        folded.locator("summary").click()
        expect(folded.locator("pre")).to_contain_text("futures")

    def test_workers_show_their_slots(self, watched: Watched, filled: dict[str, str]) -> None:
        del filled
        page = watched.open("workers")
        expect(page.locator("#sentence")).to_contain_text("1 worker on 1 host")
        expect(page.locator(".slots .busy")).to_contain_text("align")
        expect(page.locator(".slots .idle")).to_have_count(2)

    def test_groups_have_their_pause_and_limits_their_use(self, watched: Watched, filled: dict[str, str]) -> None:
        page = watched.open("groups")
        expect(page.locator("#sentence")).to_contain_text("paused by ada")
        limit = page.locator("tr", has_text="task:align")
        expect(limit).to_contain_text("1 of 1")
        expect(limit.get_by_role("link", name=filled["running"])).to_be_visible()

    def test_schedules_have_their_next_run_here_and_there(self, watched: Watched, filled: dict[str, str]) -> None:
        del filled
        page = watched.open("schedules")
        daily = page.locator("tr", has_text="report:daily")
        expect(daily).to_contain_text("Europe/Rome")
        expect(daily).to_contain_text("06:00 there")
        expect(daily.locator("time").first).to_contain_text("in ")

    def test_the_ruler_of_schedules_has_every_sixth_hour_of_the_viewer(
        self, watched: Watched, filled: dict[str, str]
    ) -> None:
        """At 23:50 in Rome, midnight is too near to the edge."""
        del filled
        page = watched.open("schedules")
        page.locator("#live").click()
        page.evaluate("document.querySelector('[data-hours]').dataset.hours = '2026-11-19T22:50:00Z'")
        marks = page.locator("[data-hours] text")
        eventually(lambda: [text for text in marks.all_text_contents() if text] == ["06:00", "12:00", "18:00"])

    def test_a_flow_is_drawn_and_seen_to_succeed(self, watched: Watched, shop: World) -> None:
        gate, flow = shop.folder / "flow", shop.recruiter.flow("thumbnails")
        flow.add(showcase.resize, "cat.jpg", 1, after=flow.add(showcase.climb, str(gate)))
        flow.start()
        page = watched.open("flows")
        page.get_by_role("link", name="thumbnails").click()
        expect(page.locator("svg .box")).to_have_count(2)
        expect(page.locator("#sentence")).to_contain_text("2 steps:")
        gate.write_text("1")
        expect(page.locator("#sentence")).to_contain_text("2 steps: 2 succeeded.")

    def test_problems_say_what_to_do_and_what_was_set_aside(self, watched: Watched, filled: dict[str, str]) -> None:
        del filled
        page = watched.open("problems")
        expect(page.locator(".findings .todo").first).to_contain_text("→")
        expect(page.locator("table", has_text="task must be one text")).to_be_visible()
        page.locator("table a.mono").first.click()
        expect(page.locator("#document")).to_contain_text('"task": 42')

    def test_the_document_of_a_job_that_is_none_is_a_page_that_says_so(self, browser: Browser, shop: World) -> None:
        page = browser.new_page()
        answer = page.goto(f"{shop.url}job?id=nowhere")
        assert answer is not None
        assert answer.status == 404
        expect(page.locator("#sentence")).to_contain_text("there is no job")
        page.close()

    def test_times_are_in_the_viewers_zone_and_exact_on_hover(self, watched: Watched, filled: dict[str, str]) -> None:
        page = watched.open(f"job?id={filled['running']}")
        expect(page.locator("#zone")).to_contain_text("Europe/Rome")
        title = page.locator("dd time").first.get_attribute("title") or ""
        assert "Europe/Rome" in title
        assert title.endswith("Z")


class TestTheUrlIsTheState:
    def test_filter_page_and_back(self, watched: Watched, filled: dict[str, str]) -> None:
        del filled
        page = watched.open("jobs")
        page.locator("#filter").fill("state:succeeded task:charge")
        page.locator("#filter").press("Enter")
        expect(page.locator(".box:has(#filter) .chips li")).to_have_count(2)  # inside the box
        assert page.url.endswith("jobs?state=succeeded&task=charge")
        first = rows(page).first.get_attribute("id")
        page.get_by_role("link", name="Next page").click()
        expect(page.locator("#sentence")).to_contain_text("further on")
        assert "after=" in page.url
        assert rows(page).first.get_attribute("id") != first
        page.go_back()
        expect(rows(page).first).to_have_attribute("id", first or "")
        page.get_by_label("Remove the condition task:charge").click()
        expect(page.locator(".chips li")).to_have_count(1)
        assert page.url.endswith("jobs?state=succeeded")

    def test_a_row_opens_in_place_and_a_reload_keeps_it_open(self, watched: Watched, filled: dict[str, str]) -> None:
        del filled
        page = watched.open("jobs?state=failed&task=charge")
        rows(page).nth(1).locator(".opens").click()
        expect(page.locator("#inside")).to_contain_text("Everything about job")
        assert "open=" in page.url
        page.reload()
        expect(page.locator("#inside")).to_be_visible()
        page.go_back()
        expect(page.locator("#inside")).to_have_count(0)

    def test_tabs_have_counts_that_come_after_the_list(
        self, watched: Watched, shop: World, filled: dict[str, str]
    ) -> None:
        del filled

        def counted() -> int:
            return shop.recruiter.jobs.count(state="queued").number

        def shown() -> int:
            count = watched.open("jobs").locator('[data-count="queued"]')
            expect(count).to_have_text(re.compile(r"^\d+$"))
            return int(count.inner_text())

        eventually(lambda: counted() == shown() == counted() >= 42, within=30.0)  # others come and go meanwhile

    def test_an_id_in_the_search_leads_to_its_job(self, watched: Watched, filled: dict[str, str]) -> None:
        page = watched.open("")
        page.locator(".search input").fill(filled["running"])
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text(filled["running"])

    def test_conditions_and_names_are_completed_while_they_are_typed(
        self, watched: Watched, filled: dict[str, str]
    ) -> None:
        del filled
        page = watched.open("jobs")
        box, options = page.locator("#filter"), page.get_by_role("option")
        box.press_sequentially("stat")
        expect(options).to_have_text(["state:"])
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(box).to_have_value("state:")
        expect(options.first).to_be_visible()  # the values of this condition
        box.press_sequentially("fai")
        expect(options).to_have_text(["state:failed"])
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Tab")
        expect(box).to_have_value("state:failed ")
        box.press_sequentially("Card")
        options.filter(has_text="CardRefused").click()
        expect(box).to_have_value("state:failed error:showcase.CardRefused ")
        expect(options).to_have_count(0)
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"jobs\?state=failed&error=showcase.CardRefused$"))

    def test_a_misspelled_task_says_what_is_near(self, watched: Watched, filled: dict[str, str]) -> None:
        del filled
        page = watched.open("jobs?task=chrage")
        expect(page.locator(".hint")).to_contain_text("charge")


class TestLive:
    def test_progress_moves_and_the_end_is_seen_without_a_reload(self, watched: Watched, shop: World) -> None:
        gate = shop.folder / "climb"
        id = shop.enqueue("climb", gate=str(gate))
        shop.until(lambda: shop.state(id) == "running")
        page = watched.open(f"job?id={id}")
        mark = page.evaluate("window.mark = Math.random()")
        for reached in (0.25, 0.5, 0.75):
            gate.write_text(str(reached))
            expect(page.locator(".progress")).to_contain_text(f"{reached:.0%}".replace("%", " %"))
        expect(page.locator(".log")).to_contain_text("reached 0.75")
        gate.write_text("1")
        expect(page.locator("#sentence .state")).to_contain_text("succeeded")
        assert page.evaluate("window.mark") == mark, "the page was not reloaded"

    def test_cancel_a_running_job_and_see_it_end(self, watched: Watched, shop: World) -> None:
        id = shop.enqueue("climb", gate=str(shop.folder / "never"))
        shop.until(lambda: shop.state(id) == "running")
        page = watched.open(f"job?id={id}")
        page.get_by_role("link", name="Cancel", exact=True).click()
        expect(page.locator(".ask")).to_contain_text(f"Cancel job {id}?")
        page.locator(".ask input[name=reason]").fill("it goes nowhere")
        page.locator(".ask button").click()
        expect(page.locator(".done")).to_contain_text("is being cancelled")
        expect(page.locator("#sentence .state")).to_contain_text("cancelled")
        expect(page.locator("#sentence")).to_contain_text("cancelled")
        assert shop.state(id) == "cancelled"
        deeds = watched.open("problems").locator("table", has_text="it goes nowhere")
        expect(deeds).to_contain_text("a local user")
        expect(deeds).to_contain_text(f"job {id}")

    def test_a_list_does_not_jump_but_counts_what_is_new(self, watched: Watched, shop: World) -> None:
        shop.until(lambda: shop.state(shop.enqueue("resize", picture="a.jpg", width=1)) or True)
        page = watched.open("jobs?task=resize")
        before = rows(page).count()
        first = rows(page).first.get_attribute("id")
        for _ in range(3):
            shop.enqueue("resize", picture="b.jpg", width=2)
        expect(page.locator("#new a")).to_have_text("3 new")
        assert rows(page).first.get_attribute("id") == first
        assert rows(page).count() == before
        badge = page.locator("#new").bounding_box()
        boxes = page.locator(".tabs > a, .filter button, .bulk button, #rows a").evaluate_all(
            "all => all.map((e) => e.getBoundingClientRect()).map((box) => [box.left, box.top, box.right, box.bottom])"
        )
        assert badge is not None
        for left, top, right, bottom in boxes:
            is_beside = left >= badge["x"] + badge["width"] or right <= badge["x"]
            assert is_beside or top >= badge["y"] + badge["height"] or bottom <= badge["y"], (
                "the badge covers a control"
            )
        page.locator("#new a").click()
        expect(page.locator("#new")).to_be_hidden()
        expect(rows(page).first).to_contain_text("b.jpg")

    def test_nothing_changes_under_a_selection_or_a_pause(self, watched: Watched, shop: World) -> None:
        gate = shop.folder / "held"
        gate.write_text("0.2")
        id = shop.enqueue("climb", gate=str(gate))
        shop.until(lambda: shop.state(id) == "running")
        page = watched.open(f"job?id={id}")
        expect(page.locator(".progress")).to_contain_text("20 %")
        page.evaluate("getSelection().selectAllChildren(document.querySelector('#sentence'))")
        gate.write_text("0.4")
        shop.until(lambda: shop.recruiter.find(shop.recruiter.jobs.id_of(id)).progress == 0.4)
        page.wait_for_timeout(2500)
        expect(page.locator(".progress")).to_contain_text("20 %")
        page.evaluate("getSelection().removeAllRanges()")
        expect(page.locator(".progress")).to_contain_text("40 %")
        page.locator("#live").click()
        expect(page.locator("#live-text")).to_have_text("paused")
        gate.write_text("1")
        shop.until(lambda: shop.state(id) == "succeeded")
        expect(page.locator(".progress")).to_contain_text("40 %")
        page.locator("#live").click()
        expect(page.locator("#sentence .state")).to_contain_text("succeeded")

    def test_a_stream_that_is_lost_is_said_and_since_when(self, browser: Browser, shop: World) -> None:
        context = browser.new_context()
        page = context.new_page()
        with served(dashboard(shop.recruiter, access=lambda: "ada")) as address:
            page.goto(f"{address}workers")
            expect(page.locator("#live-text")).to_have_text("live")
            expect(page.locator("#lost")).to_be_hidden()
        expect(page.locator("#lost")).to_contain_text(re.compile(r"What you see is from \d\d:\d\d:\d\d"))
        expect(page.locator("#live-text")).to_have_text("lost")
        context.close()


class TestActions:
    def test_pause_a_group_with_a_reason_and_take_it_back(self, watched: Watched, shop: World) -> None:
        shop.until(lambda: shop.state(shop.enqueue("resize", picture="c.jpg", width=1)) or True)
        page = watched.open("groups")
        page.locator("tr[id^=g-]", has_text="images").get_by_role("link", name="Pause").click()
        page.locator(".ask input[name=reason]").fill("the disk is full")
        page.keyboard.press("Enter")
        expect(page.locator(".done")).to_contain_text("Group images is paused")
        expect(page.locator("tr[id^=g-]", has_text="images")).to_contain_text("paused by a local user")
        expect(page.locator("tr[id^=g-]", has_text="images")).to_contain_text("the disk is full")
        page.get_by_role("link", name="Take it back").click()
        page.locator(".ask button").click()
        expect(page.locator(".done")).to_contain_text("is resumed")
        assert "group:images" not in shop.recruiter.controls.rules().paused

    def test_a_question_answers_from_the_moment_it_is_there(self, watched: Watched, shop: World) -> None:
        id = shop.enqueue("resize", picture="d.jpg", width=1)
        shop.until(lambda: shop.state(id) == "succeeded")
        page = watched.open(f"job?id={id}")
        page.evaluate(
            """() => new MutationObserver((_, seen) => {
                const button = document.querySelector("#panel .ask button");
                if (button) { seen.disconnect(); button.click(); }
            }).observe(document.getElementById("panel"), { childList: true, subtree: true })"""
        )
        page.get_by_role("link", name="Remove").click()
        expect(page.locator(".done")).to_contain_text("removed")
        assert "/do" not in page.url, "the answer opened a page of its own"

    def test_escape_and_no_return_to_the_button_that_asked(self, watched: Watched, filled: dict[str, str]) -> None:
        page = watched.open(f"job?id={filled['behind']}")
        cancel = page.get_by_role("link", name="Cancel", exact=True)
        cancel.focus()
        page.keyboard.press("Enter")
        expect(page.locator(".ask input[name=reason]")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator(".ask")).to_have_count(0)
        expect(cancel).to_be_focused()
        page.keyboard.press("Enter")
        page.locator(".ask").get_by_role("link", name="No", exact=True).click()
        expect(cancel).to_be_focused()

    def test_recover_chosen_jobs_after_a_question_that_counts_them(
        self, watched: Watched, shop: World, filled: dict[str, str]
    ) -> None:
        del filled
        before = shop.recruiter.jobs.count(task="charge").number
        page = watched.open("jobs?state=failed&task=charge")
        for number in (0, 1):
            rows(page).nth(number).locator("input").check()
        page.get_by_role("button", name="Recover chosen").click()
        expect(page.locator(".ask")).to_contain_text("Recover 2 jobs?")
        page.get_by_role("link", name="No", exact=True).click()
        expect(page.locator(".ask")).to_have_count(0)
        assert shop.recruiter.jobs.count(task="charge").number == before
        page.get_by_role("button", name="Recover chosen").click()
        page.locator(".ask button").click()
        expect(page.locator(".done")).to_contain_text("2 jobs are recovered")
        # a job that ends while jobs are counted may be counted twice: where it ran, and where it is now
        eventually(lambda: shop.recruiter.jobs.count(task="charge").number == before + 2)

    def test_remove_all_of_a_filter(self, watched: Watched, shop: World, filled: dict[str, str]) -> None:
        del filled
        page = watched.open("jobs?state=failed&error=TimeoutError")
        count = shop.recruiter.jobs.count(state="failed", error="TimeoutError").number
        assert count
        page.locator("#all").check()
        page.locator(".bulk").get_by_role("link", name="remove").click()
        expect(page.locator(".ask")).to_contain_text(f"Remove {count} job")
        page.locator(".ask button").click()
        expect(page.locator(".done")).to_contain_text("removed")
        assert shop.recruiter.jobs.count(state="failed", error="TimeoutError").number == 0

    def test_a_postponed_job_is_rescheduled_given_a_priority_and_run_by_buttons(
        self, watched: Watched, shop: World
    ) -> None:
        job = shop.recruiter.job("charge", {"order": 2, "amount": 5.0}).schedule_in("3 hours").enqueue()
        page = watched.open(f"job?id={job.id}")
        for name, value, outcome in (
            ("Reprioritise", "7", "The job has priority 7."),
            ("Reschedule", "5h", "The job is rescheduled for"),
        ):
            page.locator(".acts").get_by_role("link", name=name).click()
            page.locator(".ask input[name=to]").fill(value)
            page.locator(".ask button").click()
            expect(page.locator(".done")).to_contain_text(outcome)
        page.locator(".acts").get_by_role("link", name="Run now").click()
        page.locator(".ask button").click()
        expect(page.locator(".state.s-succeeded").first).to_be_visible()

    def test_run_a_schedule_now_and_set_a_limit(self, watched: Watched) -> None:
        page = watched.open("schedules")
        page.locator("tr", has_text="stock:sync").get_by_role("link", name="Run now").click()
        page.locator(".ask button").click()
        page.locator(".done a.id").click()
        expect(page.locator("#sentence .state")).to_contain_text("succeeded")
        page = watched.open("groups")
        page.locator("#set input[name=name]").fill("task:resize")
        page.locator("#set input[name=at_once]").fill("3")
        page.locator("#set button").click()
        page.locator(".ask button").click()
        expect(page.locator(".done")).to_contain_text("task:resize is limited to 3 at once")
        expect(page.locator("table", has_text="task:resize")).to_contain_text("0 of 3")

    def test_drain_a_worker_and_resume_it(self, watched: Watched) -> None:
        page = watched.open("workers")
        page.get_by_role("link", name="Drain").click()
        page.locator(".ask button").click()
        expect(page.locator(".worker .state").first).to_have_text("drained")
        page.get_by_role("link", name="Resume").first.click()
        page.locator(".ask button").click()
        expect(page.locator(".worker .state").first).to_have_text("works")

    def test_without_javascript_everything_but_liveness_works(
        self, browser: Browser, shop: World, filled: dict[str, str]
    ) -> None:
        del filled
        context = browser.new_context(java_script_enabled=False)
        page = context.new_page()
        for place in PAGES.values():
            page.goto(shop.url + place)
            expect(page.locator("#sentence")).not_to_be_empty()
        page.goto(shop.url + "groups")
        page.locator("tr[id^=g-]", has_text="billing").get_by_role("link", name="Pause").click()
        page.locator("input[name=reason]").fill("no script")
        page.locator(".ask button").click()
        expect(page.locator(".done")).to_contain_text("Group billing is paused")
        page.get_by_role("link", name="Close").click()
        expect(page.locator("tr[id^=g-]", has_text="billing")).to_contain_text("no script")
        context.close()
        shop.recruiter.controls.resume_group("billing")


def slow_day(shop: World) -> str:
    """Many quick jobs of a task and one that has run for much longer; its id."""
    quick = shop.folder / "quick"
    quick.write_text("1")
    for _ in range(25):
        shop.enqueue("climb", gate=str(quick))
    shop.until(lambda: shop.recruiter.jobs.count(task="climb", state="succeeded").number >= 25)
    slow = shop.enqueue("climb", gate=str(shop.folder / "never"))
    shop.until(lambda: shop.state(slow) == "running")
    return slow


@pytest.mark.usefixtures("nothing_stays_paused")
class TestFlows:
    def test_steps_have_names_or_arguments_and_a_stack_leads_to_its_steps(self, watched: Watched, shop: World) -> None:
        flow = shop.recruiter.flow("covers", owner="eve")
        first = flow.add(showcase.resize, "cover.jpg", 1, name="original")
        for width in range(8):
            flow.add(showcase.resize, "cover.jpg", 100 + width, after=first)
        for picture in ("back.jpg", "spine.jpg"):
            flow.add(showcase.charge, 1, 2.0, picture, after=first)
        handle = flow.start()
        shop.until(lambda: all(step.state == "succeeded" for step in handle.steps()))
        page = watched.open(f"flow?id={handle.id}")
        expect(page.locator("svg .box", has_text="original")).to_have_count(1)
        page.locator("svg a", has_text="× 8").click()
        steps = page.locator("#steps tbody tr")
        expect(steps).to_have_count(8)
        expect(steps.first).to_contain_text("100")
        page.get_by_label("Steps by state").get_by_role("link", name="succeeded").click()
        expect(steps).to_have_count(11)

    def test_a_graph_fits_its_frame_and_grows_on_request(self, watched: Watched, shop: World) -> None:
        flow = shop.recruiter.flow("long")
        step = flow.add(showcase.resize, "a.jpg", 0)
        for width in range(1, 12):
            step = flow.add(showcase.resize, "a.jpg", width, after=step)
        page = watched.open(f"flow?id={flow.start().id}")
        frame, drawing = page.locator(".flow-graph"), page.locator(".flow-graph svg")

        def wide(locator: Any) -> float:
            return float(locator.bounding_box()["width"])

        page.get_by_role("button", name="fit").click()
        assert wide(drawing) <= wide(frame)
        fitted = wide(drawing)
        page.get_by_role("button", name="+").click()
        assert wide(drawing) == pytest.approx(fitted * 1.25, rel=0.01)

    def test_the_list_is_searched_and_turned_and_says_why_a_flow_waits(self, watched: Watched, shop: World) -> None:
        for _ in range(51):
            flow = shop.recruiter.flow("small", owner="zoe")
            flow.add(showcase.resize, "a.jpg", 1)
            flow.start()
        shop.recruiter.controls.pause_group("billing", by="ada", reason="audit")
        waiting = shop.recruiter.flow("invoices")
        waiting.add(showcase.charge, 1, 2.0)
        waiting.start()
        page = watched.open("flows")
        stuck = page.locator("tr", has_text="invoices")
        expect(stuck.locator(".why")).to_have_text("charge: group billing is paused")
        expect(page.locator("#sentence")).to_contain_text("invoices is at charge: group billing is paused")
        stuck.get_by_role("link", name="invoices").click()
        expect(page.locator("#sentence")).to_contain_text("It is at charge: group billing is paused")
        page.go_back()
        page.get_by_label("Name, owner or id").fill("zoe")
        page.keyboard.press("Enter")
        listed = page.locator("tr[id^=f-]")
        expect(listed).to_have_count(50)
        page.get_by_role("link", name="Next page").click()
        expect(listed).to_have_count(1)
        expect(listed.locator("time")).to_have_count(2)  # its begin and its end

    def test_a_flow_says_which_step_failed_and_does_not_blame_the_skipped_ones(
        self, watched: Watched, shop: World
    ) -> None:
        flow = shop.recruiter.flow("refused")
        flow.add(showcase.resize, "receipt.jpg", 1, after=flow.add(showcase.charge, 4, 13.0))
        handle = flow.start()
        shop.until(lambda: handle.report().state == "failed")
        page = watched.open("flows?state=failed&q=refused")
        expect(page.locator("td.why.problem")).to_contain_text("charge failed: showcase.CardRefused")
        page.get_by_role("link", name="refused").click()
        expect(page.locator("#sentence")).to_contain_text("1 failed, 1 skipped. charge failed")
        skipped = page.locator("#steps tr", has_text="resize")
        expect(skipped.locator(".state")).to_contain_text("skipped")
        expect(skipped.locator(".err")).to_have_count(0)
        expect(page.locator("svg .s-failed")).to_have_count(1)


class TestWorkersAndCharts:
    def test_a_worker_has_its_memory_and_version(self, watched: Watched) -> None:
        page = watched.open("workers")
        expect(page.locator(".worker .who")).to_contain_text(re.compile(r"Recruiter \d.* MiB, \d+ % CPU"))

    def test_a_job_that_runs_longer_than_usual_is_tinted(self, watched: Watched, shop: World) -> None:
        slow = slow_day(shop)
        page = watched.open("jobs?state=running&task=climb")
        tinted = rows(page).locator(".slow")
        expect(tinted).to_have_count(1, timeout=30 * SECONDS)
        expect(tinted).to_have_attribute("title", re.compile("longer than 99 of 100 jobs of climb"))
        page = watched.open("workers")
        expect(page.locator(".slots .slow")).to_contain_text("climb")
        page = watched.open(f"job?id={slow}")
        expect(page.locator("p.slow")).to_contain_text("longer than 99 of 100")
        shop.recruiter.cancel(shop.recruiter.jobs.id_of(slow))

    def test_the_stack_of_a_running_job_is_shown_on_request(self, watched: Watched, shop: World) -> None:
        id = shop.enqueue("climb", gate=str(shop.folder / "never"))
        shop.until(lambda: shop.state(id) == "running")
        page = watched.open(f"job?id={id}&tab=stack")
        expect(page.locator(".tab")).to_contain_text("Nobody has asked")
        page.get_by_role("link", name="Show the stack").click()
        page.locator(".ask button").click()
        expect(page.locator(".trace")).to_contain_text(re.compile("showcase.py.*in climb"), timeout=20 * SECONDS)
        assert shop.state(id) == "running"
        shop.recruiter.cancel(shop.recruiter.jobs.id_of(id))

    def test_a_point_of_a_chart_leads_to_its_jobs_and_a_drag_shows_a_part(
        self, watched: Watched, filled: dict[str, str]
    ) -> None:
        del filled
        page = watched.open("?within=15m")
        plot = page.locator("[data-chart=ended] .u-over")
        box = plot.bounding_box()
        assert box is not None
        x, y, width = box["x"], box["y"] + box["height"] / 2, box["width"]
        page.mouse.move(x + width * 0.6, y)
        page.mouse.down()
        page.mouse.move(x + width * 0.8, y, steps=4)
        page.mouse.move(x + width * 0.95, y, steps=4)
        page.mouse.up()
        shown = page.locator("#zoomed")
        expect(shown.get_by_role("link")).to_contain_text("Jobs that ended from")
        assert "#zoom=" in page.url
        page.reload()
        shown.get_by_role("button", name="show the whole time").click()
        expect(shown).to_be_hidden()
        assert "#zoom=" not in page.url
        page.mouse.click(x + width - 3, y)
        expect(page).to_have_url(re.compile("jobs.ended_since=.*&ended_until="))
        expect(page.locator(".chips li")).to_have_count(2)


@pytest.mark.usefixtures("nothing_stays_paused")
class TestLayout:
    def test_the_bar_of_actions_needs_a_choice_and_what_cannot_be_undone_stands_apart(
        self, watched: Watched, filled: dict[str, str]
    ) -> None:
        del filled
        page = watched.open("jobs?state=failed&task=charge")
        bar = page.locator(".bulk")
        expect(bar).to_be_hidden()
        rows(page).first.locator("input").check()
        expect(bar).to_contain_text("1 chosen")
        places = [bar.get_by_role("button", name=name).bounding_box() for name in ("Recover chosen", "Remove chosen")]
        recover, remove = (place["x"] if place else 0.0 for place in places)
        assert remove - recover > 300, "Remove stands next to Recover"
        rows(page).first.locator("input").uncheck()
        expect(bar).to_be_hidden()

    def test_what_cannot_be_undone_is_red_and_apart_on_the_page_of_a_job(
        self, watched: Watched, filled: dict[str, str]
    ) -> None:
        page = watched.open(f"job?id={filled['behind']}")
        acts = page.locator(".acts")
        places = {name: acts.get_by_role("link", name=name, exact=True) for name in ("Reprioritise", "Cancel")}
        boxes = {name: place.bounding_box() or {"x": 0.0} for name, place in places.items()}
        assert boxes["Cancel"]["x"] - boxes["Reprioritise"]["x"] > 300
        colours = {name: place.evaluate("it => getComputedStyle(it).color") for name, place in places.items()}
        red = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--failed').trim()")
        assert colours["Cancel"] == f"rgb{tuple(bytes.fromhex(red.removeprefix('#')))}" != colours["Reprioritise"]

    def test_a_job_is_one_line_and_header_and_content_are_as_wide_as_each_other(
        self, watched: Watched, filled: dict[str, str]
    ) -> None:
        del filled
        page = watched.open("jobs")
        for width in (1280, 1440, 2560):
            page.set_viewport_size({"width": width, "height": 900})
            heights = page.evaluate("[...document.querySelectorAll('#rows tr[data-row]')].map(r => r.offsetHeight)")
            assert max(heights) < 40, f"a job takes two lines at {width} px"
            ends = page.evaluate(
                """["header .brand", "header .tools", "#sentence"].map((each) => {
                const box = document.querySelector(each).getBoundingClientRect(); return [box.left, box.right]; })"""
            )
            (left, _), (_, right), sentence = ends
            assert sentence == pytest.approx([left, right], abs=1), f"at {width} px"

    def test_a_refusal_is_a_page_with_title_language_and_style(self, browser: Browser, shop: World) -> None:
        def nobody() -> str:
            raise HTTPException(403, "Ask an operator for the link.")

        page = browser.new_page()
        with served(dashboard(shop.recruiter, access=nobody)) as address:
            page.goto(f"{address}jobs")
            expect(page).to_have_title("Forbidden · Recruiter")
            expect(page.locator("html")).to_have_attribute("lang", "en")
            expect(page.get_by_role("alert")).to_contain_text("Ask an operator")
            assert page.evaluate("getComputedStyle(document.querySelector('.sentence')).display") == "flex"
        page.close()

    def test_a_sentence_that_says_something_else_is_announced(self, watched: Watched, shop: World) -> None:
        page = watched.open("groups")
        expect(page.locator("#live-text")).to_have_text("live")
        shop.recruiter.controls.block_starts(by="ada", reason="the disk is full")
        expect(page.locator("#said")).to_contain_text("all starts are blocked by ada")

    def test_recovered_jobs_are_marked_and_lead_to_the_new_jobs_and_blocked_steps_have_a_tab(
        self, watched: Watched, shop: World
    ) -> None:
        shop.recruiter.controls.pause_group("reports", by="ada", reason="later")
        flow = shop.recruiter.flow("blocked")
        flow.add(showcase.resize, "a.jpg", 1, after=flow.add(showcase.daily_report))
        flow.start()
        failed = shop.enqueue("charge", order=4_000_000, amount=1.0)
        shop.until(lambda: shop.state(failed) == "failed")
        page = watched.open("jobs?state=failed&arg=order=4000000")
        page.locator("#all").check()
        page.locator(".bulk").get_by_role("link", name="recover").click()
        page.locator(".ask button").click()
        expect(page.locator(".done").get_by_role("link", name="See the new jobs")).to_be_visible()
        marked = page.locator("#rows tr.recovered", has_text="recovered as")
        marked.locator(".again a").click()
        expect(page.locator(".facts")).to_contain_text(failed)  # recovered from
        page = watched.open("jobs")
        page.get_by_label("States").get_by_role("link", name="blocked").click()
        expect(rows(page).first).to_contain_text("waits for other steps of its flow")


@pytest.mark.usefixtures("nothing_stays_paused")
class TestTasksOfAnOperator:
    """At 03:00, from the overview, with clicks and a word in the search: no task ends at a page that leads nowhere."""

    @pytest.fixture
    def page(self, watched: Watched, filled: dict[str, str]) -> Page:
        del filled
        return watched.open("")

    def test_find_why_a_job_does_not_run_and_who_paused_its_group(self, page: Page) -> None:
        expect(page.locator("#sentence")).to_contain_text("paused by ada since")
        page.get_by_role("link", name="mail / send_newsletter").click()
        expect(rows(page).first).to_contain_text("group mail is paused")

    def test_find_why_one_job_does_not_run(self, page: Page) -> None:
        page.locator(".search input").fill("task:align arg.sample=mouse-8")
        page.keyboard.press("Enter")
        rows(page).first.locator(".task a").click()
        expect(page.locator("#sentence")).to_contain_text("task align is at its limit of 1")

    def test_find_jobs_by_an_argument_and_run_one_now(self, page: Page, shop: World) -> None:
        job = shop.recruiter.job("charge", {"order": 7_000_000, "amount": 5.0}).schedule_in("3 hours").enqueue()
        page.locator(".search input").fill("arg.order=7000000")
        page.keyboard.press("Enter")
        expect(rows(page)).to_have_count(1)
        expect(rows(page).first).to_contain_text("order=7000000")
        rows(page).first.locator(".task a").click()
        page.locator(".acts").get_by_role("link", name="Run now").click()
        page.locator(".ask button").click()
        expect(page.locator("#sentence .state")).to_contain_text("succeeded")
        assert shop.state(str(job.id)) == "succeeded"

    def test_raise_a_limit_that_holds_jobs_up_and_take_it_back(self, page: Page, shop: World) -> None:
        page.get_by_role("link", name="Groups", exact=True).click()
        limit = page.locator("tr", has_text="group:billing")
        limit.get_by_role("link", name="Change").click()
        form = page.locator("#set")
        for name, value in (("name", "group:billing"), ("at_once", ""), ("count", "200"), ("per", "1m")):
            expect(form.locator(f"input[name={name}]")).to_have_value(value)
        form.locator("input[name=count]").fill("300")
        page.keyboard.press("Enter")
        expect(page.locator(".ask")).to_contain_text("Limit group:billing to 300 per 1m?")
        page.locator(".ask button").click()
        expect(limit).to_contain_text("of 300 per 1m")
        page.get_by_role("link", name="Take it back").click()
        page.locator(".ask button").click()
        expect(limit).to_contain_text("of 200 per 1m")
        assert [str(each) for each in shop.recruiter.controls.limits() if each.name == "billing"] == ["200 per 1m"]

    def test_see_what_a_schedule_does_tonight(self, page: Page) -> None:
        page.get_by_role("link", name="Schedules").click()
        daily, often = page.locator("tr", has_text="report:daily"), page.locator("tr", has_text="stock:sync")
        daily.locator("summary").click()
        expect(daily.locator("li")).to_have_text(re.compile(r"\d\d:00:00 06:00 there"))
        often.locator("summary").click()
        expect(often.locator("li")).to_have_count(12)
        expect(often).to_contain_text("84 more within 24 hours")

    def test_see_which_worker_runs_what_for_how_long(self, page: Page) -> None:
        page.get_by_role("link", name="Workers").click()
        busy = page.locator(".slots .busy", has_text="align")
        expect(busy.locator("time")).to_have_attribute("title", re.compile("^since "))
        busy.get_by_role("link").click()
        expect(page.locator("#sentence")).to_contain_text("running on")

    def test_cancel_a_stuck_flow(self, page: Page, shop: World) -> None:
        flow = shop.recruiter.flow("old invoices")
        flow.add(showcase.send_newsletter, "x@shop.example", 3)
        handle = flow.start()
        page.get_by_role("link", name="Flows").click()
        page.get_by_role("link", name="old invoices").click()
        expect(page.locator("#sentence")).to_contain_text("group mail is paused")
        page.locator(".acts").get_by_role("link", name="Cancel").click()
        page.locator(".ask input[name=reason]").fill("nobody reads them")
        page.locator(".ask button").click()
        expect(page.locator(".done")).to_contain_text("1 step being cancelled")
        expect(page.locator(".acts .state").first).to_contain_text("cancelled")
        assert handle.report().state == "cancelled"

    def test_see_what_has_changed_since_yesterday(self, page: Page, shop: World) -> None:
        change = {"verb": "set-limit", "name": "task:attack", "at_once": "9", "reason": "the disk is slow"}
        assert httpx.post(f"{shop.url}api/actions", json=change, trust_env=False).status_code == 200
        page.get_by_role("link", name="24h", exact=True).click()
        expect(page.get_by_role("link", name="24h", exact=True)).to_have_attribute("aria-current", "true")
        expect(page.get_by_role("link", name="showcase.CardRefused")).to_be_visible()
        page.get_by_role("link", name="Problems").click()
        done = page.locator("tr", has_text="the disk is slow")
        expect(done).to_contain_text("limit on task:attack at once 9")
        expect(done).to_contain_text("a local user")
        shop.recruiter.controls.remove_limit("task:attack")

    def test_retry_all_that_failed_with_one_error(self, page: Page, shop: World) -> None:
        failed = shop.recruiter.jobs.count(state="failed", error="CardRefused", recovered=False).number
        page.get_by_role("link", name="showcase.CardRefused").click()
        page.locator("#all").check()
        page.locator(".bulk").get_by_role("link", name="recover").click()
        expect(page.locator(".ask")).to_contain_text(f"Recover {failed} job")
        page.locator(".ask button").click()
        expect(page.locator(".done")).to_contain_text(f"{failed} jobs are recovered")
        page.get_by_role("link", name="See the new jobs").click()
        expect(rows(page).first).to_contain_text("charge")

    def test_stop_a_bad_task(self, page: Page, shop: World) -> None:
        bad = [shop.recruiter.job("climb", {"gate": "none"}).schedule_in("1 hour").enqueue() for _ in range(3)]
        page.get_by_role("link", name="Tasks").click()
        page.locator("td").get_by_role("link", name="climb").or_(page.locator(".search input")).first.click()
        page.locator(".search input").fill("task:climb state:postponed")
        page.keyboard.press("Enter")
        page.locator("#all").check()
        page.locator(".bulk").get_by_role("link", name="cancel").click()
        page.locator(".ask button").click()
        expect(page.locator(".done")).to_contain_text("3 jobs are being cancelled")
        shop.until(lambda: all(shop.state(str(job.id)) == "cancelled" for job in bad))

    def test_follow_a_log(self, page: Page) -> None:
        page.locator(".figure", has_text="running").get_by_role("link").last.click()
        rows(page).filter(has_text="align").first.locator(".task a").click()
        expect(page.locator(".log[data-follow]")).to_contain_text("reads of mouse-7")

    def test_find_the_slow_task(self, page: Page) -> None:
        page.get_by_role("link", name="Tasks").click()
        page.locator("th").get_by_role("link", name="p99").click()
        expect(page.locator("th[aria-sort=descending]")).to_contain_text("p99")
        page.locator("tbody tr").first.get_by_role("link").first.click()
        expect(rows(page)).not_to_have_count(0)

    def test_find_what_a_tenant_waits_for(self, page: Page, shop: World) -> None:
        shop.recruiter.job("send_newsletter", {"to": "x@shop.example", "issue": 1}).owned_by("acme").enqueue()
        page.locator(".search input").fill("owner:acme state:queued")
        page.keyboard.press("Enter")
        expect(rows(page)).to_have_count(1)
        expect(rows(page).first).to_contain_text("group mail is paused")

    def test_run_a_schedule_again(self, page: Page) -> None:
        page.get_by_role("link", name="Schedules").click()
        page.locator("tr", has_text="report:daily").get_by_role("link", name="Run now").click()
        page.locator(".ask button").click()
        page.locator(".done a.id").click()
        expect(page.locator("#sentence .state")).to_contain_text("succeeded")

    def test_see_whether_a_worker_is_alive(self, page: Page) -> None:
        page.get_by_role("link", name="Workers").click()
        expect(page.locator(".worker .state")).to_have_text("works")
        expect(page.locator(".worker .who")).to_contain_text("joined")

    def test_see_why_a_flow_is_stuck(self, page: Page, shop: World) -> None:
        flow = shop.recruiter.flow("letters")
        flow.add(showcase.send_newsletter, "x@shop.example", 2)
        flow.start()
        page.get_by_role("link", name="Flows").click()
        expect(page.locator("tr", has_text="letters").locator(".why")).to_have_text(
            "send_newsletter: group mail is paused"
        )

    def test_undo_an_action_of_a_colleague(self, page: Page, shop: World) -> None:
        page.get_by_role("link", name="Groups", exact=True).click()
        page.locator("tr[id^=g-]", has_text="images").get_by_role("link", name="Pause").click()
        page.locator(".ask button").click()
        expect(page.locator(".done")).to_be_visible()
        page.get_by_role("link", name="Problems").click()
        page.locator("tr", has_text="pause-group").first.get_by_role("link", name="Resume").click()
        page.locator(".ask button").click()
        expect(page.locator(".done")).to_contain_text("Group images is resumed")
        assert "group:images" not in shop.recruiter.controls.rules().paused


ATTACK = (
    "<script>window.hacked=1</script><img src=x onerror='window.hacked=2'>\"'><svg/onload=window.hacked=3> "
    "{{ 7*7 }} {% raw %} </pre></title></textarea><!-- &lt;b&gt; \x1b[31mred\x1b[0m \u202eesrever\u202c "
    "javascript:alert(1) ${7*7} \\x3cscript\\x3e"
)


def test_a_job_whose_every_text_is_an_attack_is_shown_as_text(watched: Watched, shop: World) -> None:
    builder = shop.recruiter.job("attack", {"text": ATTACK}).tagged_as(ATTACK).owned_by(ATTACK).with_urn(ATTACK)
    id = str(builder.with_id(ATTACK).enqueue().id)
    shop.until(lambda: shop.recruiter.jobs.count(task="attack", state="failed").number)
    page = watched.open("jobs?task=attack")
    expect(rows(page)).to_have_count(1)
    expect(rows(page).first).to_contain_text("<script>window.hacked=1</script>")
    rows(page).first.locator(".opens").click()
    expect(page.locator("#inside")).to_contain_text("<img src=x onerror=")
    rows(page).first.locator(".task a").click()
    expect(page.locator("h1")).to_contain_text("<script>")
    expect(page.locator("h1")).to_contain_text("{{ 7*7 }}")
    for tab in ("arguments", "result", "attempts", "log", "stages", "document"):
        page.locator(".tabs").get_by_role("link", name=tab).click()
        expect(page.locator(".tabs a[aria-current]")).to_contain_text(tab)
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("document.querySelectorAll('#main script, #main img, #main iframe').length") == 0
    expect(page.locator("#document")).to_contain_text("\\u202e")
    page.get_by_role("link", name="Recover").click()
    expect(page.locator(".ask")).to_contain_text("<script>")
    page.locator(".ask input[name=reason]").fill(ATTACK.replace("\x1b", ""))
    page.locator(".ask button").click()
    expect(page.locator(".done")).to_contain_text("is recovered as")
    flow = shop.recruiter.flow(ATTACK.replace("\x1b", "")[:150], owner=ATTACK)
    flow.add(showcase.resize, ATTACK, 1)
    flow_id = flow.start().id
    shop.recruiter.controls.pause_group("quiet", by=ATTACK.replace("\x1b", ""), reason=ATTACK)
    for place, told in {
        "problems": "table:has-text('<script>')",
        "flows": "a:has-text('<script>')",
        f"flow?id={flow_id}": "h1:has-text('<script>')",
        "groups": "tr:has-text('<script>')",
        "": "main",
    }.items():
        page = watched.open(place)
        expect(page.locator(told).first).to_be_visible()
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("document.querySelectorAll('#main script, #main img, #main iframe').length") == 0
    shop.recruiter.controls.resume_group("quiet")
    assert shop.recruiter.find(id).task == "attack"


def filled_flow(shop: World) -> str:
    """One with a stack of steps that have ended."""
    flow = shop.recruiter.flow("catalogue")
    first = flow.add(showcase.resize, "cover.jpg", 1)
    for number in range(8):
        flow.add(showcase.resize, "cover.jpg", number, after=first)
    handle = flow.start()
    shop.until(lambda: all(step.state == "succeeded" for step in handle.steps()))
    return str(handle.id)


SCHEMES: dict[Any, str] = {
    "light": "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice'], resultTypes: ['violations']}",
    "dark": "{runOnly: {type: 'rule', values: ['color-contrast']}, resultTypes: ['violations']}",
}
"""What axe looks at in each scheme: only contrast depends on it, and on nothing else."""
WIDTHS = (375, 1440)


TORN = r"""[...document.querySelectorAll("td, th, .n, .button, .state, nav a, dt")]
    .flatMap((cell) => [...cell.childNodes]
    .filter((node) => node.nodeType === 3 && cell.checkVisibility())
    .flatMap((node) =>
        [...node.data.matchAll(/(?<![^ \n/-])[\p{L}\p{N}.,:%_]{2,11}(?![^ \n/-])/gu)].filter((word) => {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1;
    }).map((word) => word[0])))"""
"""Short words and numbers of tables and buttons that go on in the next line."""


class Judge:
    """Pages as axe sees them, on a phone and on a desktop, light and dark."""

    def __init__(self, browser: Browser, axe: str) -> None:
        # axe is given to the page by the browser itself: the console's own policy would not let it in.
        self._context = browser.new_context(bypass_csp=True, reduced_motion="reduce")
        self._page = self._context.new_page()
        self._axe = axe
        self.close = self._context.close
        self.found: dict[str, Any] = {}

    def open(self, url: str) -> int:
        self._page.set_viewport_size({"width": WIDTHS[0], "height": 900})  # a phone loads the page on a phone
        answer = self._page.goto(url)
        assert answer is not None
        return answer.status

    def refusal(self, status: int, url: str, headers: dict[str, str] | None = None, body: str = "") -> None:
        """The page of this status, to a plain link or, with a body, to a form."""
        self._context.set_extra_http_headers(headers or {})
        if body:
            self.open(url.rpartition("/")[0])
            with self._page.expect_navigation() as navigation:
                self._page.evaluate(
                    """([url, body]) => { const form = document.createElement("form");
                    const field = document.createElement("input");
                    form.method = "post"; form.action = url; field.name = "what"; field.value = body;
                    form.append(field); document.body.append(form); form.submit(); }""",
                    [url, body],
                )
            assert navigation.value.status == status
        else:
            assert self.open(url) == status
        expect(self._page.locator("h1")).to_have_text(HTTPStatus(status).phrase)
        self.judge(f"{status} {url.rpartition('/')[2]}")

    def judge(self, name: str) -> None:
        page = self._page
        page.evaluate(self._axe)
        for width, scheme in product(WIDTHS, SCHEMES):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == scheme
            result = page.evaluate(f"axe.run(document, {SCHEMES[scheme]})")
            self.found |= {
                f"{name}, {width}, {scheme}: {each['id']}": [n["html"][:200] for n in each["nodes"][:3]]
                for each in result["violations"]
            }
            if torn := page.evaluate(TORN):
                self.found[f"{name}, {width}: torn"] = torn
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                self.found[f"{name}, {width}: too wide"] = page.evaluate("document.documentElement.scrollWidth")


def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(
    browser: Browser, shop: World, filled: dict[str, str], axe: str
) -> None:
    # axe is given to the page by the browser itself: the console's own policy would not let it in.
    judge = Judge(browser, axe)
    failed = str(shop.recruiter.jobs.list(state="failed", task="charge", limit=1, minimal=True).jobs[0].id)
    places = {
        **PAGES,
        "running": f"job?id={filled['running']}",
        "failed job": f"job?id={failed}",
        "document": f"job?id={failed}&tab=document",
        "opened": f"jobs?state=failed&limit=3&open={failed}",
        "question": f"confirm?verb=remove&id={failed}",
        "missing": "job?id=nowhere",
        "flow": f"flow?id={filled_flow(shop)}",
    }
    for name, place in places.items():
        judge.open(shop.url + place)
        judge.judge(name)
    judge.close()
    assert judge.found == {}, json.dumps(judge.found, indent=1)


def test_axe_finds_nothing_on_refusals(
    browser: Browser, shop: World, axe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recruiter.web.reader._PULSE_SECONDS", 0.2)

    def make(access: Any, recruiter: Recruiter = shop.recruiter) -> str:
        return consoles.enter_context(served(dashboard(recruiter, access=access)))

    judge = Judge(browser, axe)
    basic = {"authorization": f"Basic {b64encode(b'ada:wrong').decode()}"}
    with ExitStack() as consoles:
        down = consoles.enter_context(Recruiter("mongodb://127.0.0.1:1/shop?serverSelectionTimeoutMS=200"))
        guarded = make(BasicAuth({"ada": "secret"}))
        judge.refusal(401, make(LocalToken()))
        judge.refusal(401, guarded, basic)
        judge.refusal(403, make(None))
        judge.refusal(404, f"{shop.url}nothing")
        judge.refusal(404, f"{shop.url}job?id=nowhere")
        judge.refusal(400, f"{shop.url}jobs?limit=0")
        judge.refusal(413, f"{shop.url}do", body="x" * (65 * 1024))
        with httpx.Client(headers=basic, trust_env=False) as guesser:
            while guesser.get(guarded).status_code != 429:
                pass
        judge.refusal(429, guarded, basic)
        judge.refusal(503, make(lambda: "ada", down))
    judge.close()
    assert judge.found == {}, json.dumps(judge.found, indent=1)


def test_the_keyboard_is_enough(watched: Watched, filled: dict[str, str]) -> None:
    del filled
    page = watched.open("jobs")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator(".search input")).to_be_focused()


def test_dark_is_chosen_and_kept(watched: Watched) -> None:
    page = watched.open("")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.reload()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


class FirstLoad:
    """A page in a browser that has never been here: what comes over the wire."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._context = browser.new_context()
        self.page = self._context.new_page()
        self.requests: list[str] = []
        self._sizes: dict[str, float] = {}
        session = self._context.new_cdp_session(self.page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", self._ended)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url, wait_until="load")

    def _ended(self, event: dict[str, Any]) -> None:
        self._sizes[event["requestId"]] = event["encodedDataLength"]

    @property
    def kilobytes(self) -> float:
        return sum(self._sizes.values()) / 1024

    def close(self) -> None:
        self._context.close()


def test_a_first_load_is_small(browser: Browser, shop: World, filled: dict[str, str]) -> None:
    """At most 120 KB over the wire in at most 12 requests, for each page; a list of 50 jobs too."""
    places = (*PAGES.values(), "jobs", f"job?id={filled['running']}")
    loads = {place: FirstLoad(browser, shop.url + place) for place in places}
    loads[places[-1]].page.wait_for_timeout(1500)  # in which a page would ask for more
    for place, load in loads.items():
        print(f"{place or 'overview'}: {load.kilobytes:.0f} KB in {len(load.requests)} requests")
        assert 10 < load.kilobytes <= 120, place
        assert len(load.requests) <= 12, place
        load.close()
