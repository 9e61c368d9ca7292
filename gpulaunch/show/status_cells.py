"""The words of the document of `gpulaunch status`: what its tables and `gpulaunch top` share."""

import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime

from gpulaunch.errors import printable
from gpulaunch.files.duration import format_duration
from gpulaunch.files.iso_time import parse_time
from gpulaunch.leases.lease import IDLE_AFTER_S
from gpulaunch.leases.who_has_what import age
from gpulaunch.show import Document
from gpulaunch.show.terminal import Cell

LEAST_ID = 4
"""Characters of an id that `gpulaunch free` takes at least; launch/find_records.py has the rule."""

_UUID_START = len("GPU-01234567")
_GIB = 1 << 30


def short_ids(document: Document) -> dict[str, str]:
    """Return the shortest unique beginning of the id of each lease and ticket."""
    ids = sorted(record["id"] for record in (*document["leases"], *document["queue"]))
    return {
        one: next(
            one[:length]
            for length in range(LEAST_ID, len(one) + LEAST_ID)
            if length >= len(one) or sum(other.startswith(one[:length]) for other in ids) == 1
        )
        for one in ids
    }


def of_user(document: Document, user: str) -> Document:
    """Return the document with the leases, tickets and dependent launches of one user."""
    return document | {
        key: [record for record in document[key] if record["user"] == user]
        for key in ("leases", "queue", "dependent")
    }


def describe_job(record: Document) -> str:
    """Return the name of a lease's or ticket's job, else its command."""
    return record["name"] or " ".join(map(_quoted, record["command"]))


def _quoted(argument: str) -> str:
    return argument if argument.isalnum() else shlex.quote(argument)


def gpus_cell(lease: Document) -> Cell:
    """Return the GPUs of a lease in rank order; the shorter text has ranges: "0-3,7,6"."""
    # A GPU that is out of service since, such as a lost one, has no index any more.
    names = [
        name or printable(uuid[:_UUID_START])
        for name, uuid in zip(lease["gpu_names"], lease["uuids"], strict=True)
    ]
    runs: list[list[str]] = []
    for name in names:
        if runs and name.isdecimal() and runs[-1][-1] == str(int(name) - 1):
            runs[-1].append(name)
        else:
            runs.append([name])
    parts = [run if len(run) < 3 else [f"{run[0]}-{run[-1]}"] for run in runs]
    return ",".join(names), ",".join(part for run in parts for part in run)


def since_cell(since: str, now: datetime) -> tuple[str, str]:
    """Return for how long something has been so; the shorter text is in one unit."""
    return _two_lengths(age(since, now))


def left_cell(lease: Document, now: datetime) -> tuple[str, str]:
    """Return the time until a lease ends at most; empty without a limit."""
    if lease["ends_at"] is None:
        return "", ""
    left_s = (parse_time(lease["ends_at"]) - now).total_seconds()
    return _two_lengths(format_duration(int(left_s))) if left_s > 0 else ("over", "over")


def _two_lengths(text: str) -> tuple[str, str]:
    """Return a length of time as it is, and in its larger unit only: "2 h 05 min", "2 h"."""
    return text, " ".join(text.split()[:2])


def busy_cell(gpus: Sequence[Document]) -> str:
    """Return the utilization of GPUs, from the least to the most; empty if unknown."""
    known = _known(gpus, "utilization_percentage")
    if not known:
        return ""
    least, most = min(known), max(known)
    return f"{least} %" if least == most else f"{least}-{most} %"


def memory_cell(gpus: Sequence[Document]) -> tuple[str, str]:
    """Return how much of all the memory of GPUs is in use; empty if unknown."""
    used = _known(gpus, "memory_used_bytes")
    if not used:
        return "", ""
    total = sum(_known(gpus, "memory_total_bytes"))
    return (
        f"{sum(used) / _GIB:.1f}/{total / _GIB:.1f} GiB",
        f"{sum(used) / _GIB:.0f}/{total / _GIB:.0f} GiB",
    )


def power_cell(gpu: Document) -> tuple[str, str]:
    """Return the power that a GPU draws, of what it may; empty if unknown."""
    if gpu["power_w"] is None:
        return "", ""
    power, limit = f"{gpu['power_w']:.0f}", gpu["power_limit_w"]
    return (f"{power}/{limit:.0f} W" if limit else f"{power} W"), f"{power} W"


def temperature_cell(gpu: Document) -> str:
    """Return the temperature of a GPU in degrees Celsius; empty if unknown."""
    return "" if gpu["temperature_c"] is None else str(gpu["temperature_c"])


def starts_cell(ticket: Document, now: datetime) -> tuple[str, str]:
    """Return when a ticket's launch is predicted to start; empty if nobody knows."""
    predicted = ticket.get("predicted_start")
    if not predicted:
        return "", ""
    ends = [parse_time(predicted[key]) for key in ("from", "to")]
    texts = [_two_lengths(format_duration(int((end - now).total_seconds()))) for end in ends]
    (first, short), (last, short_last) = texts
    if short == short_last:
        return f"in {first}", f"in {short}"
    return f"in {first} to {last}", f"in {short} to {short_last}"


def idle_text(lease: Document, now: datetime) -> str:
    """Return for how long a lease's GPUs have done nothing, if that is long."""
    since = lease["idle_since"]
    if since is None or (now - parse_time(since)).total_seconds() < IDLE_AFTER_S:
        return ""
    return f"idle for {age(since, now)}"


def is_assumed(lease: Document) -> bool:
    """Return whether something about a job's traffic was assumed; a single GPU has none."""
    return bool(lease["assumed"]) and len(lease["gpus"]) > 1


def legends(leases: Iterable[Document]) -> list[str]:
    """Return a line for each word of the table of leases that does not explain itself."""
    leases, lines = list(leases), []
    orders = [[index for index in lease["gpus"] if index is not None] for lease in leases]
    if any(order != sorted(order) for order in orders):
        lines.append("GPUs are in rank order: the first is the job's GPU 0")
    if any(map(is_assumed, leases)):
        lines.append("assumed: without a profile, a job is taken to talk all to all")
    return lines


def _known(gpus: Iterable[Document], key: str) -> list[int]:
    return [gpu[key] for gpu in gpus if gpu[key] is not None]
