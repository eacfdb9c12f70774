"""The pages of the documentation, as tests read them.

A block of Python may say what comes out of it, and whoever runs it checks that:

    job.result()  # → 'Hello, Ada!'              the value of the line; … stands for anything
    print(job)                                   what a line of its own printed, likewise
    # → JobHandle(…)
    hello.enqueue(5)
    # raises InvalidArguments: hello(): name: …  the line must raise exactly this
    #   and this goes on                         lines that are indented in their comment belong to the one before

A block that begins with `# shop.py` is that file; a later block with the same first line is appended to it.
A page that begins with `<!-- worker -->` has real processes beside it, with the first of its files loaded; one that
begins with `<!-- watch -->` has its jobs run by a thread beside it, where it does not matter that these are processes.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
LANGUAGES = {"python", "sh", "toml", "json", "js", "text", "py", "nginx"}
"""`py` is the code of other tools, which is shown beside ours and not run."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([a-z_]+\.py)\n")
_WORKER = re.compile(r"<!-- worker(?:: (.*?))? -->\n")
_WATCH = "<!-- watch -->\n"
_EXPECTATION = re.compile(r"# (→|raises) (.*)")
_CONTINUED = re.compile(r"#  +(\S.*)")


@dataclass(frozen=True)
class Expectation:
    raises: bool
    text: str


@dataclass(frozen=True)
class Step:
    """One statement of a block, and what it is said to lead to."""

    node: ast.stmt
    expected: Expectation | None


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    """Where its first line stands in the page."""

    @property
    def file(self) -> str | None:
        match = _FILE.match(self.text) if self.language == "python" else None
        return match[1] if match else None

    def steps(self) -> list[Step]:
        """Its statements, with their lines counted as in the page. Nothing that it promises is passed over."""
        statements = ast.parse(self.text).body
        promised = self._promises()
        steps = []
        for node, following in zip(statements, [*statements[1:], None], strict=True):
            begin, end = node.end_lineno or 0, following.lineno if following else len(self.text.splitlines()) + 1
            places = [line for line in promised if begin <= line < end]
            assert len(places) <= 1, f"line {self.line + places[1] - 1}: one promise a statement"
            expected = promised.pop(places[0]) if places else None
            steps.append(Step(ast.increment_lineno(node, self.line - 1), expected))
        assert not promised, f"line {self.line + min(promised) - 1}: a promise that no test would check"
        return steps

    def _promises(self) -> dict[int, Expectation]:
        promised: dict[int, Expectation] = {}
        last = None
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        for token in (token for token in tokens if token.type == tokenize.COMMENT):
            line = token.start[0]
            if match := _EXPECTATION.fullmatch(token.string):
                promised[line] = Expectation(match[1] == "raises", match[2])
                last = (line, line)
            elif last and line == last[1] + 1 and (more := _CONTINUED.fullmatch(token.string)):
                begun = promised[last[0]]
                promised[last[0]] = Expectation(begun.raises, f"{begun.text} {more[1]}")
                last = (last[0], line)
        return promised


@dataclass(frozen=True)
class Page:
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @property
    def name(self) -> str:
        return str(self.path.relative_to(DOCS) if self.path.is_relative_to(DOCS) else self.path.name)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(
            Block(match[1], match[2], self.text.count("\n", 0, match.start()) + 2)
            for match in _FENCE.finditer(self.text)
        )

    @property
    def worker(self) -> list[str] | None:
        """What to tell the processes beside it; None when it needs none."""
        match = _WORKER.match(self.text)
        return (match[1] or "").split() if match else None

    @property
    def watches(self) -> bool:
        return self.text.startswith(_WATCH)

    @property
    def files(self) -> dict[str, str]:
        files: dict[str, str] = {}
        for block in self.blocks:
            if block.file is not None:
                files[block.file] = files.get(block.file, "") + block.text
        return files

    @property
    def prose(self) -> str:
        """Without its blocks."""
        return _FENCE.sub("", self.text)

    def commands(self) -> Iterator[tuple[int, str]]:
        """The lines that call `recruiter`, with the number of the block's first line."""
        for block in self.blocks:
            if block.language == "sh":
                for line in block.text.replace("\\\n", " ").splitlines():
                    if line.startswith("recruiter "):
                        yield block.line, line


GENERATED = DOCS / "reference" / "api"
PAGES = [Page(path) for path in sorted(DOCS.rglob("*.md")) if path.parent != GENERATED]


def page(name: str) -> Page:
    return Page(DOCS / name)
