"""The document of `gpulaunch simulate --json`."""

from collections.abc import Iterable

from gpulaunch.records import as_dict, field_names
from gpulaunch.show import Document
from gpulaunch.simulate.measures import Quartiles, Replay, ReplayedJob, quartiles
from gpulaunch.typing import Any


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
        "measured_by": rules.yardstick,
        "time_models": list(rules.time_models) or ["fixed"],
        "makespan_s": round(replay.makespan_s, 6),
        "throughput_jobs_per_hour": round(replay.throughput_jobs_per_hour, 6),
        "utilization": round(replay.utilization, 6),
        "fragmentation": round(replay.fragmentation, 6),
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
    """Return least, quartiles, largest and mean; None without values."""
    found = list(values)
    four = quartiles(found)
    if four is None:
        return None
    names = dict(zip(field_names(Quartiles), ("min", "p25", "p50", "p75", "max"), strict=True))
    shown = {names[field]: round(value, 6) for field, value in as_dict(four).items()}
    return {**shown, "mean": round(sum(found) / len(found), 6)}


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
        "wait_s": round(one.wait_s, 6),
        "run_s": round(one.run_s, 6),
        "turnaround_s": round(one.turnaround_s, 6),
        "effective_bandwidth_gb_per_s": _rounded(one.effective_bandwidth),
        "aggregate_bandwidth_gb_per_s": _rounded(one.aggregate_bandwidth),
        "allocation_quality": _rounded(one.quality),
        "slowdown": round(one.slowdown, 6),
        "utility": _rounded(one.utility),
        "violates_slo": one.violates,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
