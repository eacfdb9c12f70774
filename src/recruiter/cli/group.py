"""`recruiter group …`: groups of jobs, paused, resumed and shared."""

from __future__ import annotations

import getpass
from typing import Annotated, Literal

from cyclopts import App, Parameter

from recruiter.cli.options import ChangeOptions, Flag, ReportOptions, noting_new_names, recruiter_on
from recruiter.cli.output import Column, say, show
from recruiter.domain.planning.rules import FLEET
from recruiter.domain.text import remark
from recruiter.errors import SettingsError

_COLUMNS = (
    Column("group", fair=24, whole=True),
    Column("jobs", right=True),
    Column("workers", right=True),
    Column("state", fair=40),
)

app = App(name="group")


@app.command(name="list")
def list_(*, common: ReportOptions = ReportOptions()) -> None:
    """Lists groups that have jobs, are paused or are shared, with the number of jobs and of workers that serve them."""
    with recruiter_on(common) as recruiter:
        rules, workers = recruiter.controls.rules(), recruiter.store.roster.read()
        paused = (name.removeprefix("group:") for name in rules.paused if name.startswith("group:"))
        jobs: dict[str, int] = dict.fromkeys((*paused, *rules.fair), 0)
        for (group, _), backlog in recruiter.store.queues.waiting(recruiter.clock.now()).of.items():
            jobs[group] = jobs.get(group, 0) + backlog.due + backlog.postponed
        rows = []
        for group, count in sorted(jobs.items()):
            pause = rules.pauses(group)
            serving = sum(1 for worker in workers if worker.groups is None or group in worker.groups)
            held = "all starts are blocked" if pause is rules.paused.get(FLEET) else "paused"
            text = f"{held} by {remark(pause.by, pause.reason)}" if pause else "active"
            text += f", shared by {rules.fair[group]}" if group in rules.fair else ""
            rows.append({"group": group, "jobs": count, "workers": serving, "state": text})
        if (blocked := rules.paused.get(FLEET)) is not None:
            text = remark(blocked.by, blocked.reason, blocked.at)
            say(f"All starts are blocked by {text}. Allow them with: recruiter group resume --all", stderr=True)
        show(rows, _COLUMNS, common.output, empty="No group has jobs.")


@app.command
def pause(group: str | None = None, /, *, all: bool = False, common: ChangeOptions = ChangeOptions()) -> None:
    """Pauses a group: none of its jobs starts until it is resumed. Running jobs continue.

    Args:
        all: Instead of a group: no job starts anywhere.
    """
    with recruiter_on(common) as recruiter:
        if all or group is None:
            _exactly_one(group, all)
            recruiter.controls.block_starts(by=common.author, reason=common.reason)
            text = "All starts are blocked. Allow them with: recruiter group resume --all"
            common.report(text, {"blocked": True})
        else:
            with noting_new_names(recruiter, "group", group):
                recruiter.controls.pause_group(group, by=common.author, reason=common.reason)
                text = f"group {group} is paused. Resume it with: recruiter group resume {group}"
                common.report(text, {"group": group, "paused": True})


@app.command
def resume(group: str | None = None, /, *, all: bool = False, common: ReportOptions = ReportOptions()) -> None:
    """Resumes a group. With --all, jobs start again everywhere (paused groups stay paused)."""
    with recruiter_on(common) as recruiter:
        if all or group is None:
            _exactly_one(group, all)
            was = recruiter.controls.allow_starts()
            text = "jobs start again" if was else "starts were not blocked"
            common.report(text, {"blocked": False, "changed": was})
        else:
            was = recruiter.controls.resume_group(group)
            text = f"group {group} is resumed" if was else f"group {group} was not paused"
            common.report(text, {"group": group, "paused": False, "changed": was})


@app.command
def fair(
    group: str,
    /,
    *,
    by: Literal["owner", "key"] | None = None,
    weight: Annotated[list[str] | None, Parameter(negative=())] = None,
    off: Flag = False,
    common: ReportOptions = ReportOptions(),
) -> None:
    """Shares a group fairly: its jobs take turns by owner or key, so that no tenant holds up another.

    Args:
        by: Whether a tenant is an owner (default) or a key.
        weight: TENANT=NUMBER: a tenant that gets more turns than others, which have 1; may be given several times.
        off: Stop sharing: its jobs run by priority and time again.
    """
    if off and (by is not None or weight):
        raise SettingsError("--off stops sharing the group; give it without --by and --weight")
    with recruiter_on(common) as recruiter:
        if off:
            was = recruiter.controls.unshare_group(group)
            text = f"group {group} is no longer shared" if was else f"group {group} was not shared"
            common.report(text, {"group": group, "shared_by": None, "changed": was})
            return
        with noting_new_names(recruiter, "group", group):
            tenant = by or "owner"
            recruiter.controls.share_group(group, tenant, weights=_weights(weight or []), set_by=getpass.getuser())
            text = f"the jobs of group {group} take turns by {tenant}. Undo it with: recruiter group fair {group} --off"
            common.report(text, {"group": group, "shared_by": tenant})


def _weights(given: list[str]) -> dict[str, float]:
    weights = {}
    for text in given:
        tenant, equals, number = text.rpartition("=")
        try:
            weights[tenant] = float(number)
        except ValueError:
            equals = ""
        if not equals or not tenant:
            raise SettingsError(f"--weight is {text!r}; write TENANT=NUMBER, such as ada=3")
    return weights


def _exactly_one(group: str | None, all: bool) -> None:
    if (group is None) != all:
        raise SettingsError("name a group, or give --all")
