"""A figure or table of a paper beside the simulator's results, and its printed form."""

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
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
        columns: endings of the rows' meanings that head columns in Markdown; none for a line a row.
    """

    title: str
    theirs: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = ()


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
            table = _wide_table(part) if part.columns else _long_table(part)
            lines += [f"**{part.title}**", "", *map(_table_line, _filled_columns(table)), ""]
        lines += [*map(_list_item, one.differs), ""]
    return "\n".join(lines)


SUMMARY_HEAD = ("| | theirs | ours |", "|---|---|---|")


def summary(found: Reproduction, headlines: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the lines of a figure in the table of all figures.

    Args:
        found: the figure.
        headlines: for each number the beginning of its table's title, its meaning there, and the
            words for it.
    """
    lines = [f"| **{found.title}** (`{found.name}`) | | |"]
    for title, what, words in headlines:
        row = next(
            row
            for part in found.parts
            if part.title.startswith(title)
            for row in part.rows
            if row.what == what
        )
        lines.append(f"| {words} | {_format_figure(row.theirs)} | {_format_figure(row.ours)} |")
    return lines


def _long_table(part: Comparison) -> list[list[str]]:
    """Return a table with one line for each row, below its head."""
    has_ratio = any(row.ratio is not None for row in part.rows)
    lines = [["", part.theirs, "ours", "ratio" if has_ratio else "", ""]]
    for row in part.rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        figures = _format_figure(row.theirs), _format_figure(row.ours), ratio
        lines.append([row.what, *figures, row.note])
    return lines


def _wide_table(part: Comparison) -> list[list[str]]:
    """Return a table with a line for each subject and source, and the columns beside each other."""
    subjects: dict[str, dict[str, Row]] = {}
    for row in part.rows:
        column = next(one for one in part.columns if row.what.endswith(one))
        subjects.setdefault(row.what.removesuffix(column).rstrip(" ,:"), {})[column] = row
    lines = [["", "", *part.columns, ""]]
    shared = _shared_line(part, subjects)
    lines += [shared] if shared else []
    for subject, rows in subjects.items():
        found = [rows.get(column) for column in part.columns]
        notes = dict.fromkeys(row.note for row in rows.values() if row.note)
        theirs = [_format_figure(row.theirs) if row else "" for row in found]
        if any(theirs) and not shared:
            lines.append([subject, part.theirs, *theirs, ""])
        ours = [_format_figure(row.ours) if row else "" for row in found]
        lines.append([subject, "ours", *ours, ", ".join(notes)])
    return lines


def _shared_line(part: Comparison, subjects: dict[str, dict[str, Row]]) -> list[str] | None:
    """Return the line of their numbers if every subject has the same ones."""
    kinds = {tuple(row.theirs for row in rows.values()) for rows in subjects.values()}
    if len(subjects) == 1 or len(kinds) > 1 or None in next(iter(kinds)):
        return None
    return ["", part.theirs, *map(_format_figure, next(iter(kinds))), ""]


def _filled_columns(table: list[list[str]]) -> Iterator[list[str]]:
    """Yield the lines of a table without columns that say nothing, and a rule below the head."""
    kept = [
        at
        for at, column in enumerate(zip(*table, strict=True))
        if at == 0 or (any(column[1:]) and {*column[1:]} != {"ours"})
    ]
    for number, line in enumerate(table):
        yield [line[at] for at in kept]
        if number == 0:
            yield ["---"] * len(kept)


def _table_line(cells: list[str]) -> str:
    return f"|{'|'.join(cells)}|" if cells[0] == "---" else f"| {' | '.join(cells)} |"


def _list_item(text: str) -> str:
    return textwrap.fill(
        f"- {text}",
        120,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _format_figure(value: float | None) -> str:
    """Format a number with four digits, or whole from 1,000 on; none is empty."""
    return "" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
