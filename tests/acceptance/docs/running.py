"""Running a page: its files are written, its blocks run in order in one namespace, its promises are checked."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType
from typing import Any

from pymongo import MongoClient

from recruiter import Recruiter
from recruiter.registry import RegistryOwner
from recruiter.workable import WORKABLES
from recruiter.workables.shell import ShellCommand
from tests.acceptance.docs.pages import Block, Expectation, Page, Step

Rewrite = Callable[[str], str]


class Run:
    """One run of a page in a folder of its own, which must be on sys.path."""

    def __init__(self, page: Page, folder: Path, rewrite: Rewrite, test_target: str) -> None:
        self._page = page
        self._folder = folder
        self._rewrite = rewrite
        self._test_target = test_target
        self._names: dict[str, Any] = {"__name__": "__main__"}

    def write_files(self) -> list[Path]:
        files = [self._folder / name for name in self._page.files]
        for path, text in zip(files, self._page.files.values(), strict=True):
            path.write_text(self._rewrite(text))
        return files

    def blocks(self) -> None:
        with _left_as_it_was() as opened, self._watching():
            for block in self._page.blocks:
                if block.language == "python":
                    self._block(block)
                    opened.update(client for client in self._names.values() if isinstance(client, MongoClient))
                    opened.update(owner for owner in RegistryOwner.alive if isinstance(owner, Recruiter))

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Runs what the first file's application enqueues, as a worker would."""
        if not self._page.watches:
            yield
            return
        recruiter: Recruiter = importlib.import_module(next(iter(self._page.files)).removesuffix(".py")).recruiter
        stop = threading.Event()
        thread = threading.Thread(
            target=recruiter.watch, args=sorted(recruiter.registry.names()), kwargs={"stop": stop}
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _block(self, block: Block) -> None:
        if block.file is None:
            for step in Block("python", self._rewrite(block.text), block.line).steps():
                self._step(step)
        elif block.file.startswith("test_"):
            assert not block.text.count("# →"), f"{block.file}: assert instead"
            self._pytest(block.file)
        else:
            assert not block.text.count("# →"), f"{block.file}: what a file promises is not checked"
            importlib.import_module(block.file.removesuffix(".py"))

    def _step(self, step: Step) -> None:
        place = f"{self._page.name}, line {step.node.end_lineno}"
        if step.expected is None:
            exec(self._code(ast.Module([step.node], [])), self._names)
        elif step.expected.raises:
            self._must_raise(step.node, step.expected, place)
        else:
            assert isinstance(step.node, ast.Expr), f"{place}: only an expression has a value"
            self._must_be(step.node, step.expected, place)

    def _must_raise(self, node: ast.stmt, expected: Expectation, place: str) -> None:
        try:
            exec(self._code(ast.Module([node], [])), self._names)
        except Exception as error:
            told = " ".join(f"{type(error).__name__}: {error}".split())
            assert _fits(told, expected.text), f"{place}: raised {told}"
        else:
            raise AssertionError(f"{place}: did not raise {expected.text}")

    def _must_be(self, node: ast.Expr, expected: Expectation, place: str) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = eval(self._code(ast.Expression(node.value)), self._names)
        if printed.getvalue():
            shown = " ".join(printed.getvalue().split())
            assert _fits(shown, expected.text), f"{place}: printed {shown}"
        else:
            assert _fits(repr(value), expected.text) or self._equal(value, expected.text), f"{place}: is {value!r}"

    def _equal(self, value: Any, text: str) -> bool:
        try:
            return bool(eval(text, self._names) == value)
        except Exception:
            return False

    def _code(self, tree: ast.Module | ast.Expression) -> CodeType:
        return compile(tree, str(self._page.path), "exec" if isinstance(tree, ast.Module) else "eval")

    def _pytest(self, file: str) -> None:
        """A test that the page shows is run as its reader would run it."""
        installed = any(entry.value == "recruiter.pytest_plugin" for entry in entry_points(group="pytest11"))
        plugin = [] if installed else ["-p", "recruiter.pytest_plugin"]
        (self._folder / "pytest.ini").write_text("[pytest]\naddopts = -q -p no:cacheprovider -W error\n")
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *plugin, file],
            cwd=self._folder,
            env={**os.environ, "RECRUITER_TEST_TARGET": self._test_target},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def _fits(shown: str, expected: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    return re.fullmatch(pattern, shown, re.DOTALL) is not None


@contextlib.contextmanager
def _left_as_it_was() -> Iterator[set[Recruiter | MongoClient[Any]]]:
    """What pages define stays in pages: modules, workables, and connections, which are closed at the end."""
    modules, workables, owners = set(sys.modules), dict(WORKABLES), set(RegistryOwner.alive)
    opened: set[Recruiter | MongoClient[Any]] = set()
    try:
        yield opened
    finally:
        opened.update(owner for owner in RegistryOwner.alive if isinstance(owner, Recruiter))
        for connected in opened - owners:
            connected.close()
        ShellCommand.disable()
        for name in set(sys.modules) - modules:
            if "/pytest-" in str(getattr(sys.modules[name], "__file__", "")):  # in a test's own folder
                del sys.modules[name]
        ready_made = {name: cls for name, cls in WORKABLES.items() if cls.__module__.startswith("recruiter.workables")}
        WORKABLES.clear()
        WORKABLES.update(workables | ready_made)
