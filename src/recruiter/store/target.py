"""Where MongoDB is: the address as people write it, and the address as it may be shown."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pymongo.errors import ConfigurationError, InvalidURI
from pymongo.uri_parser import parse_uri

from recruiter.errors import InvalidTarget

DEFAULT_TARGET = "127.0.0.1:27017"
DEFAULT_DATABASE = "recruiter"
_CREDENTIALS = re.compile(r"(?<=://)[^/@]*@")
_EXAMPLES = "write 127.0.0.1:27017, host/database, mongodb://… or mongodb+srv://…"


def mask(text: str) -> str:
    """The same text without any user name or password of a URI in it."""
    return _CREDENTIALS.sub("***@", text)


@dataclass(frozen=True)
class Target:
    """An address and the database in it. Prints masked, so that it can be logged."""

    uri: str
    database: str

    @classmethod
    def parse(cls, text: str) -> Target:
        uri = text.strip() if "://" in text else f"mongodb://{text.strip()}"
        scheme, _, rest = uri.partition("://")
        if scheme not in ("mongodb", "mongodb+srv") or not rest.strip("/"):
            raise InvalidTarget(f"cannot understand the MongoDB address {mask(text)!r}: {_EXAMPLES}")
        return cls(uri, cls._database(uri, text))

    @staticmethod
    def _database(uri: str, text: str) -> str:
        if uri.startswith("mongodb+srv://"):
            # parse_uri would ask DNS; the name is plain text after the host.
            path = re.sub(r"^[^/]*/?", "", uri.partition("://")[2]).partition("?")[0]
            return path.partition(".")[0] or DEFAULT_DATABASE
        try:
            return parse_uri(uri)["database"] or DEFAULT_DATABASE
        except (InvalidURI, ConfigurationError, ValueError) as error:
            raise InvalidTarget(
                f"cannot understand the MongoDB address {mask(text)!r}: {mask(str(error))}; {_EXAMPLES}"
            ) from None

    def __str__(self) -> str:
        return mask(self.uri)

    def __repr__(self) -> str:
        return f"Target({mask(self.uri)!r}, database={self.database!r})"
