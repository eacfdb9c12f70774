"""Builds the documentation site: `python docs/_site/build.py [--check] [SITE [DOCS]]`, by default into build/site.

With `--check` it only reports errors, in a third of the time. A warning is an error: a broken link or anchor, an
unreachable page, invalid Markdown, a public name without a docstring.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.cmd.build import main
from stage import DOCS, ROOT, stage

SITE = ROOT / "build" / "site"


def build(site: Path = SITE, docs: Path = DOCS, builder: str = "html") -> int:
    """Returns 0 if there is no warning."""
    pages = site.parent / f"{site.name}-pages"
    complaints = stage(docs, pages)
    for complaint in complaints:
        print(f"WARNING: {complaint}", file=sys.stderr)
    fresh, quiet, strict = ["-E", "-a"], ["-q"], ["-W", "--keep-going"]
    settings, doctrees = ["-c", str(Path(__file__).parent)], ["-d", str(pages / ".doctrees")]
    failed = main([*fresh, *quiet, *strict, *settings, *doctrees, "-b", builder, str(pages), str(site)])
    return failed or bool(complaints)


if __name__ == "__main__":
    only_check = "--check" in sys.argv
    places = [Path(argument) for argument in sys.argv[1:] if argument != "--check"]
    site, docs = (*places, *(SITE, DOCS)[len(places) :])
    failed = build(site, docs, "dummy" if only_check else "html")
    well = "no warnings" if only_check else f"open {site / 'index.html'}"
    print("there are warnings" if failed else well, file=sys.stderr)
    sys.exit(failed)
