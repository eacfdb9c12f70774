"""A simulated recruiter: the real process. It asks instead of listening to change streams."""

from __future__ import annotations

from datetime import timedelta

from recruiter.domain.planning.lookahead import Lookahead
from recruiter.domain.policy_registry import PolicyRegistry, SchedulePolicyRegistry
from recruiter.processes.loop import Presence, Stop
from recruiter.processes.recruiter import RecruiterProcess
from recruiter.settings import Settings
from tests.simulator.process import Process

DEAD_AFTER = 3.0
HEARTBEAT = 0.8
SETTINGS = Settings(
    heartbeat=timedelta(seconds=HEARTBEAT),
    considered_dead_after=timedelta(seconds=DEAD_AFTER),
    backoff_from=timedelta(seconds=0.05),
    resources="proc=8, mem=1000000000",
)


def start_recruiter(process: Process, lease: float, lookahead: Lookahead) -> None:
    recruiter = RecruiterProcess(
        process.store,
        process.events,
        Stop(),
        SETTINGS.model_copy(update={"lease_time": timedelta(seconds=lease)}),
        policies=PolicyRegistry(),
        schedules=SchedulePolicyRegistry(),
        presence=Presence(process.store, "recruiter", every=2.0),
        listen=False,
    )
    assert hasattr(recruiter, "_lookahead")
    recruiter._lookahead = lookahead
    process.threads.start(recruiter.run)
