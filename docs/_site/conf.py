"""Sphinx's settings. Neither the build nor the built pages fetch anything from other hosts."""

from typing import Any

from sphinx.application import Sphinx

import recruiter

project = "Recruiter"
release = recruiter.__version__
html_title = f"Recruiter {release}"

extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
nitpicky = True

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
html_domain_indices = False
smartquotes = False


def setup(app: Sphinx) -> None:
    """Limits the navigation to the titles of pages. Otherwise Sphinx copies every heading of every page for each page,
    which takes longer than the rest of the build."""
    app.connect("html-page-context", titles_alone, priority=400)  # the theme makes its navigation at 500
    app.connect("html-page-context", headings_too, priority=600)


def titles_alone(app: Sphinx, this: str, *_: Any) -> None:
    for page in app.env.found_docs - app.env.toctree_includes.keys() - {this}:
        app.env.metadata[page]["tocdepth"] = 1


def headings_too(app: Sphinx, *_: Any) -> None:
    for page in app.env.found_docs:
        app.env.metadata[page].pop("tocdepth", None)
