"""The screen of `gpulaunch top`: GPUs in their places, the queue, and the keys."""

from collections.abc import Callable, Sequence
from datetime import datetime

from gpulaunch.errors import printable
from gpulaunch.records import Record, replace
from gpulaunch.show import Document
from gpulaunch.show.gpu_table import GpuPlace, gpus_table
from gpulaunch.show.status_cells import (
    describe_command,
    gpus_cell,
    left_cell,
    of_user,
    state_of,
    time_cell,
)
from gpulaunch.show.status_notes import job_notes, machine_notes
from gpulaunch.show.status_table import free_gpus, jobs_table, waiting
from gpulaunch.show.terminal import LiveScreen, Text

SORTS = ("place", "own first", "use", "memory", "time left")
_QUEUE_SHARE = 0.3  # of the lines, which the queue has at least if it needs them
_LEAST_QUEUE = 5  # lines: an empty one, heading, rule, a ticket, how many more
_HELP = (
    "j, k or arrows   select a job",
    "space, page keys scroll the GPUs",
    "f                free it: end the job, or leave the queue (your own)",
    "l                its log",
    "s                sort GPUs: by place, own first, use, memory, time left",
    "u                one user's jobs, then the next user's, then all",
    "q                quit",
    "",
    "!  beside a GPU: it is drained, barred, or has a warning below the table",
)


class TopView(Record):
    """What a user has chosen to see.

    Attributes:
        sort: how GPUs are sorted, one of SORTS.
        user: whose jobs are shown; None for all.
        selected: id of the selected lease or ticket; empty for none.
        message: what there is to be said; empty for the keys.
        help: whether the help is shown.
        scroll: line of the GPUs that is to be seen, if none is selected.
    """

    sort: str = SORTS[0]
    user: str | None = None
    selected: str = ""
    message: str = ""
    help: bool = False
    scroll: int = 0


def step_selection(document: Document, view: TopView, step: int) -> TopView:
    """Return the view with another job selected: the next (1) or the one before (-1)."""
    ids = _selectable(_limited(document, view))
    if not ids:
        return replace(view, selected="")
    if view.selected not in ids:
        return replace(view, selected=ids[0 if step > 0 else -1])
    at = ids.index(view.selected) + step
    return replace(view, selected=ids[min(max(at, 0), len(ids) - 1)])


def scrolled(document: Document, view: TopView, lines: int) -> TopView:
    """Return the view with other GPUs to be seen, so many lines further down."""
    last = 2 * len(document["gpus"])  # each may have a heading
    return replace(view, selected="", scroll=min(max(0, view.scroll + lines), last))


def next_user(document: Document, view: TopView, own: str) -> TopView:
    """Return the view of the next user's jobs: own, others by name, all."""
    users = {record["user"] for record in (*document["leases"], *document["queue"])}
    order = [None, own, *sorted(users - {own})]
    at = order.index(view.user) if view.user in order else 0
    return replace(view, user=order[(at + 1) % len(order)], selected="")


def next_sort(view: TopView) -> TopView:
    """Return the view with the next order of the GPUs."""
    return replace(view, sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)])


def record_of(document: Document, record_id: str) -> Document | None:
    """Return the entry of a lease or ticket, or None if it has gone."""
    records = (*document["leases"], *document["queue"])
    return next((record for record in records if record["id"] == record_id), None)


def top_lines(
    document: Document,
    places: Sequence[GpuPlace],
    now: datetime,
    view: TopView,
    own: str,
    screen: LiveScreen,
) -> list[Text]:
    """Return the lines of the screen, as many as the terminal has.

    Args:
        document: the document from status_document.
        places: the machine's GPUs.
        now: an aware time.
        view: what the user has chosen.
        own: the user, whose jobs are bold.
        screen: the terminal.
    """
    width, height = screen.size
    shown = _limited(document, view)
    title = [*_wrapped(screen, Text(_title(document, view, width), "bold"), width)]
    foot = _foot(shown, view, now, screen, width)
    if view.help:
        body = [line for text in _HELP for line in _wrapped(screen, Text(text), width)]
        return _filled(title, body[: height - len(title) - len(foot)], foot, height)

    def style(record: Document) -> str:
        bold = "bold " if record["user"] == own else ""
        return bold + ("reverse" if record["id"] == view.selected else "")

    room = max(1, height - len(title) - len(foot))
    table = gpus_table(shown, _sorted(shown, places, view, own), now, view.user, style)
    above = table.lines(screen.console, width)
    for note in (*job_notes(shown, now), *machine_notes(document, now)):
        above += _wrapped(screen, note, width)
    queue_room = max(room - len(above), int(room * _QUEUE_SHARE))
    if room > 2 * _LEAST_QUEUE:
        queue_room = max(queue_room, _LEAST_QUEUE)
    queue = _queue_lines(shown, view, now, style, screen, width, queue_room)
    body = _window(above, room - len(queue), _row_of(above) or view.scroll) + queue
    return _filled(title, body, foot, height)


def _limited(document: Document, view: TopView) -> Document:
    return document if view.user is None else of_user(document, view.user)


def _selectable(document: Document) -> list[str]:
    """Return the ids of leases, by their first GPU, then of tickets."""
    leases = [one for gpu in document["gpus"] for one in gpu["leases"]]
    shown = {lease["id"] for lease in document["leases"]}
    ids = [one for one in dict.fromkeys(leases) if one in shown]
    return [*ids, *(ticket["id"] for ticket in document["queue"])]


def _title(document: Document, view: TopView, width: int) -> str:
    """Return the machine, what is free there, what was chosen, and the models if there is room."""
    title = free_gpus(document)
    title += f"; {len(ahead)} waiting" if (ahead := waiting(document)) else ""
    title += f"; jobs of {printable(view.user)}" if view.user else ""
    title += f"; by {view.sort}" if view.sort != SORTS[0] else ""
    models = ", ".join(map(printable, sorted({gpu["model"] for gpu in document["gpus"]})))
    return f"{title} ({models})" if len(title) + len(models) + 3 <= width else title


def _foot(
    document: Document, view: TopView, now: datetime, screen: LiveScreen, width: int
) -> list[Text]:
    """Return the lines at the bottom: the selected job in full, and the keys or a message."""
    lines = [Text(), *_wrapped(screen, _keys(view, width), width)]
    most = max(2, screen.size[1] // 8)
    record = record_of(document, view.selected)
    if record is None:
        return lines
    return [*_wrapped(screen, _details(record, now), width)[:most], *lines[1:]]


def _keys(view: TopView, width: int) -> Text:
    if view.message:
        return Text(view.message, "yellow")
    if view.help:
        return Text("any key: back", "dim")
    if width < 60:
        return Text("q quit  j/k  f free  l log  s  u  ? help", "dim")
    return Text("q quit  j/k select  f free  l log  s sort  u user  ? help", "dim")


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
    parts += [printable(describe_command(record))]
    return Text(", ".join(parts), "cyan")


def _queue_lines(
    document: Document,
    view: TopView,
    now: datetime,
    style: Callable[[Document], str],
    screen: LiveScreen,
    width: int,
    room: int,
) -> list[Text]:
    """Return the lines of the queue: its heading, and the tickets around the selected one."""
    queue = waiting(document)
    if not queue:
        return []
    if room < _LEAST_QUEUE:
        return [Text(f"waiting: {len(queue)}", "dim")]
    ids = [one.get("id") for one in queue]
    at = ids.index(view.selected) if view.selected in ids else 0
    count = len(queue) if len(queue) <= room - 3 else max(1, room - 4)
    while True:
        first = max(0, min(at - count // 2, len(queue) - count))
        table = jobs_table(document, queue[first : first + count], now, style)
        lines = table.lines(screen.console, width)
        after = len(queue) - first - count
        note = [f"{first} before"] if first else []
        note += [f"{after} more"] if after else []
        lines += [Text(f"waiting: {', '.join(note)}", "dim")] if note else []
        if len(lines) < room:
            return [Text(), *lines]
        if count == 1:  # what is left out of a row matters less than how many there are
            return [Text(), *lines[: room - 2], lines[-1]]
        count = max(1, min(count - 1, room - 4))


def _sorted(
    document: Document, places: Sequence[GpuPlace], view: TopView, own: str
) -> Sequence[GpuPlace]:
    """Return the GPUs in the order of the view; other orders than by place have no headings."""
    if view.sort == SORTS[0]:
        return places
    gpus = {gpu["index"]: gpu for gpu in document["gpus"]}
    leases = {lease["id"]: lease for lease in document["leases"]}

    def held(index: int) -> list[Document]:
        return [leases[one] for one in gpus[index]["leases"] if one in leases]

    def key(index: int) -> tuple[bool, float, str]:
        gpu, jobs = gpus[index], held(index)
        if view.sort == "own first":
            mine = any(lease["user"] == own for lease in jobs)
            return not mine, 0.0, "" if mine else ",".join(lease["user"] for lease in jobs) or "~"
        if view.sort == "time left":
            ends = [lease["ends_at"] for lease in jobs if lease["ends_at"]]
            return not ends, 0.0, max(ends, default="")
        told = gpu["utilization_percentage" if view.sort == "use" else "memory_used_bytes"]
        return told is None, -(told or 0), ""

    order = [index for place in places for index in place.gpus if index in gpus]
    return [GpuPlace("", tuple(sorted(order, key=key)))]


def _row_of(lines: Sequence[Text]) -> int:
    """Return the place of the selected line, or 0."""
    styles = [str(line.style) for line in lines]
    return next((at for at, one in enumerate(styles) if "reverse" in one), 0)


def _window(lines: Sequence[Text], room: int, at: int) -> list[Text]:
    """Return as many of the lines as there is room for, those around one of them."""
    if len(lines) <= room:
        return [*lines]
    head, rest = lines[:2], lines[2:]
    count = max(0, room - 3)
    first = max(0, min(at - 2 - count // 2, len(rest) - count))
    after = len(rest) - first - count
    note = [f"{first} lines before"] if first else []
    note += [f"{after} more lines"] if after else []
    return [*head, *rest[first : first + count], Text(", ".join(note), "dim")][: max(0, room)]


def _wrapped(screen: LiveScreen, text: Text, width: int) -> list[Text]:
    lines = list(text.wrap(screen.console, width)) or [Text()]
    for line in lines:
        line.rstrip()
    return lines


def _filled(
    title: Sequence[Text], body: Sequence[Text], foot: Sequence[Text], height: int
) -> list[Text]:
    """Return the lines with the foot at the bottom."""
    blank = height - len(title) - len(body) - len(foot)
    return [*title, *body, *[Text()] * blank, *foot][:height]
