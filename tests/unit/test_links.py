"""The documents' links lead somewhere, and every page is in an index."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
LINKS = runpy.run_path(str(DOCS / "links.py"))


def test_no_link_is_dead() -> None:
    """Every relative link of a document leads to a file, and to a heading if it names one."""
    dead = {page: LINKS["dead_links"](page) for page in LINKS["pages"]()}
    assert {page: links for page, links in dead.items() if links} == {}


def test_every_page_is_in_an_index() -> None:
    """From the front page each page is reached by the lists of index pages alone."""
    indexes = [DOCS / "index.md", *DOCS.glob("*/index.md")]
    listed = {
        (index.parent / link).resolve() for index in indexes for link in LINKS["links"](index)
    }
    assert set(DOCS.glob("**/*.md")) - {DOCS / "index.md"} - listed == set()
