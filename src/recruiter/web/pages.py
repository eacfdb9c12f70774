"""The pages of the console and their data. A page and its live part are the same template."""

from __future__ import annotations

import gzip
import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from recruiter.domain.duration import UNTIL_SIGNAL, brief
from recruiter.domain.flow import FlowState
from recruiter.domain.names import DEFAULT_GROUP
from recruiter.domain.policy_registry import policy_text, policy_words
from recruiter.errors import InvalidFilter
from recruiter.instruments import trace_id_of
from recruiter.job_actions import JOB_ACTIONS
from recruiter.web import drawings, filter_words, formats
from recruiter.web.actions import NAMED
from recruiter.web.reader import RANGES, ROWS, Reader
from recruiter.web.schemas import ActionEntry
from recruiter.web.sentences import failed, of_jobs, plural
from recruiter.web.terms import SECTIONS, TERMS

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FILES = (
    *("console.css", "console.js", "charts.js", "icon.svg"),
    *("vendor/htmx.min.js", "vendor/idiomorph.min.js", "vendor/uplot.min.js", "vendor/uplot.min.css"),
)


@dataclass(frozen=True)
class Asset:
    content: bytes
    zipped: bytes
    type: str
    version: str


class Assets:
    """The static files; no other file is served."""

    @cached_property
    def all(self) -> dict[str, Asset]:
        folder = files("recruiter.web") / "static"
        return {name: _asset(name, folder.joinpath(*name.split("/")).read_bytes()) for name in _FILES}

    def url(self, name: str) -> str:
        """Relative to the console's own address."""
        return f"static/{name}?v={self.all[name].version}"


def _asset(name: str, content: bytes) -> Asset:
    type = f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"
    return Asset(content, gzip.compress(content, 9, mtime=0), type, hashlib.sha256(content).hexdigest()[:12])


STATES = {
    "waiting": "○",
    "queued": "○",
    "postponed": "◷",
    "blocked": "◌",
    "paused": "‖",
    "running": "◐",
    "succeeded": "✓",
    "failed": "✕",
    "skipped": "↷",
    "cancelled": "⊘",
    "lost": "!",
}
"""Each state has a sign, because colour alone is not accessible."""
JOB_TABS = ("arguments", "result", "attempts", "history", "log", "stages", "stack", "document")

MOST_SHOWN = 32 * 1024  # Characters of a value that a page shows

JobFacts = Mapping[str, Any]  # A job as `Reader.job` returns it
Pairs = tuple[tuple[str, str], ...]  # The parameters of a URL, in order


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """One page: its data, and how often its live part reads again."""

    name: str
    title: str
    load: Callable[[Reader, Pairs], dict[str, Any]]
    period: float = 2.0

    @property
    def template(self) -> str:
        return f"{self.name}.html"


def _one(pairs: Pairs, name: str, default: str = "") -> str:
    return next((value for key, value in pairs if key == name), default)


def _overview(reader: Reader, pairs: Pairs) -> dict[str, Any]:
    within = _one(pairs, "within", "1h")
    seen = reader.overview(within)
    return {"seen": seen, "ranges": RANGES, "command": f"recruiter analytics --within {within}"}


def _jobs(reader: Reader, pairs: Pairs) -> dict[str, Any]:
    text, sort, after, typed, opened = (_one(pairs, name) for name in ("text", "sort", "after", "q", "open"))
    text, wanted_rows = text[:200], _one(pairs, "limit", str(ROWS))
    limit = formats.whole(wanted_rows) or 0
    if not 1 <= limit <= 200:
        raise InvalidFilter(f"limit is {wanted_rows[:20]!r}; a page here has 1 to 200 jobs")
    said = filter_words.words_in(pairs, also=("limit", "after", "open", "q", "text", "sort"))
    others = {name: values for name, values in said.items() if name not in ("state", "why")}
    wanted = reader.filter_of(said)
    found = reader.jobs(wanted, limit=limit, after=after or None, text=text)
    told = ", ".join(filter(None, ("" if wanted.is_empty else str(wanted), text and f'"{text}"')))
    return {
        "found": replace(found, jobs=_sorted(found.jobs, sort)),
        "words": said,
        "chips": filter_words.chips(said, text),
        "typed": typed,
        "mistake": _mistake(lambda: reader.filter_of(filter_words.split(typed)[0])),
        "conditions": f"{filter_words.as_typed(said)} {text}".strip(),
        "text": text,
        "sort": sort,
        "told_filter": told,
        "sentence_of": of_jobs(found, told, further=bool(after)),
        "limit": "" if limit == ROWS else str(limit),
        "after": after,
        "opened": reader.job(opened) if opened else None,
        "state_tab": next((tab for tab, of_tab in filter_words.TABS.items() if said == {**others, **of_tab}), None),
        "here": f"jobs?{filter_words.query(said, text=text, sort=sort)}",
        "verbs": [] if text else [v for v, act in JOB_ACTIONS.items() if not _mistake(partial(act.among, wanted))],
        "others": others,
        "tabs": filter_words.TABS,
        "hint": "" if found.jobs or after else _mistake(lambda: reader.recognize(wanted)),
        "command": filter_words.command(said),
    }


def _mistake(check: Callable[[], object]) -> str:
    """The message of the InvalidFilter that the check raises; otherwise empty."""
    try:
        check()
    except InvalidFilter as error:
        return str(error)
    return ""


_COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "state": lambda row: row["state"],
    "task": lambda row: row["task"] or "",
    "group": lambda row: row["group"] or "",
    "tries": lambda row: -(row["attempts"] or 0),
    "took": lambda row: (
        (row["started_at"] - row["ended_at"]).total_seconds() if row["started_at"] and row["ended_at"] else 0.0
    ),
}
"""The columns of a list that a page can be sorted by: names upwards, numbers downwards."""


def _sorted(rows: list[Any], by: str) -> list[Any]:
    """The rows of one page. A list of millions of jobs has the one order that an index gives."""
    if by and by not in _COLUMNS:
        raise InvalidFilter(f"a list is sorted by {', '.join(_COLUMNS)}, not by {by[:50]!r}")
    return sorted(rows, key=_COLUMNS[by]) if by else rows


def _tasks(reader: Reader, pairs: Pairs) -> dict[str, Any]:
    by, within, sort = _one(pairs, "by", "task"), _one(pairs, "within", "1h"), _one(pairs, "sort", "total")
    seen = reader.tasks(by, within, sort)
    command = f"recruiter analytics --by {by} --within {within}"
    if by == "worker":
        command = f"recruiter job list --worker NAME --since {within}"
    return {"seen": seen, "ranges": RANGES, "sort": sort, "command": command}


def _groups(reader: Reader, pairs: Pairs) -> dict[str, Any]:
    form = {name: _one(pairs, name) for name in ("name", "at_once", "count", "per")}
    return {"seen": reader.groups(), "form": form, "command": "recruiter group list"}


def _job(reader: Reader, pairs: Pairs) -> dict[str, Any]:
    job = reader.job(_one(pairs, "id"))
    tab = _one(pairs, "tab") or _first_tab(job)
    if tab not in JOB_TABS:
        raise InvalidFilter(f"a job has {', '.join(JOB_TABS)}, not {tab[:50]!r}")
    return {
        "job": job,
        "here": f"job?{urlencode(pairs)}",
        "tab": tab,
        "tabs": JOB_TABS,
        "bars": drawings.bars(job["timeline"]),
        "find": _one(pairs, "find"),
        "python": _python(job),
        "alike": reader.alike(job) if job["error"] and job["task"] and job["state"] in ("failed", "lost") else None,
        "command": shlex.join(["recruiter", "job", "show", job["id"]]),
    }


def _first_tab(job: JobFacts) -> str:
    if job["state"] == "running" and job["log"]:
        return "log"
    return "attempts" if job["error"] else "arguments"


def _python(job: JobFacts) -> str:
    """As one would write it; redacted values must be filled in. Empty if it is too long to write."""
    if not job["task"] or len(repr(job["args"])) > MOST_SHOWN:
        return ""
    group = "" if job["group"] == DEFAULT_GROUP else f".in_group({job['group']!r})"
    tags = f".tagged_as({', '.join(map(repr, job['tags']))})" if job["tags"] else ""
    return f"recruiter.job({job['task']!r}, {job['args']!r}){group}{tags}.enqueue()"


def _of(read: Callable[[Reader], Any], command: str) -> Callable[[Reader, Pairs], dict[str, Any]]:
    """The loader of a page without parameters."""
    return lambda reader, _: {"seen": read(reader), "command": command}


def _flows(reader: Reader, pairs: Pairs) -> dict[str, Any]:
    state, text = _one(pairs, "state"), _one(pairs, "q").strip()[:200]
    seen = reader.flows(state, text, _one(pairs, "after"))
    return {
        "seen": seen,
        "state_tab": state,
        "states": tuple(FlowState),
        "text": text,
        "command": "recruiter flow list",
    }


def _flow(reader: Reader, pairs: Pairs) -> dict[str, Any]:
    id, state, of = (_one(pairs, name) for name in ("id", "state", "of"))
    start = formats.whole(_one(pairs, "start")) or 0
    command = shlex.join(["recruiter", "flow", "show", id])
    return {"seen": reader.flow(id, state, of, start), "state_tab": state, "of": of, "start": start, "command": command}


def _problems(reader: Reader, _pairs: Pairs) -> dict[str, Any]:
    seen = reader.problems()
    return {"seen": seen, "undo": _ways_back(seen.past_actions), "command": "recruiter doctor"}


def _ways_back(newest_first: Sequence[ActionEntry]) -> list[formats.SuggestedAction | None]:
    """For each past action, the button that undoes it. None if no action undoes it, if it was refused or has not ended,
    or if a later action had the same subject: that one would be undone instead."""
    found: list[formats.SuggestedAction | None] = []
    changed_since: set[str] = set()
    for entry in newest_first:
        named = NAMED.get(entry.verb)
        was_done = entry.outcome is not None and not entry.outcome.startswith("refused")
        if named is not None and named.undo and was_done and entry.subject not in changed_since:
            name = entry.subject.removeprefix(f"{named.thing} ") if named.thing else ""
            found.append(formats.SuggestedAction(named.undo, NAMED[named.undo].button, name))
        else:
            found.append(None)
        changed_since.add(entry.subject)
    return found


def _help(_reader: Reader, _pairs: Pairs) -> dict[str, Any]:
    shown = {"sections": SECTIONS, "words": filter_words.NAMES, "states": filter_words.TABS}
    return {**shown, "command": "recruiter --help"}


_ALL = (
    ConsolePage("overview", "Overview", _overview),
    ConsolePage("jobs", "Jobs", _jobs),
    ConsolePage("tasks", "Tasks", _tasks, period=5.0),
    ConsolePage("flows", "Flows", _flows),
    ConsolePage("schedules", "Schedules", _of(Reader.schedules, "recruiter scheduler list"), period=5.0),
    ConsolePage("workers", "Workers", _of(Reader.fleet, "recruiter worker list"), period=1.0),
    ConsolePage("groups", "Groups", _groups),
    ConsolePage("problems", "Problems", _problems, period=5.0),
    ConsolePage("job", "Job", _job, period=1.0),
    ConsolePage("flow", "Flow", _flow, period=2.0),
    ConsolePage("help", "Help", _help),
)
PAGES = {page.name: page for page in _ALL}
NAVIGATION = [page.name for page in _ALL if page.name not in ("job", "flow", "help")]


def environment(assets: Assets) -> Environment:
    """Everything that a template prints is made harmless, then escaped; there is no way around either."""
    made = Environment(
        loader=PackageLoader("recruiter.web", "templates"),
        autoescape=True,
        finalize=formats.harmless,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= _FILTERS
    made.globals |= {**_GLOBALS, "asset": assets.url}
    return made


def _mark(text: str) -> str:
    """The id of an HTML element, made from any string."""
    return hashlib.blake2s(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _shown(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


_FILTERS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(formats, name) for name in ("count", "exactly", "amount", "size", "iso", "exact", "parts_of")},
    **{name: getattr(formats, name) for name in ("pieces", "todo", "action_of", "alike", "in_zone")},
    "duration": brief,
    "mark": _mark,
    "shown": _shown,
    "policy": policy_text,
    "policy_words": policy_words,
    "trace_id": trace_id_of,
    "quoted": lambda text: quote(text, safe=""),
    "sum_of": lambda ended: sum(ended.values()),
    "failed": failed,
}
_GLOBALS: Mapping[str, Any] = {
    **{each.__name__: each for each in (formats.between, formats.relative, plural, filter_words.query)},
    **{each.__name__: each for each in (drawings.sparkline, drawings.hour_bars, drawings.hour_marks)},
    "later": lambda moment, seconds: moment + timedelta(seconds=seconds),
    "until_signal": UNTIL_SIGNAL,
    "url": lambda place, **values: f"{place}?{urlencode({k: v for k, v in values.items() if v not in (None, '')})}",
    "signs": STATES,
    "navigation": NAVIGATION,
    "is_moment": lambda value: isinstance(value, datetime),
    "is_job": lambda value: isinstance(value, formats.JobRef),
    "terms": TERMS,
    "most_shown": MOST_SHOWN,
    "bar": lambda used, allowed: min(100.0, 100.0 * used / allowed) if allowed else 100.0,
}


def rendered(made: Environment, page: ConsolePage, reader: Reader, pairs: Pairs, **frame: Any) -> tuple[str, str]:
    """The part of a page that is live, and the command that shows the same."""
    context: Mapping[str, Any] = page.load(reader, pairs)
    live = urlencode([(key, value) for key, value in pairs if key != "theme"])
    template = made.get_template(page.template)
    html = template.render(**context, page=page, live=f"live/{page.name}?{live}", pairs=pairs, **frame)
    return html, context["command"]
