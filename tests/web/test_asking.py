"""What an operator asks and does: tables by task, search by text, completion, signals, buttons beside problems."""

from __future__ import annotations

import re
from html import unescape

import pytest

from recruiter import Recruiter, current_job
from recruiter.doctor.findings import Code, note
from recruiter.domain.policy_registry import policy_words
from recruiter.domain.statistics import Times
from recruiter.views.analytics import Performance
from recruiter.web import reader
from recruiter.web.filter_words import completions
from recruiter.web.formats import SuggestedAction, action_of
from tests.web.conftest import Consoles


@pytest.fixture
def ended(recruiter: Recruiter) -> Recruiter:
    """Three charges, of which one failed, and one letter."""

    @recruiter.task(group="billing")
    def charge(order: int, card_token: str = "") -> None:
        del card_token
        if order == 3:
            raise ValueError(f"order {order} was refused")

    @recruiter.task(group="mail")
    def send(to: str) -> None: ...

    for order in (1, 2, 3):
        charge.job(order, "tok_secret").here().execute()
    send.job("ada@shop.example").here().execute()
    return recruiter


def test_a_table_by_task_has_shares_times_and_links(console: Consoles, ended: Recruiter) -> None:
    client = console()

    page = client.get("tasks").text

    row = re.search(r'<tr id="k-\w+"><td><a href="([^"]+)">charge</a>(.*?)</tr>', page, re.DOTALL)
    assert row is not None
    assert unescape(row[1]) == "jobs?task=charge&since=1h"
    assert "33.3 %" in row[2]
    assert client.get(unescape(row[1])).text.count("data-row") == 3
    failed = re.search(r'href="([^"]+)"><span class="n" title="1">1</span>', row[2])
    assert failed is not None
    assert client.get(unescape(failed[1])).text.count("data-row") == 1
    del ended


@pytest.mark.parametrize(("by", "names"), [("task", ["charge", "send"]), ("group", ["billing", "mail"])])
def test_a_table_is_sorted_by_the_chosen_column(console: Consoles, ended: Recruiter, by: str, names: list[str]) -> None:
    client = console()

    for sort, order in (("name", names), ("ended", names), ("failed", names), ("share", names)):
        page = client.get(f"tasks?by={by}&sort={sort}").text
        assert re.findall(r'<tr id="k-\w+"><td><a href="[^"]+">(\w+)</a>', page) == order, sort
        assert "aria-sort=" in page
    assert client.get("tasks?sort=nonsense").status_code == 400
    del ended


def test_a_table_has_the_percentiles_of_each_task_and_is_sorted_by_them(
    console: Consoles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(name: str, median: float, p99: float, total: float) -> Performance:
        took = Times(9.0, median, median * 2, p99, 99.0)
        return Performance(name, 10, 1, Times(9.0, 7.0, 7.5, 8.0, 9.0), took, total, (10,))

    rows = [row("charge", 1.0, 30.0, 5.0), row("send", 2.0, 20.0, 90.0), row("resize", 3.0, 10.0, 40.0)]
    monkeypatch.setattr(reader, "performances", lambda *_: (rows, True))
    client = console()

    orders = {
        sort: re.findall(r'<tr id="k-\w+"><td><a href="[^"]+">(\w+)</a>', client.get(f"tasks?sort={sort}").text)
        for sort in ("name", "p50", "p99", "total")
    }

    assert orders == {
        "name": ["charge", "resize", "send"],
        "p50": ["resize", "send", "charge"],
        "p99": ["charge", "send", "resize"],
        "total": ["send", "resize", "charge"],
    }
    cells = re.search(r">charge</a>(.*?)</tr>", client.get("tasks").text, re.DOTALL)
    assert cells is not None
    times = dict(re.findall(r'data-label="(p50|p95|p99|latency|total)">([^<]+)<', cells[1]))
    assert times == {"p50": "1s", "p95": "2s", "p99": "30s", "total": "5s", "latency": "7.5s"}


def test_the_rows_of_a_list_are_sorted_by_the_chosen_column(console: Consoles, ended: Recruiter) -> None:
    client = console()
    tasks = re.compile(r'<td class="task"><a [^>]*>(\w+)</a>')
    in_order = sorted(tasks.findall(client.get("jobs").text))
    assert len(set(in_order)) > 1

    page = client.get("jobs?sort=task").text

    assert tasks.findall(page) == in_order
    assert 'aria-sort="ascending"' in page
    assert client.get("jobs?sort=nonsense").status_code == 400
    del ended


def test_a_table_by_worker_counts_the_jobs_that_it_ran(console: Consoles, ended: Recruiter) -> None:
    (worker,) = {job.worker for job in ended.jobs.list(state="succeeded")}

    page = console().get("tasks?by=worker").text

    assert f">{worker}</a>" in page


def test_a_mistyped_condition_keeps_the_text_and_shows_the_error_in_place(console: Consoles, ended: Recruiter) -> None:
    del ended
    client = console(client={"follow_redirects": True})

    for typed, said in (("tsak:charge", "is not a condition"), ("state:flaied", "flaied")):
        page = client.get("find", params={"q": typed}).text
        assert f'value="{typed}"' in page
        assert re.search(rf'role="alert">[^<]*{said}', page), page
        assert 'aria-invalid="true"' in page
        assert page.count("data-row") == 4


def test_a_text_is_found_in_what_is_shown_and_not_in_what_is_hidden(console: Consoles, ended: Recruiter) -> None:
    del ended
    client = console(client={"follow_redirects": True})

    assert client.get("find", params={"q": "refused"}).text.count("data-row") == 1
    assert client.get("find", params={"q": "ada@shop"}).text.count("data-row") == 1
    assert client.get("find", params={"q": "task:charge order=2"}).status_code == 200
    assert client.get("find", params={"q": "tok_secret"}).text.count("data-row") == 0
    both = client.get("find", params={"and": "state:succeeded", "q": "ada@shop"})
    assert both.url.params.get("state") == "succeeded"
    assert both.text.count("data-row") == 1


def test_completion_knows_words_states_tasks_and_errors(console: Consoles, ended: Recruiter) -> None:
    del ended
    client = console()

    def complete(text: str) -> list[str]:
        found: list[str] = client.get("complete", params={"q": text}).json()
        return found

    assert complete("ta") == ["task:", "tag:"]
    assert complete("state:fail") == ["state:failed"]
    assert complete("state:failed task:ch") == ["task:charge"]
    assert complete("error:Val") == ["error:ValueError"]
    assert complete("bill") == ["group:billing"]
    assert completions("", {"task": ["charge"]}) == []


def test_a_failed_job_leads_to_others_that_failed_like_it(console: Consoles, ended: Recruiter) -> None:
    ended.job("charge", {"order": 3}).here().execute()
    failed = ended.jobs.list(state="failed").jobs[0]
    client = console()

    page = client.get("job", params={"id": str(failed.id)}).text

    link = re.search(r'<a href="([^"]+)">2 jobs of charge failed with ValueError', page)
    assert link is not None
    assert client.get(unescape(link[1])).text.count("data-row") == 2


def test_a_signal_is_sent_by_a_button(console: Consoles, recruiter: Recruiter) -> None:
    @recruiter.task
    def approve() -> None:
        current_job.wait_for("approved")

    job = approve.enqueue()
    recruiter.run(approve)
    client = console(actions=True)
    page = client.get("job", params={"id": str(job.id)}).text
    button = re.search(r'href="(confirm\?verb=send-signal[^"]+)"', page)
    assert button is not None
    question = client.get(unescape(button[1])).text
    assert 'name="to" required maxlength="100" value="approved"' in question
    what = unescape(re.search(r'name="what" value="([^"]*)"', question)[1])  # type: ignore[index]

    answer = client.post("do", data={"what": what, "to": "approved"}).text

    assert "was sent the signal" in answer
    recruiter.run(approve)
    assert recruiter.find(job.id).state == "succeeded"


def test_the_page_of_schedules_says_when_in_words(console: Consoles, recruiter: Recruiter) -> None:
    @recruiter.every("* * * * *")
    @recruiter.task
    def tick() -> None: ...

    recruiter.create_schedulers()

    assert '">every minute</span>' in console().get("schedules").text


def test_policies_and_schedules_are_words() -> None:
    def words(name: str, **parameters: object) -> str | None:
        return policy_words({"class": name, "parameters": parameters})

    assert words("RetryManyTimes", n=2, seconds=2) == "2 more times, 2s apart"
    assert words("RetryManyTimes", n=1, seconds=60) == "1 more time, 1m later"
    assert words("ExponentialBackoff", n=5, seconds=2) == "5 more times, after 2s, then twice as long each time"
    assert words("Cron", expression="* * * * *", tz="UTC") == "every minute"
    assert words("Cron", expression="nonsense", tz="UTC") == "Cron(nonsense, UTC)"
    assert words("Every", interval=7200) == "every 2h"
    assert words("MyOwn", n=2) == "MyOwn(2)"


@pytest.mark.parametrize(
    ("command", "action"),
    [
        ("recruiter group resume mail", SuggestedAction("resume-group", "Resume", "mail")),
        ("recruiter group resume --all", SuggestedAction("allow-starts", "Allow starts")),
        ("recruiter worker resume vm:1:a", SuggestedAction("resume-worker", "Resume", "vm:1:a")),
        ("recruiter job recover 42", SuggestedAction("recover", "Recover", id="42")),
        ("recruiter worker resume WORKER", None),
        ("recruiter limit list", None),
    ],
)
def test_a_recommended_command_has_its_button(command: str, action: SuggestedAction | None) -> None:
    assert action_of(command) == action


def test_repeated_problems_are_one_line_and_a_problem_has_its_button(
    console: Consoles, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [note(Code.SET_ASIDE, f"document {number} was set aside", "See it") for number in range(12)]
    paused = note(Code.PAUSED, "group mail is paused", "Let them start: recruiter group resume mail")
    monkeypatch.setattr(reader, "examine", lambda _store: [*many, paused])

    page = console(actions=True).get("problems").text

    assert "12 findings of the kind set-aside" in page
    assert re.search(r'href="confirm\?verb=resume-group&amp;name=mail[^"]*"[^>]*>Resume</a>', page)
