"""The use of one GPU: averages, maxima and totals of readings, in constant memory."""
# pure: decides on plain values

from collections.abc import Mapping

from gpulaunch.records import Record, as_dict

STEADY_BYTES = 0.005
"""Largest relative difference from the maximum of memory that counts as at its maximum: a
framework's reservation is constant, but its context may grow.
"""


TAKEN = 0.05
"""Memory under this part of the maximum is only a CUDA context: the job has not allocated yet. Our
choice.
"""


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
        is_capped: whether the power cap keeps clocks down now.
        pcie_sent_gb_per_s: rate sent over PCIe now.
        pcie_received_gb_per_s: rate received over PCIe now.
        energy_j: counter of the energy used.
        capped_s: counter of the time in which the power cap kept clocks down.
        pcie_sent_bytes: counter of the bytes sent over PCIe.
        pcie_received_bytes: counter of the bytes received over PCIe.
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
    is_capped: bool | None = None
    pcie_sent_gb_per_s: float | None = None
    pcie_received_gb_per_s: float | None = None
    energy_j: float | None = None
    capped_s: float | None = None
    pcie_sent_bytes: int | None = None
    pcie_received_bytes: int | None = None
    links: Mapping[int, LinkBytes] | None = None

    @property
    def tells_nothing(self) -> bool:
        """Whether the reading has no figure at all."""
        return all(value is None for name, value in as_dict(self).items() if name != "at_s")


class Figures(Record):
    """The use of one GPU by a job; None for what the GPU does not report.

    Percentages are 0-100. Averages are over the time covered, maxima over the readings.

    Attributes:
        samples: number of readings after the first.
        covered_s: seconds between the first reading and the last.
        time_active_percentage: average part of the time in which a kernel ran.
        time_active_max_percentage: maximum of the above.
        memory_active_percentage: average part of the time in which device memory was in use.
        memory_active_max_percentage: maximum of the above.
        sm_percentage: average share of busy SMs, by GPM.
        sm_max_percentage: maximum of the above.
        occupancy_percentage: average warp occupancy, by GPM.
        dram_percentage: average share of the DRAM bandwidth, by GPM.
        dram_max_percentage: maximum of the above.
        idle_percentage: part of the time in which no kernel ran at all, by readings of 0.
        memory_bytes: maximum in use beyond what was in use before the job.
        memory_mean_bytes: average in use beyond what was in use before the job.
        memory_steady_percentage: part of the time after its allocation that memory was at its
            maximum.
        power_w: average power; by the energy counter where there is one.
        power_max_w: maximum of the power readings.
        energy_j: energy over the time covered.
        power_cap_percentage: part of the time in which the power cap kept clocks down.
        pcie_sent_gb_per_s: average rate sent over PCIe.
        pcie_received_gb_per_s: average rate received over PCIe.
        links: bytes by number of the NVLink, for links whose counters could be read.
    """

    samples: int
    covered_s: float
    time_active_percentage: float | None
    time_active_max_percentage: float | None
    memory_active_percentage: float | None
    memory_active_max_percentage: float | None
    sm_percentage: float | None
    sm_max_percentage: float | None
    occupancy_percentage: float | None
    dram_percentage: float | None
    dram_max_percentage: float | None
    idle_percentage: float | None
    memory_bytes: int | None
    memory_mean_bytes: float | None
    memory_steady_percentage: float | None
    power_w: float | None
    power_max_w: float | None
    energy_j: float | None
    power_cap_percentage: float | None
    pcie_sent_gb_per_s: float | None
    pcie_received_gb_per_s: float | None
    links: Mapping[int, LinkBytes]


class _Level:
    """The average over time, and the maximum, of a quantity that is read again and again.

    Args:
        before: the first value of a momentary quantity, which is interpolated between readings;
            None for a quantity that is an average since the reading before.
    """

    def __init__(self, before: float | None = None) -> None:
        self._before = before
        self._sum = 0.0
        self._covered_s = 0.0
        self.most: float | None = None

    def add(self, value: float | None, lasting_s: float) -> None:
        if value is None:
            return
        since = value if self._before is None else (self._before + value) / 2
        self._before = None if self._before is None else value
        self._sum += since * lasting_s
        self._covered_s += lasting_s
        self.most = value if self.most is None else max(self.most, value)

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
    """The maximum and average of device memory, and how long it was at the maximum."""

    def __init__(self, before_bytes: int) -> None:
        self._before_bytes = before_bytes
        self._level = _Level(0.0)
        self._taken_s = self._steady_s = 0.0

    def add(self, used_bytes: int | None, lasting_s: float) -> None:
        if used_bytes is None:
            return
        own = max(0, used_bytes - self._before_bytes)
        before = self._level.most or 0
        self._level.add(own, lasting_s)
        most = self._level.most or 0
        if most > before * (1 + STEADY_BYTES):  # a new maximum: earlier time was not at it
            self._steady_s = 0.0
        if most * TAKEN > before:
            self._taken_s = 0.0
        if own and own >= most * TAKEN:
            self._taken_s += lasting_s
            self._steady_s += lasting_s * (own >= most * (1 - STEADY_BYTES))

    @property
    def most(self) -> int | None:
        return None if self._level.most is None else int(self._level.most)

    @property
    def mean(self) -> float | None:
        return self._level.mean

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
    "pcie_sent_gb_per_s",
    "pcie_received_gb_per_s",
)
_INSTANT = ("power_w",)
_COUNTERS = ("energy_j", "capped_s", "pcie_sent_bytes", "pcie_received_bytes")


class Usage:
    """The running totals of one GPU's readings.

    Args:
        first: the reading before the job begins; memory in use then is not the job's.
    """

    def __init__(self, first: Reading) -> None:
        self._levels = {
            name: _Level(getattr(first, name) if name in _INSTANT else None) for name in _LEVELS
        }
        self._counters = {name: _Counter() for name in _COUNTERS}
        self._idle, self._capped = _Level(), _Level()
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
        active = reading.time_active_percentage
        self._idle.add(None if active is None else 100.0 * (active == 0), lasting_s)
        self._capped.add(
            None if reading.is_capped is None else 100.0 * reading.is_capped, lasting_s
        )
        self._memory.add(reading.memory_bytes, lasting_s)
        self._count(reading)
        self._last_s = reading.at_s
        self._samples += 1

    def _count(self, reading: Reading) -> None:
        for name, counter in self._counters.items():
            counter.add(getattr(reading, name), reading.at_s)
        for link, carried in (reading.links or {}).items():
            sent, received = self._links.setdefault(link, (_Counter(), _Counter()))
            sent.add(carried.sent, reading.at_s)
            received.add(carried.received, reading.at_s)

    def figures(self) -> Figures:
        """Return the figures of all readings so far."""
        levels, counters, memory = self._levels, self._counters, self._memory
        covered_s = self._last_s - self._first_s
        drawn_w, capped = counters["energy_j"].rate, counters["capped_s"].rate
        power_w = levels["power_w"].mean if drawn_w is None else drawn_w
        return Figures(
            samples=self._samples,
            covered_s=covered_s,
            time_active_percentage=levels["time_active_percentage"].mean,
            time_active_max_percentage=levels["time_active_percentage"].most,
            memory_active_percentage=levels["memory_active_percentage"].mean,
            memory_active_max_percentage=levels["memory_active_percentage"].most,
            sm_percentage=levels["sm_percentage"].mean,
            sm_max_percentage=levels["sm_percentage"].most,
            occupancy_percentage=levels["occupancy_percentage"].mean,
            dram_percentage=levels["dram_percentage"].mean,
            dram_max_percentage=levels["dram_percentage"].most,
            idle_percentage=self._idle.mean,
            memory_bytes=memory.most,
            memory_mean_bytes=memory.mean,
            memory_steady_percentage=memory.steady_percentage,
            power_w=power_w,
            power_max_w=levels["power_w"].most,
            energy_j=None if power_w is None else power_w * covered_s,
            power_cap_percentage=self._capped.mean if capped is None else min(100.0, 100 * capped),
            pcie_sent_gb_per_s=_average_gb_per_s(
                counters["pcie_sent_bytes"], levels["pcie_sent_gb_per_s"]
            ),
            pcie_received_gb_per_s=_average_gb_per_s(
                counters["pcie_received_bytes"], levels["pcie_received_gb_per_s"]
            ),
            links={
                link: LinkBytes(int(out.grown), int(back.grown))
                for link, (out, back) in self._links.items()
                if out.rate is not None and back.rate is not None
            },
        )


def _average_gb_per_s(counter: _Counter, level: _Level) -> float | None:
    """Return the average GB/s by the counter; without one, by the momentary rates."""
    return level.mean if counter.rate is None else counter.rate / 1e9
