"""One figure or table of a paper beside what the simulator gets, and how it is printed."""

from collections.abc import Iterable
from typing import Any, NamedTuple


def label(policy: str) -> str:
    """Return the name of a policy as the command line has it."""
    return policy.replace("_", "-")


class Row(NamedTuple):
    """One number.

    Attributes:
        what: it is.
        theirs: None where the paper, or its code, says none.
        ours: None where there is none.
        note: what to know about this one.
    """

    what: str
    theirs: float | None
    ours: float | None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours divided by theirs."""
        return self.ours / self.theirs if self.theirs and self.ours is not None else None


class Comparison(NamedTuple):
    """Numbers of one kind.

    Attributes:
        title: what they are, with their unit.
        theirs: who says the numbers beside ours: "paper", or "published code".
        rows: the numbers.
    """

    title: str
    theirs: str
    rows: tuple[Row, ...]


class Reproduction(NamedTuple):
    """A figure or table.

    Attributes:
        name: on the command line.
        title: what it shows, and where it stands.
        parts: the numbers.
        differs: what differs from the original, and why.
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
                figures = f"{_figure(row.theirs)} | {_figure(row.ours)} | {ratio}"
                lines.append(f"| {row.what} | {figures} | {row.note} |")
            lines.append("")
        lines += [*(f"- {text}" for text in one.differs), ""]
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    """Return a number in four digits, whole from 1,000 on."""
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
