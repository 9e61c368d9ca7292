"""How Sphinx builds the site: `make site`.

The pages are plain Markdown, so that they can be read on a forge as well. An index page has no
directive: what it links to in a list, one page a line, is what the site has below it.
"""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

REPOSITORY = Path(__file__).parents[1]
PAGE = re.compile(r"^- \[.+?\]\((\S+)\.md\)", re.MULTILINE)

project = "gpulaunch"
version = re.search(
    r'__version__ = "(.+)"', (REPOSITORY / "gpulaunch" / "__init__.py").read_text()
)[1]
extensions = ["myst_parser"]
exclude_patterns = ["requirements.txt"]
nitpicky = True

myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a page may begin with its table

html_theme = "furo"
html_title = f"gpulaunch {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"


def _add_toctree(_: Sphinx, name: str, source: list[str]) -> None:
    """Give an index page the pages that its lists link to."""
    pages = PAGE.findall(source[0])
    if name.endswith("index") and pages:
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", "", *pages, "```", ""])


def _resolve_folder(app: Sphinx, _: Any, link: Any, text: Any) -> nodes.Node | None:  # noqa: ANN401
    """Show a link to a folder of the repository as its text, and its path in a hover."""
    folder = (app.env.doc2path(link["refdoc"]).parent / link["reftarget"]).resolve()
    if folder.is_dir() and folder.is_relative_to(REPOSITORY):
        return nodes.inline("", "", text)
    return None


def setup(app: Sphinx) -> None:
    """Connect what this site adds to Sphinx."""
    app.connect("source-read", _add_toctree)
    app.connect("missing-reference", _resolve_folder)
