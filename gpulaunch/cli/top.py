"""`gpulaunch top`: a live screen of GPUs, their jobs and the queue."""

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpulaunch.cli.arguments import Namespace, Parser, add_topology
from gpulaunch.cli.output import warn
from gpulaunch.cli.status import interval, make_view, user
from gpulaunch.cli.status_reading import StatusReader
from gpulaunch.cli.watch import can_draw, wait_for_change
from gpulaunch.launch.children import own_command
from gpulaunch.leases.watch import Changes
from gpulaunch.process.system import user_name
from gpulaunch.records import replace
from gpulaunch.show import Document

if TYPE_CHECKING:
    from gpulaunch.cli.keyboard import Keyboard
    from gpulaunch.show.terminal import LiveScreen
    from gpulaunch.show.top_screen import TopView

_STEPS = {"j": 1, "down": 1, "k": -1, "up": -1}
_PAGES = {"page down": 10, " ": 10, "page up": -10}


def main(arguments: Sequence[str]) -> int:
    """Show the screen until `q`; where none can be drawn, print it once."""
    options = make_parser().parse_args(arguments)
    reader = StatusReader(options.topology, warn)
    from gpulaunch.show.terminal import LiveScreen, draw

    if not can_draw():
        draw(make_view(reader, Namespace(gpus=True), options.user), sys.stdout)
        return 0
    from gpulaunch.cli.keyboard import Keyboard
    from gpulaunch.show.top_screen import TopView

    screen = LiveScreen(sys.stdout)
    with Keyboard(sys.stdin.fileno(), screen) as keyboard:
        _Top(reader, screen, keyboard, TopView(user=options.user)).run(options.interval)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch top",
        "A live screen: GPUs in their places, their jobs, and who waits. Press ? for the keys.",
    )
    parser.add_argument("--user", metavar="NAME", type=user, help="only the jobs of one user")
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=interval,
        default=1.0,
        help="time between two readings (1); changes of the table are shown at once",
    )
    add_topology(parser)
    return parser


class _Top:
    """The screen, and what its keys do.

    Args:
        reader: reads what is shown.
        screen: the terminal.
        keyboard: its keys.
        view: what to show at first.
    """

    def __init__(
        self, reader: StatusReader, screen: "LiveScreen", keyboard: "Keyboard", view: "TopView"
    ) -> None:
        from gpulaunch.show.gpu_places import gpu_places

        self._reader, self._screen, self._keyboard, self._view = reader, screen, keyboard, view
        self._places = gpu_places(reader.machine.topology)
        self._own = user_name(os.geteuid())
        self._document: Document = {}
        self._asking = False
        self._ending: subprocess.Popen[str] | None = None

    def run(self, interval_s: float) -> None:
        """Read and draw until a key ends it."""
        changes = Changes(self._reader.table.directory)
        fresh = False
        while True:
            if not fresh:
                self._document = self._reader.read()
                self._note_end()
            self._draw()
            keys = wait_for_change(self._keyboard, changes, interval_s)
            fresh = bool(keys)  # a key changes the view only
            for key in keys:
                if not self._press(key):
                    return

    def _draw(self) -> None:
        from gpulaunch.show.top_screen import top_lines

        now = datetime.now(timezone.utc)
        self._screen.draw(
            top_lines(self._document, self._places, now, self._view, self._own, self._screen)
        )

    def _press(self, key: str) -> bool:
        """Do what a key stands for; return whether to go on."""
        if key == "end":
            return False
        if self._asking:
            self._answer(key)
        elif self._view.help:
            self._view = replace(self._view, help=False)
        elif key == "q":
            return False
        else:
            self._view = self._viewed(key, replace(self._view, message=""))
            if key == "f":
                self._ask()
            elif key == "l":
                self._show_log()
        return True

    def _viewed(self, key: str, view: "TopView") -> "TopView":
        """Return what is to be shown after a key."""
        from gpulaunch.show.top_screen import next_sort, next_user, scrolled, step_selection

        if key in _STEPS:
            return step_selection(self._document, view, _STEPS[key])
        if key in _PAGES:
            return scrolled(self._document, view, _PAGES[key])
        if key == "escape":
            return replace(view, selected="")
        if key == "s":
            return next_sort(view)
        if key == "u":
            return next_user(self._document, view, self._own)
        return replace(view, help=key in ("?", "h"))

    def _selected(self) -> Document | None:
        from gpulaunch.show.top_screen import record_of

        record = record_of(self._document, self._view.selected)
        if record is None:
            self._say("no job is selected: j and k select one")
        return record

    def _ask(self) -> None:
        """Ask whether to end the selected job."""
        record = self._selected()
        if record is None:
            return
        owner = record["user"]
        if os.geteuid() and owner != self._own:
            self._say(f"it belongs to {owner}: only {owner} or root can end it")
            return
        what = "end this job" if "started_at" in record else "leave the queue"
        self._say(f"{what} ({record['id']})? y/n")
        self._asking = True

    def _answer(self, key: str) -> None:
        self._asking = False
        if key != "y":
            self._say("")
            return
        self._say(f"ending {self._view.selected} ...")
        self._ending = subprocess.Popen(  # noqa: S603
            [*own_command(), "free", self._view.selected],
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
        self._say(said[0] if said else "")

    def _show_log(self) -> None:
        """Show the log of the selected job in place of the screen, until a key."""
        record = self._selected()
        if record is None:
            return
        with self._keyboard.away():
            subprocess.run([*own_command(), "logs", record["id"]], check=False)  # noqa: S603
            print("-- enter goes back --", end="", flush=True)
            sys.stdin.readline()

    def _say(self, text: str) -> None:
        self._view = replace(self._view, message=text)
