"""`gpulaunch top`: a live screen of GPUs, their jobs and the queue."""

import os
import select
import shlex
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
from gpulaunch.cli.screen import Console, Grid, Parts, Text, fitted_lines, make_console
from gpulaunch.cli.status import StatusReader, of_user
from gpulaunch.cli.status_table import (
    GpuPlace,
    free_gpus,
    gpu_places,
    gpus_cell,
    gpus_table,
    job_notes,
    jobs_table,
    left_cell,
    machine_notes,
    state_of,
    time_cell,
    waiting,
)
from gpulaunch.errors import printable
from gpulaunch.process.execute import own_command
from gpulaunch.process.system import user_name

_INTERVAL_S = 1.0
_STEPS = {"j": 1, "down": 1, "k": -1, "up": -1}
_PAGES = {"page down": 10, " ": 10, "page up": -10}


def main(arguments: Sequence[str]) -> int:
    """Show the screen until `q`; where none can be drawn, print it once."""
    options = make_parser().parse_args(arguments)
    is_dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    if is_dumb or not (os.isatty(0) and os.isatty(1)):
        return status.main(["--gpus", *arguments])
    reader = StatusReader(options.topology)
    places = gpu_places(reader.machine.topology)
    console = make_console(sys.stdout)
    top = TopScreen(places, user_name(os.geteuid()), options.user)
    with Keyboard(sys.stdin.fileno(), console) as keyboard:
        top.run(reader, console, keyboard)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch top",
        "A live screen: GPUs in their places, their jobs, and who waits.",
    )
    parser.add_argument("--user", metavar="NAME", help="only the jobs of one user")
    add_topology(parser)
    return parser


class TopScreen:
    """The content of the screen, what its user has selected, and what the keys do.

    Jobs of `own`, who looks, are bold; those of `user` are shown, or with None all. `selected` is
    the id of a lease or ticket, or empty; `message` is what there is to be said, or empty.
    """

    def __init__(self, places: Sequence[GpuPlace], own: str, user: str | None = None) -> None:
        self._places, self._own, self._user = places, own, user
        self._document: Document = {}
        self._shown: Document = {}
        self._scroll = 0
        self.selected = ""
        self.message = ""
        self._is_asking = False
        self._ending: subprocess.Popen[str] | None = None

    def run(self, reader: StatusReader, console: Console, keyboard: "Keyboard") -> None:
        """Read and draw until a key ends it."""
        keys: list[str] = []
        while True:
            if not keys:  # a key changes the view only
                self.update(reader.read())
                self._note_end()
            console.update_screen(Parts(*self.lines(datetime.now(timezone.utc), console)))
            keys = keyboard.wait(_INTERVAL_S)
            for key in keys:
                if key == "end" or (key == "q" and not self._is_asking):
                    return
                self._press(key, keyboard)

    def update(self, document: Document) -> None:
        """Show another document from Status."""
        self._document = document
        self._shown = document if self._user is None else of_user(document, self._user)

    def step(self, step: int) -> None:
        """Select another job: the next (1) or the one before (-1)."""
        ids = self._selectable()
        if self.selected in ids:
            at = ids.index(self.selected) + step
            self.selected = ids[min(max(at, 0), len(ids) - 1)]
        elif ids:
            self.selected = ids[0 if step > 0 else -1]
        else:
            self.selected = ""

    def scroll(self, lines: int) -> None:
        """Show other lines, so many further down, and select no job."""
        # Each GPU may have a heading.
        last = 2 * len(self._document["gpus"]) + len(waiting(self._shown))
        self._scroll = min(max(0, self._scroll + lines), last)
        self.selected = ""

    @property
    def record(self) -> Document | None:
        """The entry of the selected lease or ticket; None if there is none, or it has gone."""
        records: list[Document] = [*self._document["leases"], *self._document["queue"]]
        return next((record for record in records if record["id"] == self.selected), None)

    def _press(self, key: str, keyboard: "Keyboard") -> None:
        was_asking, self._is_asking = self._is_asking, False
        self.message = ""
        if was_asking:
            if key == "y":
                self._end_selected()
        elif key in _STEPS:
            self.step(_STEPS[key])
        elif key in _PAGES:
            self.scroll(_PAGES[key])
        elif key == "escape":
            self.selected = ""
        elif key in ("f", "l"):
            self._act_on_selected(key, keyboard)

    def _act_on_selected(self, key: str, keyboard: "Keyboard") -> None:
        """Show the log of the selected job in place of the screen, or ask whether to end it."""
        record = self.record
        if record is None:
            self.message = "no job is selected: j and k select one"
        elif key == "l":
            with keyboard.away():
                subprocess.run([*own_command(), "logs", self.selected], check=False)  # noqa: S603
                print("-- enter goes back --", end="", flush=True)
                sys.stdin.readline()
        elif os.geteuid() and record["user"] != self._own:
            owner = record["user"]
            self.message = f"it belongs to {owner}: only {owner} or root can end it"
        else:
            what = "end this job" if "started_at" in record else "leave the queue"
            self.message = f"{what} ({record['id']})? y/n"
            self._is_asking = True

    def _end_selected(self) -> None:
        self.message = f"ending {self.selected} ..."
        self._ending = subprocess.Popen(  # noqa: S603
            [*own_command(), "free", self.selected],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _note_end(self) -> None:
        """Say what `gpulaunch free` said, once it has ended."""
        if self._ending is None or self._ending.poll() is None:
            return
        said = self._ending.communicate()[0].splitlines()
        self._ending = None
        self.message = said[0] if said else ""

    def lines(self, now: datetime, console: Console) -> list[Text]:
        """Return the lines of the screen, as many as the terminal has."""
        parts: list[Grid | Text] = [
            gpus_table(self._shown, self._places, now, self._user, self._style)
        ]
        parts += [*job_notes(self._shown, now), *machine_notes(self._document, now)]
        if ahead := waiting(self._shown):
            parts += [Text(), jobs_table(self._document, ahead, now, self._style)]
        width, height = console.size
        lines = []
        for part in parts:
            lines += fitted_lines(console, part)
        title = fitted_lines(console, Text(self._title(width), "bold"))
        foot = self._foot(now, console)
        marked = [at for at, line in enumerate(lines) if "reverse" in str(line.style)]
        room = max(1, height - len(title) - len(foot))
        body = _window(lines, room, marked[0] if marked else self._scroll)
        blank = [Text()] * (height - len(title) - len(body) - len(foot))
        return [*title, *body, *blank, *foot][:height]

    def _selectable(self) -> list[str]:
        """Return the ids of leases, by their first GPU, then of tickets."""
        leases = [one for gpu in self._document["gpus"] for one in gpu["leases"]]
        shown = {lease["id"] for lease in self._shown["leases"]}
        ids = [one for one in dict.fromkeys(leases) if one in shown]
        return [*ids, *(ticket["id"] for ticket in self._shown["queue"])]

    def _style(self, record: Document) -> str:
        bold = "bold " if record["user"] == self._own else ""
        # A launch that waits for others first has no id.
        return bold + ("reverse" if self.selected and record.get("id") == self.selected else "")

    def _title(self, width: int) -> str:
        """Return the machine, what is free there, and the models if there is room."""
        title = free_gpus(self._document)
        if ahead := waiting(self._document):
            title += f"; {len(ahead)} waiting"
        if self._user:
            title += f"; jobs of {printable(self._user)}"
        models = ", ".join(sorted({printable(gpu["model"]) for gpu in self._document["gpus"]}))
        return f"{title} ({models})" if len(title) + len(models) + 3 <= width else title

    def _foot(self, now: datetime, console: Console) -> list[Text]:
        """Return the lines at the bottom: the selected job in full, and the keys or a message."""
        width, height = console.size
        if self.message:
            keys = Text(self.message, "yellow")
        elif width < 60:
            keys = Text("q quit  j/k  space  f free  l log", "dim")
        else:
            keys = Text("q quit  j/k select  space scroll  f free  l log", "dim")
        details = fitted_lines(console, _details(self.record, now) if self.record else Text())
        return [*details[: max(2, height // 8)], *fitted_lines(console, keys)]


def _details(record: Document, now: datetime) -> Text:
    """Return everything about a job on a line, since columns may have had to go."""
    is_lease = "started_at" in record
    name = f"{printable(record['name'])} ({record['id']})" if record["name"] else record["id"]
    count = len(record["uuids"]) if is_lease else record["gpus"]
    gpus = f"{'GPU' if count == 1 else 'GPUs'} {gpus_cell(record)}"
    parts = [f"{name} of {printable(record['user'])}", state_of(record, now)]
    parts += [gpus, f"for {time_cell(record, now)}"]
    left = left_cell(record["ends_at"], now) if is_lease else ""
    if left:
        parts.append("over its limit" if left == "over" else f"{left} left")
    if record["profile"]:
        parts.append(f"profile {printable(record['profile'])}")
    return Text(", ".join([*parts, printable(shlex.join(record["command"]))]), "cyan")


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
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
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
