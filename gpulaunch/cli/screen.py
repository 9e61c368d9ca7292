"""The door to rich: text, tables and a live screen for a terminal. Only this file imports it.

That takes 45 ms, so it is imported where something is drawn: --json and --help do without.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TextIO

from gpulaunch.errors import printable

if TYPE_CHECKING:  # few launches need these
    from rich import text
    from rich.console import Console, ConsoleOptions, OverflowMethod, RenderResult
    from rich.live import Live

    Line = text.Text


_LEAST = 10  # columns of the last column, below which the others have to give way
_LEAST_PROSE = 20  # the same if it wraps
_GAP = 2  # columns between two
_UNCUT = 4096  # columns: a pipe has no edge to fit into
_RULE = 80  # columns: the longest rule there


class Text:
    """Text in a style, such as "bold red": lines below or above a table, or a cell of it."""

    def __init__(
        self,
        plain: str = "",
        style: str = "",
        *,
        no_wrap: bool = False,
        overflow: "OverflowMethod | None" = None,
    ) -> None:
        self.style, self.no_wrap, self.overflow = style, no_wrap, overflow
        self._parts = [(plain, "")]

    @classmethod
    def assemble(cls, *parts: str | tuple[str, str], style: str = "") -> "Text":
        """Return a text of parts, some of which have a style besides."""
        text = cls(style=style)
        for part in parts:
            plain, part_style = (part, "") if isinstance(part, str) else part
            text.append(plain, part_style)
        return text

    @property
    def plain(self) -> str:
        """The text without styles."""
        return "".join(plain for plain, _ in self._parts)

    def append(self, plain: str, style: str = "") -> "Text":
        """Add a part at the end, which may have a style besides; return the text."""
        self._parts.append((plain, style))
        return self

    def __rich__(self) -> "Line":
        """Return rich's form of it, as rich asks for when it prints."""
        from rich.text import Text as Line

        line = Line(style=self.style, no_wrap=self.no_wrap, overflow=self.overflow)
        for plain, style in self._parts:
            line.append(plain, style)
        return line


class Parts:
    """Tables and texts, one below the other."""

    def __init__(self, *parts: Any) -> None:  # noqa: ANN401  what rich prints
        self._parts = parts

    def __rich_console__(self, _: "Console", __: "ConsoleOptions") -> "RenderResult":
        """Yield the parts, as rich asks for them when it prints."""
        yield from self._parts


def draw(table: Any, stream: TextIO | None) -> None:  # noqa: ANN401
    """Print a Grid, Text or Parts: fitted and coloured on a terminal, uncut and plain elsewhere.

    Nothing is drawn on None, which is a closed stdout.
    """
    from rich.console import Console

    if stream is not None:
        width = None if stream.isatty() else _UNCUT
        Console(file=stream, highlight=False, markup=False, width=width).print(table, crop=False)


class Grid:
    """A table of which nothing is cut without a word where the terminal is narrow.

    Columns of `leave` go, in that order, and a line below names them, until 20 columns are left for
    a last column that wraps, or 10 for one that is cut with an ellipsis. If all that is not enough,
    each row becomes several lines, one for each cell. Columns of `right` are aligned to the right.
    """

    def __init__(self, *columns: str, right: Sequence[str] = (), leave: Sequence[str] = ()) -> None:
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

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Yield the lines, as rich asks for them when it prints."""
        yield from self.lines(console, options.max_width)

    def lines(self, console: "Console", width: int) -> "list[Line]":
        """Return the lines on a terminal of so many columns, without trailing blanks."""
        shown, gone = [*range(len(self._columns))], []
        for name in self._leave:
            if self._least_width(shown) <= width:
                break
            column = self._columns.index(name)
            shown.remove(column)
            if any(cell.plain for cell in self._cells(column)):
                gone.append(name)
        if self._least_width(shown) > width:
            return list(self._blocks())
        lines = list(self._drawn(shown, console, width))
        if gone:
            left_out = Text(f"no room for: {', '.join(gone)}", "dim")
            lines += left_out.__rich__().wrap(console, width)
        return lines

    def _cells(self, column: int) -> list[Text]:
        return [row[column] for row, _ in self._rows if len(row) > 1]

    def _width(self, column: int) -> int:
        from rich.cells import cell_len

        width = cell_len(self._columns[column])
        for cell in self._cells(column):
            width = max(width, *map(cell_len, cell.plain.split("\n")))
        return width

    def _least_width(self, shown: Sequence[int]) -> int:
        """Return how many columns of the terminal these columns of the table need at least."""
        *widths, last = map(self._width, shown)
        least = _LEAST if any(cell.no_wrap for cell in self._cells(shown[-1])) else _LEAST_PROSE
        return sum(widths) + min(last, least) + _GAP * len(widths)

    def _drawn(self, shown: Sequence[int], console: "Console", width: int) -> "Iterator[Line]":
        """Yield the headings, a rule, and the rows, whose last column has what room is left."""
        from rich.text import Text as Line

        *widths, last = map(self._width, shown)
        room = width - sum(widths) - _GAP * len(widths)
        widths.append(min(last, room))
        total = width - room + widths[-1]

        def joined(cells: "Sequence[Line]", style: str) -> Line:
            line = Line(style=style)
            for cell, column, cell_width in zip(cells, shown, widths, strict=True):
                cell.align("right" if self._columns[column] in self._right else "left", cell_width)
                line.append_text(cell).append(_GAP * " ")
            line.rstrip()
            return line

        yield joined([Line(self._columns[column], "bold") for column in shown], "")
        rule = "-" if console.options.ascii_only else "─"
        yield Line(rule * (min(total, _RULE) if width == _UNCUT else total))
        for row, style in self._rows:
            if len(row) == 1:
                yield row[0].__rich__()
                continue
            cells = []
            for column, cell_width in zip(shown, widths, strict=True):
                cells.append(row[column].__rich__().wrap(console, cell_width))
            for parts in zip_longest(*cells, fillvalue=Line()):
                yield joined([part.copy() for part in parts], style)

    def _blocks(self) -> "Iterator[Line]":
        """Yield each row as lines, one for each cell, with an empty line between rows."""
        from rich.text import Text as Line

        for number, (row, style) in enumerate(self._rows):
            if number:
                yield Line()
            for name, cell in zip(self._columns, row, strict=False):
                if cell.plain:
                    line = Line(style=style)
                    line.append(f"{name}: " if name and len(row) > 1 else "", "dim")
                    yield line.append(cell.__rich__())


def cut(text: str, style: str = "") -> Text:
    """Return a cell of the last column: one line, cut where the terminal ends."""
    return Text(printable(text), style, no_wrap=True, overflow="ellipsis")


def figure(value: float | None) -> str:
    """Return a number with four digits, or whole from 1,000 on; "-" for None."""
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


class LiveScreen:
    """The whole terminal, redrawn in place; leaving the block brings back what was there before."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self.console = Console(file=stream, highlight=False, markup=False)
        self._live: Live | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal now."""
        return self.console.size.width, self.console.size.height

    def __enter__(self) -> "LiveScreen":
        """Take the terminal."""
        from rich.live import Live

        self._live = Live(console=self.console, screen=True, auto_refresh=False)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it; once more does no harm."""
        if self._live:
            self._live.stop()
            self._live = None

    def lines(self, part: Grid | Text) -> "list[Line]":
        """Return the lines of a part of the screen, none longer than the terminal is wide."""
        width = self.size[0]
        if isinstance(part, Grid):
            return part.lines(self.console, width)
        lines = part.__rich__().wrap(self.console, width)
        for line in lines:
            line.rstrip()
        return list(lines) or [Text().__rich__()]

    def draw(self, lines: "Iterable[Line]") -> None:
        """Draw these lines, as many as there is room for."""
        if self._live:
            self._live.update(Parts(*lines), refresh=True)
