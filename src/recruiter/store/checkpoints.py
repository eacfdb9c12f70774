"""The checkpoints of a job, as its run reads and writes them.

They stand on the job's own document, `checkpoints: [{name, at, result}]`, so a job that runs again has them at hand
without asking. Writing one asks for the token of the run (runs.py): a run that has lost the job keeps nothing.
A job that was never stored keeps them in memory, and takes them along when its retries go to the background.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

from recruiter.domain.arguments.typed import decode_result, encode_result
from recruiter.domain.checkpoints import Checkpoint, Signal, SignalWait, check_checkpoint
from recruiter.domain.names import id_told
from recruiter.errors import InvalidSession, JobEnded, JobTooLarge, UnsupportedValue
from recruiter.store.codec import LARGEST_JOB, Document, encode
from recruiter.store.job_fields import checkpoint_document, checkpoints_of, signal_wait_from, signals_of
from recruiter.store.payload import SIGNALS, Payload
from recruiter.store.runs import Run


class Checkpoints:
    """Of one run."""

    def __init__(
        self, run: Callable[[], Run], document: Document, now: Callable[[], datetime], payload: Payload
    ) -> None:
        self._run = run
        self._document = document
        self._now = now
        self._payload = payload
        self._kept = {each.name: each for each in checkpoints_of(document)}
        self._before = len(self._kept)
        self._numbers: Counter[str] = Counter()

    # -- once ----------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Checkpoint | None:
        return self._kept.get(check_checkpoint("the name of a checkpoint", name))

    def check(self) -> None:
        """Raises InvalidSession inside the job's own transaction, and JobEnded after it."""
        run = self._run()
        if run.committed is not None:
            raise JobEnded(f"job {id_told(run.id)} has ended in its own transaction; nothing more can be kept")
        if run.in_transaction:
            raise InvalidSession(
                f"job {id_told(run.id)} is in its own transaction, which locks its document: call once(), sleep() and "
                "wait_for() before the block"
            )

    def begin(self) -> None:
        """To be called before something is done that is to be kept: a run that lost its job does nothing more. Raises
        Superseded, JobEnded, InvalidSession."""
        self.check()
        self._run().prove()

    def keep(self, name: str, value: Any, returns: Any = Any) -> Checkpoint:
        """Keeps a result durably. What cannot be stored is kept as a problem: it was done, and is not done again."""
        try:
            stored, problem = self._payload.seal(self._document["task"], encode_result(value, returns)), None
            size = len(encode({"result": stored})) + len(encode(self._fields()))
            if size + len(encode(self._document)) > LARGEST_JOB:
                stored, problem = None, f"its result made the job larger than {LARGEST_JOB:,} bytes"
        except UnsupportedValue as error:
            stored, problem = None, str(error)
        return self._add(Checkpoint(name, self._now(), stored, problem))

    def result(self, checkpoint: Checkpoint, returns: Any = Any) -> Any:
        """What was kept. Raises UnsupportedValue or JobTooLarge if that could not be."""
        if checkpoint.problem is None:
            return decode_result(self._payload.open(self._document["task"], checkpoint.result), returns)
        error = JobTooLarge if "larger than" in checkpoint.problem else UnsupportedValue
        raise error(
            f"{checkpoint.name!r} of job {self._document['_id']!r} is done, but its result could not be kept: "
            f"{checkpoint.problem}. Return less, or something that BSON can hold"
        )

    def _add(self, checkpoint: Checkpoint) -> Checkpoint:
        run = self._run()
        if run.stored:
            run.prove()
            assert run.token is not None
            if not run.store.scheduled.add_checkpoint(run.id, run.token, checkpoint_document(checkpoint)):
                raise run.lost()
        self._kept[checkpoint.name] = checkpoint
        return checkpoint

    # -- sleep and wait ------------------------------------------------------------------------------------------

    def next_name(self, what: str) -> str:
        """A name for the next of its kind: the first sleep of every run is the same one."""
        self._numbers[what] += 1
        return f"{what} {self._numbers[what]}"

    def run_again(self) -> None:
        """The job runs from its beginning once more, in the same attempt."""
        self._numbers.clear()

    def slept(self, name: str) -> list[Document]:
        """All checkpoints, with a sleep of this name: it is over when the job runs again."""
        return [*self._fields().get("checkpoints", ()), checkpoint_document(Checkpoint(name, self._now()))]

    def signal(self, name: str, number: int) -> Signal | None:
        """The n-th signal of this name, if it has come."""
        run, document = self._run(), self._document
        for again in (False, True):
            came = [signal for signal in signals_of(document) if signal.name == name]
            if len(came) >= number:
                return came[number - 1]._replace(data=self._payload.open(SIGNALS, came[number - 1].data))
            if again or not run.stored:
                return None
            document = run.store.scheduled.document(run.id) or {}
        return None

    def waiting(self, checkpoint: str) -> SignalWait | None:
        """Since when it has been waiting here, if it has."""
        wait = signal_wait_from(self._document.get("waits_for"))
        return wait if wait is not None and wait.checkpoint == checkpoint else None

    def timed_out(self, name: str) -> None:
        self._add(Checkpoint(name, self._now(), problem="no signal came in time"))

    # -- for the outcome -----------------------------------------------------------------------------------------

    def fields(self) -> Document:
        """For an archived document, or one that is stored for the first time; empty if nothing is new."""
        return self._fields() if len(self._kept) > self._before else {}

    def _fields(self) -> Document:
        return {"checkpoints": [checkpoint_document(each) for each in self._kept.values()]} if self._kept else {}
