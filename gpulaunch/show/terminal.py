"""The door to rich: tables and text for a terminal. Only this file imports it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from rich.box import SIMPLE_HEAD, Box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.live import Live
from rich.style import Style
from rich.table import Table
from rich.text import Text

from gpulaunch.errors import printable

__all__ = [
    "Grid",
    "Group",
    "LiveScreen",
    "Text",
    "cut",
    "draw",
    "figure",
    "make_table",
]

_LEAST = 10  # columns of the last column, below which the others have to give way
_LEAST_PROSE = 20  # the same if it wraps
_GAP = 2  # columns between two
_ASCII_BOX = Box(str(SIMPLE_HEAD).replace("─", "-"), ascii=True)
_UNCUT = 4096  # columns: a pipe has no edge to fit into
_RULE = 80  # columns: the longest rule there


def draw(table: RenderableType, stream: TextIO | None) -> None:
    """Print a table: fitted and coloured on a terminal, uncut and plain anywhere else.

    Args:
        table: a value that the functions below return.
        stream: the stream to write to; nothing is drawn on None.
    """
    if stream is not None:
        Console(
            file=stream, highlight=False, markup=False, width=None if stream.isatty() else _UNCUT
        ).print(table, crop=False)


class Grid:
    """A table of which nothing is cut without a word where the terminal is narrow.

    Columns of `leave` go, in that order, and a line below names them, until 20 columns are left for
    a last column that wraps, or 10 for one that is cut with an ellipsis. If all that is not enough,
    each row becomes several lines, one for each cell.

    Args:
        columns: the headings.
        right: headings of the columns that are aligned to the right.
        leave: headings of the columns that may go.
    """

    def __init__(self, columns: Sequence[str], right: Sequence[str], leave: Sequence[str]) -> None:
        self._columns, self._right, self._leave = columns, right, leave
        self._rows: list[tuple[Sequence[Text], str]] = []

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self._rows)

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """Add a row of cells, one for each column; a single one is a heading across all columns."""
        # A text, since rich would look for codes of emoji in a str.
        texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self._rows.append((texts, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, as rich asks for them when it prints."""
        yield from self.lines(console, options.max_width)

    def lines(self, console: Console, width: int) -> list[Text]:
        """Return the lines, without trailing blanks.

        Args:
            console: the terminal.
            width: its columns.
        """
        shown, gone = [*range(len(self._columns))], []
        for name in self._leave:
            if self._least_width(shown) <= width:
                break
            column = self._columns.index(name)
            shown.remove(column)
            gone += [name] if any(cell.plain for cell in self._cells(column)) else []
        if self._least_width(shown) > width:
            return list(self._blocks())
        lines = self._drawn(shown, console, width)
        if gone:
            lines += Text(f"no room for: {', '.join(gone)}", "dim").wrap(console, width)
        return lines

    def _cells(self, column: int) -> list[Text]:
        return [row[column] for row, _ in self._rows if len(row) > 1]

    def _least_width(self, shown: Sequence[int]) -> int:
        """Return the columns of the terminal that these columns of the table need at least."""
        widths = []
        for column in shown:
            parts = [part for cell in self._cells(column) for part in cell.plain.split("\n")]
            widths.append(max(map(cell_len, [self._columns[column], *parts])))
        least = _LEAST if any(cell.no_wrap for cell in self._cells(shown[-1])) else _LEAST_PROSE
        return sum(widths[:-1]) + min(widths[-1], least) + _GAP * len(shown[1:])

    def _drawn(self, shown: Sequence[int], console: Console, width: int) -> list[Text]:
        """Return the lines of a table of rich, with the headings across it."""
        box = _ASCII_BOX if console.options.ascii_only else SIMPLE_HEAD
        table = Table(box=box, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        for column in shown:
            name = self._columns[column]
            justify: JustifyMethod = "right" if name in self._right else "left"
            table.add_column(Text(name), justify=justify, no_wrap=column != shown[-1])
        headings = {}
        for at, (row, style) in enumerate(self._rows):
            if len(row) == 1:
                headings[at + 1] = row[0]
                continue
            cells = [row[column] for column in shown]
            table.add_row(*cells, style=Style.parse(style) + Style(meta={"row": at}))
        lines = []
        for segments in console.render_lines(table, console.options.update_width(width), pad=False):
            number = segments[0].style.meta.get("row") if segments[0].style else None
            if number in headings:
                lines.append(headings.pop(number))
            style = "" if number is None else self._rows[number][1]
            parts = ((segment.text, segment.style or "") for segment in segments)
            lines.append(Text.assemble(*parts, style=style))
            lines[-1].rstrip()
        if width == _UNCUT:
            lines[1].truncate(_RULE)
        return lines

    def _blocks(self) -> Iterator[Text]:
        """Yield each row as lines, one for each cell, with an empty line between rows."""
        for number, (row, style) in enumerate(self._rows):
            if number:
                yield Text()
            for name, cell in zip(self._columns, row, strict=False):
                if cell.plain:
                    title = Text(f"{name}: " if name and len(row) > 1 else "", "dim")
                    yield Text.assemble(title, cell, style=style)


def make_table(*columns: str, right: Sequence[str] = (), leave: Sequence[str] = ()) -> Grid:
    """Return a table that gives way on a narrow terminal; Grid says how."""
    return Grid(columns, right, leave)


def cut(text: str) -> Text:
    """Return a cell of the last column: one line, cut where the terminal ends."""
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


def figure(value: float | None) -> str:
    """Return a number with four digits, or whole from 1,000 on; "-" for None."""
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


class LiveScreen:
    """The whole terminal, redrawn in place; leaving the block brings back what was there before.

    Args:
        stream: stream of the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, highlight=False, markup=False)
        self._live: Live | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal now."""
        return self.console.size.width, self.console.size.height

    def __enter__(self) -> "LiveScreen":
        """Take the terminal."""
        self._live = Live(console=self.console, screen=True, auto_refresh=False)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it; once more does no harm."""
        if self._live:
            self._live.stop()
            self._live = None

    def draw(self, lines: Iterable[Text]) -> None:
        """Draw these lines, as many as there is room for."""
        if self._live:
            self._live.update(Group(*lines), refresh=True)
