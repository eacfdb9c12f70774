"""What an operator asks and does: tables by task, search by text, completion, signals, buttons beside problems."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from html import unescape
from itertools import pairwise

import pytest

from recruiter import Recruiter, current_job
from recruiter.doctor.findings import Code, note
from recruiter.domain.planning.limits import Limit
from recruiter.domain.policy_registry import policy_words
from recruiter.domain.statistics import Times
from recruiter.views.analytics import Performance
from recruiter.web import reader
from recruiter.web.filter_words import completions
from recruiter.web.formats import SuggestedAction, action_of
from tests.conftest import eventually
from tests.web.conftest import Consoles, what_is_asked


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
        return Performance(name, 10, 1, Times(9.0, 7.0, 7.5, 8.0, 9.0), took, total, (3, 7))

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
    assert '<svg class="spark"' in cells[1]  # the trend


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

    answer = client.post("do", data={"what": what_is_asked(question), "to": "approved"}).text

    assert "was sent the signal" in answer
    recruiter.run(approve)
    assert recruiter.find(job.id).state == "succeeded"


def test_a_schedule_lists_its_next_runs_on_both_clocks(console: Consoles, recruiter: Recruiter) -> None:
    @recruiter.every("0 */3 * * *", tz="Asia/Kolkata")
    def tidy() -> None: ...

    recruiter.create_schedulers()

    runs = re.search(r"<details class=\"runs\">.*?<ol>(.*?)</ol>", console().get("schedules").text, re.DOTALL)

    assert runs is not None
    moments = [datetime.fromisoformat(text) for text in re.findall(r'datetime="([^"]+)"', runs[1])]
    assert len(moments) == 8
    assert {after - before for before, after in pairwise(moments)} == {timedelta(hours=3)}
    assert set(re.findall(r"(\d\d:\d\d) there", runs[1])) == {f"{hour:02}:00" for hour in range(0, 24, 3)}


def test_an_error_is_new_if_no_earlier_job_failed_with_it(console: Consoles, recruiter: Recruiter) -> None:
    """Given yesterday's ValueError, when jobs fail with it and with another error today, then only the other is new."""

    @recruiter.task
    def fail(kind: str) -> None:
        raise {"value": ValueError, "key": KeyError}[kind](kind)

    client = console()

    def errors() -> dict[str, bool]:
        return {each["error"]: each["is_new"] for each in client.get("api/overview?within=24h").json()["errors"]}

    fail.job("value").here().execute()
    yesterday = recruiter.clock.now() - timedelta(hours=30)
    recruiter.store.archived.collection.update_many({}, {"$set": {"archived_at": yesterday}})
    for kind in ("value", "key"):
        fail.job(kind).here().execute()

    assert errors() == {"ValueError": False, "KeyError": True}
    assert client.get("?within=24h").text.count(">new</span>") == 1


def test_without_earlier_jobs_no_error_is_new(console: Consoles, ended: Recruiter) -> None:
    del ended
    assert [each["is_new"] for each in console().get("api/overview").json()["errors"]] == [False]


class TestLimits:
    def test_a_raised_limit_keeps_its_rate_and_is_taken_back_to_what_it_was(
        self, console: Consoles, recruiter: Recruiter
    ) -> None:
        recruiter.controls.set_limit("task:resize", 1, count=100, per="1m", by="ada")
        client = console(actions=True)
        page = client.get("groups").text
        assert "set by ada" in page
        change = unescape(re.search(r'href="(groups\?name=[^"]+)#set"', page)[1])  # type: ignore[index]
        fields = re.compile(r'<input name="(name|at_once|count|per)"[^>]*? value="([^"]*)"')
        form = dict(fields.findall(client.get(change).text))
        assert form == {"name": "task:resize", "at_once": "1", "count": "100", "per": "1m"}

        question = client.get("confirm", params={"verb": "set-limit", **form, "at_once": "3"}).text
        outcome = client.post("do", data={"what": what_is_asked(question)}).text

        assert "Limit task:resize to 3 at once, 100 per 1m?" in question
        assert "task:resize is limited to 3 at once, 100 per 1m." in outcome
        back = unescape(re.search(r'href="(confirm\?[^"]+)"[^>]*>Take it back', outcome)[1])  # type: ignore[index]
        client.post("do", data={"what": what_is_asked(client.get(back).text)})
        assert [str(limit) for limit in recruiter.controls.limits()] == ["1 at once, 100 per 1m"]

    def test_a_new_limit_is_taken_back_by_removing_it_and_a_removed_one_by_setting_it(
        self, console: Consoles, recruiter: Recruiter
    ) -> None:
        client = console(actions=True)

        def do(**wanted: str) -> tuple[str, dict[str, str]]:
            answer = client.post("api/actions", json={"name": "group:mail", **wanted}).json()
            return answer["undo"], answer["undo_values"]

        assert do(verb="set-limit", at_once="2") == ("remove-limit", {})
        assert do(verb="remove-limit") == ("set-limit", {"at_once": "2"})
        assert recruiter.controls.limits() == []

    def test_a_licence_stays_floating_and_memory_has_its_unit(self, console: Consoles, recruiter: Recruiter) -> None:
        recruiter.controls.set_limit("resource:licence", 2, floating=True)
        recruiter.controls.set_limit("resource:mem", "20 GiB")
        client = console(actions=True)

        def raised(name: str, at_once: str) -> tuple[str, dict[str, str]]:
            wanted = {"verb": "set-limit", "name": name, "at_once": at_once}
            answer = client.post("api/actions", json=wanted).json()
            return answer["text"], answer["undo_values"]

        assert raised("resource:licence", "3") == ("resource:licence is limited to 3 at once.", {"at_once": "2"})
        assert raised("resource:mem", "24GiB") == ("resource:mem is limited to 24 GiB at once.", {"at_once": "20GiB"})
        limits = {limit.subject: limit for limit in recruiter.controls.limits()}
        assert (limits["resource:licence"].floating, limits["resource:licence"].at_once) == (True, 3)
        assert limits["resource:mem"].at_once == 24 * 2**30

    def test_a_limit_of_the_application_is_named_and_only_a_set_one_can_be_removed(
        self, console: Consoles, recruiter: Recruiter
    ) -> None:
        recruiter.store.limits.declare(["resize"], [Limit.of("task:resize", 2)], recruiter.clock.now())
        client = console(actions=True)
        declared = client.get("groups").text
        recruiter.controls.set_limit("task:resize", 5, by="ada")
        was_set = client.get("groups").text

        removed = client.post("api/actions", json={"verb": "remove-limit", "name": "task:resize"}).json()["text"]

        assert (">declared</span>" in declared, "verb=remove-limit" in declared) == (True, False)
        assert ("set by ada, declared: 2 at once" in was_set, "verb=remove-limit" in was_set) == (True, True)
        assert removed == "task:resize has the limit of the application again: 2 at once."

    def test_a_limit_that_makes_no_sense_is_refused_before_it_is_asked_for(self, console: Consoles) -> None:
        client = console(actions=True)

        refused = {"many": {"at_once": "many"}, "a rate needs both": {"count": "5"}, "needs a number": {}}
        for told, values in refused.items():
            answer = client.get("confirm", params={"verb": "set-limit", "name": "task:resize", **values})
            assert (answer.status_code, told in unescape(answer.text)) == (400, True), values


def test_the_button_of_a_problem_does_what_its_command_says(console: Consoles, recruiter: Recruiter) -> None:
    @recruiter.task(group="mail")
    def send() -> None: ...

    send.enqueue()
    recruiter.controls.pause_group("mail", by="ada", reason="the mail server is down")
    client = console(actions=True)

    def button() -> re.Match[str] | None:
        return re.search(r'href="(confirm\?verb=resume-group[^"]+)"', client.get("problems").text)

    found = eventually(button)
    assert found is not None
    question = client.get(unescape(found[1])).text
    client.post("do", data={"what": what_is_asked(question)})

    assert "Resume group mail?" in question
    assert recruiter.controls.rules().paused == {}


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
