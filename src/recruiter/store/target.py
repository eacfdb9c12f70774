"""Where MongoDB is: the address as people write it, and the address as it may be shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from pymongo.errors import ConfigurationError, InvalidURI
from pymongo.uri_parser import parse_uri

from recruiter.domain.text import mask
from recruiter.errors import InvalidTarget

DEFAULT_DATABASE = "recruiter"
_WORD = re.compile(r"\w+")
_EXAMPLES = "write 127.0.0.1:27017, host/database, mongodb://… or mongodb+srv://…"


def unless_secret(error: Exception, uri: str) -> str:
    """The driver's own words about an address, unless they quote what must not be shown of it."""
    hidden = _words(uri) - _words(mask(uri))
    told = mask(str(error))
    return f"{type(error).__name__}; its words would show a secret" if hidden & _words(told) else told


def _words(text: str) -> set[str]:
    return {word for each in (text, unquote(text)) for word in _WORD.findall(each)}


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
            raise InvalidTarget(f"cannot understand the MongoDB address {mask(uri)!r}: {_EXAMPLES}")
        return cls(uri, cls._database(uri))

    def in_database(self, name: str) -> Target:
        """The same server, another database."""
        scheme, _, rest = self.uri.partition("://")
        address, _, options = rest.partition("?")
        credentials, at, place = address.rpartition("@")
        hosts = place.partition("/")[0]
        return Target.parse(f"{scheme}://{credentials}{at}{hosts}/{name}" + (f"?{options}" if options else ""))

    @staticmethod
    def _database(uri: str) -> str:
        if uri.startswith("mongodb+srv://"):
            # parse_uri would ask DNS; the name is plain text after the host.
            path = uri.partition("://")[2].partition("?")[0].rpartition("@")[2].partition("/")[2]
            return path.partition(".")[0] or DEFAULT_DATABASE
        try:
            return parse_uri(uri)["database"] or DEFAULT_DATABASE
        except OSError as error:  # a certificate that is not there
            raise InvalidTarget(f"cannot use the MongoDB address {mask(uri)!r}: {unless_secret(error, uri)}") from None
        except (InvalidURI, ConfigurationError, ValueError) as error:
            why = unless_secret(error, uri)
            raise InvalidTarget(f"cannot understand the MongoDB address {mask(uri)!r} ({why}): {_EXAMPLES}") from None

    def __str__(self) -> str:
        return mask(self.uri)

    def __repr__(self) -> str:
        return f"Target({mask(self.uri)!r}, database={self.database!r})"
