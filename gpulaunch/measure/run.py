"""One measured run of a job: readings of its GPUs, and the figures that come of them.

Readings are added up as they come, in constant memory. A run is a JSON document where it goes from
the launch that records it to the process that asked for it, or into the file of --record-to.
"""
# pure: decides on plain values

from collections.abc import Callable, Mapping
from math import fsum

from gpulaunch.records import Record, as_dict, field_names, replace
from gpulaunch.typing import Any

STEADY_BYTES = 0.005
"""Largest relative difference from the maximum of memory that counts as at its maximum: a
framework's reservation is constant, but its context may grow.
"""

TAKEN = 0.05
"""Memory under this part of the maximum is only a CUDA context: the job has not allocated yet. Our
choice.
"""

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

STOPPED = "it was stopped"
SHARED = "its GPUs are shared: their counters are those of all jobs on them together"
"""Beginnings of problems that are told apart."""

_DIGITS = 5  # significant


def rounded(value: float) -> float:
    """Round a figure to the five digits that a profile shows."""
    return float(f"{value:.{_DIGITS}g}")


class LinkBytes(Record):
    """The bytes that one NVLink of a GPU carried.

    Attributes:
        sent: bytes sent; of a counter, since an unknown time.
        received: bytes received; of a counter, since an unknown time.
    """

    sent: int
    received: int


class Reading(Record):
    """The counters of one GPU at one moment; None for what it does not report.

    Attributes:
        at_s: time of the reading, by the monotonic clock.
        time_active_percentage: part of the last sixth of a second or so, 0-100, in which any kernel
            ran (NVML).
        memory_active_percentage: part of that time, 0-100, in which device memory was read or
            written (NVML).
        sm_percentage: SMs that were busy since the reading before, averaged over them and over
            time, 0-100 (GPM).
        occupancy_percentage: warps resident of those that would fit, since the reading before,
            0-100 (GPM).
        dram_percentage: DRAM bandwidth in use since the reading before, 0-100 (GPM).
        memory_bytes: device memory in use now.
        power_w: power drawn now.
        energy_j: counter of the energy used.
        links: counters by number of the NVLink; None if they were not read this time.
    """

    at_s: float
    time_active_percentage: float | None = None
    memory_active_percentage: float | None = None
    sm_percentage: float | None = None
    occupancy_percentage: float | None = None
    dram_percentage: float | None = None
    memory_bytes: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    links: Mapping[int, LinkBytes] | None = None

    @property
    def tells_nothing(self) -> bool:
        """Whether the reading has no figure at all."""
        return all(value is None for name, value in as_dict(self).items() if name != "at_s")


class Figures(Record):
    """The use of one GPU by a job; None for what the GPU does not report.

    Percentages are 0-100, and averages over the time covered.

    Attributes:
        samples: number of readings after the first.
        covered_s: seconds between the first reading and the last.
        time_active_percentage: part of the time in which a kernel ran.
        memory_active_percentage: part of the time in which device memory was in use.
        sm_percentage: share of busy SMs, by GPM.
        occupancy_percentage: warp occupancy, by GPM.
        dram_percentage: share of the DRAM bandwidth, by GPM.
        memory_bytes: maximum in use beyond what was in use before the job.
        memory_steady_percentage: part of the time after its allocation that memory was at its
            maximum.
        power_w: power; by the energy counter where there is one.
        energy_j: energy over the time covered.
    """

    samples: int
    covered_s: float
    time_active_percentage: float | None
    memory_active_percentage: float | None
    sm_percentage: float | None
    occupancy_percentage: float | None
    dram_percentage: float | None
    memory_bytes: int | None
    memory_steady_percentage: float | None
    power_w: float | None
    energy_j: float | None


class _Level:
    """The average over time of a quantity that is read again and again.

    Args:
        before: the first value of a momentary quantity, which is interpolated between readings;
            None for a quantity that is an average since the reading before.
    """

    def __init__(self, before: float | None = None) -> None:
        self._before = before
        self._sum = 0.0
        self._covered_s = 0.0

    def add(self, value: float | None, lasting_s: float) -> None:
        if value is None:
            return
        since = value if self._before is None else (self._before + value) / 2
        self._before = None if self._before is None else value
        self._sum += since * lasting_s
        self._covered_s += lasting_s

    @property
    def mean(self) -> float | None:
        return self._sum / self._covered_s if self._covered_s else None


class _Counter:
    """The growth of a counter; what is lost when the driver resets it is not counted."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._covered_s = 0.0
        self.grown = 0.0

    def add(self, value: float | None, at_s: float) -> None:
        if value is None:
            return
        if self._last is not None and value >= self._last[0]:
            self.grown += value - self._last[0]
            self._covered_s += at_s - self._last[1]
        self._last = (value, at_s)

    @property
    def rate(self) -> float | None:
        """Growth per second; None if it is unknown."""
        return self.grown / self._covered_s if self._covered_s else None


class _MemoryMeter:
    """The maximum of device memory, and how long it was at the maximum."""

    def __init__(self, before_bytes: int) -> None:
        self._before_bytes = before_bytes
        self._taken_s = self._steady_s = 0.0
        self.most: int | None = None

    def add(self, used_bytes: int | None, lasting_s: float) -> None:
        if used_bytes is None:
            return
        own = max(0, used_bytes - self._before_bytes)
        before = self.most or 0
        self.most = most = max(before, own)
        if most > before * (1 + STEADY_BYTES):  # a new maximum: earlier time was not at it
            self._steady_s = 0.0
        if most * TAKEN > before:
            self._taken_s = 0.0
        if own and own >= most * TAKEN:
            self._taken_s += lasting_s
            self._steady_s += lasting_s * (own >= most * (1 - STEADY_BYTES))

    @property
    def steady_percentage(self) -> float | None:
        return 100 * self._steady_s / self._taken_s if self._taken_s else None


_LEVELS = (
    "time_active_percentage",
    "memory_active_percentage",
    "sm_percentage",
    "occupancy_percentage",
    "dram_percentage",
    "power_w",
)
_INSTANT = ("power_w",)


class Usage:
    """The running totals of one GPU's readings.

    Args:
        first: the reading before the job begins; memory in use then is not the job's.
    """

    def __init__(self, first: Reading) -> None:
        self._levels = {
            name: _Level(getattr(first, name) if name in _INSTANT else None) for name in _LEVELS
        }
        self._energy = _Counter()
        self._memory = _MemoryMeter(first.memory_bytes or 0)
        self._links: dict[int, tuple[_Counter, _Counter]] = {}
        self._first_s = self._last_s = first.at_s
        self._samples = 0
        self._count(first)

    def add(self, reading: Reading) -> None:
        """Add a reading; its levels count for the time since the reading before."""
        lasting_s = reading.at_s - self._last_s
        for name, level in self._levels.items():
            level.add(getattr(reading, name), lasting_s)
        self._memory.add(reading.memory_bytes, lasting_s)
        self._count(reading)
        self._last_s = reading.at_s
        self._samples += 1

    def _count(self, reading: Reading) -> None:
        self._energy.add(reading.energy_j, reading.at_s)
        for link, carried in (reading.links or {}).items():
            sent, received = self._links.setdefault(link, (_Counter(), _Counter()))
            sent.add(carried.sent, reading.at_s)
            received.add(carried.received, reading.at_s)

    def figures(self) -> Figures:
        """Return the figures of all readings so far."""
        covered_s = self._last_s - self._first_s
        means = {name: level.mean for name, level in self._levels.items()}
        if self._energy.rate is not None:
            means["power_w"] = self._energy.rate
        power_w = means["power_w"]
        return Figures(
            samples=self._samples,
            covered_s=covered_s,
            memory_bytes=self._memory.most,
            memory_steady_percentage=self._memory.steady_percentage,
            energy_j=None if power_w is None else power_w * covered_s,
            **means,
        )

    def carried(self) -> dict[int, LinkBytes]:
        """Return the bytes by number of the NVLink, for links whose counters were read twice."""
        return {
            link: LinkBytes(int(sent.grown), int(received.grown))
            for link, (sent, received) in self._links.items()
            if sent.rate is not None and received.rate is not None
        }


class CountedLink(Record):
    """One NVLink of a GPU, and what it carried during the run.

    Attributes:
        number: NVML's number of the link.
        remote: what is at its other end: "gpu", "switch", "cpu", or "" if unknown.
        peer: index of the GPU at its other end; None if it is no GPU, or an unknown one.
        sent: bytes sent; None if they were not counted.
        received: bytes received; None if they were not counted.
    """

    number: int
    remote: str
    peer: int | None
    sent: int | None = None
    received: int | None = None


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
        date: when it began, ISO 8601, UTC.
        problems: why the measurement is incomplete or cannot be trusted.
        sampling_cpu_percentage: part of one CPU that measuring took, 0-100.
        beside: name of the only job that shared its GPUs, from its start to its end; None if there
            was none, or another came or went.
        promised_slowdown: time beside that job / time alone - 1, as predicted at its start.
    """

    command: tuple[str, ...]
    exit_status: int
    duration_s: float
    gpus: tuple[GpuRun, ...]
    date: str
    problems: tuple[str, ...] = ()
    sampling_cpu_percentage: float = 0.0
    beside: str | None = None
    promised_slowdown: float | None = None

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

    @property
    def models(self) -> str:
        """Product names of its GPUs."""
        return ", ".join(sorted({gpu.model for gpu in self.gpus}))


def figures_of(run: Run) -> dict[str, float]:
    """Return the known figures of a run by their keys in a profile's [resources].

    All are per GPU: averages are taken over time and over the GPUs; memory is that of the GPU that
    uses most.
    """
    true = run.has_gpm
    memory = _combine_known(run, "memory_bytes", max)
    found = {
        # rounded up: a job that shares a GPU must not be short of memory
        "memory_mib": -int(-memory // (1 << 20)) if memory else None,
        "sm_utilization_percentage": _mean(
            run, "sm_percentage" if true else "time_active_percentage"
        ),
        "sm_occupancy_percentage": _mean(run, "occupancy_percentage"),
        "memory_bandwidth_utilization_percentage": _mean(
            run, "dram_percentage" if true else "memory_active_percentage"
        ),
        "time_active_percentage": _mean(run, "time_active_percentage"),
        "power_w": _mean(run, "power_w"),
        "energy_j": _mean(run, "energy_j"),
        "duration_s": run.duration_s,
    }
    return {key: value for key, value in found.items() if value is not None}


def _mean(run: Run, name: str) -> float | None:
    return _combine_known(run, name, lambda values: fsum(values) / len(values))


def _combine_known(run: Run, name: str, combine: Callable[[list[float]], float]) -> float | None:
    values = [getattr(gpu.figures, name) for gpu in run.gpus]
    known = [value for value in values if value is not None]
    return combine(known) if known else None


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
    """Return a run as a JSON document."""
    gpus = []
    for gpu in run.gpus:
        links = [as_dict(link) for link in gpu.links]
        gpus.append({**as_dict(gpu), "figures": as_dict(gpu.figures), "links": links})
    return {**as_dict(run), "complete": run.is_complete, "figures": figures_of(run), "gpus": gpus}


def run_of(document: Mapping[str, Any]) -> Run:
    """Return the run of a document that run_document made."""
    gpus = []
    for gpu in document["gpus"]:
        links = tuple(CountedLink(**link) for link in gpu["links"])
        gpus.append(GpuRun(**{**gpu, "figures": Figures(**gpu["figures"]), "links": links}))
    run = Run(**{name: document[name] for name in field_names(Run)})
    return replace(
        run,
        command=tuple(run.command),
        problems=tuple(run.problems),
        gpus=tuple(gpus),
    )
