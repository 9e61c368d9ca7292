"""The document of `gpulaunch status` as metrics in OpenMetrics text.

Source of the format: OpenMetrics 1.0, https://prometheus.io/docs/specs/om/open_metrics_spec/.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpulaunch.process.system import parse_time
from gpulaunch.show import Document

Labels = Mapping[str, str]


_STATES = ("free", "leased", "shared", "outside", "drained", "barred")
_OF_GPUS = {  # key of a GPU in the document: metric, factor, unit, description
    "utilization_percentage": (
        *("gpu_utilization_ratio", 0.01, "ratio"),
        "Part of the last moment in which a kernel ran.",
    ),
    "memory_utilization_percentage": (
        *("gpu_memory_utilization_ratio", 0.01, "ratio"),
        "Part of it in which memory was read or written.",
    ),
    "memory_used_bytes": ("gpu_memory_used_bytes", 1, "bytes", "Memory in use."),
    "memory_total_bytes": ("gpu_memory_total_bytes", 1, "bytes", "All memory."),
    "power_w": ("gpu_power_watts", 1, "watts", "Power drawn now."),
    "power_limit_w": ("gpu_power_limit_watts", 1, "watts", "Power that may be drawn."),
    "temperature_c": ("gpu_temperature_celsius", 1, "celsius", "Temperature."),
}


def openmetrics_text(document: Document) -> str:
    """Return the metrics of a machine; what is unknown is left out."""
    return "\n".join([*_lines(document), "# EOF", ""])


def _lines(document: Document) -> Iterator[str]:
    queue, where = document["queue"], {"topology": document["topology"]}
    gpus = [(_gpu_labels(gpu, where), gpu) for gpu in document["gpus"]]
    leases = [(_lease_labels(lease, where), lease) for lease in document["leases"]]
    counts = Counter(gpu["state"] for _, gpu in gpus)
    states = [({**where, "state": state}, counts[state]) for state in _STATES]
    yield from _metric("gpus", "", "GPUs of the machine by state.", states)
    problems = [(where, len(document["problems"]))]
    yield from _metric("problems", "", "Reasons why no launch gets a GPU now.", problems)
    healthy = [(labels, int(not gpu["problems"])) for labels, gpu in gpus]
    yield from _metric("gpu_healthy", "", "1 if nothing bars the GPU.", healthy)
    for key, (name, factor, unit, text) in _OF_GPUS.items():
        known = [(labels, gpu[key] * factor) for labels, gpu in gpus if gpu[key] is not None]
        yield from _metric(name, unit, text, known)
    yield from _metric("queue_requests", "", "Launches that wait.", [(where, len(queue))])
    wanted = [(where, sum(ticket["gpus"] for ticket in queue))]
    yield from _metric("queue_gpus", "", "GPUs that they ask for.", wanted)
    sizes = [(labels, len(lease["uuids"])) for labels, lease in leases]
    yield from _metric("lease_gpus", "", "GPUs of a lease.", sizes)
    starts = [(labels, _unix_time(lease["started_at"])) for labels, lease in leases]
    text = "Start of a lease, Unix time."
    yield from _metric("lease_start_time_seconds", "seconds", text, starts)
    limits = [(labels, lease["time_limit_s"]) for labels, lease in leases]
    text = "Longest time of a lease."
    yield from _metric("lease_time_limit_seconds", "seconds", text, limits)
    stopped = [(labels, int(lease["stopped"])) for labels, lease in leases]
    yield from _metric("lease_stopped", "", "1 if the job of a lease is stopped.", stopped)
    held = [
        ({**labels, "lease": lease["id"], "user": lease["user"]}, 1)
        for labels, gpu in gpus
        for _, lease in leases
        if lease["id"] in gpu["leases"]
    ]
    yield from _metric("gpu_lease", "", "1 for each GPU that a lease has.", held)


def _metric(
    name: str, unit: str, text: str, samples: Sequence[tuple[Labels, float | None]]
) -> Iterator[str]:
    """Yield the lines of one metric; none if none of its samples is known."""
    known = [(labels, value) for labels, value in samples if value is not None]
    if not known:
        return
    full = f"gpulaunch_{name}"
    yield f"# TYPE {full} gauge"
    if unit:
        yield f"# UNIT {full} {unit}"
    yield f"# HELP {full} {_escaped(text)}"
    for labels, value in known:
        inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        yield f"{full}{{{inside}}} {value:.10g}"


def _gpu_labels(gpu: Document, where: Labels) -> Labels:
    return {**where, "gpu": gpu["name"], "uuid": gpu["uuid"], "model": gpu["model"]}


def _lease_labels(lease: Document, where: Labels) -> Labels:
    return {
        **where,
        "lease": lease["id"],
        "user": lease["user"],
        "profile": lease["profile"] or "",
        "job": lease["name"] or shlex.join(lease["command"]),
    }


def _unix_time(text: str) -> float | None:
    try:
        return parse_time(text).timestamp()
    except ValueError:  # another user wrote the record
        return None


def _escaped(text: str) -> str:
    """Escape text for a label or a help line, without bytes that are no UTF-8."""
    text = text.encode(errors="backslashreplace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
