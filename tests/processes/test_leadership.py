"""Five recruiters, one leads; a dead leader is replaced within the lease; a frozen one can change nothing."""

from __future__ import annotations

import signal
from pathlib import Path

from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Process, Starter, eventually

JOBS = jobs.__file__
LEASE = 2.0


def leader_of(store: Store) -> int:
    lease = store.leases.read()
    return lease.pid if lease is not None and lease.holder is not None else 0


def hooks(folder: Path) -> list[str]:
    file = folder / "hooks"
    return file.read_text().split("\n")[:-1] if file.exists() else []


def start_recruiters(start: Starter, count: int, folder: Path) -> dict[int, Process]:
    options = ("--bootstrap", JOBS, "--lease-time", f"{LEASE}s")
    members = [start("start", "recruiter", *options, HOOKS_FOLDER=str(folder)) for _ in range(count)]
    return {member.pid: member for member in members}


def test_a_killed_leader_is_replaced_within_the_lease_and_hooks_are_called_once_a_change(
    start: Starter, store: Store, tmp_path: Path
) -> None:
    # given five recruiters, one of which leads
    members = start_recruiters(start, 5, tmp_path)
    first = eventually(lambda: leader_of(store))
    eventually(lambda: hooks(tmp_path) == [f"became {first}"])
    for member in members.values():
        member.says("recruiter started")

    # when the leader is killed
    members[first].signal(signal.SIGKILL)
    members[first].wait()

    # then another leads within the lease, with a higher term
    second = eventually(lambda: leader_of(store) not in (0, first) and leader_of(store), within=2 * LEASE)
    lease = store.leases.read()
    assert lease is not None
    assert lease.term == 2
    eventually(lambda: hooks(tmp_path) == [f"became {first}", f"became {second}"])

    # and when it is asked to stop, the next one need not wait, and both changes are told once
    members[second].stop()
    third = eventually(lambda: leader_of(store) not in (0, first, second) and leader_of(store), within=2 * LEASE)
    expected = [f"became {first}", f"became {second}", f"stept_back {second}", f"became {third}"]
    eventually(lambda: hooks(tmp_path) == expected)


def test_a_leader_frozen_past_its_lease_changes_nothing_when_it_wakes(
    start: Starter, store: Store, tmp_path: Path
) -> None:
    # given two recruiters and no worker, so that the leader has something to do as soon as one joins
    members = start_recruiters(start, 2, tmp_path)
    frozen = eventually(lambda: leader_of(store))
    eventually(lambda: f"became {frozen}" in hooks(tmp_path))  # the process knows it too, and will say when it is over
    members[frozen].signal(signal.SIGSTOP)
    other = eventually(lambda: leader_of(store) not in (0, frozen) and leader_of(store))
    members[other].signal(signal.SIGSTOP)  # from here on nobody would repair what the old one does

    # when the old leader wakes up and finds a ready worker and due jobs
    jobs.add.enqueue(1, 2)
    term = store.leases.term()
    store.roster.join("w", worker_facts())
    store.roster.become_ready("w", term)
    store.roster.raise_term(term)
    members[frozen].signal(signal.SIGCONT)

    # then it steps back without having assigned anything; the lease beats on, or it would lead again, and rightly
    def stepped_back() -> bool:
        store.leases.collection.update_one({"_id": "leader"}, {"$inc": {"beats": 1}})
        return "is no longer the leader" in members[frozen].log

    eventually(stepped_back)
    holding = store.roster.holding("w")
    assert holding is not None
    assert holding.assigned == []
    eventually(lambda: f"stept_back {frozen}" in hooks(tmp_path))


def worker_facts() -> dict[str, object]:
    return {"host": "h", "pid": 1, "groups": None, "tasks": ["add"], "slots": 1, "prefetch": 0}
