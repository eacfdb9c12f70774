"""The application: the user's file or module, with its tasks and hooks; and errors that say what is wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakSet

import pytest

from recruiter import Recruiter
from recruiter.application import load_application
from recruiter.errors import ApplicationError
from recruiter.registry import RegistryOwner

SHOP = """
from recruiter import Recruiter

recruiter = Recruiter("shop.example/shop")
other = Recruiter("shop.example/shop")

@recruiter.task
def sell(what: str) -> str:
    return what

@other.task
def buy(what: str) -> str:
    return what

def recruiter_became_master(recruiter: Recruiter) -> None:
    became.append(recruiter)

recruiter_stept_back = "not a function"
became = []

if __name__ == "__main__":
    raise SystemExit("must not run")
"""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No other application is loaded, and what a test loads is gone after it."""
    monkeypatch.setattr(RegistryOwner, "alive", WeakSet())
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(name: str, text: str) -> Path:
    path = Path.cwd() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class TestFile:
    def test_only_callables_of_the_module_are_hooks(self) -> None:
        """Only what can be called is a hook."""
        application = load_application(str(write("shop_c.py", SHOP)))

        assert set(application.hooks) == {"recruiter_became_master"}
        application.hooks["recruiter_became_master"]("me")
        assert sys.modules["shop_c"].became == ["me"]

    def test_loaded_twice_is_loaded_once(self) -> None:
        path = str(write("shop_d.py", SHOP))

        first, second = load_application(path), load_application(path)

        assert set(first.owners) == set(second.owners)
        assert len(second.owners) == 2


class TestModule:
    def test_one_recruiter_of_several(self) -> None:
        write("shop_g.py", SHOP)

        application = load_application("shop_g:other")

        assert application.target.uri == "mongodb://shop.example/shop"
        assert application.registry.find("buy") is not None
        assert application.registry.find("sell") is None
        assert set(application.hooks) == {"recruiter_became_master"}


class TestErrors:
    @pytest.mark.parametrize(
        ("bootstrap", "message"),
        [
            ("broken_z.py", "cannot load the application 'broken_z.py': SyntaxError"),
            ("failing_z.py", "cannot load the application 'failing_z.py': ZeroDivisionError: division by zero"),
            ("leaving_z", "cannot load the application 'leaving_z': SystemExit: 3"),
            ("shop_z:nothing", "shop_z has no Recruiter called 'nothing'"),
            ("shop_z:sell", "shop_z has no Recruiter called 'sell'"),
            (".", "cannot load the application"),
            ("", "cannot load the application"),
        ],
    )
    def test_what_is_wrong_is_said(self, bootstrap: str, message: str) -> None:
        write("broken_z.py", "def (:\n")
        write("failing_z.py", "1 / 0\n")
        write("leaving_z.py", "raise SystemExit(3)\n")
        write("shop_z.py", SHOP)

        with pytest.raises(ApplicationError, match=message):
            load_application(bootstrap)

    def test_the_users_own_error_is_inside(self) -> None:
        write("failing_y.py", "1 / 0\n")

        with pytest.raises(ApplicationError) as refused:
            load_application("failing_y.py")

        assert isinstance(refused.value.__cause__, ZeroDivisionError)
        assert "failing_y" not in sys.modules, "it can be tried again"

    def test_two_tasks_of_one_name(self) -> None:
        """Given two recruiters with different tasks of the same name, then loading says so."""
        write(
            "twice_y.py",
            "from recruiter import Recruiter\na, b = Recruiter('h/a'), Recruiter('h/a')\n"
            "@a.task(name='same')\ndef one() -> None: ...\n@b.task(name='same')\ndef two() -> None: ...\n",
        )

        with pytest.raises(ApplicationError, match="same"):
            load_application("twice_y.py")


def test_a_recruiter_made_elsewhere_counts_too() -> None:
    """Tasks may live in modules that the bootstrap file imports."""
    write("tasks_x.py", SHOP)
    write("boot_x.py", "import tasks_x\n")

    application = load_application("boot_x.py")

    assert application.registry.find("sell") is not None
    assert all(isinstance(owner, Recruiter) for owner in application.owners)


class TestSeveralRecruiters:
    TWO = (
        "from recruiter import Recruiter\nshop = Recruiter('mongodb://u:secret@h/shop')\n"
        "bank = Recruiter('mongodb://u:secret@h/bank')\n"
        "@shop.task\ndef sell() -> None: ...\n"
    )

    def test_two_recruiters_on_different_databases_are_refused(self) -> None:
        """Or which one is used would be chance."""
        write("two_r.py", self.TWO + "@bank.task\ndef charge() -> None: ...\n")

        with pytest.raises(ApplicationError) as refused:
            load_application("two_r.py")

        told = str(refused.value)
        assert "2 Recruiters" in told
        assert "shop on " in told
        assert "bank on " in told
        assert "--bootstrap two_r.py:NAME" in told
        assert "secret" not in told

    @pytest.mark.parametrize(("name", "task"), [("shop", "sell"), ("bank", "charge")])
    def test_the_name_says_which(self, name: str, task: str) -> None:
        write("two_n.py", self.TWO + "@bank.task\ndef charge() -> None: ...\n")

        application = load_application(f"two_n.py:{name}")

        assert application.target is not None
        assert application.target.uri.endswith(f"/{name}")
        assert application.registry.own_names == {task}

    def test_one_that_only_sends_is_left_where_it_is(self) -> None:
        write("two_s.py", self.TWO)

        application = load_application("two_s.py")
        application.point_at("elsewhere/shop")

        bank = sys.modules["two_s"].bank
        assert application.registry.own_names == {"sell"}
        assert bank not in application.owners
        assert bank.address.endswith("/bank")
