"""Words and figures about replays for people: a title, and one row for each policy."""

from gpulaunch.errors import printable
from gpulaunch.files.duration import format_duration
from gpulaunch.records import Record
from gpulaunch.show import Document
from gpulaunch.show.terminal import figure

_QUARTILES = ("min", "p25", "p50", "p75", "max", "mean")


class Rows(Record):
    """A table of words and figures.

    Attributes:
        columns: names of the first column, which has text, and of the others, which have figures.
        rows: one row for each policy; empty if there is nothing to show.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def replayed(document: Document) -> tuple[str, str]:
    """Return a title for what was replayed, and a line on how.

    Args:
        document: the document from replays_document.
    """
    first = document["runs"][0]
    machines = (
        f"{first['machines']} x {first['topology']}" if first["machines"] > 1 else first["topology"]
    )
    count, sensitive = len(first["jobs"]), first["sensitive"]["jobs"]
    jobs = f"{count} job{'' if count == 1 else 's'}"
    title = f"{jobs} ({sensitive} bandwidth-sensitive) on {printable(machines)}, {first['queue']}"
    times = " and ".join(first["time_models"])
    return title, f"run times: {times}; bandwidths by the {first['measured_by']} model"


KEY = (
    "in use: GPU time that was held; broken: GPU time that was free on a socket where others ran; "
    "slower: mean run time over that alone on the best GPUs; SLO: jobs that ran with less than "
    "they need; no ring: none over NVLinks alone"
)
"""The meaning of the columns."""


def all_jobs(document: Document) -> Rows:
    """Return the rows about all jobs of each run, and the machines.

    Args:
        document: the document from replays_document.
    """
    columns = ("makespan", "jobs/h", "in use", "broken", "wait", "longest", "slower", "SLO")
    rows = (
        (
            run["policy"],
            format_duration(round(run["makespan_s"])),
            figure(run["throughput_jobs_per_hour"]),
            f"{run['utilization']:.1%}",
            f"{run['fragmentation']:.1%}",
            format_duration(round(run["wait_s"]["mean"])),
            format_duration(round(run["wait_s"]["max"])),
            f"{run['slowdown']['mean'] - 1:.1%}",
            str(run["slo_violations"]),
        )
        for run in document["runs"]
    )
    return Rows(("policy", *columns), tuple(rows))


def sensitive_jobs(document: Document) -> Rows:
    """Return the rows about bandwidth-sensitive jobs, of each run that has some.

    Args:
        document: the document from replays_document.
    """
    columns = (*_QUARTILES, "no ring", "slower")
    rows = []
    for run in document["runs"]:
        sensitive = run["sensitive"]
        bandwidth = sensitive["effective_bandwidth_gb_per_s"]
        if sensitive["jobs"]:
            quartiles = (f"{bandwidth[name]:.1f}" for name in _QUARTILES)
            ringless = f"{sensitive['without_nvlink_ring'] / sensitive['jobs']:.1%}"
            rows.append(
                (run["policy"], *quartiles, ringless, f"{sensitive['slowdown']['mean'] - 1:.1%}")
            )
    return Rows(("policy", *columns), tuple(rows))
