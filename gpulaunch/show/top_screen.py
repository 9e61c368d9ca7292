"""The screen of `gpulaunch top`: GPUs in their places, the queue, and the keys."""

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from gpulaunch.errors import printable
from gpulaunch.show import Document
from gpulaunch.show.gpu_table import GpuPlace, gpus_table
from gpulaunch.show.status import of_user
from gpulaunch.show.status_table import (
    free_gpus,
    gpus_cell,
    job_notes,
    jobs_table,
    left_cell,
    machine_notes,
    state_of,
    time_cell,
    waiting,
)
from gpulaunch.show.terminal import LiveScreen, Text

if TYPE_CHECKING:
    from gpulaunch.show.terminal import Line


class TopScreen:
    """The content of the screen, and what its user has selected.

    Args:
        places: the machine's GPUs.
        own: the user, whose jobs are bold.
        user: whose jobs are shown; None for all.

    Attributes:
        selected: id of the selected lease or ticket; empty for none.
        message: what there is to be said; empty for the keys.
    """

    def __init__(self, places: Sequence[GpuPlace], own: str, user: str | None = None) -> None:
        self._places, self._own, self._user = places, own, user
        self._document: Document = {}
        self._shown: Document = {}
        self._scroll = 0
        self.selected = ""
        self.message = ""

    def update(self, document: Document) -> None:
        """Show another document from status_document."""
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
        for record in records:
            if record["id"] == self.selected:
                return record
        return None

    def lines(self, now: datetime, screen: LiveScreen) -> "list[Line]":
        """Return the lines of the screen, as many as the terminal has.

        Args:
            now: an aware time.
            screen: the terminal.
        """
        width, height = screen.size
        title = screen.lines(Text(self._title(width), "bold"))
        foot = self._foot(now, screen, width)
        table = gpus_table(self._shown, self._places, now, self._user, self._style)
        lines = screen.lines(table)
        for note in (*job_notes(self._shown, now), *machine_notes(self._document, now)):
            lines += screen.lines(note)
        if ahead := waiting(self._shown):
            queue = jobs_table(self._document, ahead, now, self._style)
            lines += [*screen.lines(Text()), *screen.lines(queue)]
        room = max(1, height - len(title) - len(foot))
        body = _window(lines, room, _row_of(lines) or self._scroll)
        blank = screen.lines(Text()) * (height - len(title) - len(body) - len(foot))
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

    def _foot(self, now: datetime, screen: LiveScreen, width: int) -> "list[Line]":
        """Return the lines at the bottom: the selected job in full, and the keys or a message."""
        keys = screen.lines(self._keys(width))
        if self.record is None:
            return [*screen.lines(Text()), *keys]
        most = max(2, screen.size[1] // 8)
        return [*screen.lines(_details(self.record, now))[:most], *keys]

    def _keys(self, width: int) -> Text:
        if self.message:
            return Text(self.message, "yellow")
        if width < 60:
            return Text("q quit  j/k  space  f free  l log", "dim")
        return Text("q quit  j/k select  space scroll  f free  l log", "dim")


def _details(record: Document, now: datetime) -> Text:
    """Return everything about a job on a line, since columns may have had to go."""
    name = f"{printable(record['name'])} ({record['id']})" if record["name"] else record["id"]
    parts = [f"{name} of {printable(record['user'])}"]
    count = len(record["uuids"]) if "started_at" in record else record["gpus"]
    word = "GPU" if count == 1 else "GPUs"
    parts += [f"{state_of(record, now)}, {word} {gpus_cell(record)}, for {time_cell(record, now)}"]
    left = left_cell(record, now) if "started_at" in record else ""
    parts += [f"{left} left" if left != "over" else "over its limit"] if left else []
    parts += [f"profile {printable(record['profile'])}"] if record["profile"] else []
    parts += [printable(shlex.join(record["command"]))]
    return Text(", ".join(parts), "cyan")


def _row_of(lines: "Sequence[Line]") -> int:
    """Return the place of the selected line, or 0."""
    styles = [str(line.style) for line in lines]
    return next((at for at, one in enumerate(styles) if "reverse" in one), 0)


def _window(lines: "Sequence[Line]", room: int, at: int) -> "list[Line]":
    """Return as many of the lines as there is room for, those around one of them."""
    if len(lines) <= room:
        return [*lines]
    count = room - 1
    first = max(0, min(at - count // 2, len(lines) - count))
    after = len(lines) - first - count
    note = [f"{first} before"] if first else []
    note += [f"{after} more"] if after else []
    return [*lines[first : first + count], Text(", ".join(note), "dim").__rich__()]
