"""`recruiter start …`: the long-running processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from cyclopts import App

from recruiter.app import Recruiter
from recruiter.application import Application, Hook, load_application
from recruiter.cli import options as given
from recruiter.cli.options import PATIENCE_SECONDS, recruiter_of, settings_from, target_for
from recruiter.cli.output import exit_code
from recruiter.domain.text import said_by
from recruiter.errors import RecruiterError, SettingsError, StoreUnreachable
from recruiter.events import Event, Events
from recruiter.log import LogOptions, configure, log_events
from recruiter.processes.child.process_group import die_with_parent
from recruiter.processes.cleaner import CleanerProcess
from recruiter.processes.fleet import PARENT_VARIABLE, Fleet
from recruiter.processes.health_port import HealthPort
from recruiter.processes.loop import Presence, Stop
from recruiter.processes.recruiter import RecruiterProcess
from recruiter.processes.systemd import ServiceManager
from recruiter.processes.worker.child_pool import ForkServer, start_resource_tracker
from recruiter.processes.worker.process import WorkerProcess
from recruiter.registry import BECAME_MASTER, STEPT_BACK
from recruiter.settings import Settings
from recruiter.store.connection import Target
from recruiter.store.database import ServerFacts, Store

app = App(name="start")

_PAUSE_SECONDS = 0.5


@app.command(name="recruiter")
def start_recruiter(
    *,
    common: given.CommonOptions = given.CommonOptions(),
    own: given.RecruiterOptions = given.RecruiterOptions(),
    probes: given.HealthOptions = given.HealthOptions(),
) -> None:
    """Assigns jobs to workers. Any number of recruiters may run; one leads."""
    settings = settings_from(common, own, probes)
    with _service_manager("recruiter", settings) as manager:
        application = load_application(settings.bootstrap)
        facade = recruiter_of(application, settings)
        owners = [owner for owner in application.owners if isinstance(owner, Recruiter)]
        schedulers = [Hook("create_schedulers", owner.create_schedulers) for owner in owners]
        with _Process("recruiter", settings, application.target, manager) as process:
            RecruiterProcess(
                process.store,
                process.events,
                process.stop,
                settings,
                policies=application.policies,
                schedules=application.schedules,
                became_master=[*schedulers, *_hooks(application, facade, BECAME_MASTER)],
                stept_back=_hooks(application, facade, STEPT_BACK),
                presence=process.presence("recruiter"),
                manager=manager,
            ).run()


@app.command(name="worker")
def start_worker(
    *,
    common: given.CommonOptions = given.CommonOptions(),
    own: given.WorkerOptions = given.WorkerOptions(),
    death: given.WorkerDeathOptions = given.WorkerDeathOptions(),
    probes: given.HealthOptions = given.HealthOptions(),
) -> None:
    """Runs jobs, in child processes that have the application loaded."""
    settings = settings_from(common, own, death, probes)
    with _service_manager("worker", settings) as manager:
        # The supervisor runs no user code, so the application is not loaded here: a child is asked.
        start_resource_tracker()
        fork_server = ForkServer.open(settings.bootstrap, _log_options("worker", settings))
        with _Process("worker", settings, fork_server.ask_target(), manager) as process:
            if settings.bootstrap is None:
                process.events.emit("worker.no_application")
            WorkerProcess(process.store, process.events, process.stop, settings, fork_server, manager=manager).run()


@app.command(name="cleaner")
def start_cleaner(
    *,
    common: given.CommonOptions = given.CommonOptions(),
    own: given.CleanerOptions = given.CleanerOptions(),
    probes: given.HealthOptions = given.HealthOptions(),
) -> None:
    """Removes old ended jobs, counts waiting jobs when there are very many, and retires dead workers."""
    settings = settings_from(common, own, probes)
    with _service_manager("cleaner", settings) as manager:
        application = load_application(settings.bootstrap)
        with _Process("cleaner", settings, application.target, manager) as process:
            CleanerProcess(
                process.store,
                process.events,
                process.stop,
                settings,
                application.policies,
                presence=process.presence("cleaner"),
                manager=manager,
            ).run()


@app.command(name="all")
def start_all(
    *,
    common: given.CommonOptions = given.CommonOptions(),
    recruiter: given.RecruiterOptions = given.RecruiterOptions(),
    worker: given.WorkerOptions = given.WorkerOptions(),
    cleaner: given.CleanerOptions = given.CleanerOptions(),
) -> int:
    """Starts a recruiter, a worker and a cleaner together; ends when any of them ends."""
    settings = settings_from(common, recruiter, worker, cleaner)
    stop = Stop()
    stop.listen_to_signals()
    return run_fleet(settings, stop)


def run_fleet(
    settings: Settings,
    stop: Stop,
    when_ready: Callable[[], None] | None = None,
    each_round: Callable[[Fleet], None] = lambda _fleet: None,
) -> int:
    """Runs the three processes as children; their settings are in the environment."""
    if settings.health_port is not None:
        raise SettingsError(
            "a health port is for one process, and cannot be shared by three. Unset RECRUITER_HEALTH_PORT, or start "
            "the recruiter, the worker and the cleaner one by one"
        )
    configure(_log_options("fleet", settings))
    events = Events()
    events.listen(log_events("fleet"))
    fleet = Fleet(stop, _as_environment(settings), ServiceManager.of(os.environ), events, when_ready)
    stop.when_at_once(fleet.kill)
    for name in ("recruiter", "worker", "cleaner"):
        fleet.add(name, "start", name)
    return fleet.run(lambda: each_round(fleet))


class _Process:
    """The common parts of all processes: a checked store, logged events, and signals that stop it."""

    def __init__(self, name: str, settings: Settings, application: Target | None, manager: ServiceManager) -> None:
        configure(_log_options(name, settings))
        self.events = Events()
        self.events.listen(log_events(name))
        self.events.listen(manager.hear)
        self._manager = manager
        self._settings = settings
        self.stop = Stop()
        self._name = name
        self.store = Store(target_for(settings, application), patience=PATIENCE_SECONDS)

    def __enter__(self) -> _Process:
        parent = os.environ.pop(PARENT_VARIABLE, None)
        if parent is not None:
            die_with_parent(signal.SIGTERM, int(parent))
        self.stop.listen_to_signals()
        self.stop.when_asked(lambda: self.events.emit("process.stopping"))
        if self._manager.health_port is not None:
            host, port = self._manager.health_port.address
            self.events.emit("process.answers_probes", host=host, port=port)
        facts = self._reach_store()
        self.store.require_rights()
        self.store.prepare()
        self.events.emit("process.started", program=self._name, target=self.store.target.described)
        if facts.needs_prepare:
            self.events.emit("schema.older", schema=facts.schema, database=self.store.target.database)
        return self

    def _reach_store(self) -> ServerFacts:
        """Checks MongoDB, and retries for PATIENCE_SECONDS: when a host boots, DNS and MongoDB may come up later."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self.store.check()
            except StoreUnreachable:
                if self.stop.asked or time.monotonic() + _PAUSE_SECONDS > until:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def presence(self, role: Literal["recruiter", "cleaner"]) -> Presence:
        every = min(5.0, self._settings.considered_dead_after.total_seconds() / 3)
        return Presence(self.store, role, self._settings.host, every)


@contextmanager
def _service_manager(name: str, settings: Settings) -> Iterator[ServiceManager]:
    """The service manager of this process, with the health port open before the application is loaded. Logs the error
    that ends the process if its log is for machines; otherwise `main` prints it."""
    manager = ServiceManager.of(os.environ)
    try:
        if settings.health_port is not None:
            manager.health_port = HealthPort(manager.health, name, settings.health_host, settings.health_port)
        yield manager
    except RecruiterError as error:
        if settings.log_format == "text" and settings.log_config is None:
            raise
        configure(_log_options(name, settings))
        log_events(name)(Event("process.failed", {"error": str(error)}))
        sys.exit(exit_code(error))
    finally:
        if manager.health_port is not None:
            manager.health_port.close()


def _log_options(name: str, settings: Settings) -> LogOptions:
    return LogOptions(settings.log_level, settings.log_format, name, settings.log_config, settings.bootstrap)


def _hooks(application: Application, facade: Recruiter, name: str) -> list[Hook]:
    """The hook that the module defines under this name, and the hooks of `recruiter.on_…`."""
    of_module: Callable[[Any], None] | None = application.hooks.get(name)
    hooks = [Hook(name, partial(of_module, facade))] if of_module is not None else []
    for owner in application.owners:
        hooks += [Hook(said_by(hook, repr), partial(hook, owner)) for hook in owner.hooks[name]]
    return hooks


def _as_environment(settings: Settings) -> dict[str, str]:
    """The settings that were given, as environment variables; the members read defaults and file themselves."""
    environment = {}
    for name, value in settings.model_dump(include=settings.model_fields_set).items():
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        text = f"{value.total_seconds()}s" if isinstance(value, timedelta) else text
        if value is not None:
            environment[f"RECRUITER_{name.upper()}"] = text
    return environment
