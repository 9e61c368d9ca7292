"""`gpulaunch top`: a live screen of GPUs, their jobs and the queue."""

import os
import select
import signal
import subprocess
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from types import FrameType
from typing import NoReturn

from gpulaunch.cli import status
from gpulaunch.cli.arguments import Parser, add_topology
from gpulaunch.cli.output import Document
from gpulaunch.cli.screen import Console, Parts, Text, fitted_lines, make_console
from gpulaunch.cli.status import StatusReader
from gpulaunch.cli.status_table import gpus_view, job_in_full, title_of, waiting
from gpulaunch.process.system import own_command, user_name

_INTERVAL_S = 1.0
_CTRL_Z = "\x1a"
_STEPS = {"j": 1, "down": 1, "k": -1, "up": -1}


def main(arguments: Sequence[str]) -> int:
    """Show the screen until `q`; where none can be drawn, print it once."""
    options = make_parser().parse_args(arguments)
    is_dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    if is_dumb or not (os.isatty(0) and os.isatty(1)):
        return status.main(["--gpus", *arguments])
    reader = StatusReader(options.topology)
    console = make_console(sys.stdout)
    top = TopScreen(user_name(os.geteuid()))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    while (key := top.show(reader, console)) != "q":
        if key == _CTRL_Z:
            os.kill(0, signal.SIGTSTP)  # as the terminal does: the whole group of the shell
        else:
            top.act_on_selected(key)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch top", "A live screen: GPUs, their jobs, and who waits.")
    add_topology(parser)
    return parser


class TopScreen:
    """The content of the screen, what its user has selected, and what the keys do.

    Jobs of `own`, who looks, are bold. `selected` is the id of a lease or ticket, or empty;
    `document` is that of Status.
    """

    def __init__(self, own: str) -> None:
        self._own = own
        self.document: Document = {}
        self.selected = ""

    def show(self, reader: StatusReader, console: Console) -> str:
        """Read and draw; return the key that ends or stops it, or is about the selected job."""
        keys: list[str] = []
        with _taken_terminal(console):
            while True:
                if not keys:  # a key changes the view only
                    self.document = reader.read()
                console.update_screen(Parts(*self.lines(datetime.now(timezone.utc), console)))
                keys = _wait_for_keys()
                for key in keys:
                    is_selected = self.selected in self._records()
                    if key in ("q", _CTRL_Z) or (key in ("f", "l") and is_selected):
                        return key
                    if key in _STEPS:
                        self.step(_STEPS[key])
                    elif key == "escape":
                        self.selected = ""

    def step(self, step: int) -> None:
        """Select another job: the next (1) or the one before (-1)."""
        leased = [one for gpu in self.document["gpus"] for one in gpu["leases"]]
        ids = [*dict.fromkeys(leased), *(ticket["id"] for ticket in self.document["queue"])]
        if self.selected in ids:
            at = ids.index(self.selected) + step
            self.selected = ids[min(max(at, 0), len(ids) - 1)]
        elif ids:
            self.selected = ids[0 if step > 0 else -1]
        else:
            self.selected = ""

    def _records(self) -> dict[str, Document]:
        records = (*self.document["leases"], *self.document["queue"])
        return {record["id"]: record for record in records}

    def act_on_selected(self, key: str) -> None:
        """Show the log of the selected job, or end it if that is meant."""
        if key == "f":
            print(f"end {self.selected}? y/n ", end="", flush=True)
            if sys.stdin.readline().strip() != "y":
                return
        word = "logs" if key == "l" else "free"
        subprocess.run([*own_command(), word, self.selected], check=False)  # noqa: S603
        print("-- enter goes back --", end="", flush=True)
        sys.stdin.readline()

    def lines(self, now: datetime, console: Console) -> list[Text]:
        """Return the lines of the screen, as many as the terminal has."""
        lines = []
        for part in gpus_view(self.document, now, style=self._style):
            lines += fitted_lines(console, part)
        count = len(waiting(self.document))
        total = f", {count} waiting" if count else ""
        title = fitted_lines(console, Text(title_of(self.document) + total, "bold"))
        record = self._records().get(self.selected)
        job = Text(job_in_full(self.document, record, now), "cyan") if record else Text()
        foot = fitted_lines(console, job)[: max(2, console.height // 8)]
        foot += fitted_lines(console, Text("q quit  j/k select a job, then f free  l log", "dim"))
        room = max(1, console.height - len(title) - len(foot))
        marked = (at for at, line in enumerate(lines) if "reverse" in str(line.style))
        body = _window(lines, room, next(marked, 0))
        blank = [Text()] * (room - len(body))
        return [*title, *body, *blank, *foot][: console.height]

    def _style(self, record: Document) -> str:
        bold = "bold " if record["user"] == self._own else ""
        # A launch that waits for others first has no id.
        return bold + ("reverse" if self.selected and record.get("id") == self.selected else "")


def _window(lines: Sequence[Text], room: int, at: int) -> list[Text]:
    """Return as many of the lines as there is room for, those around one of them."""
    if len(lines) <= room:
        return [*lines]
    count = room - 1
    first = max(0, min(at - count // 2, len(lines) - count))
    after = len(lines) - first - count
    notes = [f"{first} before"] if first else []
    notes += [f"{after} more"] if after else []
    return [*lines[first : first + count], Text(", ".join(notes), "dim")]


_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b": "escape",
}
_LONGEST = 64  # bytes of one read: a paste is no command


@contextmanager
def _taken_terminal(console: Console) -> Iterator[None]:
    """Draw on a screen of its own, and have keys one by one, without an echo.

    However the block ends, the terminal is as it was before.
    """
    before = termios.tcgetattr(0)
    try:
        tty.setcbreak(0)
        mode = termios.tcgetattr(0)
        mode[6][termios.VSUSP] = b"\0"  # Ctrl-Z comes as a key, between two drawings
        termios.tcsetattr(0, termios.TCSADRAIN, mode)
        with console.screen():
            yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(0, termios.TCSADRAIN, before)


def _wait_for_keys() -> list[str]:
    """Return the keys that come within the interval; q when the terminal is gone."""
    if not select.select([0], [], [], _INTERVAL_S)[0]:
        return []
    try:
        data = os.read(0, _LONGEST)
    except OSError:
        data = b""
    if not data:
        return ["q"]
    if data.startswith(b"\x1b"):  # of a key without a character; most mean nothing here
        return [_SEQUENCES[data]] if data in _SEQUENCES else []
    return [*data.decode(errors="ignore")]


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
