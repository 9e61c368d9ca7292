"""A figure or table of a paper beside the simulator's results, and its printed form."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file contains."""
    return tomllib.loads(path.read_text())


def label(policy: str) -> str:
    """Return the name of a policy as on the command line."""
    return policy.replace("_", "-")


class Row(NamedTuple):
    """One number beside that of a paper.

    Attributes:
        what: meaning of the number.
        theirs: the paper's number, or its code's; None if there is none.
        ours: gpulaunch's number; None if there is none.
        note: remark about this number.
    """

    what: str
    theirs: float | None
    ours: float | None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours divided by theirs; None if either is missing."""
        return self.ours / self.theirs if self.theirs and self.ours is not None else None


def compare(
    prefix: str,
    names: Iterable[str],
    theirs: Iterable[float | None] | None,
    ours: Iterable[float],
    note: str = "",
) -> list[Row]:
    """Return the rows of several numbers.

    Args:
        prefix: beginning of their meanings.
        names: the rest of their meanings.
        theirs: the paper's numbers; None if it has none of them.
        ours: gpulaunch's numbers.
        note: remark about them.
    """
    names = list(names)
    known = theirs or [None] * len(names)
    return [Row(prefix + name, a, b, note) for name, a, b in zip(names, known, ours, strict=True)]


class Comparison(NamedTuple):
    """The numbers of one kind.

    Attributes:
        title: meaning of the numbers, with their unit.
        theirs: source of the other numbers: "paper", or "published code".
        rows: the numbers.
    """

    title: str
    theirs: str
    rows: tuple[Row, ...]


class Reproduction(NamedTuple):
    """The reproduction of a figure or table.

    Attributes:
        name: name on the command line.
        title: subject, and place in the paper.
        parts: the numbers.
        differs: differences from the original, and the reasons.
    """

    name: str
    title: str
    parts: tuple[Comparison, ...]
    differs: tuple[str, ...]


def document(reproduction: Reproduction) -> dict[str, Any]:
    """Return a reproduction as plain data for JSON."""
    return {
        "name": reproduction.name,
        "title": reproduction.title,
        "parts": [
            {
                "title": part.title,
                "theirs": part.theirs,
                "rows": [{**row._asdict(), "ratio": row.ratio} for row in part.rows],
            }
            for part in reproduction.parts
        ],
        "differs": list(reproduction.differs),
    }


def markdown(reproductions: Iterable[Reproduction]) -> str:
    """Return reproductions as sections of a page."""
    lines = []
    for one in reproductions:
        lines += [f"## {one.title}", "", f"`python examples/papers/reproduce.py {one.name}`", ""]
        for part in one.parts:
            lines += [f"| {part.title} | {part.theirs} | ours | ratio | |", "|---|---|---|---|---|"]
            for row in part.rows:
                ratio = "-" if row.ratio is None else f"{row.ratio:.3f}"
                figures = f"{_format_figure(row.theirs)} | {_format_figure(row.ours)} | {ratio}"
                lines.append(f"| {row.what} | {figures} | {row.note} |")
            lines.append("")
        lines += [*(f"- {text}" for text in one.differs), ""]
    return "\n".join(lines)


def _format_figure(value: float | None) -> str:
    """Format a number with four digits, or whole from 1,000 on."""
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
