"""What Django's documentation says a task backend does, on this backend and a real MongoDB. Run by test_django.py."""

from __future__ import annotations

import asyncio
import json
import os
import unittest
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.core import checks
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import transaction
from django.test import SimpleTestCase, TransactionTestCase, override_settings

from pets import settings, tasks
from recruiter import InvalidArguments
from recruiter.clock import SystemClock
from recruiter.contrib.django import RecruiterBackend
from recruiter.contrib.django.backend import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    recruiters,
    task,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from recruiter.testing import Sandbox

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TARGET = os.environ["PETS_TARGET"]


class WithJobs(TransactionTestCase):
    alias = "default"
    jobs: Sandbox

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.jobs = Sandbox(recruiters()[cls.alias], TARGET)
        cls.addClassCleanup(cls.jobs.close)

    def setUp(self) -> None:
        self.jobs.recruiter.store.empty()
        self.jobs.stop_clock(NOW)

    def heard(self, signal: Any) -> list[Any]:
        """The results that this signal brings during the test."""
        results: list[Any] = []

        def receive(task_result: Any, **_: Any) -> None:
            results.append((task_result.status, task_result.id))

        signal.connect(receive, weak=False)
        self.addCleanup(signal.disconnect, receive)
        return results


class Enqueuing(WithJobs):
    def test_a_result_is_a_job_and_is_read_from_anywhere(self) -> None:
        result = tasks.feed.enqueue("Tom", times=2)
        self.assertEqual((result.status, result.args, result.kwargs), ("READY", ["Tom"], {"times": 2}))
        self.assertEqual((result.enqueued_at, result.started_at, result.attempts), (NOW, None, 0))
        with self.assertRaisesMessage(ValueError, "Task has not finished yet"):
            _ = result.return_value

        self.jobs.flush()

        result.refresh()
        self.assertEqual((result.status, result.return_value), ("SUCCESSFUL", "Tom was fed 2 times"))
        self.assertEqual((result.started_at, result.finished_at, result.attempts), (NOW, NOW, 1))
        again = tasks.feed.get_result(result.id)
        self.assertEqual(
            (again.task, again.return_value, again.kwargs), (tasks.feed, "Tom was fed 2 times", {"times": 2})
        )

    def test_times_are_the_same_before_and_after_storing(self) -> None:
        self.jobs.recruiter.store.clock = SystemClock()

        result = tasks.feed.enqueue("Tom", times=2)

        self.assertEqual(result.enqueued_at, tasks.feed.get_result(result.id).enqueued_at)

    def test_coroutines_are_enqueued_and_awaited(self) -> None:
        async def ask() -> Any:
            return await tasks.wash.aenqueue("Tom")

        result = asyncio.run(ask())
        self.jobs.flush()
        asyncio.run(result.arefresh())

        self.assertEqual(result.return_value, ["wash", "Tom"])
        found = asyncio.run(tasks.wash.aget_result(result.id))
        self.assertEqual((found.status, found.task.queue_name, found.task.priority), ("SUCCESSFUL", "slow", 5))

    def test_coroutines_run_where_the_flush_itself_runs_in_a_thread_of_django(self) -> None:
        async def ask() -> Any:
            result = await tasks.wash.aenqueue("Tom")
            await sync_to_async(self.jobs.flush)()
            await result.arefresh()
            return result

        async def as_in_a_request() -> Any:
            async with ThreadSensitiveContext():
                return await ask()

        self.assertEqual(asyncio.run(ask()).return_value, ["wash", "Tom"])
        self.assertEqual(asyncio.run(as_in_a_request()).return_value, ["wash", "Tom"])
        self.assertEqual(async_to_sync(ask)().return_value, ["wash", "Tom"])  # as Django runs `async def` tests

    def test_a_queue_is_a_group_and_higher_priorities_go_first(self) -> None:
        tasks.feed.using(priority=-100).enqueue("last")
        tasks.feed.using(priority=100).enqueue("first")
        tasks.wash.enqueue("second")

        self.assertEqual([job.group for job in self.jobs.jobs()].count("slow"), 1)
        self.assertEqual(sorted(job.priority for job in self.jobs.jobs()), [-100, 5, 100])

    def test_a_task_does_not_run_before_its_time(self) -> None:
        result = tasks.feed.using(run_after=NOW + timedelta(hours=1)).enqueue("Tom")
        self.assertEqual(self.jobs.run_due(), [])
        self.assertEqual(tasks.feed.get_result(result.id).task.run_after, NOW + timedelta(hours=1))

        self.jobs.move_clock("1 hour")

        self.assertEqual([report.done for report in self.jobs.run_due()], [True])

    def test_the_context_knows_the_attempt_and_the_result(self) -> None:
        result = tasks.describe.enqueue("Tom")
        self.jobs.flush()
        result.refresh()

        expected = {"attempt": 1, "id": result.id, "status": "RUNNING", "args": ["Tom"], "name": "Tom"}
        self.assertEqual(result.return_value, expected)

    def test_arguments_that_the_function_does_not_take_are_refused_before_anything_is_stored(self) -> None:
        for wrong in (lambda: tasks.feed.enqueue(), lambda: tasks.feed.enqueue("Tom", color="red")):
            with self.assertRaises(InvalidArguments):
                wrong()
        with self.assertRaises(TypeError):
            tasks.feed.enqueue(object())

        self.jobs.assert_nothing_enqueued()


class Ending(WithJobs):
    def test_a_failure_has_its_exception_and_its_traceback(self) -> None:
        result = tasks.bite.enqueue("Tom")
        self.jobs.flush()
        result.refresh()

        self.assertEqual(result.status, "FAILED")
        with self.assertRaisesMessage(ValueError, "Task failed"):
            _ = result.return_value
        (error,) = result.errors
        self.assertIs(error.exception_class, PermissionError)
        self.assertIn("Tom does not want to", error.traceback)

    def test_a_result_that_is_not_json_is_a_failure(self) -> None:
        result = tasks.lose.enqueue()
        self.jobs.flush()
        result.refresh()

        self.assertEqual((result.status, result.errors[0].exception_class), ("FAILED", TypeError))

    def test_a_task_that_asks_for_later_is_ready_again(self) -> None:
        result = tasks.sleep_on.enqueue()
        self.jobs.run_due()
        result.refresh()

        self.assertEqual((result.status, result.errors), ("READY", []))

    @unittest.skipUnless(hasattr(tasks, "bite_again"), "Django 6.0 does not pass options on")
    def test_options_of_recruiter_are_options_of_the_decorator(self) -> None:
        finished = self.heard(task_finished)
        result = tasks.bite_again.enqueue("Tom")
        (job,) = self.jobs.jobs()
        self.assertEqual((job.tags, job.timeout), (("bad",), 60.0))

        self.jobs.run_due()
        result.refresh()
        self.assertEqual((result.status, result.attempts, finished), ("READY", 1, []))
        for _ in range(2):
            self.jobs.move_clock("1 minute")
            self.jobs.run_due()

        result.refresh()
        self.assertEqual((result.status, result.attempts, len(result.errors)), ("FAILED", 3, 3))
        self.assertEqual(finished, [("FAILED", result.id)])

    def test_signals_are_sent_once_each(self) -> None:
        signals = {signal: self.heard(signal) for signal in (task_enqueued, task_started, task_finished)}

        good, bad = tasks.feed.enqueue("Tom"), tasks.bite.enqueue("Tom")
        self.jobs.flush()

        self.assertEqual(signals[task_enqueued], [("READY", good.id), ("READY", bad.id)])
        self.assertEqual(signals[task_started], [("RUNNING", good.id), ("RUNNING", bad.id)])
        self.assertEqual(signals[task_finished], [("SUCCESSFUL", good.id), ("FAILED", bad.id)])

    def test_results_of_nothing_of_other_tasks_and_of_plain_jobs(self) -> None:
        with self.assertRaises(TaskResultDoesNotExist):
            tasks.feed.get_result("5f0000000000000000000000")
        with self.assertRaisesMessage(Exception, "Task does not match"):
            tasks.feed.get_result(tasks.bite.enqueue("Tom").id)
        plain = self.jobs.recruiter.job("elsewhere", {}).enqueue()
        with self.assertRaises(TaskResultDoesNotExist):
            task_backends["default"].get_result(str(plain.id))


class OnCommit(WithJobs):
    alias = "after_commit"

    def test_a_job_is_stored_when_the_transaction_commits(self) -> None:
        enqueued = self.heard(task_enqueued)
        with transaction.atomic():
            result = tasks.announce.enqueue("Tom")
            self.jobs.assert_nothing_enqueued()
            self.assertEqual((result.enqueued_at, enqueued), (None, []))

        self.assertEqual((result.enqueued_at, enqueued), (NOW, [("READY", result.id)]))
        self.jobs.flush()
        result.refresh()
        self.assertEqual(result.return_value, "Tom")

    def test_a_job_of_a_transaction_that_is_rolled_back_never_is(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            tasks.announce.enqueue("Tom")
            1 / 0  # noqa: B018

        self.jobs.assert_nothing_enqueued()

    def test_without_a_transaction_it_is_stored_at_once(self) -> None:
        tasks.announce.enqueue("Tom")

        self.assertEqual(len(self.jobs.jobs()), 1)


class Checks(SimpleTestCase):
    def test_the_backend_says_what_it_supports(self) -> None:
        backend = task_backends["default"]
        flags = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
        self.assertIsInstance(backend, RecruiterBackend)
        self.assertTrue(all(getattr(backend, flag) for flag in flags))

    def test_invalid_tasks_are_refused_where_they_are_defined(self) -> None:
        def inner() -> None: ...

        for wrong in (
            lambda: task(inner),
            lambda: tasks.feed.using(priority=101),
            lambda: tasks.feed.using(queue_name="unknown"),
            lambda: tasks.feed.using(run_after=datetime(2030, 1, 1)),
        ):
            with self.assertRaises(InvalidTask):
                wrong()

    def test_this_project_has_nothing_to_complain_about(self) -> None:
        self.assertEqual(list(checks.run_checks()), [])

    def test_wrong_settings_are_named_by_check(self) -> None:
        wrong = {
            "default": {**settings.backend(target="mongodb://"), "QUEUES": ["no name"]},
            "other": settings.backend(on_commit="nowhere"),
        }
        with override_settings(TASKS=wrong, INSTALLED_APPS=["pets"]):
            found = {each.id for backend in task_backends.all() for each in backend.check()}
        self.assertEqual(found, {"recruiter.E001", "recruiter.E002", "recruiter.E003", "recruiter.W001"})

    def test_an_unknown_option_is_refused(self) -> None:
        with (
            override_settings(TASKS={"default": settings.backend(targt="x")}),
            self.assertRaisesMessage(
                InvalidTaskBackend, "unknown OPTIONS targt; known: console, on_commit, prefix, server_timeout, target"
            ),
        ):
            _ = task_backends["default"].recruiter


class Commands(WithJobs):
    def test_a_command_works_on_the_mongodb_of_the_project(self) -> None:
        tasks.feed.enqueue("Tom")

        with redirect_stdout(StringIO()) as said:
            call_command("recruiter", "job", "list", "--output", "json")

        (job,) = json.loads(said.getvalue())
        self.assertEqual(job["task"], "pets.tasks.feed")

    def test_a_command_that_fails_says_so(self) -> None:
        with redirect_stderr(StringIO()) as said, self.assertRaisesMessage(CommandError, "recruiter ended with code 1"):
            call_command("recruiter", "job", "show", "5f0000000000000000000000")

        self.assertIn("there is no job", said.getvalue())
