"""Ready-made codecs for payloads: `Recruiter(codec=AesGcm(keys, current="2026"))`.

`AesGcm` needs the extra `crypto`.
"""

from __future__ import annotations

import base64
import binascii
import os
import zlib
from collections.abc import Mapping
from typing import Any

from recruiter.domain.text import shown
from recruiter.errors import SettingsError
from recruiter.first_use import installing

__all__ = ["AesGcm", "Zlib"]

_VERSION = 1
_NONCE_BYTES = 12


class AesGcm:
    """Encrypts with AES-GCM. A payload that was changed, or moved to another job, is refused when it is opened.

    `keys` has keys of 16, 24 or 32 bytes, or their base64 strings, by names that you choose; new payloads are encrypted
    with the `current` key. To rotate: add a key to all processes, make it `current`, and remove the old key when no
    job uses it. With `compress` payloads are made smaller first. Raises SettingsError.
    """

    name = "aes-gcm"

    def __init__(self, keys: Mapping[str, bytes | str], current: str, *, compress: bool = False) -> None:
        self._ciphers = {name: _cipher(name, key) for name, key in keys.items()}
        if current not in self._ciphers:
            raise SettingsError(f"the current key {shown(current)} is not one of the keys: {', '.join(keys) or 'none'}")
        self._current = current
        self._compress = compress

    def encode(self, payload: bytes, context: bytes) -> bytes:
        """Encrypts with the current key."""
        key, nonce = self._current.encode(), os.urandom(_NONCE_BYTES)
        head = bytes([_VERSION, self._compress, len(key)]) + key
        plain = zlib.compress(payload) if self._compress else payload
        sealed: bytes = self._ciphers[self._current].encrypt(nonce, plain, head + context)
        return head + nonce + sealed

    def decode(self, payload: bytes, context: bytes) -> bytes:
        """Decrypts with the key that the payload names. Raises ValueError."""
        version, compressed, length = payload[0], payload[1], payload[2]
        if version != _VERSION:
            raise ValueError(f"it has version {version}, and this process reads version {_VERSION}")
        head, sealed = payload[: 3 + length], payload[3 + length :]
        key = head[3:].decode()
        if key not in self._ciphers:
            raise ValueError(f"it was encrypted with the key {key!r}, which this process does not have")
        try:
            plain: bytes = self._ciphers[key].decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], head + context)
        except Exception as error:  # the library's own error has no message
            raise ValueError(
                "it was changed, or moved from another job, or encrypted with another key of the same name"
            ) from error
        return zlib.decompress(plain) if compressed else plain

    def __repr__(self) -> str:
        return f"AesGcm(keys={sorted(self._ciphers)}, current={self._current!r})"


class Zlib:
    """Only makes payloads smaller, at the price of some time; it keeps no secret."""

    name = "zlib"

    def encode(self, payload: bytes, context: bytes) -> bytes:  # noqa: ARG002
        """Compresses."""
        return zlib.compress(payload)

    def decode(self, payload: bytes, context: bytes) -> bytes:  # noqa: ARG002
        """Decompresses."""
        return zlib.decompress(payload)


def _cipher(name: str, key: bytes | str) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 – an extra
    except ImportError:
        raise SettingsError(f"AesGcm needs the extra 'crypto': {installing('crypto')}") from None
    if not name or len(name.encode()) > 255:
        raise SettingsError(f"the name of a key is {shown(name)}; it must have 1 to 255 bytes")
    try:
        return AESGCM(base64.b64decode(key, validate=True) if isinstance(key, str) else bytes(key))
    except (ValueError, TypeError, binascii.Error) as error:
        raise SettingsError(f"the key {name!r} cannot be used: {error}; it needs 16, 24 or 32 bytes") from None
