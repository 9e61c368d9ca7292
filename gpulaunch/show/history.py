"""The history as a document."""

import os
from collections.abc import Callable, Mapping, Sequence

from gpulaunch.errors import printable
from gpulaunch.history.past_launch import PastLaunch
from gpulaunch.process.system import iso
from gpulaunch.records import replace
from gpulaunch.show import Document


def history_document(
    launches: Sequence[PastLaunch],
    states: Mapping[str, str],
    user_name: Callable[[int], str],
    now_s: float,
    *,
    earlier: int = 0,
    totals: bool = False,
) -> Document:
    """Return the document that `gpulaunch history --json` prints.

    Args:
        launches: the launches in their order.
        states: what has become of those without an end, by their keys.
        user_name: returns the login name of a user id.
        now_s: the time, in seconds since 1970, up to which those that run are counted.
        earlier: number of launches that are left out.
        totals: whether to return sums instead of launches.
    """
    documents = [
        _launch_document(launch, states.get(launch.key, "ended"), user_name(launch.user_id), now_s)
        for launch in launches
    ]
    if totals:
        return {"totals": _totals(launches, documents)}
    return {"launches": documents, "earlier": earlier}


def _launch_document(launch: PastLaunch, state: str, user: str, now_s: float) -> Document:
    until_now = replace(launch, ended_s=now_s) if state == "running" else launch
    duration_s = until_now.duration_s
    return {
        "key": launch.key,
        "lease": launch.id or None,
        "user": user,
        "name": launch.name,
        "command": [printable(argument) for argument in launch.command],
        "directory": launch.directory,
        "gpus": list(launch.gpus),
        "count": len(launch.gpus) or launch.count or None,
        "sm_percentage": launch.sm_percentage,
        "profile": launch.profile,
        "pattern": launch.pattern,
        "submitted_at": iso(launch.submitted_s),
        "started_at": None if launch.started_s is None else iso(launch.started_s),
        "ended_at": None if launch.ended_s is None else iso(launch.ended_s),
        "state": state,
        "exit_status": launch.exit_status,
        "duration_s": None if duration_s is None else round(duration_s, 3),
        "gpu_hours": round(until_now.gpu_hours, 6),
        "time_limit_s": launch.time_limit_s,
        "log": launch.log,
        "table": launch.table,
    }


def _totals(launches: Sequence[PastLaunch], documents: Sequence[Document]) -> list[Document]:
    """Return the sums of each user's launches of one job, those with most GPU-hours first."""
    sums: dict[tuple[str, str], Document] = {}
    for launch, one in zip(launches, documents, strict=True):
        row = sums.setdefault(
            (one["user"], job_of(launch)),
            {
                "user": one["user"],
                "job": job_of(launch),
                "launches": 0,
                "failed": 0,
                "gpu_hours": 0.0,
            },
        )
        row["launches"] += 1
        row["failed"] += one["state"] == "killed" or bool(one["exit_status"])
        row["gpu_hours"] += one["gpu_hours"]
    rows = [row | {"gpu_hours": round(row["gpu_hours"], 6)} for row in sums.values()]
    return sorted(rows, key=lambda row: (-row["gpu_hours"], row["user"], row["job"]))


def job_of(launch: PastLaunch) -> str:
    """Return what launches of one job have in common: the name, else the program and its script.

    Example:
        `python train.py` for /usr/bin/python -u train.py --lr 0.1
    """
    if launch.name:
        return printable(launch.name)
    words = [os.path.basename(word) for word in launch.command[:1]]
    words += [word for word in launch.command[1:] if not word.startswith("-")][:1]
    return printable(" ".join(words)) or "?"
