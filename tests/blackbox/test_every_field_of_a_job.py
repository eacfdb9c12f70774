"""Every field of a job, whatever it is, is in the JSON of the command line and of the API."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import httpx
import pytest
from bson import ObjectId

from recruiter import Recruiter, RetryManyTimes, current_job
from recruiter.domain.search.conditions import STATES
from recruiter.store.job_fields import JOB_FIELDS
from recruiter.web import dashboard
from recruiter.web.server import served
from tests.cli_here import here
from tests.golden.world import fill

FIELDS = {row.attribute for row in JOB_FIELDS} - {None, "changes"}  # changes are in `history`


@pytest.fixture
def ended(recruiter: Recruiter) -> str:
    """A job with options, checkpoints, a signal, stages, a log and several attempts."""

    @recruiter.task(group="mail", retry=RetryManyTimes(2, 0.001), timeout="1h", name="send")
    def send(to: str, password: str) -> dict[str, str]:
        current_job.log("password=hunter2 is in the log")
        current_job.stage("deliver", progress=0.5)
        charged = current_job.once("charge", lambda: {"receipt": 7, "token": "t0ken"})
        if current_job.attempt == 1:
            raise ConnectionError("no answer from mongodb://ada:hunter2@db1/shop")
        return {"to": to, "receipt": str(charged["receipt"]), "password": password}

    job = send.job("ada@b.c", password="hunter2").owned_by("ada").tagged_as("eu").schedule_in("1h").expires_in("1 day")
    id = str(job.enqueue().id)
    recruiter.signal(id, "approved", {"secret": "hunter2"}, by="bob")
    recruiter.reprioritise(id, 5, by="bob")
    recruiter.run_now(id, by="bob", reason="now")
    while not recruiter.find(id).ended:
        recruiter.run_all(send)
    return id


def api(recruiter: Recruiter, place: str, **words: str) -> Any:
    with (
        served(dashboard(recruiter, access=lambda: "ada")) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        answer = client.get(f"api/{place}", params=words)
        assert answer.status_code == 200, answer.text
        return answer.json()


def test_the_command_line_has_every_field(ended: str, target: str) -> None:
    code, said = here(target, "job", "show", ended, "--output", "json")
    job = json.loads(said)

    assert code == 0
    assert FIELDS - job.keys() == set()
    assert (job["latency"] > 0, job["execution_time"] >= 0, job["expires_at"][:2]) == (True, True, "20")
    assert [checkpoint["name"] for checkpoint in job["checkpoints"]] == ["charge"]
    assert job["signals"][0]["data"] == {"secret": "hunter2"}
    assert [entry["what"] for entry in job["history"]] == ["signal", "reprioritised", "run-now"]
    assert [attempt["exception"] for attempt in job["executions"]] == ["ConnectionError", None]
    (listed,) = json.loads(here(target, "job", "list", "--full", "--output", "json")[1])
    assert {name: job[name] for name in listed} == listed


def test_the_api_has_every_field_and_no_secret(recruiter: Recruiter, ended: str) -> None:
    job = api(recruiter, "job", id=ended)

    assert FIELDS - job.keys() == set()
    assert job["checkpoints"][0]["result"]["receipt"] == 7
    assert job["result"]["to"] == job["args"]["to"] == "ada@b.c"
    assert "hunter2" not in json.dumps(job)
    assert "t0ken" not in json.dumps(job)


def test_openapi_describes_every_field(recruiter: Recruiter) -> None:
    described = api(recruiter, "openapi.json")["components"]["schemas"]["JobView"]["properties"]

    assert FIELDS - described.keys() == set()


@pytest.mark.parametrize("what", ["a list of the command line", "a list of the API"])
def test_a_list_leaves_out_what_may_be_large(recruiter: Recruiter, ended: str, target: str, what: str) -> None:
    if what == "a list of the API":
        (job,) = api(recruiter, "jobs")["jobs"]
    else:
        (job,) = json.loads(here(target, "job", "list", "--output", "json")[1])

    details = {"args", "result", "executions", "step_results", "checkpoints", "signals", "status", "log"}
    assert FIELDS - job.keys() - details == set()
    assert not job.keys() & (details - {"args"})
    assert (job["id"], job["state"], job["attempts"], job["error"]) == (ended, "succeeded", 2, None)


def test_a_waiting_job_has_the_same_fields(recruiter: Recruiter, target: str) -> None:
    id = str(recruiter.job("send", ["ada"]).schedule_in("1h").enqueue().id)

    job = json.loads(here(target, "job", "show", id, "--output", "json")[1])

    assert FIELDS - job.keys() == set()
    assert (job["why"], job["latency"], job["result"], job["state"]) == (None, None, None, "waiting")
    assert api(recruiter, "job", id=id)["state"] == "postponed"


def test_ids_of_every_kind_and_odd_values_are_in_json_and_api(recruiter: Recruiter, target: str) -> None:
    """Given a job whose fields refer to ids of every kind, then both have them as text or number."""
    id = recruiter.job("send", ["ada"]).with_id(7).schedule_in("1h").enqueue().id
    others = [ObjectId(), UUID(int=5), 8, "other"]
    odd = {
        "recovered_from": others[1],
        "origin": others[0],
        "flow": {"id": ObjectId(), "step": 7, "after": others, "any": [8], "takes": [others[0]], "added": ObjectId()},
        "step_results": [{"step": others[0], "result": {"at": recruiter.clock.now(), "raw": b"123"}}],
        "retry_policy": {"class": "Own", "parameters": {"id": others[0], "raw": b"1"}},
        "history": [{"at": recruiter.clock.now(), "what": "recovered", "to": others[0]}],
    }
    recruiter.store.scheduled.collection.update_one({"_id": id}, {"$set": odd})

    shown, job = json.loads(here(target, "job", "show", "7", "--output", "json")[1]), api(recruiter, "job", id="7")

    assert (shown["id"], job["id"], job["flow"]) == (7, "7", str(odd["flow"]["id"]))  # type: ignore[index]
    assert job["flow_step"]["after"] == shown["flow_step"]["after"] == [str(others[0]), str(others[1]), 8, "other"]
    assert job["step_results"][0]["step"] == shown["step_results"][0]["step"] == str(others[0])
    assert job["retry_policy"]["parameters"]["id"] == job["origin"] == str(others[0])


def test_command_line_and_console_agree_on_the_state_of_each_job(recruiter: Recruiter, target: str) -> None:
    """Given a job in every kind of trouble, when both are asked for the jobs of each state, then they name the same."""
    fill(recruiter)

    with (
        served(dashboard(recruiter, access=lambda: "ada")) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        for state in sorted(STATES):
            listed = json.loads(here(target, "job", "list", "--state", state, "--output", "json")[1])
            shown = client.get("api/jobs", params={"state": state}).json()["jobs"]
            assert [str(job["id"]) for job in listed] == [job["id"] for job in shown], state
            counted = json.loads(here(target, "job", "count", "--state", state, "--output", "json")[1])["number"]
            assert counted == len(listed), state
