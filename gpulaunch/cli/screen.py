"""The door to rich: text, tables and a whole screen for a terminal. Only this file imports it.

That takes 25 ms, so nothing that a launch imports at its start imports this file.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Parts
from rich.text import Text

from gpulaunch.errors import printable

__all__ = [
    "Console",
    "Grid",
    "Parts",
    "Text",
    "cut",
    "draw",
    "figure",
    "fitted_lines",
    "make_console",
]

_LEAST = 10  # columns of the last column, below which the others have to give way
_LEAST_PROSE = 20  # the same if it wraps
_GAP = 2  # columns between two
_UNCUT = 4096  # columns: a pipe has no edge to fit into
_RULE = 80  # columns: the longest rule there


def make_console(stream: TextIO, width: int | None = None) -> Console:
    """Return a console on which text is what it says; of a terminal it has the width by itself."""
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=width)


def draw(table: RenderableType, stream: TextIO | None) -> None:
    """Print a Grid, Text or Parts: fitted and coloured on a terminal, uncut and plain elsewhere.

    Nothing is drawn on None, which is a closed stdout.
    """
    if stream is not None:
        console = make_console(stream, None if stream.isatty() else _UNCUT)
        console.print(table, crop=False)


class Grid:
    """A table of which nothing is cut without a word where the terminal is narrow.

    Columns of `leave` go, in that order, and a line below names them, until 20 columns are left for
    a last column that wraps, or 10 for one that is cut with an ellipsis, which it always has.
    Columns of `right` are aligned to the right.
    """

    def __init__(self, *columns: str, right: Sequence[str] = (), leave: Sequence[str] = ()) -> None:
        self._columns, self._right, self._leave = columns, right, leave
        self._rows: list[tuple[Sequence[Text], str]] = []

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """Add a row of cells, one for each column; a single one is a heading across all columns."""
        texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self._rows.append((texts, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, as rich asks for them when it prints."""
        yield from self.lines(console, options.max_width)

    def lines(self, console: Console, width: int) -> list[Text]:
        """Return the lines on a terminal of so many columns, without trailing blanks."""
        shown, gone = [*range(len(self._columns))], []
        for name in self._leave:
            if self._least_width(shown) <= width:
                break
            column = self._columns.index(name)
            shown.remove(column)
            if any(cell.plain for cell in self._cells(column)):
                gone.append(name)
        *widths, last = map(self._width, shown)
        others = sum(widths) + _GAP * len(widths)
        widths.append(min(last, max(width, self._least_width(shown)) - others))
        total = others + widths[-1]

        def drawn(row: Sequence[Text], style: str) -> list[Text]:
            cells = []
            for column, cell_width in zip(shown, widths, strict=True):
                cells.append(row[column].wrap(console, cell_width))
            found = []
            for parts in zip_longest(*cells, fillvalue=Text()):
                line = Text(style=style)
                for part, column, cell_width in zip(parts, shown, widths, strict=True):
                    cell = part.copy()
                    cell.align(
                        "right" if self._columns[column] in self._right else "left", cell_width
                    )
                    line.append_text(cell).append(_GAP * " ")
                line.rstrip()
                found.append(line)
            return found

        rule = "-" if console.options.ascii_only else "─"
        lines = drawn([Text(name, "bold") for name in self._columns], "")
        lines.append(Text(rule * (min(total, _RULE) if width == _UNCUT else total)))
        for row, style in self._rows:
            lines += [row[0]] if len(row) == 1 else drawn(row, style)
        if gone:
            lines += Text(f"no room for: {', '.join(gone)}", "dim").wrap(console, width)
        return lines

    def _cells(self, column: int) -> list[Text]:
        return [row[column] for row, _ in self._rows if len(row) > 1]

    def _width(self, column: int) -> int:
        width = cell_len(self._columns[column])
        for cell in self._cells(column):
            width = max(width, *map(cell_len, cell.plain.split("\n")))
        return width

    def _least_width(self, shown: Sequence[int]) -> int:
        """Return how many columns of the terminal these columns of the table need at least."""
        *widths, last = map(self._width, shown)
        least = _LEAST if any(cell.no_wrap for cell in self._cells(shown[-1])) else _LEAST_PROSE
        return sum(widths) + min(last, least) + _GAP * len(widths)


def fitted_lines(console: Console, part: Grid | Text) -> list[Text]:
    """Return the lines of a table or a text, none longer than the terminal is wide."""
    if isinstance(part, Grid):
        table = part.lines(console, console.width)
        for line in table:
            line.truncate(console.width)
        return table
    lines = part.wrap(console, console.width)
    for line in lines:
        line.rstrip()
    return [*lines] or [Text()]


def cut(text: str) -> Text:
    """Return a cell of the last column: one line, cut where the terminal ends."""
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


def figure(value: float | None) -> str:
    """Return a number with four digits, or whole from 1,000 on; "-" for None."""
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
