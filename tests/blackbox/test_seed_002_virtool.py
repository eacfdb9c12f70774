"""The seed document of Virtool's jobs manager, typed literally: its job document is a job here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pymongo.collection import Collection

from recruiter import Recruiter
from recruiter.store.connection import Target
from tests.cli_here import here

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


@pytest.mark.parametrize(("mem", "size"), [(4, 4 * 2**30), (0.5, 2**29), ("4GiB", 4 * 2**30), (4 * 2**30, 4 * 2**30)])
def test_memory_has_one_meaning_in_python_and_in_documents(
    recruiter: Recruiter, scheduled: Collection[dict[str, Any]], mem: Any, size: int
) -> None:
    @recruiter.task(name="add_host")
    def add_host(**args: Any) -> None: ...

    job = add_host.job(name="Peach").needing(mem=mem).enqueue()
    found = recruiter.find(job.id)
    assert found is not None
    assert found.needs.amounts() == {"mem": size}
    scheduled.insert_one({"_id": "foreign", "task": "add_host", "args": {"name": "Peach"}, "mem": mem})
    assert recruiter.run("add_host") is not None
    assert recruiter.run("add_host") is not None
    assert recruiter.handle("foreign").wait(timeout=60).needs.amounts() == {"mem": size}


STATES = {"waiting": "job", "running": "job", "complete": "left", "error": "left", "cancelled": "left"}


def test_its_collection_is_imported(recruiter: Recruiter, scheduled: Collection[dict[str, Any]]) -> None:
    """A job that waits or runs there, and none that has ended; with its user, its processors and its memory."""
    client, name = scheduled.database.client, f"{scheduled.database.name}_virtool"
    status = DOCUMENT["status"][-1]
    try:
        client[name]["jobs"].insert_many(
            [{**DOCUMENT, "_id": state, "status": [{**status, "state": state}]} for state in STATES]
        )
        client[name]["jobs"].insert_many([{**DOCUMENT, "status": []}, {**DOCUMENT, "_id": "old", "archived": True}])
        origin = Target.parse(recruiter.address).in_database(name).uri
        code, said = here(recruiter.address, "import", "virtool", origin, "--output", "json")
    finally:
        client.drop_database(name)

    assert code == 0, said
    lines = {line["id"].partition(":")[2]: line for line in json.loads(said)["documents"]}
    assert {id: line["what"] for id, line in lines.items()} == {**STATES, "f41e8c": "job", "old": "left"}
    assert lines["running"]["told"] == "it was running there, and begins again"
    assert lines["error"]["told"] == "it has ended: error"
    job = recruiter.find("virtool:f41e8c")
    assert (job.task, job.args, job.owner) == ("add_host", DOCUMENT["args"], "igboyes")
    assert job.needs.amounts() == {"proc": 1, "mem": 4 * 2**30}


def test_minimal_documents_have_the_fields_of_the_seed(recruiter: Recruiter) -> None:
    """`task`, `status`, `proc`, `mem`, `username` and `archived`; the arguments can be large and are in whole jobs."""
    recruiter.job("add_host", DOCUMENT["args"]).owned_by("igboyes").needing(proc=1, mem=4).enqueue()

    (minimal,) = recruiter.jobs.list(minimal=True).jobs
    (whole,) = recruiter.jobs.list().jobs

    needs = {"proc": 1, "mem": 4 * 2**30}
    assert (minimal.task, minimal.state, minimal.owner, minimal.needs.amounts()) == (
        "add_host",
        "waiting",
        "igboyes",
        needs,
    )
    assert whole.args == DOCUMENT["args"]
