"""`recruiter flow …`: jobs that wait for others, shown as a tree and controlled as a whole."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from cyclopts import App, Parameter
from rich.text import Text

from recruiter.cli.options import ChangeOptions, Count, Flag, ReportOptions, TargetOptions, Yes, recruiter_on
from recruiter.cli.output import Column, as_text, ask, console, say, say_json, show, write
from recruiter.domain.duration import brief
from recruiter.domain.flow import branches
from recruiter.domain.job import JobId
from recruiter.domain.text import plural
from recruiter.views.flows import FlowReport, StepReport, SubFlowReport, mermaid

app = App(name="flow")

_COLUMNS = (
    Column("id", fair=24, whole=True),
    Column("name", fair=20),
    Column("state"),
    Column("steps", right=True),
    Column("ended", right=True),
    Column("what", rank=1, fair=24),
    Column("created_at", rank=2, title="created (UTC)"),
    Column("owner", rank=3, fair=12),
)
_COLOURS = {"succeeded": "green", "failed": "red", "lost": "red", "running": "cyan", "cancelled": "yellow"}


@app.command(name="list")
def list_(
    *,
    limit: Count = 50,
    owner: str | None = None,
    running: bool | None = None,
    common: ReportOptions = ReportOptions(),
) -> None:
    """Lists flows, the newest first, with the number of their steps and how many have ended.

    Args:
        limit: How many flows to list; 0 for all.
        owner: Only flows of this owner.
        running: Only flows that have not ended; or, with --no-running, only flows that have.
    """
    with recruiter_on(common) as recruiter:
        rows = [_row(flow) for flow in recruiter.flows.latest(limit=limit, owner=owner, running=running)]
        show(rows, _COLUMNS, common.output, empty="There are no flows.")


@Parameter(name="*")
@dataclass(frozen=True)
class ShowFlowOptions(TargetOptions):
    output: Literal["table", "json", "jsonl", "mermaid"] = "table"
    "The form of the output: a tree for people, JSON, or the text of a Mermaid diagram."


@app.command(name="show")
def show_(id: str, /, *, common: ShowFlowOptions = ShowFlowOptions()) -> None:
    """Shows a flow as a tree of its steps, each with its state."""
    with recruiter_on(common) as recruiter:
        flow = recruiter.flows.find(id)
        report, steps = flow.report(), flow.steps()
        subs = flow.sub_flows() if any(step.part for step in steps) else []
        if common.output == "mermaid":
            write(console(), Text(mermaid(steps, subs)), soft_wrap=True)
            return
        if common.output != "table":
            rows = [
                asdict(step)
                | {kind: [id for id in step.after if id in getattr(step, kind)] for kind in ("any", "failed")}
                for step in steps
            ]
            say_json({**_row(report), "flow": rows, "sub_flows": [asdict(sub) for sub in subs]}, common.output)
            return
        say(_described(report))
        for sub in subs:
            say(f"sub-flow {sub.name}: {sub.state}, {plural(sum(sub.counts.values()), 'step')}: {_counted(sub)}.")
        write(console(), *_tree(steps), soft_wrap=True)


@app.command
def cancel(id: str, /, *, yes: Yes = False, common: ChangeOptions = ChangeOptions()) -> int:
    """Cancels every step of a flow that has not ended."""
    with recruiter_on(common) as recruiter:
        flow = recruiter.flows.find(id)
        if not ask(f"{_described(flow.report())} Cancel it?", yes):
            common.report("Nothing was cancelled.", {"id": id, "count": 0})
            return 1
        cancelled = flow.cancel(by=common.author, reason=common.reason)
        text = (
            f"{_steps(cancelled)} being cancelled. To run them again when they have ended: recruiter flow recover {id}"
        )
        common.report(text, {"id": id, "count": cancelled})
        return 0


@app.command
def pause(id: str, /, *, common: ChangeOptions = ChangeOptions()) -> None:
    """Pauses a flow: none of its steps starts until it is resumed. Running steps continue."""
    with recruiter_on(common) as recruiter:
        recruiter.flows.find(id).pause(by=common.author, reason=common.reason)
        text = f"flow {id} is paused. Resume it with: recruiter flow resume {id}"
        common.report(text, {"id": id, "paused": True})


@app.command
def resume(id: str, /, *, common: ReportOptions = ReportOptions()) -> None:
    """Resumes a flow that was paused."""
    with recruiter_on(common) as recruiter:
        recruiter.flows.find(id).resume()
        common.report(f"flow {id} goes on", {"id": id, "paused": False})


@app.command(name="recover", alias="retry")
def recover(id: str, /, *, lost: Flag = False, common: ReportOptions = ReportOptions()) -> None:
    """Recovers the steps of a flow that have failed or were cancelled; the flow resumes where it stopped.

    Args:
        lost: Recover lost steps too: at-most-once jobs that may have done their work.
    """
    with recruiter_on(common) as recruiter:
        flow = recruiter.flows.find(id)
        left = 0 if lost else flow.report().counts.get("lost", 0)
        recovered = flow.retry(lost=lost)
        common.report(f"{_steps(recovered)} recovered", {"id": id, "count": recovered, "lost": left})
        if left and common.output == "table":
            say(f"Lost steps may have done their work and stay unchanged: {left}. Recover them with --lost")


def _steps(count: int) -> str:
    return f"{count} step is" if count == 1 else f"{count} steps are"


def _row(flow: FlowReport) -> dict[str, Any]:
    return {
        "id": flow.id,
        "name": flow.name,
        "state": flow.state.value,
        "steps": flow.total,
        "ended": f"{flow.progress:.0%}",
        "progress": flow.progress,
        "counts": dict(flow.counts),
        "ends": dict(flow.ends),
        "what": flow.note or _counted(flow),
        "created_at": flow.created_at,
        "ended_at": flow.ended_at,
        "owner": flow.owner,
    }


def _described(flow: FlowReport) -> str:
    owner = f", of {flow.owner}" if flow.owner else ""
    steps = plural(flow.total, "step")
    note = f"; {flow.note}" if flow.note else ""
    ends = "".join(f"; on {on}: {state}" for on, state in flow.ends.items())
    return f"flow {flow.name} ({flow.id}{owner}): {flow.state.value}, {steps}: {_counted(flow)}{note}{ends}."


def _counted(flow: FlowReport | SubFlowReport) -> str:
    return ", ".join(f"{steps} {state}" for state, steps in flow.counts.items())


def _tree(steps: list[StepReport]) -> list[Text]:
    by_id = {step.step: step for step in steps}
    ordinary = {step.step: step.after for step in steps if step.on is None}
    lines = []
    for branch in branches(ordinary, lambda id: (by_id[id].title, by_id[id].state)):
        text = _step_text(by_id[branch.steps[0]], branch.steps, branch.parent)
        lines.append(Text(branch.prefix).append_text(text))
    for step in steps:
        if step.on is not None:
            line = Text(f"on {step.on.value}: ")
            lines.append(line.append_text(_step_text(step, (step.step,), None)))
    return lines


def _step_text(step: StepReport, steps: tuple[JobId, ...], parent: JobId | None) -> Text:
    """The text for a step in the tree, below `parent`; `step` stands for `steps` that are alike."""
    many = f" × {len(steps)}" if len(steps) > 1 else ""
    text = Text(f"{as_text(step.title)}{many}  ").append(step.state, _COLOURS.get(step.state))
    if len(steps) == 1:
        text.append(f"  {as_text(step.job)}")
        if step.started_at and step.ended_at:
            text.append(f"  {brief((step.ended_at - step.started_at).total_seconds())}")
        if step.error and step.state != "succeeded":
            text.append(f"  {as_text(step.error)}")
    if step.after and step.after != (parent,):
        text.append(
            f"  (after {len(step.after)} steps)" if len(step.after) > 1 else f"  (after {as_text(step.after[0])})"
        )
    if step.failed:
        text.append("  (only after a failure)")
    return text
