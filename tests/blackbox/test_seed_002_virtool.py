"""The seed document of Virtool's jobs manager, typed literally: its job document is a job here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pymongo.collection import Collection

from recruiter import Recruiter
from tests.blackbox.conftest import Written
from tests.cli_here import here
from tests.conftest import Starter, eventually

APPLICATION = """
from recruiter import Recruiter, current_job

recruiter = Recruiter()

@recruiter.task
def add_host(_id, _version, description, file, added, job, username):
    current_job.stage("bowtie_build", progress=0.429)
    current_job.stage("snap_build", progress=0.571)
    current_job.stage("update_db", progress=0.714)
    return f"{description} of {username}"
"""

DOCUMENT: dict[str, Any] = {
    "_id": "f41e8c",
    "_version": 7,
    "task": "add_host",
    "args": {
        "_id": "Prunus persica",
        "_version": 0,
        "description": "Peach",
        "file": "prunus_persica.fa",
        "added": False,
        "job": "f41e8c",
        "username": "igboyes",
    },
    "proc": 1,
    "mem": 4,
    "status": [
        {
            "stage": "bowtie_build",
            "progress": 0.429,
            "error": None,
            "state": "running",
            "date": "2016-08-25T11:48:22.375557",
        },
        {
            "stage": "snap_build",
            "progress": 0.571,
            "error": None,
            "state": "running",
            "date": "2016-08-25T11:52:18.472402",
        },
        {
            "stage": "update_db",
            "progress": 0.714,
            "error": None,
            "state": "running",
            "date": "2016-08-25T11:53:24.774645",
        },
    ],
    "username": "igboyes",
}


def test_the_document_of_the_seed_runs_with_one_processor_and_4_gib(
    recruiter: Recruiter, scheduled: Collection[dict[str, Any]], application: Written, start: Starter, target: str
) -> None:
    # given the document of the seed
    scheduled.insert_one(DOCUMENT)

    # when a fleet runs on a host with more than that
    start("start", "recruiter")
    start("start", "worker", "--bootstrap", application(APPLICATION), "--resources", "proc=2,mem=8")

    # then it runs, and its memory was read in GiB
    job = recruiter.handle("f41e8c")
    assert job.result(timeout=60) == "Peach of igboyes"
    ended = job.wait(timeout=60)
    assert ended.needs.amounts() == {"proc": 1, "mem": 4 * 2**30}
    assert ended.owner == "igboyes"
    assert [(entry.state, entry.stage) for entry in ended.status] == [
        ("running", "bowtie_build"),
        ("running", "snap_build"),
        ("running", "update_db"),
        ("succeeded", "update_db"),
    ], "the entries of the other program were replaced"
    assert ended.progress == 1.0
    code, said = here(target, "job", "show", "f41e8c", "--output", "json")
    assert (code, json.loads(said)["needs"]) == (0, {"mem": 4 * 2**30, "proc": 1})


def test_it_waits_where_no_host_has_4_gib(
    scheduled: Collection[dict[str, Any]], application: Written, start: Starter, target: str
) -> None:
    scheduled.insert_one(DOCUMENT)

    start("start", "recruiter")
    start("start", "worker", "--bootstrap", application(APPLICATION), "--resources", "proc=2,mem=2")

    eventually(lambda: "needs 4 GiB of mem" in here(target, "job", "show", "f41e8c")[1])


@pytest.mark.parametrize(("mem", "size"), [(4, 4 * 2**30), (0.5, 2**29), ("4GiB", 4 * 2**30), (4 * 2**30, 4 * 2**30)])
def test_memory_has_one_meaning_in_python_and_in_documents(
    recruiter: Recruiter, scheduled: Collection[dict[str, Any]], mem: Any, size: int
) -> None:
    @recruiter.task(name="add_host")
    def add_host(**args: Any) -> None:
        del args

    job = add_host.job(name="Peach").needing(mem=mem).enqueue()
    found = recruiter.find(job.id)
    assert found is not None
    assert found.needs.amounts() == {"mem": size}
    scheduled.insert_one({"_id": "foreign", "task": "add_host", "args": {"name": "Peach"}, "mem": mem})
    assert recruiter.run("add_host") is not None
    assert recruiter.run("add_host") is not None
    assert recruiter.handle("foreign").wait(timeout=60).needs.amounts() == {"mem": size}
