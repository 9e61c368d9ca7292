"""The document of replays -> a table for a terminal: one line for each policy."""

from gpulaunch.core.duration import format_duration
from gpulaunch.errors import printable
from gpulaunch.render import Document
from gpulaunch.render.terminal import Group, Table, Text, figure, table_of

_QUARTILES = ("min", "p25", "p50", "p75", "max", "mean")


def replays_table(document: Document) -> Group:
    """All runs side by side: the machine, then the sensitive jobs.

    Args:
        document: from replays_document.
    """
    runs = document["runs"]
    first = runs[0]
    machines = f"{first['machines']} x {first['topology']}" if first["machines"] > 1 else first["topology"]
    count, sensitive = len(first["jobs"]), first["sensitive"]["jobs"]
    title = f"{count} jobs ({sensitive} bandwidth-sensitive) on {printable(machines)}, {first['queue']}"
    times = " and ".join(first["time_models"])
    return Group(
        Text(title, "bold"),
        Text(f"run times: {times}; bandwidths by the {first['measured_by']} model", "dim"),
        Text(),
        _whole(runs),
        Text(),
        Text("bandwidth-sensitive jobs", "bold"),
        _sensitive(runs),
    )


def _whole(runs: list[Document]) -> Table:
    columns = ("makespan", "jobs/h", "utilization", "mean wait", "longest", "mean slowdown", "broken up", "SLO missed")
    table = table_of("policy", *columns, right=columns)
    for run in runs:
        table.add_row(
            run["policy"],
            format_duration(round(run["makespan_s"])),
            figure(run["throughput_jobs_per_hour"]),
            f"{run['utilization']:.1%}",
            format_duration(round(run["wait_s"]["mean"])),
            format_duration(round(run["wait_s"]["max"])),
            f"{run['slowdown']['mean'] - 1:.1%}",
            f"{run['fragmentation']:.1%}",
            str(run["slo_violations"]),
        )
    return table


def _sensitive(runs: list[Document]) -> Table | Text:
    if not runs[0]["sensitive"]["jobs"]:
        return Text("none", "dim")
    columns = (*(f"GB/s {name}" for name in _QUARTILES), "no NVLink ring", "mean slowdown")
    table = table_of("policy", *columns, right=columns)
    for run in runs:
        sensitive = run["sensitive"]
        bandwidth = sensitive["effective_bandwidth_gb_per_s"]
        table.add_row(
            run["policy"],
            *(f"{bandwidth[name]:.1f}" for name in _QUARTILES),
            f"{sensitive['without_nvlink_ring'] / sensitive['jobs']:.1%}",
            f"{sensitive['slowdown']['mean'] - 1:.1%}",
        )
    return table
