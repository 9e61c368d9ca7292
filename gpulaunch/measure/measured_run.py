"""One measured run of a job, and the figures of the job as a whole."""
# pure: decides on plain values

from collections.abc import Callable, Iterable, Mapping
from math import fsum

from gpulaunch.measure.usage import Figures, LinkBytes
from gpulaunch.records import Record, as_dict, field_names, replace
from gpulaunch.typing import Any

RESERVATION_STEADY_PERCENTAGE = 95.0
"""Least part of the time, from the allocation to the job's end, that memory is at its maximum in
a framework's reservation. Our choice.
"""

RESERVED_PERCENTAGE = 75.0
"""Share of a card that JAX (XLA_PYTHON_CLIENT_MEM_FRACTION=.75) and AMReX take by default,
whatever they need.
"""

RESERVED_WITHIN = 1.5
"""Tolerance around that share, in points: CUDA's context comes on top, and the driver keeps some
of the card.
"""

RESERVED_FROM_PERCENTAGE = 85.0
"""Least share of other reservations: TensorFlow takes all there is, vLLM 90 %, SGLang 88 %."""

SHARE, TIME_ACTIVE = "share", "time-active"


class CountedLink(Record):
    """One NVLink of a GPU.

    Attributes:
        number: NVML's number of the link.
        remote: what is at its other end: "gpu", "switch", "cpu", or "" if unknown.
        peer: index of the GPU at its other end; None if it is no GPU, or an unknown one.
    """

    number: int
    remote: str
    peer: int | None


class GpuRun(Record):
    """The readings of one of a job's GPUs.

    Attributes:
        gpu: index of the GPU.
        uuid: UUID of the GPU.
        model: product name.
        memory_bytes: size of its memory.
        figures: use from the job's beginning to its end, or until the readings stopped.
        has_gpm: whether its SM and DRAM figures are true shares.
        links: its NVLinks that are up.
        problem: why it was not read to the end; None if it was.
    """

    gpu: int
    uuid: str
    model: str
    memory_bytes: int
    figures: Figures
    has_gpm: bool
    links: tuple[CountedLink, ...] = ()
    problem: str | None = None


class Run(Record):
    """One run of a job.

    Attributes:
        command: argv.
        exit_status: exit status as a shell shows it, 0-255.
        duration_s: seconds from its start to its end.
        gpus: its GPUs, by rank.
        driver: version of the NVIDIA driver; None if unknown.
        date: when it began, ISO 8601, UTC.
        problems: why the measurement is incomplete or cannot be trusted.
        sampling_cpu_percentage: part of one CPU that measuring took, 0-100.
        beside: name of the only job that shared its GPUs, from its start to its end; None if there
            was none, or another came or went.
        promised_slowdown: time beside that job / time alone - 1, as predicted at its start.
        nccl_pattern: name of the pattern that NCCL's log shows; "unknown" if it does not show one,
            None without a log.
        nccl_confidence: confidence of that pattern; None without a log.
    """

    command: tuple[str, ...]
    exit_status: int
    duration_s: float
    gpus: tuple[GpuRun, ...]
    driver: str | None
    date: str
    problems: tuple[str, ...] = ()
    sampling_cpu_percentage: float = 0.0
    beside: str | None = None
    promised_slowdown: float | None = None
    nccl_pattern: str | None = None
    nccl_confidence: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the job succeeded and all its GPUs were read to its end."""
        return (
            self.exit_status == 0
            and not self.problems
            and not any(gpu.problem for gpu in self.gpus)
        )

    @property
    def has_gpm(self) -> bool:
        """Whether the SM and DRAM figures of all its GPUs are true shares."""
        return bool(self.gpus) and all(
            gpu.has_gpm and gpu.figures.sm_percentage is not None for gpu in self.gpus
        )


def figures_of(run: Run) -> dict[str, float]:
    """Return the known figures of a run by their keys in a profile's [resources].

    All are per GPU: averages are taken over time and over the GPUs; maxima and memory are those of
    the GPU that has the most.
    """
    all_of = [gpu.figures for gpu in run.gpus]
    true = run.has_gpm

    def mean(name: str) -> float | None:
        return _combine_known(all_of, name, lambda values: fsum(values) / len(values))

    def most(name: str) -> float | None:
        return _combine_known(all_of, name, max)

    sent = [
        _nvlink_gb_per_s(figures, "sent")
        for figures in all_of
        if figures.links and figures.covered_s
    ]
    received = [
        _nvlink_gb_per_s(figures, "received")
        for figures in all_of
        if figures.links and figures.covered_s
    ]
    memory, memory_mean = most("memory_bytes"), most("memory_mean_bytes")
    found = {
        "memory_mib": _to_mib(memory) if memory else None,
        "memory_mean_mib": _to_mib(memory_mean) if memory_mean else None,
        "sm_utilization_percentage": mean("sm_percentage" if true else "time_active_percentage"),
        "sm_utilization_max_percentage": most(
            "sm_max_percentage" if true else "time_active_max_percentage"
        ),
        "sm_occupancy_percentage": mean("occupancy_percentage"),
        "memory_bandwidth_utilization_percentage": mean(
            "dram_percentage" if true else "memory_active_percentage"
        ),
        "memory_bandwidth_utilization_max_percentage": most(
            "dram_max_percentage" if true else "memory_active_max_percentage"
        ),
        "time_active_percentage": mean("time_active_percentage"),
        "idle_percentage": mean("idle_percentage"),
        "power_w": mean("power_w"),
        "power_max_w": most("power_max_w"),
        "power_cap_percentage": mean("power_cap_percentage"),
        "energy_j": mean("energy_j"),
        "duration_s": run.duration_s,
        "pcie_tx_gb_per_s": mean("pcie_sent_gb_per_s"),
        "pcie_rx_gb_per_s": mean("pcie_received_gb_per_s"),
        "nvlink_tx_gb_per_s": fsum(sent) / len(sent) if sent else None,
        "nvlink_rx_gb_per_s": fsum(received) / len(received) if received else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _combine_known(
    all_of: list[Figures], name: str, combine: Callable[[list[float]], float]
) -> float | None:
    values = [value for figures in all_of if (value := getattr(figures, name)) is not None]
    return combine(values) if values else None


def _to_mib(size_bytes: float) -> int:
    """Return whole MiB, rounded up: a job that shares a GPU must not be short of memory."""
    return -int(-size_bytes // (1 << 20))


def _nvlink_gb_per_s(figures: Figures, way: str) -> float:
    """Return the average GB/s over all links of a GPU, "sent" or "received"."""
    carried: int = sum(getattr(link, way) for link in figures.links.values())
    return carried / figures.covered_s / 1e9


def is_reservation(run: Run) -> bool:
    """Return whether the memory looks like a framework's reservation rather than the job's need.

    A reservation is constant once taken, at a share of the card that frameworks are known to take.

    Source: mps-sharing-2024 Table II, WarpX: 61,453 MiB at both problem sizes, three quarters of
        the card. JAX: docs, GPU memory allocation. vLLM: gpu_memory_utilization 0.9.
    """
    return any(map(_looks_reserved, run.gpus))


def _looks_reserved(gpu: GpuRun) -> bool:
    most, steady = gpu.figures.memory_bytes, gpu.figures.memory_steady_percentage
    if not most or not gpu.memory_bytes or steady is None or steady < RESERVATION_STEADY_PERCENTAGE:
        return False
    share = 100 * most / gpu.memory_bytes
    return abs(share - RESERVED_PERCENTAGE) <= RESERVED_WITHIN or share >= RESERVED_FROM_PERCENTAGE


def run_document(run: Run) -> dict[str, Any]:
    """Return a run as the JSON document that `-o record_to=FILE` writes."""
    return {
        **as_dict(run),
        "command": list(run.command),
        "complete": run.is_complete,
        "figures": figures_of(run),
        "gpus": [_gpu_document(gpu) for gpu in run.gpus],
        "problems": list(run.problems),
    }


def _gpu_document(gpu: GpuRun) -> dict[str, Any]:
    figures = as_dict(gpu.figures)
    carried = figures.pop("links")
    links = []
    for link in gpu.links:
        amounts = carried.get(link.number, LinkBytes(0, 0))
        counted = link.number in carried
        links.append({**as_dict(link), **as_dict(amounts), "counted": counted})
    return {**as_dict(gpu), "figures": figures, "links": links}


def run_of(document: Mapping[str, Any]) -> Run:
    """Return the run of a document that run_document made."""
    fields = {name: document[name] for name in field_names(Run)}
    return replace(
        Run(**fields),
        command=tuple(document["command"]),
        gpus=tuple(map(_gpu_of, document["gpus"])),
        problems=tuple(document["problems"]),
    )


def _gpu_of(document: Mapping[str, Any]) -> GpuRun:
    links: Iterable[Mapping[str, Any]] = document["links"]
    carried = {
        link["number"]: LinkBytes(link["sent"], link["received"])
        for link in links
        if link["counted"]
    }
    return replace(
        GpuRun(**{name: document[name] for name in field_names(GpuRun)}),
        figures=Figures(**document["figures"], links=carried),
        links=tuple(
            CountedLink(*(link[name] for name in field_names(CountedLink))) for link in links
        ),
    )
