"""Options are checked in one place, whoever takes them: task, workable class, job, repeatable job."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from recruiter import Every, Recruiter, RetryForever, RetryManyTimes, Workable
from recruiter.domain.options import _CHECKS, DEFAULTS, GivenJobOptions, GivenOptions, TaskOptions
from recruiter.domain.planning.needs import Needs
from recruiter.errors import RecruiterError

recruiter = Recruiter("127.0.0.1:1")


@recruiter.task(name="options.echo", group="mail", tags=["a"], retry=RetryForever(1), only=[OSError], timeout="1m")
def echo() -> None: ...


job = echo.job()
repeated = job.repeat_with_policy(Every("1 minute"))


def options_of(built: Any) -> TaskOptions:
    options: TaskOptions = built._task_options
    return options


class TestOneTable:
    def test_every_option_is_given_kept_and_checked_under_one_name(self) -> None:
        kept = {field.name for field in fields(TaskOptions)}

        assert kept == set(_CHECKS) == {*GivenOptions.__annotations__, *GivenJobOptions.__annotations__}

    def test_a_class_refuses_what_a_task_refuses(self) -> None:
        """The refusals of a task are in `tests/golden/errors.txt`."""
        for options in ({"group": "a b"}, {"timeout": 0}, {"retry": 3}):
            with pytest.raises(RecruiterError):
                type("Refused", (Workable,), {}, **options)

    @pytest.mark.parametrize("takes", [Recruiter.task, Workable.__init_subclass__])
    def test_signatures_show_every_option(self, takes: Callable[..., Any]) -> None:
        assert set(GivenOptions.__annotations__) <= set(inspect.signature(takes).parameters)


class TestChanged:
    def test_options_that_are_not_given_stay(self) -> None:
        options = DEFAULTS.changed(group="mail", needs={"proc": 2}, timeout="2m")

        assert options == TaskOptions(group="mail", needs=Needs.of(proc=2), timeout=120.0)

    def test_exceptions_go_with_the_policy_that_they_were_given_with(self) -> None:
        options = DEFAULTS.changed(retry=RetryForever(1), only=[OSError])

        assert options.changed(priority=3).only == (OSError,)
        assert options.changed(retry=RetryManyTimes(1, 1)).only == ()

    @pytest.mark.parametrize("start", [job, repeated], ids=["job", "repeatable job"])
    def test_jobs_begin_with_the_options_of_their_task(self, start: Any) -> None:
        changed = start.tagged_as("b").with_priority(5).owned_by("ada").limited_by("customer:1").at_most_once()

        assert options_of(changed) == options_of(start).changed(
            tags=("a", "b"), priority=5, owner="ada", limited_by="customer:1", at_most_once=True
        )
        assert (options_of(changed).group, options_of(changed).only) == ("mail", (OSError,))

    def test_a_class_has_the_options_of_the_class_it_extends(self) -> None:
        class Message(Workable, group="mail", retry=RetryForever(1), only=[OSError], name="options.Message"): ...

        class Letter(Message, priority=2, name="options.Letter"): ...

        assert Letter.task_options == Message.task_options.changed(priority=2)
