"""Builds the documentation site: `python docs/_site/build.py [SITE [DOCS]]`, into build/site unless told otherwise.

A warning is an error: a link or an anchor that leads nowhere, a page that nobody can reach, Markdown that is none, a
public name without a docstring.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.cmd.build import main
from stage import DOCS, ROOT, stage

SITE = ROOT / "build" / "site"


def build(site: Path = SITE, docs: Path = DOCS) -> int:
    """0 when all is well."""
    pages = site.parent / f"{site.name}-pages"
    complaints = stage(docs, pages)
    for complaint in complaints:
        print(f"WARNING: {complaint}", file=sys.stderr)
    anew, quiet, strict = ["-E", "-a"], ["-q"], ["-W", "--keep-going"]
    settings, doctrees = ["-c", str(Path(__file__).parent)], ["-d", str(pages / ".doctrees")]
    failed = main([*anew, *quiet, *strict, *settings, *doctrees, "-b", "html", str(pages), str(site)])
    return failed or bool(complaints)


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    failed = build(*given)
    print("there are warnings" if failed else f"open {(*given, SITE)[0] / 'index.html'}", file=sys.stderr)
    sys.exit(failed)
