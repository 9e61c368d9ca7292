"""`gpulaunch status --watch`: the same view again and again, in place on a terminal."""

import os
import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from gpulaunch.leases.table import Table
from gpulaunch.leases.watch import Changes

if TYPE_CHECKING:
    from gpulaunch.cli.keyboard import Keyboard
    from gpulaunch.show.terminal import Group, Text

SETTLE_S = 0.3
"""Time after a change in which others are waited for: a burst of launches is shown once."""


def can_draw() -> bool:
    """Return whether stdin and stdout are a terminal on which a screen can be drawn."""
    dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return os.isatty(0) and os.isatty(1) and not dumb


def watch_in_place(
    table: Table, interval_s: float, view: Callable[[], "Group"], stream: TextIO
) -> None:
    """Draw a view at once, at each change of the table and after each interval, until `q`.

    Args:
        table: the allocation table.
        interval_s: longest time between two drawings.
        view: reads, and returns what to draw.
        stream: the terminal.
    """
    from gpulaunch.cli.keyboard import Keyboard  # late: without a terminal there are no keys
    from gpulaunch.show.terminal import LiveScreen

    screen, changes = LiveScreen(stream), Changes(table.directory)
    with Keyboard(0, screen) as keyboard:
        while True:
            screen.draw(_fitting(screen.lines_of(view()), screen.size[1]))
            if {"q", "end", "escape"} & {*wait_for_change(keyboard, changes, interval_s)}:
                return


def wait_for_change(keyboard: "Keyboard", changes: Changes, seconds: float) -> list[str]:
    """Sleep until a key, a signal, a change of the table and those that follow, or the end."""
    keys = keyboard.wait(changes.fds, seconds)
    if not keys and changes.fds and select.select(changes.fds, [], [], 0)[0]:
        keys = keyboard.wait((), SETTLE_S)
        changes.forget()
    return keys


def _fitting(lines: "list[Text]", height: int) -> "list[Text]":
    """Return as many lines as there is room for; the last one says how many are missing."""
    if len(lines) <= height:
        return lines
    from gpulaunch.show.terminal import Text

    more = f"{len(lines) - height + 1} more lines: 'gpulaunch top' scrolls"
    return [*lines[: height - 1], Text(more, "dim")]


def watch_by_interval(interval_s: float, show: Callable[[], None]) -> None:
    """Show something at once and after each interval, until a signal ends it."""
    while True:
        show()
        time.sleep(interval_s)
