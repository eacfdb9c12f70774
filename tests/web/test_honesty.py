"""One number, one source: pages agree on counts, reasons and severities; a question names the jobs that it means."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import httpx
import pytest

from recruiter import Recruiter
from recruiter.doctor import examine
from recruiter.doctor.findings import Level
from recruiter.flow import FlowHandle
from recruiter.web.drawings import hour_bars
from tests.flows import Stage
from tests.web.conftest import Consoles, what_is_asked

NOW = datetime(2026, 11, 17, 3, 0, tzinfo=UTC)


def sentence(client: httpx.Client, place: str) -> tuple[str, str]:
    """The level and the text."""
    found = re.search(r'<p class="sentence (\w+)" id="sentence">(.*?)</p>', client.get(place).text, re.DOTALL)
    assert found is not None
    return found[1], " ".join(re.sub(r"<[^>]+>", "", found[2]).split())


@pytest.fixture
def mail(recruiter: Recruiter) -> Recruiter:
    """A paused group with due jobs of two tasks, and a worker."""

    @recruiter.task(group="mail")
    def send(to: int) -> None: ...

    @recruiter.task(group="mail")
    def remind(to: int) -> None: ...

    Stage(recruiter)
    send.enqueue_many([(number,) for number in range(4)])
    remind.enqueue_many([(number,) for number in range(3)])
    recruiter.controls.pause_group("mail", by="ada", reason="the mail server is down")
    return recruiter


def test_overview_and_groups_count_the_same_jobs_and_judge_them_alike(console: Consoles, mail: Recruiter) -> None:
    client = console()

    overview, groups = sentence(client, ""), sentence(client, "groups")

    assert overview == groups
    assert overview[0] == "note"
    assert "7 jobs of group mail wait: group mail is paused by ada since" in overview[1]
    judged = [each for each in examine(mail.store) if "group mail is paused" in each.text]
    assert [each.level for each in judged] == [Level.NOTE]


def test_a_job_that_can_never_run_is_a_problem_and_does_not_wait_its_turn(
    console: Consoles, recruiter: Recruiter
) -> None:
    @recruiter.task(group="science", needs={"mem": "900 GiB"})
    def fold() -> None: ...

    fold.enqueue()
    stage = Stage(recruiter)
    stage.store.roster.collection.update_many({}, {"$set": {"tasks": ["fold"], "groups": None}})
    client = console()

    level, text = sentence(client, "")

    assert level == "problem"
    assert "1 job of task fold waits: needs 900 GiB of mem" in text
    assert "waits its turn" not in client.get("").text
    assert "needs 900 GiB of mem" in client.get("jobs").text


def test_every_waiting_row_has_its_reason(console: Consoles, mail: Recruiter) -> None:
    mail.job("send", {"to": 9}).schedule_in("1 hour").enqueue()
    flow = mail.flow("two")
    flow.add("send", 2, after=flow.add("send", 1))
    flow.start()

    page = console().get("jobs").text

    rows = re.findall(r'<td class="what">(.*?)</td>', page, re.DOTALL)
    texts = [" ".join(re.sub(r"<[^>]+>", "", row).split()) for row in rows]
    assert texts.count("group mail is paused") == 8
    assert texts.count("its time has not come") == 1
    assert texts.count("waits for other steps of its flow") == 1


def test_blocked_steps_have_a_tab_and_a_state_of_their_own(console: Consoles, mail: Recruiter) -> None:
    flow = mail.flow("two")
    flow.add("send", 2, after=flow.add("send", 1))
    flow.start()
    client = console()

    page = client.get("jobs?state=blocked").text

    assert page.count("data-row") == 1
    assert "state s-blocked" in page
    assert 'href="jobs?state=blocked"' in page
    assert '<data value="1" data-of="blocked">' in client.get("counts").text


def test_the_ribbon_of_a_dense_schedule_covers_the_whole_day(console: Consoles, recruiter: Recruiter) -> None:
    @recruiter.every("* * * * *", urn="each:minute")
    def tick() -> None: ...

    @recruiter.every("5s", urn="each:moment")
    def flash() -> None: ...

    recruiter.create_schedulers()
    client = console()
    page = client.get("schedules").text

    assert re.search(r"1,4[34]\d runs in the next 24 hours", page)
    assert "1,500+ runs in the next 24 hours" in page
    widths = [float(width) for width in re.findall(r'class="tick" x="[\d.]+%" y="2" width="([\d.]+)%"', page)]
    assert len(widths) == 2
    assert min(widths) > 99


def test_runs_that_touch_are_one_bar_and_others_are_not() -> None:
    runs = [NOW + timedelta(minutes=minute) for minute in (0, 1, 2, 3, 600)]

    assert hour_bars(NOW, runs) == [(0.0, 0.21), (41.67, 0.0)]


@pytest.fixture
def chain(recruiter: Recruiter) -> FlowHandle:
    """A flow of three steps, the first of which has failed."""

    @recruiter.task
    def step(number: int) -> None: ...

    flow = recruiter.flow("chain")
    first = flow.add(step, 1)
    flow.add(step, 3, after=flow.add(step, 2, after=first))
    handle = flow.start()
    stage = Stage(recruiter)
    stage.run(first.id, fails=[first.id])
    stage.settle_down()
    return handle


def test_skipped_steps_are_skipped_on_every_page_and_in_the_api(console: Consoles, chain: FlowHandle) -> None:
    client, last = console(), chain.steps()[-1].job

    page, counts = client.get("jobs").text, client.get("counts").text
    listed = client.get("api/jobs").json()["jobs"]

    assert (page.count("state s-failed"), page.count("state s-skipped")) == (1, 2)
    assert page.count('class="mono err"') == 1  # only the error of the culprit is red
    assert '<data value="2" data-of="skipped">' in counts
    assert sorted(job["state"] for job in listed) == ["failed", "skipped", "skipped"]
    skipped = client.get("jobs?why=dependency-failed&why=not-needed").text
    assert skipped.count("data-row") == 2
    assert re.search(r'aria-current="true" class="s-skipped"', skipped)
    job = client.get(f"api/job?id={last}").json()
    assert (job["state"], job["timeline"][-1]["label"]) == ("skipped", "waits, then skipped")
    assert 'class="sentence ok" id="sentence"' in client.get(f"job?id={last}").text


def test_a_step_that_never_ran_is_skipped_and_only_the_culprit_is_named(console: Consoles, chain: FlowHandle) -> None:
    _, text = sentence(console(), f"flow?id={chain.id}")

    assert "3 steps: 1 failed, 2 skipped." in text
    assert " more" not in text
    assert [each.state for each in chain.steps()] == ["failed", "skipped", "skipped"]


def test_skipped_steps_are_no_frequent_error(console: Consoles, chain: FlowHandle) -> None:
    assert len(chain.steps()) == 3

    errors = console().get("api/overview").json()["errors"]

    assert [error["count"]["number"] for error in errors] == [1]


def test_a_question_freezes_the_jobs_that_it_counts(console: Consoles, recruiter: Recruiter) -> None:
    """Given a question about two failed jobs, when another one fails before the answer, then it is left out."""

    @recruiter.task
    def charge(order: int) -> None:
        raise ValueError(order)

    def fail(*orders: int) -> None:
        for order in orders:
            charge.job(order).here().execute()

    fail(1, 2)
    client = console(actions=True)
    question = client.get("confirm?verb=recover&state=failed&since=2h").text
    assert "Recover 2 jobs?" in question
    what = what_is_asked(question)
    assert "since=2h" not in what

    fail(3)
    answer = client.post("do", data={"what": what})

    assert "2 jobs are recovered." in answer.text
    assert recruiter.jobs.count(state="failed", recovered=False).number == 1


def test_a_recovered_job_says_so_in_the_list_and_links_the_new_one(console: Consoles, recruiter: Recruiter) -> None:
    @recruiter.task
    def charge(order: int) -> None:
        raise ValueError(order)

    for order in (1, 2):
        charge.job(order).here().execute()
    client = console(actions=True)
    answer = client.post("do", data={"what": "verb=recover&state=failed"}).text

    page = client.get("jobs?state=failed").text

    assert page.count("recovered as") == 2
    assert re.search(r"recovered as <a class=\"mono id\" href=\"job\?id=\w+\"", page)
    link = unescape(re.search(r'href="(jobs\?created_since=[^"]+)"', answer)[1])  # type: ignore[index]
    assert client.get(link).text.count("data-row") == 2


def test_an_amount_of_memory_is_not_a_raw_number(console: Consoles, recruiter: Recruiter) -> None:
    recruiter.controls.set_limit("resource:mem", "20 GiB")

    page = console().get("groups").text

    assert re.search(r">20 GiB</span>", page)
    assert "21475M" not in page


def test_jobs_that_workers_have_fetched_are_not_shown_as_running_in_more_slots_than_there_are(
    console: Consoles, recruiter: Recruiter
) -> None:
    @recruiter.task
    def hello(number: int) -> None: ...

    hello.enqueue_many([(number,) for number in range(9)])
    stage = Stage(recruiter)
    stage.give(*stage.ready())
    client = console()

    told = client.get("api/overview").json()
    page = " ".join(re.sub(r"<[^>]+>", "", client.get("").text).split())

    assert told["running"] == 9
    assert told["slots"] < 9
    slots = told["slots"]
    assert f"{slots} / {slots}, {9 - slots} next" in page


def test_the_terminal_the_api_and_the_pages_count_the_same_jobs(console: Consoles, mail: Recruiter) -> None:
    client = console()

    by_api = {row["name"]: row["queued"] for row in client.get("api/groups").json()["groups"]}
    by_kind = {row["task"]: row["queued"] for row in client.get("api/overview").json()["waiting"]}

    assert by_api["mail"] == sum(by_kind.values()) == 7
    assert client.get("api/jobs/count?state=queued&group=mail").json()["number"] == 7
    assert mail.jobs.count(state="queued", group="mail").number == 7
    assert '<data value="7" data-of="queued">' in client.get("counts?group=mail").text
    told = mail.analytics(within="5 minutes").queues
    assert {task: queue.queued for (_, task), queue in told.items()} == by_kind == {"send": 4, "remind": 3}
