"""The document of `gpulaunch status` as metrics in OpenMetrics text.

Source of the format: OpenMetrics 1.0, https://prometheus.io/docs/specs/om/open_metrics_spec/.
"""

from collections.abc import Iterable, Iterator, Mapping

from gpulaunch.files.iso_time import parse_time
from gpulaunch.records import Record
from gpulaunch.show import Document
from gpulaunch.show.status_cells import describe_job

Labels = Mapping[str, str]


class Gauge(Record):
    """A metric of a GPU that comes from one key of its document.

    Attributes:
        name: name of the metric, without the prefix.
        unit: unit at the end of its name, or empty.
        help: description.
        key: key of a GPU in the document.
        factor: what the value is multiplied by.
    """

    name: str
    unit: str
    help: str
    key: str
    factor: float = 1.0


_OF_GPUS = (
    Gauge(
        "gpu_utilization_ratio",
        "ratio",
        "Part of the last moment in which a kernel ran.",
        "utilization_percentage",
        0.01,
    ),
    Gauge(
        "gpu_memory_utilization_ratio",
        "ratio",
        "Part of it in which memory was read or written.",
        "memory_utilization_percentage",
        0.01,
    ),
    Gauge("gpu_memory_used_bytes", "bytes", "Memory in use.", "memory_used_bytes"),
    Gauge("gpu_memory_total_bytes", "bytes", "All memory.", "memory_total_bytes"),
    Gauge("gpu_power_watts", "watts", "Power drawn now.", "power_w"),
    Gauge("gpu_power_limit_watts", "watts", "Power that may be drawn.", "power_limit_w"),
    Gauge("gpu_temperature_celsius", "celsius", "Temperature.", "temperature_c"),
)
_STATES = ("free", "leased", "shared", "outside", "drained", "barred")


def openmetrics_text(document: Document) -> str:
    """Return the metrics of a machine; what is unknown is left out."""
    return "\n".join([*_lines(document), "# EOF", ""])


def _lines(document: Document) -> Iterator[str]:
    gpus, leases, queue = document["gpus"], document["leases"], document["queue"]
    where = {"topology": document["topology"]}
    states = [
        ({**where, "state": state}, sum(gpu["state"] == state for gpu in gpus)) for state in _STATES
    ]
    yield from _metric("gpus", "", "GPUs of the machine by state.", states)
    problems = [(where, len(document["problems"]))]
    yield from _metric("problems", "", "Reasons why no launch gets a GPU now.", problems)
    yield from _metric(
        "gpu_healthy",
        "",
        "1 if nothing bars the GPU.",
        [(_gpu_labels(gpu, where), int(not gpu["problems"])) for gpu in gpus],
    )
    for gauge in _OF_GPUS:
        samples = [
            (_gpu_labels(gpu, where), gpu[gauge.key] * gauge.factor)
            for gpu in gpus
            if gpu[gauge.key] is not None
        ]
        yield from _metric(gauge.name, gauge.unit, gauge.help, samples)
    waiting = [(where, len(queue))]
    yield from _metric("queue_requests", "", "Launches that wait.", waiting)
    yield from _metric(
        "queue_gpus",
        "",
        "GPUs that they ask for.",
        [(where, sum(ticket["gpus"] for ticket in queue))],
    )
    yield from _metric(
        "lease_gpus",
        "",
        "GPUs of a lease.",
        [(_lease_labels(lease, where), len(lease["uuids"])) for lease in leases],
    )
    started = [
        (_lease_labels(lease, where), time)
        for lease in leases
        if (time := _unix_time(lease["started_at"])) is not None
    ]
    yield from _metric(
        "lease_start_time_seconds", "seconds", "Start of a lease, Unix time.", started
    )
    limits = [
        (_lease_labels(lease, where), lease["time_limit_s"])
        for lease in leases
        if lease["time_limit_s"] is not None
    ]
    yield from _metric("lease_time_limit_seconds", "seconds", "Longest time of a lease.", limits)
    yield from _metric(
        "lease_stopped",
        "",
        "1 if the job of a lease is stopped.",
        [(_lease_labels(lease, where), int(lease["stopped"])) for lease in leases],
    )
    held = [
        ({**_gpu_labels(gpu, where), "lease": lease["id"], "user": lease["user"]}, 1)
        for gpu in gpus
        for lease in leases
        if lease["id"] in gpu["leases"]
    ]
    yield from _metric("gpu_lease", "", "1 for each GPU that a lease has.", held)


def _metric(
    name: str, unit: str, text: str, samples: Iterable[tuple[Labels, float]]
) -> Iterator[str]:
    """Yield the lines of one metric; none if it has no samples."""
    samples = list(samples)
    if not samples:
        return
    full = f"gpulaunch_{name}"
    yield f"# TYPE {full} gauge"
    if unit:
        yield f"# UNIT {full} {unit}"
    yield f"# HELP {full} {_escaped(text)}"
    for labels, value in samples:
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
        "job": describe_job(lease),
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
