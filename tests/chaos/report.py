"""The report of a chaos run: its work, its faults, violations, late results, recovery times, and a picture."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.checker import Hits, Violation, surplus_runs, turns
from tests.chaos.evidence import Evidence
from tests.chaos.faults import AT_LAST, Fault
from tests.chaos.lateness import Late, late_results
from tests.chaos.recovery import Recovery, recoveries

_COLOURS = {"child": "#8a8a8a", "worker": "#c77700", "leader": "#7a3db8", "producer": "#2f7ed8", "cleaner": "#5a5a5a"}
_DATABASE_COLOUR = "#c0392b"
_MOST_LATE = 50
"""Rows of late results."""


@dataclass(frozen=True)
class Facts:
    seed: int
    seconds: float
    command: str
    settings: str


def markdown(facts: Facts, evidence: Evidence, violations: Sequence[Violation], picture: str) -> str:
    counts = Counter(fault.kind for fault in evidence.faults)
    database = sum(1 for fault in evidence.faults if fault.hits_everybody)
    late, amid = late_results(evidence), _amid_faults(evidence)
    small, behind = turns(evidence)
    lines = [
        f"# Chaos run, seed {facts.seed}",
        "",
        f"`{facts.command}`, {facts.settings}; {facts.seconds:.0f} s.",
        "",
        "| | |",
        "|---|---|",
        f"| jobs acknowledged | {len(evidence.acknowledged):,} |",
        f"| flows that users changed | {len(evidence.flows):,} |",
        f"| executions | {len(evidence.runs):,} |",
        f"| … begun before the last fault (the others when it was quiet again) | {amid:,}, {_share(amid, evidence)} |",
        f"| … by `run_all` and `watch` | {sum(run.pid == run.supervisor for run in evidence.runs):,} |",
        f"| … beyond the recorded attempts | {sum(surplus for _, _, surplus in surplus_runs(evidence)):,} |",
        f"| … that no fault could have cost their record | {_beyond_doubt(evidence):,} |",
        f"| jobs of small tenants; started after most of a large one's | {small:,}; {behind:,} |",
        f"| jobs ended | {len(evidence.archived):,} |",
        f"| process faults | {len(evidence.faults) - database:,} |",
        f"| disruptions of MongoDB | {database:,} |",
        f"| faults at the same moment as another | {sum(fault.is_paired for fault in evidence.faults):,} |",
        f"| late results | {len(late):,} |",
        f"| … that nothing explains | {sum(not result.cause for result in late):,} |",
        f"| **violations** | **{len(violations)}** |",
        "",
        f"![Jobs ended per second, with the faults]({picture})",
        "",
        *_work(evidence),
        *_how_soon(recoveries(evidence), counts),
        *_late(late),
    ]
    lines += ["", "## Violations", ""]
    lines += [f"- **{violation.rule}**: {violation.what}" for violation in violations[:200]] or ["None."]
    return "\n".join(lines) + "\n"


def _share(count: int, evidence: Evidence) -> str:
    return f"{count / max(1, len(evidence.runs)):.0%}"


def _work(evidence: Evidence) -> list[str]:
    tasks = Counter(run.task for run in evidence.runs)
    counts = ", ".join(f"{task} {count:,}" for task, count in tasks.most_common())
    return [f"Executions by kind of work: {counts}.", ""]


def _late(late: Sequence[Late]) -> list[str]:
    lines = [
        "",
        "## Late results",
        "",
        "Results more than the dead-after time and 5 s after the job was due and after the last fault that concerned",
        "it: on its process, on a worker that held it, or on MongoDB.",
        "",
    ]
    if not late:
        return [*lines, "None."]
    lines += ["| job | task | seconds | explanation |", "|---|---|---|---|"]
    worst = sorted(late, key=lambda result: (bool(result.cause), -result.seconds))[:_MOST_LATE]
    lines += [f"| {r.job} | {r.task} | {r.seconds:.1f} | {r.cause or '**none**'} |" for r in worst]
    return lines


def _amid_faults(evidence: Evidence) -> int:
    """The others ran when everything was quiet again, and show only that nothing was left behind."""
    last = max((fault.at for fault in evidence.faults if fault.kind != AT_LAST), default=0.0)
    return sum(run.start < last for run in evidence.runs)


def _beyond_doubt(evidence: Evidence) -> int:
    """Runs with which no fault can explain anything."""
    hits = Hits(evidence.faults, evidence.dead_after)
    return sum(not hits.explain(run) for run in evidence.runs)


def _how_soon(found: Mapping[str, Recovery], counts: Mapping[str, int]) -> list[str]:
    lines = [
        "## How soon work went on",
        "",
        "*The fleet*: the longest time after the fault in which no job started anywhere; only of faults that began",
        "while no heavier fault was acting. *Its own jobs*: from the fault until a job that it interrupted started",
        "again; MongoDB may have been away meanwhile.",
        "",
        "| fault | times | alone | fleet: median | worst | interrupted jobs | own jobs: median | worst |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, each in sorted(found.items()):
        fleet, own = _spread(each.pauses), _spread(each.own_jobs)
        lines.append(f"| {kind} | {counts[kind]} | {len(each.pauses)} | {fleet} | {len(each.own_jobs)} | {own} |")
    return lines


def _spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} s | {max(seconds):.2f} s" if seconds else "– | –"


def chart(evidence: Evidence, width: int = 1200, height: int = 260) -> str:
    """Jobs ended per second as a line, faults as marks below it; an SVG."""
    ends = [run.end for run in evidence.runs if run.end is not None]
    if not ends:
        return "<svg xmlns='http://www.w3.org/2000/svg'/>"
    first = min(run.start for run in evidence.runs)
    seconds = int(max(ends) - first) + 1
    counts = Counter(int(end - first) for end in ends)
    top = max(counts.values())
    across, up = width / seconds, (height - 60) / top
    points = " ".join(f"{s * across:.1f},{height - 40 - counts.get(s, 0) * up:.1f}" for s in range(seconds))
    marks = "".join(_mark(fault, (fault.at - first) * across, height) for fault in evidence.faults)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' font-family='sans-serif' "
        f"font-size='11'><rect width='{width}' height='{height}' fill='white'/>"
        f"<text x='4' y='12'>{top:,} jobs/s</text>{marks}"
        f"<polyline points='{points}' fill='none' stroke='#1a6fb5' stroke-width='1.5'/>"
        f"<text x='4' y='{height - 4}'>0 s</text><text x='{width - 50}' y='{height - 4}'>{seconds} s</text></svg>\n"
    )


def _mark(fault: Fault, x: float, height: int) -> str:
    if fault.hits_everybody:
        return (
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='18' y2='{height - 20}' stroke='{_DATABASE_COLOUR}' opacity='.5'>"
            f"<title>{fault.kind}</title></line>"
        )
    colour = _COLOURS.get(fault.kind.split()[0], "#8a8a8a")
    return (
        f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{height - 36}' y2='{height - 20}' stroke='{colour}' opacity='.7'>"
        f"<title>{fault.kind}</title></line>"
    )
