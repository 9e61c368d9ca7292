"""The door to rich: tables and text for a terminal. Only this file imports it."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from gpulaunch.errors import printable
from gpulaunch.typing import Self, TextIO

__all__ = [
    "Cell",
    "Fitted",
    "Grid",
    "Group",
    "LiveScreen",
    "ProgressLine",
    "Text",
    "bar",
    "cut",
    "draw",
    "figure",
    "make_table",
]

_LEAST = 14  # columns of the last column, below which the others have to give way
_LEAST_PROSE = 20  # the same if it wraps
_FAIR = 40  # columns of the last column, below which cells take their shorter texts
_GAP = 2  # columns between two
_UNCUT = 4096  # columns: a pipe has no edge to fit into
_BAR = 24  # columns of a progress bar


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


Cell = str | Text | tuple[str, str]
"""A cell of a table; of two texts the second is shorter, for a narrow terminal."""


class Grid:
    """A table of which nothing is cut without a word where the terminal is narrow.

    Where the last column would have under 40 columns, cells take their shorter texts. Then the
    columns of `leave` go, in that order, and a line below names them, until 20 columns are left for
    a last column that wraps, or 14 for one that is cut with an ellipsis. If all that is not enough,
    each row becomes several lines, one for each cell.

    Args:
        columns: the headings.
        right: headings of the columns that are aligned to the right.
        leave: headings of the columns that may go.
    """

    def __init__(self, columns: Sequence[str], right: Sequence[str], leave: Sequence[str]) -> None:
        self._columns, self._right, self._leave = columns, right, leave
        self._rows: list[tuple[Sequence[Cell], str]] = []

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self._rows)

    def add_row(self, *cells: Cell, style: str = "") -> None:
        """Add a row of cells, one for each column; a single one is a heading across all columns."""
        self._rows.append((cells, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, as rich asks for them when it prints."""
        yield from (
            line for _, line in self.lines(console, options.max_width, plain=options.ascii_only)
        )

    def lines(
        self, console: Console, width: int, *, plain: bool = False
    ) -> list[tuple[int | None, Text]]:
        """Return the lines, each with the number of its row; None for lines beside the rows.

        Args:
            console: the terminal.
            width: its columns.
            plain: draw with ASCII only.
        """
        shown, gone = list(range(len(self._columns))), []
        texts = self._texts(0)
        if self._width(texts, shown, _FAIR) > width:
            short = self._texts(-1)
            for name in self._leave:
                if self._width(short, shown, self._least(short, shown)) <= width:
                    break
                column = self._columns.index(name)
                shown.remove(column)
                if any(row[column].plain for row in short if len(row) > 1):
                    gone.append(name)
            if self._width(short, shown, self._least(short, shown)) > width:
                return list(self._blocks(texts))
            texts = short
        note = [(None, Text(f"no room for: {', '.join(gone)}", "dim"))] if gone else []
        return [*self._grid(texts, shown, console, width, plain=plain), *note]

    def _texts(self, which: int) -> list[list[Text]]:
        """Return the cells as texts: of two the first (0) or the shorter one (-1)."""
        return [[_text(cell, which) for cell in cells] for cells, _ in self._rows]

    def _width(self, rows: "_Rows", shown: Sequence[int], last: int) -> int:
        """Return the columns of the terminal that these columns of the table need.

        Args:
            rows: the cells.
            shown: places of the columns.
            last: most columns that the last one is given.
        """
        widths = [self._natural(rows, column) for column in shown]
        return sum(widths[:-1]) + min(widths[-1], last) + _GAP * len(shown[1:])

    def _least(self, rows: "_Rows", shown: Sequence[int]) -> int:
        """Return how many columns the last one needs."""
        cuts = any(row[shown[-1]].no_wrap for row in rows if len(row) > 1)
        return _LEAST if cuts else _LEAST_PROSE

    def _natural(self, rows: "_Rows", column: int) -> int:
        cells = [cell_len(self._columns[column])]
        for row in rows:
            if len(row) > 1:
                cells += map(cell_len, row[column].plain.split("\n"))
        return max(cells)

    def _grid(
        self, rows: "_Rows", shown: Sequence[int], console: Console, width: int, *, plain: bool
    ) -> Iterator[tuple[int | None, Text]]:
        widths = [self._natural(rows, column) for column in shown]
        widths[-1] = min(widths[-1], width - sum(widths[:-1]) - _GAP * len(widths[1:]))
        yield (
            None,
            self._line([Text(self._columns[column]) for column in shown], shown, widths, "bold"),
        )
        yield None, Text(("-" if plain else "─") * (sum(widths) + _GAP * len(widths[1:])))
        for number, (row, (_, style)) in enumerate(zip(rows, self._rows, strict=True)):
            if len(row) == 1:
                yield None, row[0]
                continue
            last = row[shown[-1]]
            wrapped = last.wrap(console, widths[-1], overflow=last.overflow or "fold") or [Text()]
            cells = [row[column] for column in shown[:-1]]
            for part in wrapped:
                yield number, self._line([*cells, part], shown, widths, style)
                cells = [Text()] * len(cells)

    def _line(
        self, cells: Sequence[Text], shown: Sequence[int], widths: Sequence[int], style: str
    ) -> Text:
        line = Text(style=style, no_wrap=True)
        for cell, column, wide in zip(cells, shown, widths, strict=True):
            blanks = " " * (wide - cell.cell_len)
            before, after = (blanks, "") if self._columns[column] in self._right else ("", blanks)
            line.append(" " * _GAP if column != shown[0] else "").append(before)
            line.append_text(cell).append(after)
        line.rstrip()
        return line

    def _blocks(self, rows: "_Rows") -> Iterator[tuple[int | None, Text]]:
        """Yield each row as lines, one for each cell, with an empty line between rows."""
        for number, (row, (_, style)) in enumerate(zip(rows, self._rows, strict=True)):
            if number:
                yield None, Text()
            for name, cell in zip(self._columns, row, strict=False):
                if cell.plain:
                    title = Text(f"{name}: " if name and len(row) > 1 else "", "dim")
                    yield number, Text.assemble(title, cell, style=style)


_Rows = Sequence[Sequence[Text]]


def _text(cell: Cell, which: int) -> Text:
    return cell if isinstance(cell, Text) else Text(cell if isinstance(cell, str) else cell[which])


def make_table(*columns: str, right: Sequence[str] = (), leave: Sequence[str] = ()) -> Grid:
    """Return a table that gives way on a narrow terminal; Table says how."""
    return Grid(columns, right, leave)


def cut(text: str) -> Text:
    """Return a cell of the last column: one line, cut where the terminal ends."""
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


def figure(value: float | None) -> str:
    """Return a number with four digits, or whole from 1,000 on; "-" for None."""
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def bar(share: float, columns: int, *, plain: bool) -> Text:
    """Return a bar of this many columns; it is empty only for a share of 0.

    Args:
        share: filled share, 0 to 1.
        columns: length of the whole bar.
        plain: draw with ASCII only.

    Example:
        >>> bar(0.5, 6, plain=True).plain
        '###---'
    """
    filled, empty = "#-" if plain else "━─"
    full = min(max(round(columns * share), share > 0), columns)
    return Text.assemble((filled * full, "cyan"), (empty * (columns - full), "dim"))


class Fitted:
    """Lines that depend on the width of the terminal, without trailing blanks.

    Args:
        lines: makes the lines from the number of columns and whether only ASCII can be printed.
    """

    def __init__(self, lines: Callable[[int, bool], Iterable[Text]]) -> None:
        self._lines = lines

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, as rich asks for them when it prints."""
        for line in self._lines(options.max_width, options.ascii_only):
            line.rstrip()
            yield line


class ProgressLine:
    """One line at a terminal that is redrawn in place, and cleared at the end.

    It hides nothing on the terminal, so that a killed process leaves nothing hidden behind.

    Args:
        stream: stream of the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False, markup=False)
        self._drawn = False

    @property
    def possible(self) -> bool:
        """True if this is a terminal on which a line can be redrawn."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def draw(self, share: float, text: str) -> None:
        """Draw the line with the share that is done.

        Args:
            share: share that is done, 0 to 1.
            text: text beside the bar; it is cut where the terminal ends.
        """
        line = bar(share, _BAR, plain=self._console.options.ascii_only)
        line.append(f" {printable(text)}")
        line.truncate(max(1, self._console.width - 1), overflow="ellipsis")
        self.clear()
        self._console.print(line, end="")
        self._drawn = True

    def clear(self) -> None:
        """Remove the line."""
        if self._drawn:
            self._console.control(
                Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))
            )
            self._drawn = False


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

    @property
    def plain(self) -> bool:
        """Whether only ASCII can be printed."""
        return self.console.options.ascii_only

    def __enter__(self) -> Self:
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

    def lines_of(self, table: RenderableType) -> list[Text]:
        """Return what a table would print as lines."""
        with self.console.capture() as printed:
            self.console.print(table)
        return [Text.from_ansi(line) for line in printed.get().splitlines()]
