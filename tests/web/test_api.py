"""The JSON API: the same things as the pages, described by OpenAPI."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import httpx
import pytest

from recruiter import Recruiter
from recruiter.domain.search.filter import FILTER_WORDS
from recruiter.web import BasicAuth, dashboard
from recruiter.web.actions import VERBS
from recruiter.web.server import served
from tests.web.conftest import Consoles


@pytest.fixture
def client(console: Consoles, recruiter: Recruiter) -> httpx.Client:
    @recruiter.task(group="mail")
    def send(to: str) -> str:
        if to == "nobody":
            raise LookupError("nobody lives here")
        return to

    for to in ("ada", "grace", "nobody"):
        send.job(to).here().execute()
    for number in range(7):
        send.enqueue(f"reader{number}")
    return console(actions=True)


def jobs(client: httpx.Client, **words: Any) -> list[dict[str, Any]]:
    answer = client.get("api/jobs", params=words)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["jobs"]
    return found


def test_lists_jobs_by_the_words_of_the_command_line(client: httpx.Client) -> None:
    assert [job["args"] for job in jobs(client, state="failed")] == ['to="nobody"']
    assert {job["state"] for job in jobs(client, state="succeeded", group="mail")} == {"succeeded"}
    assert len(jobs(client, state=["queued", "failed"])) == 8
    assert [job["state"] for job in jobs(client, arg="to=grace")] == ["succeeded"]
    assert client.get("api/jobs/count", params={"state": "queued"}).json() == {"number": 7, "exact": True}


def test_pages_follow_each_other(client: httpx.Client) -> None:
    seen, after = [], None
    while True:
        page = client.get("api/jobs", params={"limit": 3, **({"after": after} if after else {})}).json()
        seen += [job["id"] for job in page["jobs"]]
        after = page["next"]
        if after is None:
            break
    assert len(seen) == len(set(seen)) == 10


def test_tells_everything_about_a_job(client: httpx.Client) -> None:
    (short,) = jobs(client, state="failed")
    job = client.get("api/job", params={"id": short["id"]}).json()
    assert job["executions"][0]["exception"] == "LookupError"
    assert "nobody lives here" in job["sentence"]
    assert job["timeline"][-1]["kind"] == "failed"


def test_every_page_says_in_json_what_it_says_in_words(client: httpx.Client) -> None:
    for name in ("overview", "workers", "groups", "schedules", "problems"):
        answer = client.get(f"api/{name}").json()
        page = client.get("" if name == "overview" else name).text
        assert answer["sentence"]["text"], name
        assert answer["sentence"]["text"].partition(" ")[0] in page, name


REFUSED: list[tuple[str, dict[str, str], int]] = [
    ("api/jobs", {"state": "asleep"}, 400),
    ("api/jobs", {"after": "nowhere"}, 400),
    ("api/jobs", {"arg": "$where=1"}, 400),
    ("api/jobs", {"limit": "0"}, 422),
    ("api/jobs", {"attempts": "many"}, 400),
    ("api/job", {"id": "nowhere"}, 404),
    ("api/overview", {"within": "1y"}, 422),
    ("api/nothing", {}, 404),
    ("jobs", {"limit": "x"}, 400),
    ("jobs", {"limit": "²"}, 400),
    ("jobs", {"limit": "9" * 5000}, 400),
    ("jobs", {"since": "yesterday-ish"}, 400),
    ("", {"within": "1y"}, 400),
    ("job", {"id": ""}, 404),
    ("job", {"id": "\0"}, 404),
    ("confirm", {"verb": "explode"}, 400),
    ("confirm", {"verb": "remove"}, 400),
    ("static/../console.py", {}, 404),
    ("static/..%2f..%2fpyproject.toml", {}, 404),
]


def test_what_makes_no_sense_is_refused_with_a_sentence(client: httpx.Client) -> None:
    for place, params, status in REFUSED:
        answer = client.get(place, params=params)
        assert answer.status_code == status, (place, params, answer.text)
        assert "Traceback" not in answer.text
        if place.startswith("api"):
            assert len(answer.json()["detail"]) > 5, (place, params)


def test_acts_and_writes_down_who_did_what(client: httpx.Client, recruiter: Recruiter) -> None:
    (failed,) = jobs(client, state="failed")
    answer = client.post("api/actions", json={"verb": "recover", "ids": [failed["id"]], "reason": "try again"})
    made = answer.json()["link"]
    assert str(recruiter.find(recruiter.jobs.id_of(made)).recovered_from) == failed["id"]

    wanted = {"verb": "cancel", "filter": {"state": ["queued"], "task": [failed["task"]]}, "reason": "enough"}
    assert client.post("api/actions", json=wanted).json()["text"] == "8 jobs are being cancelled."

    done = client.get("api/actions").json()
    assert [(each["by"], each["verb"], each["reason"]) for each in done] == [
        ("a local user", "cancel", "enough"),
        ("a local user", "recover", "try again"),
    ]
    assert done[0]["outcome"] == "8 jobs are being cancelled."
    flagged = recruiter.store.scheduled.collection.find_one({"cancel": {"$exists": True}})
    assert flagged is not None
    assert flagged["cancel"]["by"] == "a local user"


def test_a_job_that_succeeded_is_recovered_only_again(client: httpx.Client, recruiter: Recruiter) -> None:
    done = jobs(client, state="succeeded")[0]["id"]
    page = client.get("job", params={"id": done}).text
    assert "again=yes" in page

    refused = client.post("api/actions", json={"verb": "recover", "ids": [done]})
    by_filter = client.post("api/actions", json={"verb": "recover", "filter": {"state": "succeeded"}})
    assert (refused.status_code, by_filter.status_code) == (400, 400)
    assert "second time" in refused.json()["detail"]

    asked = client.get("confirm", params={"verb": "recover", "id": done, "again": "yes"}).text
    assert "does its work a second time" in asked
    made = client.post("api/actions", json={"verb": "recover", "ids": [done], "again": True}).json()["link"]
    assert str(recruiter.find(recruiter.jobs.id_of(made)).key) == done
    assert client.get("api/job", params={"id": made}).json()["key"] == done


def test_waiting_jobs_are_changed(client: httpx.Client, recruiter: Recruiter) -> None:
    """Given waiting jobs, when a client of the API gives them another time or priority, then they have it."""
    found = client.get("api/jobs", params={"state": "queued"}).json()["jobs"]
    id = found[0]["id"]

    def do(verb: str, **more: Any) -> httpx.Response:
        return client.post("api/actions", json={"verb": verb, **more})

    assert "The job is rescheduled for 20" in do("reschedule", ids=[id], to="2h").json()["text"]
    assert do("reprioritise", ids=[id], to="5").json()["text"] == "The job has priority 5."
    assert "The job is due now: " in do("run", ids=[id], reason="now").json()["text"]
    job = recruiter.find(recruiter.jobs.id_of(id))
    assert [(entry.what, entry.by) for entry in job.history] == [
        ("rescheduled", "a local user"),
        ("reprioritised", "a local user"),
        ("run-now", "a local user"),
    ]
    assert do("reschedule", ids=[id], to="soon").status_code == 400
    assert do("reprioritise", ids=[id]).status_code == 400
    assert do("cancel", ids=[id], to="5").status_code == 400
    assert do("reschedule", filter={"state": "queued"}, to="2099-01-01").json()["text"] == "7 jobs are rescheduled."


def test_a_refusal_is_written_down_too(client: httpx.Client) -> None:
    assert client.post("api/actions", json={"verb": "remove-limit", "name": "task:none"}).status_code == 404
    (deed,) = client.get("api/actions").json()
    assert deed["outcome"].startswith("refused: there is no limit")


def test_all_jobs_at_once_are_never_meant(client: httpx.Client, recruiter: Recruiter) -> None:
    for verb in ("cancel", "recover", "remove"):
        assert client.post("api/actions", json={"verb": verb}).status_code == 400
        assert client.post("api/actions", json={"verb": verb, "filter": {}}).status_code == 400
    assert recruiter.jobs.count().number == 10


def test_openapi_describes_all_of_it(client: httpx.Client) -> None:
    described = client.get("api/openapi.json").json()
    paths = {path: sorted(methods) for path, methods in described["paths"].items()}
    assert paths["/api/actions"] == ["get", "post"]
    assert set(paths) == {
        *("/api/overview", "/api/jobs", "/api/jobs/count", "/api/job", "/api/workers", "/api/groups"),
        *("/api/schedules", "/api/problems", "/api/actions", "/api/actions/progress", "/api/flows", "/api/flow"),
    }
    names = {each["name"] for each in described["paths"]["/api/jobs"]["get"]["parameters"]}
    assert {"state", "task", "arg", "since", "limit", "after"} <= names
    for path in paths:
        if paths[path] == ["get"] and path not in ("/api/job", "/api/flow", "/api/actions/progress"):
            assert client.get(path[1:]).status_code == 200, path


def test_openapi_describes_the_path_the_sign_in_and_one_form_of_errors(recruiter: Recruiter) -> None:
    access = BasicAuth({"ada": "secret"})
    with (
        served(dashboard(recruiter, access=access), root_path="/ops") as address,
        httpx.Client(base_url=address, trust_env=False, auth=("ada", "secret")) as client,
    ):
        described = client.get("ops/api/openapi.json").json()

    assert described["servers"] == [{"url": "/ops"}]
    assert described["security"] == [{"basic": []}]
    assert described["components"]["securitySchemes"] == {"basic": {"type": "http", "scheme": "basic"}}
    operations = [operation for methods in described["paths"].values() for operation in methods.values()]
    assert len(operations) == 13
    for operation in operations:
        errors = {status: answer for status, answer in operation["responses"].items() if status != "200"}
        assert {"400", "401", "403", "404", "405", "413", "422", "429", "503", "default"} <= set(errors)
        for answer in errors.values():
            schema = answer["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}


def test_an_unknown_word_in_a_query_is_refused_with_the_nearest_one(client: httpx.Client) -> None:
    for place in ("api/jobs", "api/jobs/count", "jobs", "counts"):
        answer = client.get(place, params={"state": "queued", "tsk": "send"})

        assert answer.status_code == 400, place
        assert "'tsk'" in html.unescape(answer.text), place
        assert "did you mean task?" in answer.text, place


def test_an_unknown_parameter_is_refused(client: httpx.Client) -> None:
    for place in ("api/groups", "api/overview"):
        answer = client.get(place, params={"withn": "1h"})

        assert answer.status_code == 400, place
        assert "'withn'" in answer.json()["detail"], place


NOT_UNDERSTOOD: list[tuple[dict[str, Any], str]] = [
    ({"filter": {"state": ["waiting"], "tsk": ["send"]}}, "did you mean task?"),
    ({"filter": {"state": ["waiting"]}, "filtr": {"task": ["send"]}}, "did you mean filter?"),
    ({"filter": {"state": ["waiting"], "task": [""]}}, "task has no value"),
    ({"filter": {"state": ["waiting"], "task": ""}}, "task has no value"),
]


def test_an_action_whose_filter_is_not_understood_does_nothing(client: httpx.Client, recruiter: Recruiter) -> None:
    for wanted, hint in NOT_UNDERSTOOD:
        answer = client.post("api/actions", json={"verb": "cancel", **wanted})

        assert answer.status_code == 400, answer.text
        assert hint in answer.json()["detail"]
    assert recruiter.store.scheduled.collection.count_documents({"cancel": {"$exists": True}}) == 0


@pytest.mark.parametrize(
    "filter", [{"state": "queued", "arg": "to=reader1"}, {"state": ["queued"], "arg": ["to=reader1"]}]
)
def test_a_value_that_is_no_list_is_one_value(client: httpx.Client, filter: dict[str, Any]) -> None:
    answer = client.post("api/actions", json={"verb": "cancel", "filter": filter})

    assert answer.json()["text"] == "1 job is being cancelled."


def test_numbers_and_truths_in_a_body_are_understood(client: httpx.Client) -> None:
    wanted = {"verb": "recover", "filter": {"attempts": 1, "recovered": False, "state": "failed"}}

    assert client.post("api/actions", json=wanted).json()["text"] == "1 job is recovered."
    assert client.post("api/actions", json={"verb": "cancel", "filter": {"task": {"$ne": ""}}}).status_code == 422


def test_an_unknown_word_in_a_link_to_a_question_is_refused(client: httpx.Client) -> None:
    answer = client.get("confirm", params={"verb": "cancel", "state": "queued", "tsk": "send"})

    assert answer.status_code == 400
    assert "did you mean task?" in answer.text


def test_the_page_about_the_console_names_every_verb_and_every_word() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "web-console.md").read_text()
    described = page.partition("## The JSON API")[2].partition("\n## ")[0]

    assert [verb for verb in VERBS if f"`{verb}`" not in described] == []
    assert [word for word in FILTER_WORDS if f"`{word}`" not in described] == []
