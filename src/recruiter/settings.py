"""Settings: defaults < file < environment < arguments. Frozen, checked together, unknown keys refused.

Every option of the command line is also an environment variable (`--lease-time` is RECRUITER_LEASE_TIME) and a key of
`recruiter.toml` in the working directory (`lease_time = "5s"`), or of the file that RECRUITER_CONFIG names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ByteSize, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from recruiter.domain.duration import to_timedelta
from recruiter.domain.names import DEFAULT_PREFIX, check_name, check_prefix
from recruiter.domain.observation import SILENT, UNDECLARED_DEAD_AFTER_SECONDS
from recruiter.domain.planning.needs import Needs
from recruiter.domain.text import mask, shown
from recruiter.errors import InvalidJob, SettingsError

CONFIG_VARIABLE = "RECRUITER_CONFIG"
CONFIG_FILE = "recruiter.toml"

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


def _checked_by(check: Callable[[Any], Any]) -> BeforeValidator:
    """A validator that calls `check`. Its error becomes a ValueError: pydantic adds the name of the setting."""

    def validate(value: Any) -> Any:
        try:
            return check(value)
        except InvalidJob as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(validate)


def _groups(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return None if not value else tuple(check_name("group", group) for group in value)
    except TypeError:
        raise ValueError("groups are a list of names, or one string with commas between them") from None


def _resources(value: Any) -> str:
    return str(Needs.parse(value) if isinstance(value, str) else Needs.of(value))


Duration = Annotated[timedelta, _checked_by(to_timedelta)]
Groups = Annotated[tuple[str, ...] | None, NoDecode, _checked_by(_groups)]
Resources = Annotated[str, NoDecode, _checked_by(_resources)]
Prefix = Annotated[str, _checked_by(check_prefix)]


class TargetSettings(BaseSettings):
    """The address of MongoDB, for applications that do not name one."""

    model_config = SettingsConfigDict(env_prefix="RECRUITER_", extra="ignore", frozen=True)

    target: str = "127.0.0.1:27017"
    prefix: Prefix = DEFAULT_PREFIX
    server_timeout: Duration | None = Field(
        None, description="Time that calls of applications wait for MongoDB before they raise StoreUnreachable."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=_config_file())

    @classmethod
    def load(cls, **arguments: Any) -> Self:
        """The settings in force; arguments that are None were not given. Raises SettingsError."""
        given = {name: value for name, value in arguments.items() if value is not None}
        try:
            return cls(**given)
        except ValidationError as error:
            raise SettingsError("; ".join(_message(problem) for problem in error.errors())) from None
        except ValueError as error:  # the file is not TOML
            raise SettingsError(f"{_config_file()}: {error}") from None


class Settings(TargetSettings):
    model_config = SettingsConfigDict(env_prefix="RECRUITER_", extra="forbid", frozen=True)

    bootstrap: str | None = None
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    log_config: str | None = None
    health_port: int | None = Field(default=None, ge=0, le=65535)
    health_host: str = "0.0.0.0"
    lease_time: Duration = timedelta(seconds=5)
    considered_dead_after: Duration = SILENT
    heartbeat: Duration = timedelta(seconds=1)
    settle_within: Duration = timedelta(milliseconds=200)
    backoff_from: Duration = timedelta(milliseconds=5)
    backoff_to: Duration = timedelta(seconds=10)
    work_on: Groups = None
    processes: int = Field(default=1, ge=1, le=1024)
    concurrency: int = Field(default=1, ge=1, le=2000)
    memory_limit: ByteSize | None = None
    memory_hard_limit: ByteSize | None = None
    resources: Resources = ""
    host: str = ""
    grace: Duration = timedelta(seconds=30)
    clean_after: Duration = timedelta(days=5)
    keep_failed: Duration | None = None
    wait_at_least: Duration = timedelta(minutes=1)
    wait_at_most: Duration = timedelta(minutes=3)

    @property
    def slots(self) -> int:
        """The number of jobs that a worker runs concurrently."""
        return self.processes * self.concurrency

    @property
    def dead_after(self) -> float:
        """Seconds of silence after which this worker is dead. It declares them on the roster, for every observer."""
        return self.considered_dead_after.total_seconds()

    @property
    def undeclared_dead_after(self) -> float:
        """The same time for workers of an earlier release, which do not declare it."""
        return max(self.dead_after, UNDECLARED_DEAD_AFTER_SECONDS)

    def of_caller(self) -> Settings:
        """For jobs in the calling process: one at a time, of every group."""
        return self.model_copy(update={"processes": 1, "concurrency": 1, "work_on": None})

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.heartbeat <= timedelta(0):
            raise ValueError("heartbeat must be above zero")
        if self.considered_dead_after < 3 * self.heartbeat:
            raise ValueError(
                "considered_dead_after must be at least three heartbeats: one late heartbeat must not count as a death"
            )
        if self.lease_time < timedelta(milliseconds=500):
            raise ValueError("lease_time must be at least 500ms")
        if self.backoff_from <= timedelta(0) or self.backoff_to < self.backoff_from:
            raise ValueError("backoff_from must be above zero and not above backoff_to")
        if self.wait_at_most < self.wait_at_least:
            raise ValueError("wait_at_most must not be below wait_at_least")
        return self


def _config_file() -> Path:
    named = os.environ.get(CONFIG_VARIABLE)
    if named and not Path(named).is_file():
        raise SettingsError(f"{CONFIG_VARIABLE} names {named!r}, but there is no such file")
    return Path(named or CONFIG_FILE)


def _message(error: Any) -> str:
    """The error of one setting: its name and value, the reason, and the ways to give it."""
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "extra_forbidden":
        return f"unknown setting {name!r} in {_config_file()}"
    if not name:
        return str(error["msg"]).removeprefix("Value error, ")
    option = f"--{name.replace('_', '-')}, RECRUITER_{name.upper()} or {name} in {CONFIG_FILE}"
    return f"{name} = {mask(shown(error['input']))}: {str(error['msg']).removeprefix('Value error, ')} ({option})"
