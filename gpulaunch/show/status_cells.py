"""The words of the document of `gpulaunch status`: what its tables and `gpulaunch top` share."""

import shlex
from collections import Counter
from datetime import datetime
from itertools import pairwise
from os.path import commonprefix

from gpulaunch.errors import printable
from gpulaunch.files.duration import format_duration
from gpulaunch.history.find import LEAST_CHARACTERS
from gpulaunch.leases.lease import IDLE_AFTER_S
from gpulaunch.leases.who_has_what import age
from gpulaunch.machine.gpu_names import names_in_order
from gpulaunch.process.system import parse_time
from gpulaunch.show import Document

_LONGEST_NAME = 24
_UUID_START = len("GPU-01234567")
_UNITS = ((2 * 86400, 86400, "d"), (2 * 3600, 3600, "h"), (120, 60, "min"), (0, 1, "s"))
"""Least seconds of a range's end for which a unit is taken, its seconds, and its name."""


def short_ids(document: Document) -> dict[str, str]:
    """Return the shortest unique beginning of the id of each lease and ticket."""
    ids = sorted(record["id"] for record in (*document["leases"], *document["queue"]))
    # In this order no id begins more like another than like its neighbours.
    shared = [0, *(len(commonprefix(pair)) for pair in pairwise(ids)), 0]  # noqa: RUF071  no paths
    lengths = [max(LEAST_CHARACTERS, before + 1, after + 1) for before, after in pairwise(shared)]
    return {one: one[:length] for one, length in zip(ids, lengths, strict=False)}


def job_names(document: Document) -> dict[str, str]:
    """Return the name of each job by the id of its lease or ticket; a short id if it has none.

    A name that is long, that several jobs of a user have, or that is a short id of another, is
    followed by the short id.
    """
    names, records = short_ids(document), (*document["leases"], *document["queue"])
    # The leases of all ranks of a step are one job.
    jobs = {(one["user"], one["name"], (one.get("engine_job") or one)["id"]) for one in records}
    uses, shown_ids = Counter(job[:2] for job in jobs), set(names.values())
    for record in records:
        name = printable(record["name"] or "")
        is_unclear = uses[record["user"], record["name"]] > 1 or name in shown_ids
        if len(name) > _LONGEST_NAME or is_unclear:
            name = f"{name[: _LONGEST_NAME - 7]} ({names[record['id']]})" if name else ""
        names[record["id"]] = name or names[record["id"]]
    return names


def state_of(record: Document, now: datetime) -> str:
    """Return the state of a lease, a ticket or a dependent launch in one or two words."""
    if record.get("left_over_pids"):
        return "left over"
    if record.get("stopped"):
        return "stopped"
    if "started_at" not in record:
        return "waiting"
    if record["command"][:1] == ["reserve"] and record["pid"] == record["job_pid"]:
        return "reserved"
    return "idle" if idle_text(record, now) else "running"


def of_user(document: Document, user: str) -> Document:
    """Return the document with the leases, tickets and dependent launches of one user."""
    return document | {
        key: [record for record in document[key] if record["user"] == user]
        for key in ("leases", "queue", "dependent")
    }


def describe_command(record: Document) -> str:
    """Return the command of a lease or ticket as one would type it."""
    return " ".join(word if word.isalnum() else shlex.quote(word) for word in record["command"])


def describe_job(record: Document) -> str:
    """Return the name of a lease's or ticket's job, else its command."""
    return record["name"] or describe_command(record)


def gpus_cell(record: Document) -> str:
    """Return the GPUs of a lease in rank order, such as "0-3,7,6"; how many others wait for."""
    if "started_at" not in record:
        return f"any {record['gpus']}" if record["gpus"] else "all"
    # A GPU that is out of service since, such as a lost one, has no index any more.
    named = zip(record["gpu_names"], record["uuids"], strict=True)
    gpus = names_in_order(name or printable(uuid[:_UUID_START]) for name, uuid in named)
    if not record["shared"]:
        return gpus
    part = record["sm_percentage"]
    share = "shared" if part is None or part == 100 else f"{part} %"
    return f"{gpus} ({share}, guest)" if record["guest"] else f"{gpus} ({share})"


def time_cell(record: Document, now: datetime) -> str:
    """Return for how long a job has run, and of how long it may; for how long others wait."""
    if "started_at" not in record:
        return age(record["since"], now)
    limit_s = record["time_limit_s"]
    limit = "" if limit_s is None else f" of {format_duration(limit_s).removesuffix(' 00 min')}"
    return age(record["started_at"], now) + limit


def left_cell(lease: Document, now: datetime) -> str:
    """Return the time until a lease ends at most; empty without a limit."""
    if lease["ends_at"] is None:
        return ""
    left_s = (parse_time(lease["ends_at"]) - now).total_seconds()
    return format_duration(int(left_s)) if left_s > 0 else "over"


def starts_cell(record: Document, now: datetime) -> str:
    """Return when a job that waits probably starts, or after which others; empty if unknown."""
    if record.get("after"):
        return f"after {', '.join(record['after'])}"
    predicted = record.get("predicted_start")
    if not predicted:
        return ""
    first_s, last_s = (
        max(0.0, (parse_time(predicted[key]) - now).total_seconds()) for key in ("from", "to")
    )
    unit_s, unit = next(row[1:] for row in _UNITS if last_s >= row[0])
    first, last = (_rounded(end_s / unit_s) for end_s in (first_s, last_s))
    if first_s < unit_s:
        return f"within {last} {unit}"
    return f"in {last} {unit}" if first == last else f"in {first} to {last} {unit}"


def _rounded(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{round(number, 1):g}"


def idle_text(lease: Document, now: datetime) -> str:
    """Return for how long a lease's GPUs have done nothing, if that is long."""
    since = lease["idle_since"]
    if since is None or (now - parse_time(since)).total_seconds() < IDLE_AFTER_S:
        return ""
    return f"idle for {age(since, now)}"
