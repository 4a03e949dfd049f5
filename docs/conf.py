"""The site: Sphinx reads the Markdown pages of this folder and generates the reference from the code.

`make docs` builds it, strictly and offline, into build/docs.
"""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent / "src"), str(DOCS)]

from longshort.version import __version__  # noqa: E402

project = "longshort"
author = "longshort authors"
copyright = author
version = release = __version__

extensions = ["myst_parser", "_extensions.api", "_extensions.generated", "_extensions.mathml"]
exclude_patterns = ["_extensions"]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

python_use_unqualified_type_names = True
add_module_names = False
nitpicky = True
# Types in signatures: an offline build cannot look into other libraries, and not every class of ours is public.
nitpick_ignore_regex = [("py:class", ".*")]

html_theme = "pydata_sphinx_theme"
html_title = "longshort"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "longshort"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_prev_next": True,
    "secondary_sidebar_items": {"**": ["page-toc"], "results/README": []},  # room for the table of claims
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
