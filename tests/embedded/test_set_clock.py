"""The clock of the host is set while an embedded server runs: it is still the same server."""

from __future__ import annotations

import os

import psutil
import pytest

from recruiter.embedded.process import ServerRecord


@pytest.mark.parametrize("step", [-3600.0, 3.0, 86400.0])
def test_a_process_is_known_again_after_a_step(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """psutil reckons the start of a process from the time of the boot, which the kernel moves with the clock."""
    record = ServerRecord.of(os.getpid(), 27017)
    create_time = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: create_time(self) + step)

    assert record.running


def test_another_process_with_its_pid_is_not() -> None:
    record = ServerRecord.of(os.getpid(), 27017)

    assert not ServerRecord(record.port, record.pid, record.started + 1).running
    assert not ServerRecord(record.port, 1, record.started).running
