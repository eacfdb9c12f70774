"""`schedulers`: the templates of repeatable jobs, one document a urn."""

from __future__ import annotations

from pymongo import ASCENDING, IndexModel

NAME = "schedulers"

INDEXES = [IndexModel([("urn", ASCENDING)], name="urn", unique=True)]

VALIDATOR = {"$jsonSchema": {"required": ["urn"], "properties": {"urn": {"bsonType": "string"}}}}
