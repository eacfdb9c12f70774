"""Programs that jobs start, as tests see them."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests.conftest import eventually


def family_in(folder: Path) -> list[int]:
    """The pids that a program and the one it started have left there."""
    files = [folder / "child", folder / "grandchild"]
    eventually(lambda: all(file.exists() and file.read_text().strip() for file in files))
    return [int(file.read_text()) for file in files]


def family_ends(folder: Path) -> None:
    """Both end. They have been killed; a machine that is busy takes a moment to do it."""
    pids = family_in(folder)
    eventually(lambda: all(map(is_gone, pids)))


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
