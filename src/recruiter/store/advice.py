"""Why MongoDB could not be reached, in one sentence, and what to do about it."""

from __future__ import annotations

from pymongo import MongoClient

from recruiter.errors import NotAReplicaSet, StoreError, StoreUnreachable
from recruiter.store.codec import Document
from recruiter.store.target import Target

_NOT_INITIATED = """\
MongoDB at {target} was started with --replSet, and its replica set has not been initiated. Once, in mongosh:
  rs.initiate()"""

_NO_PRIMARY = (
    "MongoDB at {target} has no primary: an election goes on, or too few of its members are up. "
    "Wait a moment; `recruiter doctor` names the members"
)

_ADVICE = (
    ("for replica set name", "correct replicaSet= in the address; a standalone server must be made a set first"),
    ("Got response id", "what answers there is no MongoDB; correct the address"),
    ("SSL", "the address and the server disagree about TLS; correct tls= and its files in the address"),
    ("Name or service not known", "correct the name of the host in --target or RECRUITER_TARGET"),
    ("", "is it running, and can this host reach it? Another address: --target or RECRUITER_TARGET"),
)


def unreached(client: MongoClient[Document], target: Target, error: StoreUnreachable) -> StoreError:
    """The same failure, for somebody who has just tried to connect."""
    members = {member.server_type_name for member in client.topology_description.server_descriptions().values()}
    if "RSGhost" in members:
        return NotAReplicaSet(_NOT_INITIATED.format(target=target))
    if members & {"RSSecondary", "RSArbiter", "RSOther"}:
        return StoreUnreachable(_NO_PRIMARY.format(target=target))
    why = str(error).partition(": ")[2] or str(error)
    advice = next(advice for sign, advice in _ADVICE if sign in why)
    return StoreUnreachable(f"MongoDB at {target} does not answer ({why}): {advice}")
