"""`recruiter dev`, `recruiter shell` and `recruiter init`: the commands for development.

`dev` starts everything on a private MongoDB. It watches the files of the application and starts its processes again
when one changes. The new code is first loaded in a separate process. If that fails, the old code stays.
"""

from __future__ import annotations

import code
import importlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from recruiter.application import Application, load_application
from recruiter.cli import options as given
from recruiter.cli.output import console, say, write
from recruiter.cli.start import run_fleet
from recruiter.cli.web import dev_console
from recruiter.domain.text import plural
from recruiter.embedded import EmbeddedServer
from recruiter.errors import SettingsError
from recruiter.first_use import installing, requirement
from recruiter.processes.fleet import Fleet
from recruiter.processes.loop import Stop
from recruiter.processes.worker.child_pool import ForkServer
from recruiter.settings import Settings
from recruiter.store.connection import DEFAULT_DATABASE, Target

_FOLDER = Path(".recruiter") / "mongodb"
_USUAL_PORT = 27017
_SUFFIX = ".template"
_NAME = "PROJECT"
"""In the templates of `recruiter init`, which are in `project/`."""
_EXTRAS = ("reload,web", "embedded")
_LOAD = """
import sys
from recruiter.application import account, load_application
try:
    load_application(sys.argv[1])
except BaseException as error:
    sys.exit(account(error))
"""


def dev(
    file: str | None = None,
    /,
    *,
    target: str | None = None,
    prefix: str | None = None,
    processes: given.Count = 2,
    mongod: str | None = None,
    web: bool = True,
    reload: bool = True,
    watch: Annotated[list[Path] | None, Parameter(negative=())] = None,
    folder: Annotated[Path, Parameter(help="The folder for the data of the private MongoDB.")] = _FOLDER,
) -> int:
    """`recruiter dev`.

    Args:
        file: Your application: FILE.py or MODULE; add :NAME if it has several Recruiters.
        target: Use this MongoDB instead of a private one.
        prefix: In front of the name of each collection of Recruiter (default: that of the application, or recruiter.).
        processes: Number of jobs that run concurrently.
        mongod: The mongod to use, instead of the one on the PATH or in the package.
        web: Serve the web console too, on this machine only.
        reload: Load the application again when a Python file next to it changes. Needs the extra `reload`.
        watch: Another folder to watch; may be repeated.
    """
    stop = Stop()
    stop.when_asked(lambda: _say("stopping: running jobs finish first; Ctrl-C again ends everything immediately"))
    stop.listen_to_signals()
    settings = given.settings_from(given.TargetOptions(prefix=prefix))
    file = file or settings.bootstrap
    own = ForkServer.open(file).ask_target() if file is not None else None
    # On the private server the application's producers will use the database that it names.
    database = own.database if own is not None else DEFAULT_DATABASE
    with (
        _private_server(folder, database, mongod) if target is None else nullcontext(target) as uri,
        _reloads(file if reload else None, watch or [], folder) as each_round,
    ):
        place = Target.parse(uri, given.target_for(settings, own).prefix)
        common = given.CommonOptions(place.uri, place.prefix, bootstrap=file, log_level="debug")
        settings = given.settings_from(common, given.WorkerOptions(processes=processes))
        return _run(settings, place, stop, web, each_round)


@contextmanager
def _private_server(folder: Path, database: str, mongod: str | None) -> Iterator[str]:
    """Runs a MongoDB for this command; yields the address of the database on it."""
    with closing(socket.socket()) as probe:
        port = _USUAL_PORT if probe.connect_ex(("127.0.0.1", _USUAL_PORT)) != 0 else None
    server = EmbeddedServer(folder.absolute(), port=port, binary=mongod)
    uri = Target.parse(server.start()).in_database(database).uri
    _say("private MongoDB at ", (uri, "bold"), f", data in {folder} (for development only)")
    if not server.ours:
        _say(
            "another process has started this MongoDB, and ends it when it stops: for a separate one, wait for that, "
            "or use another --folder"
        )
    if f":{_USUAL_PORT}" not in uri:
        _say(f"port {_USUAL_PORT} is taken; in other terminals:  export RECRUITER_TARGET='{uri}'")
    try:
        yield uri
    finally:
        server.stop()


def _run(settings: Settings, place: Target, stop: Stop, web: bool, each_round: Callable[[Fleet], None]) -> int:
    os.environ["RECRUITER_TARGET"] = place.uri
    os.environ["RECRUITER_PREFIX"] = place.prefix
    ready = f", for {plural(settings.processes, 'job')} at once: enqueue from another terminal. Ctrl-C ends everything"
    with dev_console(place) if web else nullcontext() as address:
        if address is not None:
            _say("web console at ", (address, "bold"))
        elif web:
            _say(f"no web console; to see the jobs in a browser: {installing('web')}")
        return run_fleet(settings, stop, lambda: _say(("ready", "bold"), ready), each_round)


@contextmanager
def _reloads(bootstrap: str | None, folders: Sequence[Path], data: Path) -> Iterator[Callable[[Fleet], None]]:
    """Watches the folder of the application and these folders, without the data of MongoDB. Yields the function that
    the fleet calls in every round."""
    if bootstrap is None:
        yield lambda _fleet: None
    elif importlib.util.find_spec("watchfiles") is None:
        _say(f"files are not watched; to reload them when they change: {installing('reload')}")
        yield lambda _fleet: None
    else:
        reloader = Reloader(bootstrap, [folder_of(bootstrap), *folders], _say, data)
        with reloader.watching():
            yield reloader.reload


def _say(*parts: str | tuple[str, str]) -> None:
    write(console(stderr=True), Text.assemble(*parts), soft_wrap=True)


def folder_of(bootstrap: str) -> Path:
    """The folder of an application: of its file, or for a module the working directory."""
    place = bootstrap.partition(":")[0] if not Path(bootstrap).exists() else bootstrap
    return Path(place).resolve().parent if place.endswith(".py") else Path.cwd()


class Reloader:
    """Collects changes of Python files, in a thread, until the fleet asks for them."""

    def __init__(
        self, bootstrap: str, folders: Iterable[Path], say: Callable[[str], None], data: Path = _FOLDER
    ) -> None:
        self._bootstrap = bootstrap
        self._folders = [str(folder) for folder in folders]
        self._say = say
        self._data = data.absolute()
        self._changed: set[str] = set()
        self._lock = threading.Lock()
        self._end = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Collects changes while this block runs."""
        # Imported here, because the extra may not be installed.
        watchfiles = import_module("watchfiles")
        only = watchfiles.PythonFilter(ignore_paths=[self._data])
        watched = watchfiles.watch(*self._folders, watch_filter=only, stop_event=self._end)

        def collect() -> None:
            for changes in watched:
                with self._lock:
                    self._changed.update(path for _, path in changes)

        thread = threading.Thread(target=collect, name="reload", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join(timeout=10)

    def take(self) -> list[str]:
        """The files that have changed since the last call, as a person names them."""
        with self._lock:
            changed, self._changed = self._changed, set()
        return sorted(os.path.relpath(path) for path in changed)

    def reload(self, fleet: Fleet) -> None:
        """Reloads the fleet if a file has changed and the application can be loaded."""
        changed = self.take()
        if not changed:
            return
        files = ", ".join(changed[:3]) + (f" and {plural(len(changed) - 3, 'more file')}" if len(changed) > 3 else "")
        trace = _error_of(self._bootstrap)
        if trace is not None:
            self._say(f"{files} changed, and the application cannot be loaded; the old code stays in use:\n{trace}")
            return
        self._say(f"{files} changed: reloading; jobs that run finish with the old code")
        fleet.reload(lambda: self._say(f"reloaded {files}; the next jobs run the new code"))


def _error_of(bootstrap: str) -> str | None:
    """Loads the application in a separate process; returns the error if that fails."""
    ended = subprocess.run(
        [sys.executable, "-c", _LOAD, bootstrap], capture_output=True, text=True, check=False, process_group=0
    )
    return None if ended.returncode == 0 else ended.stderr.rstrip()


# -- shell -------------------------------------------------------------------------------------------------------------


def shell(
    file: str | None = None,
    /,
    *,
    execute: str | None = None,
    common: given.ApplicationOptions = given.ApplicationOptions(),
) -> int:
    """`recruiter shell`.

    Args:
        file: Your application: FILE.py or MODULE; add :NAME if it has several Recruiters.
        execute: Run this statement and end.
    """
    settings = given.settings_from(common)
    application = load_application(file or settings.bootstrap)
    recruiter = given.recruiter_of(application, settings)
    # The public names of the application and of the modules of its tasks, as if they had been typed here.
    names = {**_task_names(application), "__name__": "__console__", "recruiter": recruiter}
    names |= _public(application.module)
    if execute is not None:
        return _run_statement(execute, names)
    if sys.stdin.isatty():
        _complete(names)
    tasks = ", ".join(sorted(application.registry.own_names)) or "none"
    banner = f"Recruiter on {recruiter.target.described}. Tasks: {tasks}. `recruiter` is the application; Ctrl-D ends."
    code.interact(banner=banner, local=names, exitmsg="")
    return 0


def _task_names(application: Application) -> dict[str, Any]:
    """The public names of the modules that define tasks. With Flask and Django, the module of the application is ours
    and has few names."""
    registry = application.registry
    functions = [getattr(registry.get(name), "function", None) for name in sorted(registry.own_names)]
    modules = dict.fromkeys(function.__module__ for function in functions if function is not None)
    return {name: value for module in modules for name, value in _public(sys.modules.get(module)).items()}


def _public(module: ModuleType | None) -> dict[str, Any]:
    return {} if module is None else {name: value for name, value in vars(module).items() if name[0] != "_"}


def _run_statement(statement: str, names: dict[str, Any]) -> int:
    """Runs a statement like a typed line: prints the value of an expression. Returns the exit code, 1 if it raises."""
    try:
        exec(compile(f"{statement}\n", "<execute>", "single"), names)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _complete(names: Mapping[str, Any]) -> None:
    """Completes names with the Tab key, where Python was built with readline."""
    try:
        readline = importlib.import_module("readline")
    except ImportError:
        return
    rlcompleter = importlib.import_module("rlcompleter")
    readline.set_completer(rlcompleter.Completer(dict(names)).complete)
    readline.parse_and_bind("tab: complete")


# -- init --------------------------------------------------------------------------------------------------------------


def init(folder: Path = Path(), /, *, name: str | None = None) -> None:
    """`recruiter init`.

    Args:
        folder: Where to write it (default: here). No file that exists is changed.
        name: The name of the project and of its database (default: the name of the folder).
    """
    project = name or re.sub(r"[^a-z0-9]+", "_", folder.resolve().name.lower()).strip("_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", project):
        raise SettingsError(
            f"{project!r} cannot be the name of a database and a service; give a --name such as my_shop"
        )
    filled = {_NAME: project, **{f"REQUIREMENT[{extras}]": requirement(*extras.split(",")) for extras in _EXTRAS}}
    written = {folder / _filled(path, filled): _filled(text, filled) for path, text in _templates()}
    existing = sorted(str(path) for path in written if path.exists())
    if existing:
        raise SettingsError(f"these files exist already, and nothing was written: {', '.join(existing)}")
    for path, text in written.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise SettingsError(f"{path} cannot be written: {error.strerror}") from None
        say(f"wrote {path}")
    where = "" if folder == Path() else f" in {folder}"
    say(f"{plural(len(written), 'file')}. Next{where}: pip install -r requirements.txt, pytest, recruiter dev")


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _templates() -> Iterator[tuple[str, str]]:
    """Each file of the project: its path in the folder, and its text."""
    folder = Path(str(files("recruiter.cli") / "project"))
    for template in sorted(folder.rglob(f"*{_SUFFIX}")):
        path = template.relative_to(folder).as_posix()
        yield path.removesuffix(_SUFFIX).replace("gitignore", ".gitignore"), template.read_text(encoding="utf-8")
