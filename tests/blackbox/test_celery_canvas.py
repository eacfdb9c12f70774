"""Celery's canvas beside our forms: each pair gives the same. Celery's half runs where Celery is installed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from recruiter import Recruiter, current_job

RESULTS = {
    "chain": 6,
    "partial": 7,
    "immutable": 10,
    "group": [0, 2, 4],
    "empty group": [],
    "chord": 6,
    "empty chord": 0,
    "map": [2, 4],
    "starmap": [3, 7],
    "chunks": [[0, 2], [4, 6], [8, 10]],
    "replace": 24,
    "nested": 60,
    "link": [3],
    "error of a task": ["broken"],
    "error of a chord": ["broken"],
}
"""The forms of the canvas, and the results or effects that both have."""


def flows(recruiter: Recruiter, seen: list[Any]) -> dict[str, Callable[[], Any]]:
    """Our forms: each returns a flow whose result is the result, or None if the effect is in `seen`."""

    add_, double_ = recruiter.task(add), recruiter.task(double)
    total_, broken_ = recruiter.task(total), recruiter.task(broken)

    @recruiter.task
    def note(value: int | str) -> None:
        seen.append(value)

    @recruiter.task
    def add_pairs(pairs: list[tuple[int, int]]) -> list[int]:
        return [a + b for a, b in pairs]

    @recruiter.task
    def sum_of_doubles(count: int) -> int:
        parts = recruiter.fan_out(double_, [(number,) for number in range(count)], then=total_, name="parts")
        result: int = current_job.flow.add(parts, before_dependents=True).result
        return result

    def partial() -> Any:
        flow = recruiter.flow("partial")
        flow.add(add_, flow.add(add_, 1, 2).result, 4)
        return flow

    def nested() -> Any:
        inner = recruiter.flow("chain")
        ten = inner.add(double_, 5)
        inner.add(recruiter.fan_out(double_, [(ten.result,), (ten.result,)], then=total_, name="chord"))
        group = recruiter.flow("group")
        group.add(inner)
        group.add(double_, 10)
        return recruiter.chain(group, total_)

    def link() -> None:
        flow = recruiter.flow("link")
        first = flow.add(add_, 1, 2)
        flow.add(note, first.result)
        flow.add(note.job("not called"), after_failure=first)
        flow.start()

    def link_error() -> None:
        flow = recruiter.flow("link_error")
        flow.add(note.job("broken"), after_failure=flow.add(broken_))
        flow.start()

    def chord_error() -> None:
        flow = recruiter.flow("chord error")
        header = [flow.add(double_, 1), flow.add(broken_)]
        flow.add(total_, [step.result for step in header])
        flow.add(note.job("broken"), after_failure=header)
        flow.start()

    pairs = [(number, number) for number in range(6)]
    return {
        "chain": lambda: recruiter.chain(add_.job(1, 2), double_),
        "partial": partial,
        "immutable": lambda: recruiter.chain(add_.job(1, 2), double_.job(5)),
        "group": lambda: recruiter.fan_out(double_, [(number,) for number in range(3)]),
        "empty group": lambda: recruiter.fan_out(double_, []),
        "chord": lambda: recruiter.fan_out(double_, [(1,), (2,)], then=total_),
        "empty chord": lambda: recruiter.fan_out(double_, [], then=total_),
        "map": lambda: recruiter.fan_out(double_, [(1,), (2,)]),
        "starmap": lambda: recruiter.fan_out(add_, [(1, 2), (3, 4)]),
        "chunks": lambda: recruiter.fan_out(add_pairs, [(pairs[first : first + 2],) for first in range(0, 6, 2)]),
        "replace": lambda: recruiter.chain(sum_of_doubles.job(4), double_),
        "nested": nested,
        "link": link,
        "error of a task": link_error,
        "error of a chord": chord_error,
    }


@pytest.mark.parametrize("form", RESULTS)
def test_a_form_of_the_canvas_as_a_flow(local: Recruiter, form: str) -> None:
    seen: list[Any] = []
    part = flows(local, seen)[form]()
    if part is None:
        local.flush_jobs_synchronously()
        assert sorted(seen) == RESULTS[form]
        return
    outer = local.flow("outer")
    sub = outer.add(part, name=form)
    handle = outer.start() if sub.steps else None
    local.flush_jobs_synchronously()
    assert (sub.result if handle is None else handle.sub_flow(sub).result(5)) == RESULTS[form]


def add(a: int, b: int) -> int:
    return a + b


def double(number: int) -> int:
    return 2 * number


def total(numbers: list[int]) -> int:
    return sum(numbers)


def broken() -> int:
    raise ValueError("broken")


@pytest.mark.parametrize("form", RESULTS)
def test_a_form_of_the_canvas_in_celery(form: str) -> None:
    celery: Any = pytest.importorskip("celery")
    chain, chord, group = celery.chain, celery.chord, celery.group
    app = celery.Celery("canvas", broker="memory://", backend="cache+memory://")
    app.conf.update(task_always_eager=True, task_store_eager_result=True)
    seen: list[Any] = []

    def append(value: Any) -> None:
        seen.append(value)

    def append_error(_request: Any, error: Exception, _traceback: Any) -> None:
        seen.append(str(error))

    def sum_of_doubles(self: Any, count: int) -> Any:
        return self.replace(chord([double_.s(number) for number in range(count)], total_.s()))

    plain = (add, double, total, broken, append, append_error)
    tasks = {
        function.__name__: app.task(name=f"{form} {function.__name__}", shared=False)(function) for function in plain
    }
    add_, double_, total_, broken_, note, note_error = tasks.values()
    replaced = app.task(name=f"{form} replaced", bind=True, shared=False)(sum_of_doubles)
    inner = chain(double_.s(5), chord([double_.s(), double_.s()], total_.s()))
    forms: dict[str, Callable[[], Any]] = {
        "chain": lambda: chain(add_.s(1, 2), double_.s()),
        "partial": lambda: chain(add_.s(1, 2), add_.s(4)),
        "immutable": lambda: chain(add_.s(1, 2), double_.si(5)),
        "group": lambda: group(double_.s(number) for number in range(3)),
        "empty group": lambda: group([]),
        "chord": lambda: chord([double_.s(1), double_.s(2)], total_.s()),
        "empty chord": lambda: chord([], total_.s()),
        "map": lambda: double_.map([1, 2]),
        "starmap": lambda: add_.starmap([(1, 2), (3, 4)]),
        "chunks": lambda: add_.chunks(zip(range(6), range(6), strict=True), 2).group(),
        "replace": lambda: chain(replaced.s(4), double_.s()),
        "nested": lambda: chain(group(inner, double_.s(10)), total_.s()),
    }
    if form in forms:
        assert forms[form]().apply_async().get() == RESULTS[form]
        return
    if form == "link":
        add_.apply_async((1, 2), link=note.s())
    elif form == "error of a task":
        broken_.apply_async(link_error=note_error.s())
    else:
        with suppress(ValueError):
            chord([double_.s(1), broken_.s()], total_.s().on_error(note_error.s())).apply_async()
        if not seen:
            pytest.skip("in eager mode this Celery does not call the errback of a chord")
    assert sorted(seen) == RESULTS[form]
