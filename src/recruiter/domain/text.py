"""Makes strings safe to store, show and log: messages of exceptions, policies and documents.

All printed output passes `cli/output.py`, and all log messages pass `log/lines.py`. Both use `printable` or `one_line`,
so that no string can control a terminal or forge a line, and `mask`, so that none carries a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import datetime
from difflib import get_close_matches
from typing import Any

MAX_MESSAGE_CHARACTERS = 2_000
MAX_REASON_CHARACTERS = 300
"""The length of an error inside another sentence."""

_UNSAFE = (
    "\x00-\x08\x0b-\x1f"  # commands to a terminal
    "\x7f-\x9f"  # the same as single characters (C1)
    "\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, or turn text around
    "\u2028\u2029"  # end a line
    "\ud800-\udfff"  # halves of characters, which cannot be written
    "\U000e0000-\U000e0fff"  # invisible copies of letters
)
_CONTROL = re.compile(f"[{_UNSAFE}]")
_CONTROL_OR_LINE = re.compile(f"[{_UNSAFE}\t\n]")


def remark(by: object, reason: object, since: datetime | None = None) -> str:
    """The author of a change and the reason: `ada: the mail server is down`."""
    at = "" if since is None else f" since {since:%Y-%m-%d %H:%M:%S} UTC"
    return f"{by or 'somebody'}{at}: {reason or 'no reason given'}"


def is_unicode(text: str) -> bool:
    """Whether it can be stored: a Python string may contain lone surrogates, which MongoDB refuses."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """Escapes all characters that a terminal would obey or hide; lines and tabs stay."""
    return _CONTROL.sub(_written_out, text)


def one_line(text: str) -> str:
    """The same in one line: a line break is written as `\\n`."""
    return _CONTROL_OR_LINE.sub(_written_out, text)


def json_safe(json: str) -> str:
    """Equivalent JSON in which such characters are escapes."""
    return _CONTROL.sub(_json_escape, json)


def plural(count: float, noun: str, plural: str | None = None) -> str:
    """1 task, 2 tasks, 1,000 tasks; `plural` where an s is not enough."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def similar(name: str, known: Collection[str], most: int = 3) -> str:
    """A question about similar known names: `did you mean task?`; empty if there are none."""
    containing = [word for word in known if name and name in word]
    near = get_close_matches(name, known, n=most, cutoff=0.6) or containing[:most]
    return f"did you mean {' or '.join(near)}?" if near else ""


def clean(text: str) -> str:
    """The string without characters that cannot be stored."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\\0")


def head(text: str, longest: int) -> str:
    """Its beginning, and the number of removed characters."""
    return text if len(text) <= longest else f"{text[:longest]} … {len(text) - longest:,} characters cut"


def cut(text: str, longest: int = MAX_MESSAGE_CHARACTERS) -> str:
    """A valid string of at most this length. It keeps the end, which matters in a trace, and the number of removed
    characters."""
    text = clean(text)
    return text if len(text) <= longest else f"… {len(text) - longest:,} characters cut …\n{text[-longest:]}"


def said_by(value: Any, how: Callable[[Any], str] = str, longest: int = MAX_MESSAGE_CHARACTERS) -> str:
    """The `str` or `repr` of a value, even if that raises."""
    try:
        return cut(how(value), longest)
    except BaseException:  # user code may raise anything here, SystemExit too
        return f"<{type(value).__name__} that cannot say what it is>"


def shown(value: Any, longest: int = 100) -> str:
    """A value in a message: in one line, and shortened."""
    text = said_by(value, repr, 1_000_000)
    return " ".join(text.split()) if len(text) <= longest else f"{' '.join(text[:longest].split())}…"


def _written_out(found: re.Match[str]) -> str:
    character = found[0]
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character) or ascii(character)[1:-1]


def _json_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


# -- secrets ---------------------------------------------------------------------------------------------------------

_MONGODB = r"mongodb(?:\+srv)?://"
_HINT = re.compile(r"://|passw|passphrase|secret|token|key", re.IGNORECASE)
_IN_A_QUERY = re.compile(
    r"([?&][\w.%-]{0,60}(?:passw(?:or)?d|passphrase|secret|token)[\w.%-]{0,60}=)(?!\*\*\*)[^&]+", re.IGNORECASE
)
_IN_A_PROPERTY = re.compile(r"(AWS_SESSION_TOKEN(?::|%3A))(?!\*\*\*)[^,&]+", re.IGNORECASE)
_NAMED = re.compile(
    r"""((?:passw(?:or)?d|passphrase|secret|(?:session|access|auth)_?token|(?:api|access|private)_?key)[\w.-]{0,60}
        ['"]?\s{0,9}[=:]\s{0,9})
        (?!\*\*\*)(b?"(?:[^"\\]|\\.)*"|b?'(?:[^'\\]|\\.)*'|\[[^\]]*\]|\{[^}]*\}|\([^)]*\)|[^\s,;&'"]+)""",
    re.IGNORECASE | re.VERBOSE,
)
_EXAMPLE = r"(?!(?-i:USER:PASSWORD@))"
"""An example in our own messages."""
_CREDENTIALS = re.compile(
    rf"({_MONGODB}){_EXAMPLE}(?:(?!{_MONGODB})[\s\S]){{0,1000}}@|((?<=://){_EXAMPLE}\S*@)", re.IGNORECASE
)
_WITHOUT_HOST = re.compile(rf"(['\"]?)({_MONGODB})(?!\*\*\*){_EXAMPLE}((?:(?!{_MONGODB})[\s\S])*)", re.IGNORECASE)
_HOST = r"(?:\[[0-9a-f:.%]*\]|[^:,\[\]@/?#\s'\"]*)(?::\d{1,5}(?!\d))?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*(?:(?<=\d):)?(?![^/?#\s'\",;.)\]}}>])", re.IGNORECASE)


_SECRET_NAME = re.compile(
    r"passw|passphrase|passcode|secret|token|credential|authori[sz]ation|cookie|session_?id"
    r"|(?:api|access|private|ssh|encryption|signing|master)_?key"
    r"|card_?(?:number|no)(?:_|$)|credit_?card"
    r"|(?:^|_)(?:pwd|pass|jwt|otp|totp|pin|dsn|cvv|cvc)\d?(?:_|$)"
)
"""Part of the name of a value that is a secret; of the name in lower case, with `_` between its words."""
_BETWEEN_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")


def is_secret_name(name: str) -> bool:
    """Whether the name is that of a secret: `password`, `X-Api-Key`, `userPass`; but not `compass`."""
    return _SECRET_NAME.search(_BETWEEN_WORDS.sub("_", name).lower()) is not None


def is_secret(name: str, value: object) -> bool:
    """Whether the value of this name is not to be written. A number of tokens is no secret."""
    if value is None or isinstance(value, bool) or not is_secret_name(name):
        return False
    return not (isinstance(value, int | float) and name.lower().endswith("tokens"))


def mask(text: str) -> str:
    """The same text without the credentials of MongoDB addresses and without values that are named as secrets.

    If an address is not escaped correctly, the end of its password is unknown; then too much is masked rather than too
    little. A password that looks like a port is not recognised: `mongodb://user:12345`, without a host.
    """
    if not _HINT.search(text):
        return text
    text = _IN_A_QUERY.sub(r"\1***", text)
    text = _IN_A_PROPERTY.sub(r"\1***", text)
    text = _NAMED.sub(r"\1***", text)
    text = _CREDENTIALS.sub(lambda found: f"{found[1] or ''}***@", text)
    return _WITHOUT_HOST.sub(_without_host, text)


def _without_host(found: re.Match[str]) -> str:
    quote, scheme, address = found.groups()
    if _HOSTS.match(address):
        return found[0]
    _, end, after = address.partition(quote) if quote else (address, "", "")
    return f"{quote}{scheme}***{end}{after}"
