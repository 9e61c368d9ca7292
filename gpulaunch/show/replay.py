"""Replays as the document of `gpulaunch simulate --json`, and as rows of tables for people."""

from collections.abc import Iterable
from typing import Any

from gpulaunch.cli.screen import Grid, Text, figure, make_table
from gpulaunch.cli.screen import Parts as Group
from gpulaunch.errors import printable
from gpulaunch.files.units import format_duration
from gpulaunch.show import Document
from gpulaunch.simulate.measures import Replay, ReplayedJob, quartiles

Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Headings of columns, of which the first has text, and a row of cells for each policy."""

KEY = (
    "in use: GPU time that was held; slower: mean run time over that alone on the best GPUs; "
    "SLO: jobs that ran with less than they need; no ring: none over NVLinks alone"
)
"""The meaning of the columns."""

SENSITIVE = "bandwidth-sensitive jobs: effective bandwidth, GB/s"
"""The title of the second table."""

_QUARTILES = ("min", "p25", "p50", "p75", "max", "mean")


def replays_document(replays: Iterable[Replay]) -> Document:
    """Return the document of all replays.

    Args:
        replays: replays in the order in which they are to be shown.
    """
    return {"runs": [_run_document(replay) for replay in replays]}


def _run_document(replay: Replay) -> Document:
    rules, sensitive = replay.rules, [one for one in replay.jobs if one.sensitive]
    return {
        "policy": rules.policy.replace("_", "-"),
        "topology": replay.topology,
        "machines": rules.machines,
        "seed": replay.seed,
        "queue": rules.queue,
        "bandwidth_model": rules.model,
        "time_models": list(rules.time_models) or ["fixed"],
        "makespan_s": round(replay.makespan_s, 6),
        "throughput_jobs_per_hour": round(replay.throughput_jobs_per_hour, 6),
        "utilization": round(replay.utilization, 6),
        "slo_violations": replay.violations,
        "wait_s": _quartiles(one.wait_s for one in replay.jobs),
        "turnaround_s": _quartiles(one.turnaround_s for one in replay.jobs),
        "slowdown": _quartiles(one.slowdown for one in replay.jobs),
        "sensitive": {
            "jobs": len(sensitive),
            "effective_bandwidth_gb_per_s": _quartiles(
                one.effective_bandwidth or 0.0 for one in sensitive
            ),
            "slowdown": _quartiles(one.slowdown for one in sensitive),
            "without_nvlink_ring": sum(not one.nvlink_ring for one in sensitive),
        },
        "jobs": [_job_document(one) for one in replay.jobs],
    }


def _quartiles(values: Iterable[float]) -> Document | None:
    found = quartiles(values)
    return found and {name: round(value, 6) for name, value in found.items()}


def _job_document(one: ReplayedJob) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "machine": one.machine,
        "gpus": list(one.gpus),
        "sensitive": one.sensitive,
        "submitted_s": round(one.arrival_s, 6),
        "started_s": round(one.started_s, 6),
        "ended_s": round(one.ended_s, 6),
        "effective_bandwidth_gb_per_s": _rounded(one.effective_bandwidth),
        "aggregate_bandwidth_gb_per_s": _rounded(one.aggregate_bandwidth),
        "allocation_quality": _rounded(one.quality),
        "slowdown": round(one.slowdown, 6),
        "utility": _rounded(one.utility),
        "violates_slo": one.violates,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def replays_rows(document: Document) -> tuple[str, str, Rows, Rows]:
    """Return what was replayed and how, then the rows about all jobs and about sensitive ones.

    Args:
        document: the document from replays_document.
    """
    first = document["runs"][0]
    machines = printable(first["topology"])
    if first["machines"] > 1:
        machines = f"{first['machines']} x {machines}"
    count, number = len(first["jobs"]), first["sensitive"]["jobs"]
    jobs = f"{count} job{'' if count == 1 else 's'}"
    title = f"{jobs} ({number} bandwidth-sensitive) on {machines}, {first['queue']}"
    times = " and ".join(first["time_models"])
    how = f"run times: {times}; bandwidths by the cut model"
    columns = ("makespan", "jobs/h", "in use", "wait", "longest", "slower", "SLO")
    everyone: Rows = ("policy", *columns), []
    few: Rows = ("policy", *_QUARTILES, "no ring", "slower"), []
    for run in document["runs"]:
        row = (
            run["policy"],
            format_duration(round(run["makespan_s"])),
            figure(run["throughput_jobs_per_hour"]),
            f"{run['utilization']:.1%}",
            format_duration(round(run["wait_s"]["mean"])),
            format_duration(round(run["wait_s"]["max"])),
            f"{run['slowdown']['mean'] - 1:.1%}",
            str(run["slo_violations"]),
        )
        everyone[1].append(row)
        sensitive = run["sensitive"]
        if not sensitive["jobs"]:
            continue
        bandwidth = sensitive["effective_bandwidth_gb_per_s"]
        ringless = f"{sensitive['without_nvlink_ring'] / sensitive['jobs']:.1%}"
        slower = f"{sensitive['slowdown']['mean'] - 1:.1%}"
        figures = [f"{bandwidth[name]:.1f}" for name in _QUARTILES]
        few[1].append((run["policy"], *figures, ringless, slower))
    return title, how, everyone, few


def replays_table(document: Document) -> Group:
    """Return the tables for a terminal: all jobs of each run, then the sensitive ones.

    Args:
        document: the document from replays_document.
    """
    title, how, everyone, sensitive = replays_rows(document)
    return Group(
        Text(title, "bold"),
        Text(how, "dim"),
        Text(),
        _table(everyone),
        Text(),
        Text(SENSITIVE, "bold"),
        _table(sensitive) if sensitive[1] else Text("none", "dim"),
        Text(),
        Text(KEY, "dim"),
    )


def _table(rows: Rows) -> Grid:
    columns, cells = rows
    table = make_table(*columns, right=columns[1:])
    for row in cells:
        table.add_row(*row)
    return table
