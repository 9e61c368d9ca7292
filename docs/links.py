"""The links of the documents: `python docs/links.py` prints those that lead to other hosts.

tests/unit/test_links.py holds all others to the files and headings that there are.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

REPOSITORY = Path(__file__).parents[1]
_MARKDOWN = MarkdownIt("commonmark").enable("table")


def pages() -> list[Path]:
    """Return the Markdown files in docs/ and beside it."""
    return sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])


def links(page: Path) -> list[str]:
    """Return what a page links to, pictures among it, in order."""
    targets = [token.attrs.get("href", token.attrs.get("src")) for token in _tokens(page)]
    return [str(target) for target in targets if target]


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings in links, as forges and the site make them."""
    tokens = _MARKDOWN.parse(page.read_text())
    names: Counter[str] = Counter()
    for opening, heading in pairwise(tokens):
        if opening.type == "heading_open":
            text = "".join(part.content for part in heading.children or [])
            names[re.sub(r"[^\w -]", "", text.strip().lower()).replace(" ", "-")] += 1
    again = {f"{name}-{at}" for name, count in names.items() for at in range(1, count)}
    return again | names.keys()


def dead_links(page: Path) -> list[str]:
    """Return the links of a page that lead to no file or heading of the repository."""
    return [link for link in links(page) if "://" not in link and not _is_there(page, link)]


def _is_there(page: Path, link: str) -> bool:
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


def _tokens(page: Path) -> Iterator[Token]:
    for token in _MARKDOWN.parse(page.read_text()):
        yield from token.children or ()


def main() -> None:
    """Print each link to another host once."""
    print("\n".join(sorted({link for page in pages() for link in links(page) if "://" in link})))


if __name__ == "__main__":
    main()
