"""A stored name means one definition: two that want it are refused, one that is loaded again is not."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from recruiter import Recruiter, RetryPolicy, Workable
from recruiter.application import load_application
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import exception_names
from recruiter.errors import InvalidName, TaskExists
from recruiter.registry import RegistryOwner
from recruiter.workable import WORKABLES


@pytest.fixture
def recruiter() -> Recruiter:
    return Recruiter("h/definitions")


@pytest.fixture(autouse=True)
def forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules are found in the test's folder, and what they define is forgotten after it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RegistryOwner, "alive", type(RegistryOwner.alive)())
    modules, workables = set(sys.modules), dict(WORKABLES)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    WORKABLES.clear()
    WORKABLES.update(workables)


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    importlib.invalidate_caches()
    return path


def careless(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator without functools.wraps: everything behind it has one name."""

    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def charge() -> str:
    return "charged"


def refund() -> str:
    return "refunded"


class TestTwoDefinitions:
    def test_behind_a_decorator_without_wraps(self, recruiter: Recruiter) -> None:
        recruiter.task(careless(charge))

        with pytest.raises(TaskExists, match=r"'wrapper' is .*careless\.<locals>\.wrapper"):
            recruiter.task(careless(refund))

        task = recruiter.registry.find("wrapper")
        assert task is not None
        assert task.call({}, "execute").run() == "charged"

    def test_two_closures_of_one_name_are_refused(self, recruiter: Recruiter) -> None:
        def sender(kind: str) -> Callable[[], str]:
            def send() -> str:
                return kind

            return send

        recruiter.task(sender("mail"))

        with pytest.raises(TaskExists):
            recruiter.task(sender("sms"))

    def test_a_class_that_dataclass_makes_again_is_one(self) -> None:
        @dataclass(slots=True)
        class SlottedHere(Workable):
            url: str

            def execute(self) -> None: ...

        assert WORKABLES["SlottedHere"] is SlottedHere

    def test_two_policies_of_one_factory(self) -> None:
        policies = PolicyRegistry()

        def made(hours: int) -> type[RetryPolicy]:
            class NightShift(RetryPolicy):
                def decide(self, failure: Any) -> None:
                    assert hours

            return NightShift

        policies.register(made(1))

        with pytest.raises(InvalidName, match="NightShift"):
            policies.register(made(2))


SHOP = """
from dataclasses import dataclass
from recruiter import RetryPolicy, Workable
from owner_d import recruiter

def careless(function):
    def wrapper():
        return function()
    return wrapper

@recruiter.task(name="bill")
@careless
def charge():
    return {returned!r}

@recruiter.task
def plain():
    return {returned!r}

class Notify(Workable):
    def execute(self):
        return {returned!r}

@recruiter.policies.register
@dataclass(frozen=True)
class NightShift(RetryPolicy):
    def decide(self, failure):
        return None
"""


class TestOneDefinitionAgain:
    @pytest.fixture
    def owner(self) -> Recruiter:
        write("owner_d.py", "from recruiter import Recruiter\nrecruiter = Recruiter('h/d')\n")
        found: Recruiter = importlib.import_module("owner_d").recruiter
        return found

    def runs(self, owner: Recruiter, name: str) -> Any:
        task = owner.registry.find(name)
        assert task is not None
        return task.call({}, "execute").run()

    def test_a_reloaded_module_replaces_what_it_defined(self, owner: Recruiter) -> None:
        write("shop_d.py", SHOP.format(returned="before"))
        shop = importlib.import_module("shop_d")
        write("shop_d.py", SHOP.format(returned="after, edited"))

        importlib.reload(shop)

        assert [self.runs(owner, name) for name in ("bill", "plain", "Notify")] == ["after, edited"] * 3
        assert owner.policies.dump(shop.NightShift())["class"] == "NightShift"

    def test_a_cell_that_is_run_again_replaces_what_it_defined(self, owner: Recruiter) -> None:
        cells: dict[str, Any] = {"__name__": "__main__", "recruiter": owner}
        cell = "@recruiter.task\ndef in_a_cell():\n    return {!r}\n"

        for number, returned in enumerate(("before", "after")):
            exec(compile(cell.format(returned), f"<cell {number}>", "exec"), cells)

        assert self.runs(owner, "in_a_cell") == "after"


SCRIPT = """
import json
from recruiter import Recruiter, RetryManyTimes, SelectByException

class BankDown(Exception): ...

class Till:
    class Empty(Exception): ...

recruiter = Recruiter("h/d")

if __name__ == "__main__":
    many = RetryManyTimes(3, 1)
    select = SelectByException().when(BankDown, many)
    print(json.dumps([recruiter.policies.dump(many, [BankDown, Till.Empty, OSError]), recruiter.policies.dump(select)]))
"""


class TestNamesOfAScript:
    def stored(self, *command: str) -> list[str]:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
        only, select = json.loads(done.stdout)
        return [*only["only"], *select["parameters"]["cases"][0]["exceptions"]]

    @pytest.mark.parametrize(
        ("command", "bootstraps"),
        [
            (["./shop_s.py"], ["shop_s", "shop_s.py"]),
            (["-m", "shop_s"], ["shop_s.py"]),
            (["-m", "pkg_s.mod_s"], ["pkg_s.mod_s", "pkg_s/mod_s.py"]),
            (["pkg_s/mod_s.py"], ["pkg_s.mod_s", "pkg_s/mod_s.py"]),
        ],
    )
    def test_are_those_of_the_worker(self, command: list[str], bootstraps: list[str]) -> None:
        """Or the exceptions that a script names would not be those that its worker sees: no retries."""
        write("pkg_s/__init__.py", "")
        for file in ("shop_s.py", "pkg_s/mod_s.py"):
            write(file, SCRIPT)

        stored = self.stored(*command)

        assert not any("__main__" in name for name in stored)
        for bootstrap in bootstraps:
            load_application(bootstrap)
            module = sys.modules[bootstrap.removesuffix(".py").replace("pkg_s/", "")]
            down, empty = exception_names(module.BankDown)[0], exception_names(module.Till.Empty)[0]
            assert stored == [down, empty, "OSError", down]
            for name in {"shop_s", "mod_s", "pkg_s", "pkg_s.mod_s"} & sys.modules.keys():
                del sys.modules[name]
