"""Counts sentences that read as translated, in documentation, docstrings, comments, help texts and messages.

    python packaging/prose.py             checks the whole tree; exit code 1 if a limit is exceeded
    python packaging/prose.py PATH...     prints every hit in these files, with its line and a suggestion

A hit is a place to reread, not a verdict. `make check` runs this script. The limits only fall: lower them when you
remove hits.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

MAX_HITS_PER_1000_WORDS = 2.2
MAX_HITS_IN_A_FILE = 35
MAX_ALWAYS_HITS = 0
"""The sum over the patterns whose names begin with "always"."""

ROOT = Path(__file__).parents[1]
CHECKED = [
    "src",
    "docs",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "examples",
    "benchmarks",
    "packaging",
]


class Pattern(NamedTuple):
    name: str
    regex: re.Pattern[str]
    instead: str


def _p(name: str, regex: str, instead: str) -> Pattern:
    return Pattern(name, re.compile(regex, re.IGNORECASE), instead)


PATTERNS = [
    _p("always: at once", r"\bat once\b", "'immediately' or 'at the same time': the phrase means both"),
    _p(
        "always: so many/so long",
        r"\bso (many|much|long|often) (?!(that|as)\b)",
        "name the number: 'Maximum number of jobs ...'",
    ),
    _p(
        "always: archaic",
        r"\b(seldom|likewise|anew|mended?|burnt|for want of|all the same|in vain|whoever|wherever|thereof|nor of)\b",
        "rarely, again, fixed, because of missing, anyway, every process that",
    ),
    _p(
        "always: calque",
        r"\bbelongs? into\b|\bin front of the (commit|end|start)\b|\ba (process|index|field) more\b|"
        r"\bcomes? along\b|\bno more\b(?! than)|\bany more\b",
        "'put ... in', 'before', 'one extra', 'is included', 'no longer'",
    ),
    _p(
        "headless what",
        r"(^|[.:;(] ?)(What|How (many|much|often|long)|Who|Where|Since when|Which) (?!.*\?)\w+",
        "start with the noun: 'The number of ...'",
    ),
    _p(
        "what as a noun",
        r"\bwhat (is|was|are|were|it|they|has|have|runs|waits|ended|failed|comes|follows|the|a|each)\b",
        "name the thing: 'waiting jobs'",
    ),
    _p(
        "says / told",
        r"\b(says?|said|tells?|told|is told|hears?|heard)\b",
        "reports, returns, contains, logs, receives",
    ),
    _p("nobody / somebody", r"\b(no|some|any|every)body\b", "the role: 'no worker', 'a user', 'another process'"),
    _p("those that", r"\b(those|ones?) (that|which|who|of|with|before|in)\b", "repeat the noun"),
    _p(
        "of its own",
        r"\bof (its|their|your|our|his) own\b|\bof (yours|ours)\b",
        "'its own X', 'a separate X', 'custom'",
    ),
    _p("as it is", r"\bas (it is|they are|it was|they were)\b", "'unchanged'"),
    _p("Of ... first", r"(^|[.;] )Of (a|an|the|each|these|those|all|two|jobs|steps)\b", "subject first"),
    _p("beside", r"\bbesides?\b", "'next to', 'compared with', 'in addition to', 'while'"),
    _p("goes on", r"\b(go|goes|going|went) on\b", "'continues', 'resumes'"),
    _p(
        "a look",
        r"\b(a|each|one|the|this|next|last) looks?\b|\blooks (at|for|again)\b",
        "'a pass', 'a query', 'checks'",
    ),
    _p("to be called", r"\b(is|are) to be\b|(^|[.] )To be (called|used|given)\b", "'Call this when ...'"),
    _p(
        "make a job",
        r"\bma(ke|kes|de|king) (a|an|the|one|each|no|new|another|many) (new )?jobs?\b",
        "'create' or 'enqueue'",
    ),
    _p("moment", r"\b(in|at|of) (a|this|that|the) moments?\b|\bmoment\b", "'time', 'instant', 'now'"),
    _p("all but", r"\b(all|nothing|none) but\b|\bbut for\b", "'except', 'only'"),
    _p(
        "is gone / is over / is ended",
        r"\b(is|are|was|were) (gone|over|ended)\b",
        "'no longer exists', 'expired', 'was stopped'",
    ),
    _p("also if", r"\balso (if|when|while|those|as)\b", "'even if', 'including'"),
    _p("some seconds", r"\bsome (seconds?|milliseconds|minutes|hundred|tens|ten|jobs)\b", "'a few seconds'"),
    _p("rate with 'a'", r"\d[\d,.]*( µs| ms)? an? (second|minute|job|call|step)\b", "'per second'"),
    _p("a text", r"\b(a|of|any|or|the) texts?\b", "'string', 'message'"),
]


def prose_of_python(path: Path) -> list[tuple[int, str]]:
    source = path.read_text(errors="replace")
    found: list[tuple[int, str]] = []
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found += [(node.lineno + n, line) for n, line in enumerate(node.value.value.splitlines())]
        elif isinstance(node, ast.Raise | ast.Call) and node.end_lineno is not None:
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.count(" ") >= 4:
                    found.append((part.lineno, part.value))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            found.append((token.start[0], token.string.lstrip("# ")))
    return sorted(set(found))


def prose_of_markdown(path: Path) -> list[tuple[int, str]]:
    found, fenced = [], False
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            found.append((number, re.sub(r"`[^`]*`", "X", line)))
    return found


def prose_of(path: Path) -> list[tuple[int, str]]:
    return prose_of_python(path) if path.suffix == ".py" else prose_of_markdown(path)


class Hit(NamedTuple):
    line: int
    pattern: Pattern
    excerpt: str


def hits_in(path: Path) -> tuple[list[Hit], int]:
    """The hits in a file, and its number of words."""
    hits, words = [], 0
    for line, text in prose_of(path):
        words += len(text.split())
        for pattern in PATTERNS:
            for match in pattern.regex.finditer(text):
                excerpt = text[max(0, match.start() - 30) : match.end() + 40].strip()
                hits.append(Hit(line, pattern, excerpt))
    return hits, words


def files_in(roots: list[Path]) -> list[Path]:
    files = [file for root in roots for file in (sorted(root.rglob("*")) if root.is_dir() else [root])]
    return [file for file in files if file.suffix in (".py", ".md") and file != Path(__file__).resolve()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    paths = parser.parse_args().paths
    by_pattern, by_file, words = Counter[str](), Counter[str](), 0
    for file in files_in([path.resolve() for path in paths] or [ROOT / name for name in CHECKED]):
        hits, number = hits_in(file)
        words += number
        by_file[str(file)] = len(hits)
        by_pattern.update(hit.pattern.name for hit in hits)
        for hit in hits if paths else ():
            print(f"{file}:{hit.line}: [{hit.pattern.name}] ...{hit.excerpt}...  -> {hit.pattern.instead}")
    rate = 1000 * by_pattern.total() / max(1, words)
    always = sum(number for name, number in by_pattern.items() if name.startswith("always"))
    print(f"{len(by_file)} files, {words:,} words, {by_pattern.total():,} hits ({always} of patterns marked always)")
    print(f"{rate:.2f} hits per 1,000 words")
    if paths:
        return 0
    worst = [(path, number) for path, number in by_file.most_common() if number > MAX_HITS_IN_A_FILE]
    for path, number in worst:
        print(f"{path}: {number} hits, more than {MAX_HITS_IN_A_FILE}")
    return int(rate > MAX_HITS_PER_1000_WORDS or always > MAX_ALWAYS_HITS or bool(worst))


if __name__ == "__main__":
    sys.exit(main())
