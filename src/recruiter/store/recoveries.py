"""Making jobs anew that have ended: the new job, and on the old one that there is a new one, both or none.

So whoever recovers many at once and is interrupted, or does it while somebody else does, repeats none of them twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection

from recruiter.domain.job import JobId
from recruiter.store.codec import Document, id_of
from recruiter.store.sessions import run_transaction
from recruiter.store.translate import store_call


class Recoveries:
    def __init__(
        self, client: MongoClient[Document], scheduled: Collection[Document], archived: Collection[Document]
    ) -> None:
        self._client = client
        self._scheduled = scheduled
        self._archived = archived

    @store_call
    def repeat(self, jobs: Mapping[JobId, RawBSONDocument], *, again: bool) -> int:
        """Stores the job that stands for each old one; returns how many. Unless `again`, those that have been repeated
        before are left out, and so are those that are gone."""

        def write(session: ClientSession) -> int:
            fresh: Document = {} if again else {"recovered_as": None}
            old = {"_id": {"$in": list(jobs)}, **fresh}
            there = [document["_id"] for document in self._archived.find(old, {"_id": 1}, session=session)]
            if there:
                marks = [UpdateOne({"_id": id}, {"$set": {"recovered_as": id_of(bytes(jobs[id].raw))}}) for id in there]
                self._archived.bulk_write(marks, ordered=False, session=session)
                self._scheduled.insert_many([jobs[id] for id in there], session=session)
            return len(there)

        with self._client.start_session() as session:
            return run_transaction(session, write)
