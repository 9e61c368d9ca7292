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
    "table_of",
]

_LEAST = 14  # columns of the last one: then the others have to give way
_UNCUT = 4096  # columns: a pipe has no edge to fit to
_BAR = 24  # columns of a progress bar


def draw(table: RenderableType, stream: TextIO | None) -> None:
    """Write a table to a terminal, as wide as that is and in its colours, or uncut and plain to anything else.

    Args:
        table: what the functions below return.
        stream: None draws nothing.
    """
    if stream is not None:
        Console(
            file=stream, highlight=False, markup=False, width=None if stream.isatty() else _UNCUT
        ).print(table, crop=False)


def table_of(*columns: str, right: Sequence[str] = ()) -> Table:
    """A table whose last column alone gives way when the terminal is narrow."""
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
    """A cell of the last column: one line, cut where the terminal ends."""
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


def figure(value: float | None) -> str:
    """A number in four digits, or whole from 1,000 on; "-" where there is none."""
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def bar(share: float, columns: int, *, plain: bool) -> Text:
    """Return a bar of so many columns; it is empty for a share of 0 only.

    Args:
        share: that is filled, 0 to 1.
        columns: of all of it.
        plain: draw with ASCII only.

    Example:
        >>> bar(0.5, 6, plain=True).plain
        '###---'
    """
    filled, empty = "#-" if plain else "━─"
    full = min(max(round(columns * share), share > 0), columns)
    return Text.assemble((filled * full, "cyan"), (empty * (columns - full), "dim"))


class Fitted:
    """Lines that depend on how wide the terminal is, without blanks at their ends.

    Args:
        lines: makes them, of the columns that there are and of whether only ASCII can be printed.
    """

    def __init__(self, lines: Callable[[int, bool], Iterable[Text]]) -> None:
        self._lines = lines

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """What rich asks for when it prints."""
        for line in self._lines(options.max_width, options.ascii_only):
            line.rstrip()
            yield line


class ProgressLine:
    """One line at a terminal, drawn over itself until it is taken away; whoever is killed leaves nothing hidden behind.

    Args:
        stream: of the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False, markup=False)
        self._drawn = False

    @property
    def possible(self) -> bool:
        """Whether this is a terminal on which a line can be drawn over."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def draw(self, share: float, text: str) -> None:
        """Show how much is done.

        Args:
            share: of all, 0 to 1.
            text: beside the bar; it is cut where the terminal ends.
        """
        line = bar(share, _BAR, plain=self._console.options.ascii_only)
        line.append(f" {printable(text)}")
        line.truncate(max(1, self._console.width - 1), overflow="ellipsis")
        self.clear()
        self._console.print(line, end="")
        self._drawn = True

    def clear(self) -> None:
        """Take it away."""
        if self._drawn:
            self._console.control(
                Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))
            )
            self._drawn = False
