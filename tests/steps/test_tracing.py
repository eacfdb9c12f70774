"""Tracing with OpenTelemetry: one trace from the web request to the job, whoever runs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode

from recruiter import Job, Recruiter, RetryLater, RetryManyTimes, current_job
from recruiter.contrib.opentelemetry import OpenTelemetry
from recruiter.instruments import AttemptStart, Follower, Instrument, SendStart
from recruiter.store.connection import Target
from recruiter.web.server import served


class Traced:
    """A provider that keeps what it exports."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return tuple(span for span in self.exporter.get_finished_spans() if " http " not in span.name)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


@pytest.fixture
def traced(recruiter: Recruiter) -> Iterator[Traced]:
    made = Traced()
    recruiter.instrument(OpenTelemetry(made.provider))
    yield made
    made.provider.shutdown()


class TestFromARequestToItsJobs:
    def test_one_trace_with_the_right_parents(self, recruiter: Recruiter, traced: Traced) -> None:
        """Given a FastAPI application that enqueues a job, which fails once and then enqueues another, when a browser
        asks for it, then the request, the making of both jobs and each attempt are one trace."""

        @recruiter.task(retry=RetryManyTimes(2, "0s"))
        def charge(order: int) -> str | None:
            with trace.get_tracer("shop", tracer_provider=traced.provider).start_as_current_span("ask the bank"):
                if current_job.attempt == 1:
                    raise ConnectionError(f"order {order}: no answer")
            receipt.enqueue(order)
            return current_job.trace_id

        @recruiter.task(group="mail")
        async def receipt(order: int) -> int:
            return order

        app = FastAPI()

        @app.post("/order")
        async def order() -> str:
            return str((await charge.aenqueue(7)).id)

        FastAPIInstrumentor.instrument_app(app, tracer_provider=traced.provider)
        with served(app) as address:
            id = httpx.post(f"{address}order", trust_env=False, verify=False).json()
        recruiter.run_all(charge)
        recruiter.run_all(receipt)

        request = traced.one("POST /order")
        sent, sent_on = traced.one("send charge"), traced.one("send receipt")
        first, second = traced.named("process charge")
        received = traced.one("process receipt")
        assert {trace_of(span) for span in traced.spans} == {trace_of(request)}
        assert parent_of(request) is None
        assert parent_of(sent) == id_of(request)
        assert parent_of(first) == parent_of(second) == id_of(sent)
        assert [parent_of(span) for span in traced.named("ask the bank")] == [id_of(first), id_of(second)]
        assert parent_of(sent_on) == id_of(second)
        assert parent_of(received) == id_of(sent_on)
        assert (sent.kind, first.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        facts = dict(first.attributes or {})
        assert facts["messaging.message.id"] == id == dict(sent.attributes or {})["messaging.message.id"]
        assert (facts["recruiter.job.attempt"], facts["recruiter.job.outcome"]) == (1, "retried")
        assert facts["error.type"] == "ConnectionError"
        assert first.status.status_code is StatusCode.ERROR
        assert first.events[0].name == "exception"
        assert dict(second.attributes or {})["recruiter.job.outcome"] == "succeeded"
        assert second.status.status_code is StatusCode.UNSET
        ended = recruiter.find(recruiter.jobs.id_of(id))
        assert ended.result == trace.format_trace_id(trace_of(request))

    def test_many_jobs_are_sent_in_one_span(self, recruiter: Recruiter, traced: Traced) -> None:
        @recruiter.task
        def add(a: int) -> int:
            return a

        add.enqueue_many([(1,), (2,), (3,)])
        recruiter.run_all(add)
        sent = traced.one("send add")
        assert dict(sent.attributes or {})["messaging.batch.message_count"] == 3
        assert [parent_of(span) for span in traced.named("process add")] == [id_of(sent)] * 3

    def test_every_way_to_make_a_job_is_traced(self, recruiter: Recruiter, traced: Traced) -> None:
        @recruiter.task
        def add(a: int) -> int:
            return a

        with trace.get_tracer("test", tracer_provider=traced.provider).start_as_current_span("here"):
            ended = add.job(0).here().execute()
            add.enqueue(1)
            add.create(2)
            add.job(3).with_id("three").enqueue()
            add.create_many([(4,)])
            add.enqueue_many([(5,)], ids=["five"])
            recruiter.create("add", {"a": 6})
            recruiter.recover(ended.id, again=True)
            with recruiter.store.client.start_session() as session:
                add.job(7).enqueue(session=session)
        recruiter.run_all(add)
        here = traced.one("here")
        assert len(traced.named("process add")) == 9
        assert len(traced.named("send add")) == 8
        assert {trace_of(span) for span in traced.spans} == {trace_of(here)}

    @pytest.mark.parametrize("odd", ["text", 7, {"traceparent": 7}, {"traceparent": "00-x"}, {"a": "x" * 9000}, []])
    def test_a_context_that_makes_no_sense_is_none(self, recruiter: Recruiter, traced: Traced, odd: object) -> None:
        @recruiter.task
        def add() -> int:
            return 3

        document = {"_id": "theirs", "task": "add", "trace_context": odd}
        recruiter.store.scheduled.collection.insert_one(document)
        recruiter.flush_jobs_synchronously()
        assert recruiter.find("theirs").result == 3
        assert parent_of(traced.one("process add")) is None

    def test_a_span_says_how_its_attempt_ended(self, recruiter: Recruiter, traced: Traced) -> None:
        @recruiter.task
        def fail() -> None:
            raise ValueError("no good")

        @recruiter.task
        def later() -> None:
            raise RetryLater("1 hour")

        fail.enqueue()
        later.enqueue()
        recruiter.run_all(fail)
        recruiter.run_all(later)
        outcomes = {span.name: dict(span.attributes or {})["recruiter.job.outcome"] for span in traced.spans[-2:]}
        assert outcomes == {"process fail": "failed", "process later": "snoozed"}
        assert traced.one("process later").status.status_code is StatusCode.UNSET


def links_of(span: ReadableSpan) -> list[int]:
    return [int(link.context.span_id) for link in span.links]


class TestLinks:
    def test_an_attempt_links_to_the_span_that_made_its_job(self, recruiter: Recruiter, traced: Traced) -> None:
        @recruiter.task
        def add(a: int) -> int:
            return a

        add.enqueue_many([(1,), (2,)])
        recruiter.run_all(add)
        sent = traced.one("send add")
        assert [links_of(span) for span in traced.named("process add")] == [[id_of(sent)]] * 2

    def test_a_recovered_job_links_to_the_attempt_that_it_repeats(self, recruiter: Recruiter, traced: Traced) -> None:
        @recruiter.task
        def charge(order: int) -> None:
            raise ConnectionError(f"order {order}")

        failed = charge.enqueue(7)
        recruiter.run_all(charge)
        recruiter.recover(failed.id)
        recruiter.run_all(charge)
        first, second = traced.named("process charge")
        again = traced.named("send charge")[1]
        assert links_of(second) == [id_of(again), id_of(first)]

    def test_a_step_links_to_the_attempts_that_it_waited_for(self, recruiter: Recruiter, traced: Traced) -> None:
        @recruiter.task(group="files")
        def load(name: str) -> str:
            return name

        @recruiter.task(group="files")
        def join() -> None: ...

        flow = recruiter.flow("album")
        parts = [flow.add(load, "a"), flow.add(load, "b")]
        flow.add(join.job(), after=parts)
        with trace.get_tracer("test", tracer_provider=traced.provider).start_as_current_span("here") as here:
            flow.start()
        recruiter.flush_jobs_synchronously()

        sent, joined = traced.one("send album"), traced.one("process join")
        loaded = {id_of(span) for span in traced.named("process load")}
        assert parent_of(sent) == here.get_span_context().span_id
        assert parent_of(joined) == id_of(sent)
        assert (links_of(joined)[0], {*links_of(joined)[1:]}) == (id_of(sent), loaded)
        facts = dict(sent.attributes or {})
        assert (facts["recruiter.flow.name"], facts["messaging.batch.message_count"]) == ("album", 3)
        assert facts["messaging.destination.name"] == "files"
        assert "recruiter.job.task" not in facts

    def test_steps_added_while_a_flow_runs_are_sent_in_a_span(self, recruiter: Recruiter, traced: Traced) -> None:
        @recruiter.task
        def more() -> None:
            current_job.flow.add(last)

        @recruiter.task
        def last() -> None: ...

        flow = recruiter.flow("album")
        flow.add(more)
        flow.start()
        recruiter.flush_jobs_synchronously()
        assert parent_of(traced.named("send album")[1]) == id_of(traced.one("process more"))
        assert parent_of(traced.one("process last")) == id_of(traced.named("send album")[1])


class TestSampling:
    def test_samplers_know_the_destination_and_the_server(self, recruiter: Recruiter) -> None:
        seen: list[dict[str, Any]] = []

        class Noting(Sampler):
            def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
                seen.append(dict(kwargs.get("attributes") or args[4]))
                return SamplingResult(Decision.DROP)

            def get_description(self) -> str:
                return "noting"

        recruiter.instrument(OpenTelemetry(TracerProvider(sampler=Noting())))

        @recruiter.task(group="mail")
        def send() -> None: ...

        send.enqueue()
        send.job().in_group("slow").enqueue()
        send.enqueue_many([(), ()], group="many")
        recruiter.create("send")
        recruiter.run_all(send)
        groups = [attributes["messaging.destination.name"] for attributes in seen]
        assert groups[:4] == ["mail", "slow", "many", "mail"]
        assert sorted(groups[4:]) == ["mail", "mail", "many", "many", "slow"]
        host, port = recruiter.target.address
        assert host == "127.0.0.1"
        assert {(each["server.address"], each["server.port"]) for each in seen} == {(host, port)}


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("mongodb://db.example:27018/shop", ("db.example", 27018)),
        ("mongodb://ada:se%40cret@a:1,b:2/shop?replicaSet=x", ("a", 1)),
        ("mongodb+srv://ada:secret@cluster.example/shop", ("cluster.example", None)),
        ("mongodb://[::1]:27017/shop", ("::1", 27017)),
        ("mongodb://[::1]/shop", ("::1", None)),
    ],
)
def test_the_address_of_the_server_has_no_credentials(uri: str, address: tuple[str, int | None]) -> None:
    assert Target.parse(uri).address == address


class TestInstruments:
    def test_one_that_raises_harms_no_job_and_is_told(self, recruiter: Recruiter) -> None:
        class Broken(Instrument):
            def producing(self, start: SendStart) -> Follower:  # type: ignore[override]
                raise RuntimeError(f"producing {start.name} {start.count}")

            def stamp(self, job: Job, carrier: dict[str, str]) -> None:
                raise RuntimeError(f"stamp {job.task} {carrier}")

            def attempt(self, start: AttemptStart) -> Follower:  # type: ignore[override]
                raise RuntimeError(f"attempt {start.number}")

        told: list[str] = []
        recruiter.instrument(Broken())
        recruiter.listen(lambda event: told.append(str(event.fields.get("error"))))

        @recruiter.task
        def add() -> int:
            return 3

        job = add.enqueue()
        recruiter.run_all(add)
        assert job.result() == 3
        assert [each for each in told if each != "None"] == [
            "RuntimeError('producing add 1')",
            "RuntimeError('stamp add {}')",
            "RuntimeError('attempt 1')",
        ]
