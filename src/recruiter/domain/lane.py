"""The lane of a job: one string with everything that decides where and when the job may run.

    group/task[/needs[/key[/isolated]]]

    mail/send                               any worker that serves it
    media/encode/mem=2147483648,proc=4      only where these resources are free
    mail/send//customer:42                  counted against the limits of this customer
    generic/poison///isolated               not together with another such job: its workers died repeatedly

Jobs of one lane are alike to the planner: if the first cannot run now, nor can the others, so the planner skips the
lane. Parts in the middle may be empty; empty parts at the end are not written.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from recruiter.domain.names import check_name
from recruiter.domain.planning.needs import Needs
from recruiter.errors import InvalidJob, InvalidName

ISOLATED_AFTER_WORKER_DEATHS = 2
"""A job with this many worker deaths shares no worker with another such job."""
_ISOLATED = "isolated"
_NOTHING = Needs()


class Lane(NamedTuple):
    """A lane, read from its string."""

    group: str
    task: str
    needs: Needs = _NOTHING
    key: str | None = None
    isolated: bool = False

    @classmethod
    def parse(cls, text: str) -> Lane:
        """Reads any string and never raises: a document may have been written by hand, and the leader must continue.
        An invalid part is ignored; the others count."""
        return _parse(text)

    def __str__(self) -> str:
        parts = [self.group, self.task, str(self.needs), self.key or "", _ISOLATED if self.isolated else ""]
        while len(parts) > 2 and not parts[-1]:
            parts.pop()
        return "/".join(parts)

    @property
    def kind_of_key(self) -> str | None:
        """The first part of its key: `customer` of `customer:42`."""
        return None if self.key is None else self.key.partition(":")[0]


@lru_cache(maxsize=10_000)
def _parse(text: str) -> Lane:
    group, task, needs, key, isolated, *_ = [*text.split("/", 5), "", "", "", ""]
    return Lane(group, task, _needs(needs), _key(key), isolated == _ISOLATED)


def _needs(text: str) -> Needs:
    try:
        return Needs.parse(text) if text else _NOTHING
    except InvalidJob:
        return _NOTHING


def _key(text: str) -> str | None:
    try:
        return check_name("key", text) if text else None
    except InvalidName:
        return None
