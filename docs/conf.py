"""How Sphinx builds the site: `make site`.

The pages are plain Markdown, so that they can be read on a forge as well. An index page has no
directive: what it links to in a list, one page a line, is what the site has below it.
"""

import re
import subprocess
from pathlib import Path

from sphinx.application import Sphinx

REPOSITORY = Path(__file__).parents[1]
PAGE = re.compile(r"^- \[(.+?)\]\((\S+)\.md\)", re.MULTILINE)
OUTSIDE = re.compile(r"\[(?P<text>[^\]]+)\]\(\.\./\.\./(?P<path>[^)]+)\)")

project = "gpulaunch"
describe = ["git", "describe", "--tags", "--abbrev=0"]  # nothing if there is no tag
version = subprocess.run(  # noqa: S603
    describe, cwd=REPOSITORY, capture_output=True, text=True, check=False
).stdout.strip()
extensions = ["myst_parser"]
exclude_patterns = ["requirements.txt"]
nitpicky = True
smartquotes = False  # an option has two hyphens, in headings as well

myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # JSON that is shortened by "..."

html_theme = "furo"
html_title = f"gpulaunch {version}".strip()
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "monokai"


def _prepare(_: Sphinx, name: str, source: list[str]) -> None:
    """Give an index page its toctree, and links that leave docs/ something to lead to."""
    pages = [f"{title} <{page}>" for title, page in PAGE.findall(source[0])]
    if name.endswith("index") and pages:
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", "", *pages, "```", ""])
    source[0] = OUTSIDE.sub(_outside_link, source[0])


def _outside_link(link: re.Match[str]) -> str:
    """Let a link to a file of the repository load a copy of it; show a folder's name only."""
    folder = (REPOSITORY / link["path"]).is_dir()
    return f"[{link['text']}]" if folder else f"[{link['text']}](path:../../{link['path']})"


def setup(app: Sphinx) -> None:
    """Connect what this site adds to Sphinx."""
    app.connect("source-read", _prepare)
