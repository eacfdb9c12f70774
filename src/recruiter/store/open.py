"""Opens the store of an application: connects, checks the server, and prepares the database if it is not prepared."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import pymongo
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.database import Database

from recruiter.errors import InvalidTarget, StoreError, StoreUnreachable
from recruiter.store.database import Store
from recruiter.store.target import DEFAULT_DATABASE, Target

TargetLike: TypeAlias = str | MongoClient[Any] | Database[Any]
"""An address, or a client or database of the application."""

SILENCE = 1.0
"""Seconds without an answer after which this is reported."""


def target_of(given: object) -> tuple[Target, MongoClient[Any] | None]:
    """Where it is, and the application's own client if there is one. Raises InvalidTarget."""
    if isinstance(given, str):
        return Target.parse(given), None
    if isinstance(given, Database):
        return _place(given.client, given.name), given.client
    if isinstance(given, MongoClient):
        return _place(given, given.get_default_database(DEFAULT_DATABASE).name), given
    if isinstance(given, AsyncMongoClient | AsyncDatabase):
        raise InvalidTarget(
            "a Recruiter needs an address, a MongoClient or a Database, not an AsyncMongoClient. It stores jobs over a "
            "MongoClient; aenqueue(session=…) still takes a session of your AsyncMongoClient"
        )
    raise InvalidTarget(f"a Recruiter needs an address, a MongoClient or a Database, not a {type(given).__name__}")


def _place(client: MongoClient[Any], database: str) -> Target:
    """Its address, without who logs in and how: other processes need one of their own."""
    seeds = sorted(client._topology_settings.seeds)
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in seeds)
    return Target(f"mongodb://{hosts}/{database}", database)


def opened(
    target: Target, client: MongoClient[Any] | None, patience: float, *, prepares: bool, silent: Callable[[str], None]
) -> Store:
    """A store that can be used. Calls `silent` when MongoDB has not answered for a second. Raises StoreError."""
    store = Store(target, patience=patience, application_client=client)
    try:
        _check(store, silent)
        if prepares:
            _prepare(store)
    except BaseException:
        store.close()
        raise
    return store


def _check(store: Store, silent: Callable[[str], None]) -> None:
    if store.patience > SILENCE:
        try:
            with pymongo.timeout(SILENCE):
                store.check()
                return
        except StoreUnreachable as error:
            silent(str(error))
    store.check()


def _prepare(store: Store) -> None:
    """Makes collections and indexes on a database where there are none yet, if this user may."""
    with suppress(StoreError):  # a producer may not even look, and need not
        if not store.is_prepared():
            store.prepare()
