"""ShellCommand: a program run as a job, for work that is a program already.

It uses no shell, despite its historical name: the list of arguments goes to the program unchanged. It runs only if the
application enables it, because with it a user who can write to the database can run programs as the worker's user.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Self

from recruiter.app import current_job
from recruiter.errors import CommandFailed, InvalidArguments
from recruiter.programs import CommandResult, Program
from recruiter.workable import Workable

_OPERATORS = frozenset(["|", "||", "&", "&&", ";", "<", "<<", ">", ">>", "2>", "2>>", "&>", "2>&1"])


@dataclass(frozen=True)
class ShellCommand(Workable):
    """Runs a program with its arguments and keeps its output: `ShellCommand(["pg_dump", "shop"])`.

    No argument is interpreted: `|`, `*` and `$HOME` are themselves. The result is a document of `code`, `stdout` and
    `stderr`, each stream cut to its last 64 KiB. Any exit code but `ok_codes` is a failure of the job, CommandFailed.

    It fails unless the application has enabled it (see `enable`). The program ends with the job: at its timeout
    it gets a SIGTERM and soon a SIGKILL, and so does everything it has started. Only a whole worker that is killed with
    SIGKILL leaves it running.
    """

    command: Sequence[str]
    _: KW_ONLY
    cwd: str | Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the worker."""
    input: str | None = None
    """Its standard input; empty by default."""
    ok_codes: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        if isinstance(self.command, str | bytes) or not self.command or not self.command[0]:
            raise InvalidArguments(
                f'ShellCommand needs a list such as ["pg_dump", "shop"], not {self.command!r:.80}; '
                "ShellCommand.from_command_line() splits a line"
            )
        object.__setattr__(self, "command", list(self.command))
        object.__setattr__(self, "ok_codes", list(self.ok_codes))
        object.__setattr__(self, "env", dict(self.env))
        object.__setattr__(self, "cwd", None if self.cwd is None else str(self.cwd))
        texts = [*self.command, *self.env, *self.env.values(), self.cwd or ""]
        if not all(isinstance(text, str) and "\0" not in text for text in texts):
            raise InvalidArguments("a program's arguments, variables and folder are texts without a NUL character")
        if not all(name and "=" not in name for name in self.env):
            raise InvalidArguments("the name of an environment variable is not empty and has no '='")

    @classmethod
    def from_command_line(
        cls,
        line: str,
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        ok_codes: Sequence[int] = (0,),
    ) -> Self:
        """`ShellCommand.from_command_line("pg_dump shop")`: split at spaces, respecting quotes, and nothing more."""
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise InvalidArguments(f"the command line cannot be split: {error}") from None
        if operators := _OPERATORS.intersection(words):
            raise InvalidArguments(
                f"{', '.join(sorted(operators))} means something to a shell only, and there is none; "
                'pass a list, of ["sh", "-c", "…"] if a shell is what you want'
            )
        return cls(words, cwd=cwd, env=env or {}, input=input, ok_codes=ok_codes)

    @staticmethod
    def enable(*programs: str, variables: Iterable[str] = ()) -> None:
        """Lets jobs run programs in this process; to be called in the application that workers load.

        `ShellCommand.enable("pg_dump", "rsync")` allows these programs, written exactly so, and a job may set only
        the environment `variables` that are named. `ShellCommand.enable()` allows everything: mind an empty list of
        programs. Calls add up.

        A list of programs is no sandbox: their arguments are the job's, and `rsync -e`, `find -exec` or `git -c` start
        any other program.
        """
        _not_from_a_job()
        _permission.grant(programs, variables)

    @staticmethod
    def disable() -> None:
        """Takes back all that was enabled in this process."""
        _not_from_a_job()
        _permission.revoke()

    def execute(self) -> CommandResult:
        _permission.check(self)
        return Program().run(self.command, cwd=self.cwd, env=self.env, input=self.input, ok_codes=self.ok_codes)


class _Permission:
    """The programs and variables that the application has enabled in this process."""

    def __init__(self) -> None:
        self.revoke()

    def revoke(self) -> None:
        self._everything = False
        self._programs: set[str] = set()
        self._variables: set[str] = set()

    def grant(self, programs: Iterable[str], variables: Iterable[str]) -> None:
        named, settable = set(programs), set(variables)
        if settable and not named:
            raise InvalidArguments("variables are for the programs that are enabled by name; without names all are")
        for program in named:
            if not program or (
                "/" in program and not os.path.isabs(program)
            ):  # or the job's folder decides which program it is
                raise InvalidArguments(f"a program is enabled by its name or its absolute path, not {program!r}")
        self._everything |= not named
        self._programs |= named
        self._variables |= settable

    def check(self, command: ShellCommand) -> None:
        """Raises CommandFailed if the application has not enabled this command."""
        program = command.command[0]
        if self._everything:
            return
        if not self._programs:
            raise CommandFailed(
                f"shell commands are not enabled here, so {program!r} was not run; if jobs may run it, call "
                f"ShellCommand.enable({program!r}) in the application that workers load, and start them again"
            )
        if program not in self._programs:
            raise CommandFailed(
                f"{program!r} is not one of the programs that are enabled here ({', '.join(sorted(self._programs))}), "
                f"and was not run; if jobs may run it, add it: ShellCommand.enable({program!r})"
            )
        if refused := sorted(command.env.keys() - self._variables):
            raise CommandFailed(
                f"jobs may not set {', '.join(refused)} here, so {program!r} was not run; if they may, name it: "
                f"ShellCommand.enable({program!r}, variables={refused!r})"
            )


_permission = _Permission()


def _not_from_a_job() -> None:
    """A stored job may name any public method of its workable, these too."""
    if current_job:
        raise CommandFailed("only the application may enable programs, when it is loaded; a job may not")
