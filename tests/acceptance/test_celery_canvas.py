"""Celery's canvas beside the page about it, whose examples another test runs: each pair has the same result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.acceptance.docs.pages import page

RESULTS: dict[str, tuple[str, Any]] = {
    "chain": ("chain", 6),
    "partial": ("chain", 7),
    "group": ("group", [0, 2, 4]),
    "chord": ("chord", 6),
    "empty chord": ("chord", 0),
    "chord error": ("chord", ["the chord failed"]),
    "link": ("link and link_error", 6),
    "link_error": ("link and link_error", "it failed"),
    "map": ("map and starmap", [2, 4]),
    "starmap": ("map and starmap", [3, 7]),
    "chunks": ("chunks", [[0, 2], [4, 6], [8, 10]]),
    "replace": ("replace", 24),
    "nested": ("nested", 60),
    "group in a chain": ("nested", 12),
}
"""The forms of the canvas: the section of the page that shows each, and the result there."""


@pytest.mark.parametrize("form", RESULTS)
def test_a_form_of_the_canvas_has_the_result_that_the_page_shows(form: str) -> None:
    celery: Any = pytest.importorskip("celery")
    title, result = RESULTS[form]
    sections = page("coming-from/celery-canvas.md").text.split("\n## ")
    (section,) = [section for section in sections if section.lower().startswith(f"{title}\n")]
    assert f"# → {result!r}\n" in section
    assert celery_result(celery, form) == result


def celery_result(celery: Any, form: str) -> Any:
    chain, chord, group = celery.chain, celery.chord, celery.group
    app = celery.Celery("canvas", broker="memory://", backend="cache+memory://")
    app.conf.update(task_always_eager=True, task_store_eager_result=True)
    seen: list[Any] = []

    def task(function: Callable[..., Any], **options: Any) -> Any:
        return app.task(name=f"{form} {function.__name__}", shared=False, **options)(function)

    def note(value: Any) -> None:
        seen.append(value)

    def note_error(_request: Any, _error: Exception, _traceback: Any) -> None:
        seen.append("the chord failed" if form == "chord error" else "it failed")

    def sum_of_doubles(self: Any, count: int) -> Any:
        return self.replace(chord([double_.s(number) for number in range(count)], total_.s()))

    add_, double_, total_, broken_ = task(add), task(double), task(total), task(broken)
    note_, note_error_ = task(note), task(note_error)
    replaced = task(sum_of_doubles, bind=True)
    inner = chain(double_.s(5), chord([double_.s(), double_.s()], total_.s()))
    forms: dict[str, Callable[[], Any]] = {
        "chain": lambda: chain(add_.s(1, 2), double_.s()),
        "partial": lambda: chain(add_.s(1, 2), add_.s(4)),
        "group": lambda: group(double_.s(number) for number in range(3)),
        "chord": lambda: chord([double_.s(1), double_.s(2)], total_.s()),
        "empty chord": lambda: chord([], total_.s()),
        "map": lambda: double_.map([1, 2]),
        "starmap": lambda: add_.starmap([(1, 2), (3, 4)]),
        "chunks": lambda: add_.chunks(zip(range(6), range(6), strict=True), 2).group(),
        "replace": lambda: chain(replaced.s(4), double_.s()),
        "nested": lambda: chain(group(inner, double_.s(10)), total_.s()),
        "group in a chain": lambda: chain(add_.s(1, 2), group(double_.s(), double_.s()), total_.s()),
    }
    if form in forms:
        return forms[form]().apply_async().get()
    if form == "link":
        add_.apply_async((1, 2), link=chain(double_.s(), note_.s()))
        return seen[0]
    if form == "link_error":
        broken_.apply_async(link_error=note_error_.s())
        return seen[0]
    with suppress(ValueError):
        chord([double_.s(1), broken_.s()], total_.s().on_error(note_error_.s())).apply_async()
    if not seen:
        pytest.skip("in eager mode this Celery does not call the errback of a chord")
    return seen


def add(a: int, b: int) -> int:
    return a + b


def double(number: int) -> int:
    return 2 * number


def total(numbers: list[int]) -> int:
    return sum(numbers)


def broken() -> int:
    raise ValueError("broken")
