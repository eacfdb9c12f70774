"""Events: told to everybody who listens; who fails harms nobody."""

from __future__ import annotations

from recruiter.events import Event, Events


def test_everybody_hears_in_order() -> None:
    events, heard = Events(), list[tuple[str, Event]]()
    events.listen(lambda event: heard.append(("first", event)))
    events.listen(lambda event: heard.append(("second", event)))

    events.emit("job.ended", job=1, seconds=0.5)

    event = Event("job.ended", {"job": 1, "seconds": 0.5})
    assert heard == [("first", event), ("second", event)]


def test_nobody_listens() -> None:
    events, heard = Events(), list[Event]()
    events.emit("job.ended", job=1)

    events.listen(heard.append)

    assert heard == [], "what was before is gone"


def test_listen_can_be_a_decorator() -> None:
    events, heard = Events(), list[str]()

    @events.listen
    def hear(event: Event) -> None:
        heard.append(event.name)

    events.emit("worker.left", worker="w")
    hear(Event("called"))

    assert heard == ["worker.left", "called"]


def test_one_that_fails_harms_nobody_and_is_told() -> None:
    events, heard = Events(), list[Event]()

    def broken(event: Event) -> None:
        raise ValueError(f"cannot stand {event.name}")

    events.listen(broken)
    events.listen(heard.append)

    events.emit("job.ended", job=1)

    assert [event.name for event in heard] == ["listener.failed", "job.ended"]
    assert heard[0].fields["event"] == "job.ended"
    assert "broken" in heard[0].fields["listener"]
    assert "cannot stand job.ended" in heard[0].fields["error"]


def test_everybody_fails_and_it_ends() -> None:
    events, calls = Events(), list[str]()

    def broken(event: Event) -> None:
        calls.append(event.name)
        raise ValueError

    for _ in range(3):
        events.listen(broken)

    events.emit("job.ended")

    assert calls.count("job.ended") == 3
    assert calls.count("listener.failed") == 9


def test_one_that_calls_exit_ends_nothing() -> None:
    """Given a listener in a process that runs jobs, then its exit() is a failure of the listener, not of the job."""
    events, heard = Events(), []

    def leaving(event: Event) -> None:
        raise SystemExit(event.name)

    events.listen(leaving)
    events.listen(lambda event: heard.append(event.name))

    events.emit("job.ended")

    assert heard == ["listener.failed", "job.ended"]


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
