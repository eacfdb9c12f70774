"""Who is at a port of this machine."""

from __future__ import annotations

import socket
from pathlib import Path

from recruiter.errors import StoreError
from recruiter.store import admin


def listens(port: int) -> bool:
    """Whether anybody does; much quicker to ask than a MongoDB client."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def set_served(port: int, data: Path) -> str | None:
    """The replica set whose member answers there, if it is the server of these data; else None."""
    try:
        with admin.connected(f"127.0.0.1:{port}") as connection:
            said = admin.hello(connection)
            return said.set_name if said.member and admin.data_folder(connection) == str(data) else None
    except StoreError:
        return None
