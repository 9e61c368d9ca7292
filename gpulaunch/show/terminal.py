"""The door to rich: tables and text for a terminal. Only this file imports it."""

from collections.abc import Callable, Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.control import Control
from rich.segment import ControlType
from rich.table import Table
from rich.text import Text

from gpulaunch.errors import printable
from gpulaunch.typing import Literal, TextIO

__all__ = [
    "Fitted",
    "Group",
    "ProgressLine",
    "Table",
    "Text",
    "bar",
    "cut",
    "draw",
    "figure",
    "make_table",
]

_LEAST = 14  # columns of the last column, below which the others have to give way
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


def make_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return a table in which only the last column shrinks when the terminal is narrow."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        last = column == columns[-1]
        overflow: Literal["fold", "ellipsis"] = "fold" if last else "ellipsis"
        table.add_column(
            column,
            justify=justify,
            no_wrap=not last,
            overflow=overflow,
            min_width=_LEAST if last else None,
        )
    return table


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
