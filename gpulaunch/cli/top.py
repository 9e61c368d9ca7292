"""`gpulaunch top`: a live screen of GPUs, their jobs and the queue."""

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpulaunch.cli.arguments import Parser, add_topology
from gpulaunch.cli.keyboard import Keyboard
from gpulaunch.cli.status import StatusReader
from gpulaunch.launch.children import own_command
from gpulaunch.process.system import user_name
from gpulaunch.show import Document
from gpulaunch.show.status import of_user

if TYPE_CHECKING:
    from gpulaunch.show.terminal import LiveScreen
    from gpulaunch.show.top_screen import TopScreen

_INTERVAL_S = 1.0
_STEPS = {"j": 1, "down": 1, "k": -1, "up": -1}
_PAGES = {"page down": 10, " ": 10, "page up": -10}


def main(arguments: Sequence[str]) -> int:
    """Show the screen until `q`; where none can be drawn, print it once."""
    options = make_parser().parse_args(arguments)
    from gpulaunch.show.gpu_table import gpu_places, gpus_view  # late: the help does without rich
    from gpulaunch.show.terminal import LiveScreen, draw
    from gpulaunch.show.top_screen import TopScreen

    reader = StatusReader(options.topology)
    places = gpu_places(reader.machine.topology)
    if not _can_draw():
        document, now = reader.read(), datetime.now(timezone.utc)
        if options.user is not None:
            document = of_user(document, options.user)
        draw(gpus_view(document, places, now, options.user), sys.stdout)
        return 0
    screen = LiveScreen(sys.stdout)
    shown = TopScreen(places, user_name(os.geteuid()), options.user)
    with Keyboard(sys.stdin.fileno(), screen) as keyboard:
        _Top(reader, screen, keyboard, shown).run()
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


def _can_draw() -> bool:
    """Return whether stdin and stdout are a terminal on which a screen can be drawn."""
    dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return os.isatty(0) and os.isatty(1) and not dumb


class _Top:
    """The screen, and what its keys do.

    Args:
        reader: reads what is shown.
        screen: the terminal.
        keyboard: its keys.
        shown: what is on it.
    """

    def __init__(
        self, reader: StatusReader, screen: "LiveScreen", keyboard: Keyboard, shown: "TopScreen"
    ) -> None:
        self._reader, self._screen, self._keyboard = reader, screen, keyboard
        self._shown = shown
        self._asking = False
        self._ending: subprocess.Popen[str] | None = None

    def run(self) -> None:
        """Read and draw until a key ends it."""
        keys: list[str] = []
        while True:
            if not keys:  # a key changes the view only
                self._shown.update(self._reader.read())
                self._note_end()
            self._screen.draw(self._shown.lines(datetime.now(timezone.utc), self._screen))
            keys = self._keyboard.wait(_INTERVAL_S)
            for key in keys:
                if not self._press(key):
                    return

    def _press(self, key: str) -> bool:
        """Do what a key stands for; return whether to go on."""
        if key == "end":
            return False
        if self._asking:
            self._answer(key)
            return True
        if key == "q":
            return False
        self._shown.message = ""
        if key in _STEPS:
            self._shown.step(_STEPS[key])
        elif key in _PAGES:
            self._shown.scroll(_PAGES[key])
        elif key == "escape":
            self._shown.selected = ""
        elif key in ("f", "l"):
            record = self._shown.record
            if record is None:
                self._shown.message = "no job is selected: j and k select one"
            elif key == "f":
                self._ask(record)
            else:
                self._show_log(record)
        return True

    def _ask(self, record: Document) -> None:
        """Ask whether to end the selected job."""
        owner = record["user"]
        if os.geteuid() and owner != user_name(os.geteuid()):
            self._shown.message = f"it belongs to {owner}: only {owner} or root can end it"
            return
        what = "end this job" if "started_at" in record else "leave the queue"
        self._shown.message = f"{what} ({record['id']})? y/n"
        self._asking = True

    def _answer(self, key: str) -> None:
        self._asking = False
        self._shown.message = ""
        if key != "y":
            return
        self._shown.message = f"ending {self._shown.selected} ..."
        self._ending = subprocess.Popen(  # noqa: S603
            [*own_command(), "free", self._shown.selected],
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
        self._shown.message = said[0] if said else ""

    def _show_log(self, record: Document) -> None:
        """Show the log of a job in place of the screen, until a key."""
        with self._keyboard.away():
            subprocess.run([*own_command(), "logs", record["id"]], check=False)  # noqa: S603
            print("-- enter goes back --", end="", flush=True)
            sys.stdin.readline()
