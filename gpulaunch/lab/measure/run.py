"""One measured run of a job: readings of its GPUs, and the figures that come of them.

Readings are added up as they come, in constant memory. A run is a JSON document where it goes from
the launch that records it to the process that asked for it, or into the file of --record-to. The
counters of NVLink give the communication graph of its job (mapa-sc21 3.1, Figure 9b).
"""
# pure: decides on plain values

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import fsum, inf
from typing import Any

from gpulaunch.profiles.pattern import is_whole
from gpulaunch.records import Record, as_dict, field_names

STEADY_BYTES = 0.005
"""Largest relative difference from the maximum of memory that counts as at its maximum: a
framework's reservation is constant, but its context may grow.
"""

TAKEN = 0.05
"""Memory under this part of the maximum is only a CUDA context: the job has not allocated yet. Our
choice.
"""

STEADY_PERCENTAGE = 95.0
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

    @property
    def tells_nothing(self) -> bool:
        """Whether the reading has no figure at all."""
        return all(value is None for name, value in as_dict(self).items() if name != "at_s")


_LEVELS = (
    "time_active_percentage",
    "memory_active_percentage",
    "sm_percentage",
    "occupancy_percentage",
    "dram_percentage",
    "power_w",
)


class Usage:
    """The running totals of one GPU's readings.

    Args:
        first: the reading before the job begins; memory in use then is not the job's.
    """

    def __init__(self, first: Reading) -> None:
        self.samples = 0
        self._first = self._last = first
        self._sums = dict.fromkeys(_LEVELS, 0.0)
        self._covered_s = dict.fromkeys(_LEVELS, 0.0)
        self._memory_bytes: int | None = None  # the most in use beyond what was before the job
        self._taken_s = self._steady_s = 0.0  # time with its memory, and with the most of it
        self._counted = first  # the last reading that has the energy

    def add(self, reading: Reading) -> None:
        """Add a reading; its levels count for the time since the reading before."""
        lasting_s = reading.at_s - self._last.at_s
        for name in _LEVELS:
            value = getattr(reading, name)
            if value is not None:
                self._sums[name] += value * lasting_s
                self._covered_s[name] += lasting_s
        if reading.memory_bytes is not None:
            self._add_memory(reading.memory_bytes, lasting_s)
        if reading.energy_j is not None:
            self._counted = reading
        self._last = reading
        self.samples += 1

    def _add_memory(self, used_bytes: int, lasting_s: float) -> None:
        own = max(0, used_bytes - (self._first.memory_bytes or 0))
        before = self._memory_bytes or 0
        self._memory_bytes = most = max(before, own)
        if most > before * (1 + STEADY_BYTES):  # a new maximum: earlier time was not at it
            self._steady_s = 0.0
        if most * TAKEN > before:
            self._taken_s = 0.0
        if own and own >= most * TAKEN:
            self._taken_s += lasting_s
            self._steady_s += lasting_s * (own >= most * (1 - STEADY_BYTES))

    def figures(self) -> dict[str, float]:
        """Return the figures of all readings so far, without those that are unknown.

        They have the names of a reading's, and are averages over time, but for memory_bytes: the
        maximum in use beyond what was in use before the job; memory_steady_percentage: the part of
        the time after its allocation that memory was at its maximum, 0-100; and energy_j: the
        energy from the first reading to the last. Power is that of the energy counter where there
        is one.
        """
        found: dict[str, float | None] = {}
        for name, covered_s in self._covered_s.items():
            found[name] = self._sums[name] / covered_s if covered_s else None
        before_j, after_j = self._first.energy_j, self._counted.energy_j
        counted_s = self._counted.at_s - self._first.at_s
        # A driver that was reset has begun to count anew.
        if before_j is not None and after_j is not None and after_j >= before_j and counted_s:
            found["power_w"] = (after_j - before_j) / counted_s
        if found["power_w"] is not None:
            found["energy_j"] = found["power_w"] * (self._last.at_s - self._first.at_s)
        found["memory_bytes"] = self._memory_bytes
        if self._taken_s:
            found["memory_steady_percentage"] = 100 * self._steady_s / self._taken_s
        return {name: value for name, value in found.items() if value is not None}


class PeerTraffic(Record):
    """The bytes that a GPU exchanged with another one over the NVLinks between them.

    Attributes:
        sent: None, as received, if they were not counted.
    """

    peer: int
    sent: int | None = None
    received: int | None = None


class GpuRun(Record):
    """The readings of one of a job's GPUs.

    Attributes:
        figures: its use from the job's beginning to its end, or until the readings stopped, as of
            Usage.figures.
        traffic: what went over its NVLinks, by the GPU at their other end.
        hides_peers: whether an NVLink ends at an NVSwitch or at something unknown, so that its
            traffic with other GPUs does not show.
    """

    gpu: int
    uuid: str
    model: str
    memory_bytes: int
    figures: Mapping[str, float]
    samples: int = 0
    traffic: tuple[PeerTraffic, ...] = ()
    hides_peers: bool = False


class RunBeside(Record):
    """The part of a run in which a job shared its GPUs with others, always the same.

    Attributes:
        names: names of the others, ascending.
        caps: the job's cap in % of the SMs, then those of the others.
        alone_s: seconds of the run in which they were not there.
        speed_alone: predicted speed of the job at its cap meanwhile.
        speed_beside: its predicted speed beside the others; None where it is only a guess.
    """

    names: tuple[str, ...]
    caps: tuple[int, ...]
    alone_s: float
    speed_alone: float
    speed_beside: float | None

    def speed(self, duration_s: float, whole_s: float) -> float:
        """Return the job's speed beside the others, as a share of its speed alone.

        Args:
            whole_s: seconds that it takes alone on the whole GPU.
        """
        done_s = min(self.alone_s * self.speed_alone, 0.99 * whole_s)
        return (whole_s - done_s) / max(duration_s - self.alone_s, 1e-9)


class Run(Record):
    """One run of a job.

    Attributes:
        exit_status: exit status as a shell shows it, 0-255.
        date: when it began, ISO 8601, UTC.
        problems: why the measurement is incomplete or cannot be trusted.
        beside: the jobs that shared its GPUs; None if there were none, or others came or went.
    """

    command: tuple[str, ...]
    exit_status: int
    duration_s: float
    gpus: tuple[GpuRun, ...]
    date: str
    problems: tuple[str, ...] = ()
    beside: RunBeside | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the job succeeded and all its GPUs were read to its end."""
        return self.exit_status == 0 and not self.problems

    @property
    def has_gpm(self) -> bool:
        """Whether the SM and DRAM figures of all its GPUs are true shares."""
        return bool(self.gpus) and all("sm_percentage" in gpu.figures for gpu in self.gpus)

    @property
    def models(self) -> str:
        """Product names of its GPUs."""
        return ", ".join(sorted({gpu.model for gpu in self.gpus}))


def figures_of(run: Run) -> dict[str, float]:
    """Return the known figures of a run by their keys in a profile's [resources].

    All are per GPU: averages are taken over time and over the GPUs; memory is that of the GPU that
    uses most.
    """
    found: dict[str, float] = {}
    memory = max((gpu.figures.get("memory_bytes", 0) for gpu in run.gpus), default=0)
    if memory:  # rounded up: a job that shares a GPU must not be short of memory
        found["memory_mib"] = -int(-memory // (1 << 20))
    sm, bandwidth = "time_active_percentage", "memory_active_percentage"
    if run.has_gpm:
        sm, bandwidth = "sm_percentage", "dram_percentage"
    names = {
        "sm_utilization_percentage": sm,
        "sm_occupancy_percentage": "occupancy_percentage",
        "memory_bandwidth_utilization_percentage": bandwidth,
        "time_active_percentage": "time_active_percentage",
        "power_w": "power_w",
        "energy_j": "energy_j",
    }
    for key, name in names.items():
        known = [gpu.figures[name] for gpu in run.gpus if name in gpu.figures]
        if known:
            found[key] = fsum(known) / len(known)
    found["duration_s"] = run.duration_s
    return found


def is_reservation(run: Run) -> bool:
    """Return whether the memory looks like a framework's reservation rather than the job's need.

    A reservation is constant once taken, at a share of the card that frameworks are known to take.

    Source: mps-sharing-2024 Table II, WarpX: 61,453 MiB at both problem sizes, three quarters of
        the card. JAX: docs, GPU memory allocation. vLLM: gpu_memory_utilization 0.9.
    """
    for gpu in run.gpus:
        is_steady = gpu.figures.get("memory_steady_percentage", 0.0) >= STEADY_PERCENTAGE
        # Of some GPUs the driver does not tell how much memory they have.
        share = 100 * gpu.figures.get("memory_bytes", 0) / (gpu.memory_bytes or inf)
        is_usual = abs(share - RESERVED_PERCENTAGE) <= RESERVED_WITHIN
        if is_steady and (is_usual or share >= RESERVED_FROM_PERCENTAGE):
            return True
    return False


def run_document(run: Run) -> dict[str, Any]:
    """Return a run as a JSON document."""
    gpus = []
    for gpu in run.gpus:
        traffic = [as_dict(one) for one in gpu.traffic]
        gpus.append({**as_dict(gpu), "traffic": traffic})
    return {
        **as_dict(run),
        "beside": as_dict(run.beside) if run.beside else None,
        "complete": run.is_complete,
        "figures": figures_of(run),
        "gpus": gpus,
    }


def run_of(document: Mapping[str, Any]) -> Run:
    """Return the run of a document that run_document made."""
    gpus = []
    for gpu in document["gpus"]:
        traffic = tuple(PeerTraffic(**one) for one in gpu["traffic"])
        gpus.append(GpuRun(**{**gpu, "traffic": traffic}))
    run: dict[str, Any] = {name: document[name] for name in field_names(Run)}
    run |= {"gpus": tuple(gpus), "beside": None}
    run |= {name: tuple(run[name]) for name in ("command", "problems")}
    return Run(**run)


NOISE_SHARE = 0.01
"""Least traffic of a pair that has an edge, as part of the busiest pair's. Our choice.

An edge matters where it can be the slowest for its weight. Under 1 % its link would have to be 100
times slower than the busiest pair's; from four bonded NVLinks to PCIe 3 x16 it is 9 times. What is
left out is what every process with peer access does: set-up, flags, barriers.
"""

NOISE_BYTES = 1 << 20
"""Least traffic of a pair that has an edge: the counters step by 1 KiB, and set-up alone moves
some. Our choice.
"""

_GB = 1e9
_MOST_PAIRS = 6  # that a line names


def communication_of(run: Run, source: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the [communication] of a profile that a run shows, and lines about it.

    The section is empty if the counters do not show a graph that joins all ranks.

    Args:
        run: a run on any number of GPUs; on one there is no communication.
    """
    if len(run.gpus) < 2:
        return {}, ()
    if any(gpu.hides_peers for gpu in run.gpus):
        return {}, ("who talks to whom does not show: NVLinks end at an NVSwitch, or unknown",)
    amounts = traffic_between(run.gpus)
    if amounts is None:
        return {}, ("who talks to whom does not show: some NVLinks have no counters",)
    floor = max(NOISE_BYTES, NOISE_SHARE * max(amounts.values(), default=0.0))
    edges = [(*pair, amount / _GB) for pair, amount in amounts.items() if amount >= floor]
    lines = []
    if edges:
        heaviest = sorted(edges, key=lambda edge: -edge[2])[:_MOST_PAIRS]
        shown = [f"ranks {a}-{b} {gb / run.duration_s:.3g} GB/s" for a, b, gb in heaviest]
        more = f" and {len(edges) - _MOST_PAIRS} more" if len(edges) > _MOST_PAIRS else ""
        lines.append(f"over direct NVLinks, both ways: {', '.join(shown)}{more}")
    elif amounts:
        lines.append("no pair of ranks talked over direct NVLinks")
    section: dict[str, Any] = {}
    if is_whole(edges, len(run.gpus)):
        section["edges"] = [[a, b, rounded(gb)] for a, b, gb in edges]
        section["source"] = f"{source}: NVLink counters of {len(run.gpus)} {run.models}, {run.date}"
    return section, tuple(lines)


def traffic_between(gpus: Sequence[GpuRun]) -> dict[tuple[int, int], float] | None:
    """Return the bytes that each pair of ranks with direct NVLinks exchanged, in both directions.

    What one end sent, the other end received: each direction is counted twice, and its traffic is
    the mean of the two, or the one that is known. It is None if a direction was counted at neither.

    Args:
        gpus: the job's GPUs in rank order, with different indices.

    Source: mapa-sc21 3.1 and Figure 9b, which reads edges off links that join two GPUs directly. It
        says nothing of NVSwitch, and of ends that disagree.
    """
    amounts = {}
    for a, b in combinations(range(len(gpus)), 2):
        one = [traffic for traffic in gpus[a].traffic if traffic.peer == gpus[b].gpu]
        other = [traffic for traffic in gpus[b].traffic if traffic.peer == gpus[a].gpu]
        if not one and not other:
            continue
        there = [each.sent for each in one] + [each.received for each in other]
        back = [each.received for each in one] + [each.sent for each in other]
        amounts[a, b] = 0.0
        for ends in (there, back):
            known = [end for end in ends if end is not None]
            if not known:
                return None
            amounts[a, b] += sum(known) / len(known)
    return amounts
