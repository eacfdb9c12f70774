"""Events and hooks: told to everybody who listens; a listener or hook that fails harms nobody."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import pytest

from recruiter import RetryPolicy
from recruiter.application import Hook, Hooks
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import Failure, is_last
from recruiter.errors import InvalidJob
from recruiter.events import Event, Events
from tests.conftest import eventually


def test_a_confidant_hears_of_failures_only_and_does_not_count() -> None:
    events, heard = Events(), list[Event]()
    events.on_listener_failure(heard.append)
    assert not events.heard

    def broken(event: Event) -> None:
        raise ValueError(event.name)

    events.emit("job.started")
    events.listen(broken)
    events.emit("job.ended")

    assert [(event.name, event.fields["event"]) for event in heard] == [("listener.failed", "job.ended")]


def test_one_that_cannot_even_say_what_it_is() -> None:
    class Broken:
        def __call__(self, _: Event) -> None:
            raise Unspeakable

        def __repr__(self) -> str:
            raise ValueError("no name")

    class Unspeakable(Exception):
        __repr__ = Broken.__repr__

    events, heard = Events(), list[Event]()
    events.listen(Broken())
    events.listen(heard.append)

    events.emit("job.ended")

    assert heard[0].fields["listener"] == "<Broken that cannot say what it is>"
    assert heard[0].fields["error"] == "<Unspeakable that cannot say what it is>"


@pytest.fixture
def heard() -> list[Event]:
    return []


@pytest.fixture
def events(heard: list[Event]) -> Events:
    events = Events()
    events.listen(heard.append)
    return events


@pytest.mark.parametrize(
    "raising", [lambda: sys.exit("enough"), lambda: 1 / 0, lambda: [][1]], ids=["exit", "1/0", "[]"]
)
def test_one_that_fails_is_told_and_the_others_are_called(raising: Any, events: Events, heard: list[Event]) -> None:
    called: list[str] = []
    hooks = Hooks(
        events,
        [Hook("first", raising), Hook("second", lambda: called.append("became"))],
        [Hook("third", lambda: called.append("stept back"))],
    )

    hooks.became_master()
    hooks.stept_back()

    eventually(lambda: called == ["became", "stept back"])
    hooks.close()
    assert [(event.name, event.fields["hook"]) for event in heard] == [("hook.failed", "first")]


@dataclass(frozen=True)
class ExitsToo(RetryPolicy):
    def decide(self, failure: Failure) -> None:
        sys.exit("enough")

    def export(self) -> dict[str, Any]:
        sys.exit("enough")

    @classmethod
    def import_(cls, parameters: Any) -> Self:
        sys.exit("enough")


class TestAPolicyThatCallsExit:
    """It is asked in the leader and in the cleaner, which must live."""

    NOW = datetime(2030, 1, 1, tzinfo=UTC)

    def test_a_retry_policy_that_exits_counts_as_failed(self) -> None:
        policies = PolicyRegistry()
        policies.register(ExitsToo)

        with pytest.raises(InvalidJob, match="SystemExit: enough"):
            policies.load({"class": "ExitsToo", "parameters": {}})
        with pytest.raises(InvalidJob, match="SystemExit: enough"):
            policies.dump(ExitsToo())
        assert not is_last(ExitsToo(), Failure(1, self.NOW, self.NOW, self.NOW))
