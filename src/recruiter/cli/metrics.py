"""`recruiter metrics`: metrics for Prometheus, from a process of their own."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from typing import Annotated, Any

from cyclopts import Parameter

from recruiter.app import Recruiter
from recruiter.cli.options import PATIENCE, TargetOptions, settings_from
from recruiter.cli.output import say
from recruiter.errors import SettingsError, StoreUnreachable

PORT = 9420
_MISSING = 'metrics need one more package: pip install "recruiter[metrics]"'


def metrics(
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    once: Annotated[bool, Parameter(negative=())] = False,
    target: TargetOptions = TargetOptions(),
) -> int:
    """Metrics for Prometheus at /metrics: jobs, workers, leader, limits and schedules of the whole fleet.

    MongoDB is read when somebody scrapes, and at most every five seconds. Run one for a database. With
    RECRUITER_METRICS_TOKEN set, a scraper must say it (`Authorization: Bearer`).

    Parameters
    ----------
    host
        The address to listen on; 0.0.0.0 for a scraper on another host.
    port
        The port to listen on; 0 for any free port.
    once
        Print the metrics once, and exit: with 4 if MongoDB cannot be read.
    """
    exposition = _module()
    with Recruiter(settings_from(target).target) as recruiter:
        recruiter.patience = PATIENCE
        recruiter.prepares = False
        exposed = exposition.Exposition(recruiter)
        if once:
            recruiter.store.check()
            sys.stdout.write(exposed.written()[0].decode())
            return 0
        _check(recruiter)
        _serve(exposition.server(exposed, host, port))
    return 0


def _check(recruiter: Recruiter) -> None:
    """What is wrong for good is said at once; what may pass is told to whoever scrapes."""
    try:
        recruiter.store.check()
    except StoreUnreachable as error:
        say(f"{error}. Scrapers are told so (recruiter_up 0) until it answers", stderr=True)


def _serve(server: Any) -> None:
    """Until Ctrl-C or SIGTERM."""
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    host, port = server.server_address[:2]
    say(f"metrics at http://{f'[{host}]' if ':' in host else host}:{port}/metrics", stderr=True)
    thread = threading.Thread(target=server.serve_forever, name="recruiter metrics", daemon=True)
    thread.start()
    asked.wait()
    server.shutdown()
    server.server_close()


def _module() -> Any:
    """Imported here, because the extra may not be installed, and because other commands need not wait for it."""
    try:
        return importlib.import_module("recruiter.metrics.exposition")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("recruiter"):
            raise
        raise SettingsError(_MISSING) from None
