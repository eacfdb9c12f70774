"""Sphinx's settings. Nothing is fetched, neither while it builds nor by who reads."""

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
