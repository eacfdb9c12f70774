"""The command `recruiter`. A question to a health port is answered here, before anything large is imported: probes ask
often, and each of them starts a Python."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

_TIMEOUT_SECONDS = 5.0
_ANY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def main() -> None:
    question = _question(sys.argv[1:], os.environ)
    if question is not None:
        sys.exit(ask_port(*question))
    import_module("recruiter.cli.main").main()


def _question(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[str, str, bool] | None:
    """Host, port and `--live` of a `recruiter health` that only asks a port; None for every other command line."""
    if arguments[:1] != ["health"]:
        return None
    words = [word for argument in arguments[1:] for word in argument.split("=", 1)]
    live = "--live" in words
    if live:
        words.remove("--live")
    if len(words) % 2:
        return None
    given = dict(zip(words[::2], words[1::2], strict=True))
    port = given.pop("--health-port", environment.get("RECRUITER_HEALTH_PORT", ""))
    host = given.pop("--health-host", environment.get("RECRUITER_HEALTH_HOST", ""))
    return (host, port, live) if port.isdigit() and not given else None


def ask_port(host: str, port: int | str, live: bool) -> int:
    """Asks the process that listens on this port. Prints the answer; returns the exit code: 0 if it is live or ready,
    else 1."""
    path = "live" if live else "ready"
    try:
        with socket.create_connection((_ANY_ADDRESS.get(host, host), int(port)), _TIMEOUT_SECONDS) as connection:
            connection.sendall(f"GET /{path} HTTP/1.0\r\n\r\n".encode())
            with connection.makefile("rb") as answer:
                head, _, body = answer.read(65536).partition(b"\r\n\r\n")
        facts = json.loads(body)
        well, reasons = head.split(b" ", 2)[1] == b"200", "; ".join(map(str, facts["reasons"]))
        text = f"the {facts['role']} is {path}" if well else f"the {facts['role']} is not {path}: {reasons}"
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        well, text = False, f"no process answers on health port {port}: {error}"
    print(text if text.isprintable() else ascii(text), file=sys.stdout if well else sys.stderr)
    return 0 if well else 1


if __name__ == "__main__":
    main()
