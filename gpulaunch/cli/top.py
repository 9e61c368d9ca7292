"""`gpulaunch top`: a live screen of GPUs, their jobs and the queue."""

import os
import select
import signal
import subprocess
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from types import FrameType
from typing import Any, NoReturn

from gpulaunch.cli import status
from gpulaunch.cli.arguments import Parser, add_topology
from gpulaunch.cli.output import Document
from gpulaunch.cli.screen import Console, Parts, Text, fitted_lines, make_console
from gpulaunch.cli.status import StatusReader, of_user
from gpulaunch.cli.status_table import gpus_view, job_in_full, title_of
from gpulaunch.launch.children import own_command
from gpulaunch.process.system import user_name

_INTERVAL_S = 1.0
_STEPS = {"j": 1, "down": 1, "k": -1, "up": -1}


def main(arguments: Sequence[str]) -> int:
    """Show the screen until `q`; where none can be drawn, print it once."""
    options = make_parser().parse_args(arguments)
    is_dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    if is_dumb or not (os.isatty(0) and os.isatty(1)):
        return status.main(["--gpus", *arguments])
    reader = StatusReader(options.topology)
    console = make_console(sys.stdout)
    top = TopScreen(user_name(os.geteuid()), options.user)
    with Keyboard(sys.stdin.fileno(), console) as keyboard:
        top.run(reader, console, keyboard)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch top",
        "A live screen: GPUs, their jobs, and who waits.",
    )
    parser.add_argument("--user", metavar="NAME", help="only the jobs of one user")
    add_topology(parser)
    return parser


class TopScreen:
    """The content of the screen, what its user has selected, and what the keys do.

    Jobs of `own`, who looks, are bold. `selected` is the id of a lease or ticket, or empty.
    """

    def __init__(self, own: str, user: str | None = None) -> None:
        self._own, self._user = own, user
        self._document: Document = {}
        self.selected = ""

    def run(self, reader: StatusReader, console: Console, keyboard: "Keyboard") -> None:
        """Read and draw until a key ends it."""
        keys: list[str] = []
        while True:
            if not keys:  # a key changes the view only
                self.update(reader.read())
            console.update_screen(Parts(*self.lines(datetime.now(timezone.utc), console)))
            keys = keyboard.wait(_INTERVAL_S)
            for key in keys:
                if key in ("q", "end"):
                    return
                if key in _STEPS:
                    self.step(_STEPS[key])
                elif key == "escape":
                    self.selected = ""
                elif key in ("f", "l"):
                    self._act_on_selected(key, keyboard)

    def update(self, document: Document) -> None:
        """Show another document from Status."""
        self._document = document if self._user is None else of_user(document, self._user)

    def step(self, step: int) -> None:
        """Select another job: the next (1) or the one before (-1)."""
        leased = [one for gpu in self._document["gpus"] for one in gpu["leases"]]
        ids = [one for one in dict.fromkeys(leased) if one in self._records()]
        ids += [ticket["id"] for ticket in self._document["queue"]]
        if self.selected in ids:
            at = ids.index(self.selected) + step
            self.selected = ids[min(max(at, 0), len(ids) - 1)]
        elif ids:
            self.selected = ids[0 if step > 0 else -1]
        else:
            self.selected = ""

    def _records(self) -> dict[str, Document]:
        records = (*self._document["leases"], *self._document["queue"])
        return {record["id"]: record for record in records}

    def _act_on_selected(self, key: str, keyboard: "Keyboard") -> None:
        """Show the log of the selected job in place of the screen, or end it if that is meant."""
        if self.selected not in self._records():
            return
        word = "logs" if key == "l" else "free"
        with keyboard.away():
            if key == "f":
                print(f"end {self.selected}? y/n ", end="", flush=True)
                if sys.stdin.readline().strip() != "y":
                    return
            subprocess.run([*own_command(), word, self.selected], check=False)  # noqa: S603
            print("-- enter goes back --", end="", flush=True)
            sys.stdin.readline()

    def lines(self, now: datetime, console: Console) -> list[Text]:
        """Return the lines of the screen, as many as the terminal has."""
        lines = []
        for part in gpus_view(self._document, now, self._user, self._style):
            lines += fitted_lines(console, part)
        height = console.height
        title = fitted_lines(console, Text(title_of(self._document), "bold"))
        foot = self._foot(now, console)
        marked = [at for at, line in enumerate(lines) if "reverse" in str(line.style)]
        room = max(1, height - len(title) - len(foot))
        body = _window(lines, room, marked[0] if marked else 0)
        blank = [Text()] * (height - len(title) - len(body) - len(foot))
        return [*title, *body, *blank, *foot][:height]

    def _style(self, record: Document) -> str:
        bold = "bold " if record["user"] == self._own else ""
        # A launch that waits for others first has no id.
        return bold + ("reverse" if self.selected and record.get("id") == self.selected else "")

    def _foot(self, now: datetime, console: Console) -> list[Text]:
        """Return the lines at the bottom: the selected job in full, and the keys."""
        record = self._records().get(self.selected)
        job = Text(job_in_full(self._document, record, now), "cyan") if record else Text()
        details = fitted_lines(console, job)
        keys = Text("q quit  j/k select a job, then f free  l log", "dim")
        return [*details[: max(2, console.height // 8)], *fitted_lines(console, keys)]


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
_CTRL_Z = b"\x1a"
_LONGEST = 64  # bytes of one read: a paste is no command


class Keyboard:
    """The keys that come one by one, without an echo, until the block ends however it ends.

    Ctrl-Z gives the terminal back and stops; `fg` takes it again. Ctrl-C, TERM and HUP end the
    program with the status of the signal, through the block's end. The screen is left and entered
    with the terminal.
    """

    def __init__(self, fd: int, console: Console) -> None:
        self._fd, self._console = fd, console
        self._taken = ExitStack()  # closing it gives the terminal back

    def __enter__(self) -> "Keyboard":
        """Take the terminal."""
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, _end)
            self._take()
        except BaseException:  # a signal came meanwhile
            self._taken.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Give the terminal back; what signals do is left as it is, since the program ends now."""
        self._taken.close()

    def wait(self, seconds: float) -> list[str]:
        """Sleep until a key comes or the time is over.

        Returns:
            The keys, each as its character or its name; "end" when the terminal is gone.
        """
        if not select.select([self._fd], [], [], seconds)[0]:
            return []
        try:
            data = os.read(self._fd, _LONGEST)
        except OSError:
            data = b""
        if _CTRL_Z in data:
            with self.away():
                os.kill(0, signal.SIGTSTP)  # as the terminal does: the whole group of the shell
            return []
        return _keys_in(data) if data else ["end"]

    @contextmanager
    def away(self) -> Iterator[None]:
        """Give the terminal back for the length of the block."""
        self._taken.close()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        self._taken.callback(self._restore, termios.tcgetattr(self._fd))
        tty.setcbreak(self._fd)
        mode = termios.tcgetattr(self._fd)
        mode[6][termios.VSUSP] = b"\0"  # Ctrl-Z comes as a key, between two drawings
        termios.tcsetattr(self._fd, termios.TCSADRAIN, mode)
        self._taken.enter_context(self._console.screen())

    def _restore(self, before: list[Any]) -> None:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._fd, termios.TCSADRAIN, before)


def _keys_in(data: bytes) -> list[str]:
    """Return the keys in what a terminal sent; sequences that mean nothing here are left out."""
    if data in _SEQUENCES:
        return [_SEQUENCES[data]]
    if data.startswith(b"\x1b"):
        return []
    return [_SEQUENCES.get(char.encode(), char) for char in data.decode(errors="ignore")]


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
