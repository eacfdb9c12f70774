"""Events: told to everybody who listens; who fails harms nobody."""

from __future__ import annotations

from recruiter.events import Event, Events


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
