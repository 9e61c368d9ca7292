"""What a job uses of one GPU: readings over time -> averages, maxima and totals, in memory that does not grow."""
# pure: decides on plain values

from collections.abc import Mapping

from gpulaunch.records import Record, as_dict

STEADY_BYTES = 0.005
"""Memory within this part of the most is the most: a framework's reservation does not move, its
context may.
"""


TAKEN = 0.05
"""Memory under this part of the most is that of a CUDA context, and what the job takes is yet to
come. Ours.
"""


class LinkBytes(Record):
    """What one NVLink of a GPU has carried.

    Attributes:
        sent: bytes, since whenever.
        received: likewise.
    """

    sent: int
    received: int


class Reading(Record):
    """What one GPU says of itself at one moment; None for what it does not tell.

    Attributes:
        at_s: when, by a clock that only runs forward.
        time_active_percentage: part of the last sixth of a second or so, 0-100, in which any kernel
            ran (NVML).
        memory_active_percentage: the same for reading and writing device memory.
        sm_percentage: SMs that were busy since the reading before, averaged over them and over
            time, 0-100 (GPM).
        occupancy_percentage: warps resident of those that would fit, since the reading before,
            0-100 (GPM).
        dram_percentage: DRAM bandwidth in use since the reading before, 0-100 (GPM).
        memory_bytes: device memory in use now.
        power_w: drawn now.
        is_capped: whether the power cap keeps clocks down now.
        pcie_sent_gb_per_s: now.
        pcie_received_gb_per_s: now.
        energy_j: counter.
        capped_s: counter of the time in which the power cap kept clocks down.
        pcie_sent_bytes: counter.
        pcie_received_bytes: counter.
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
        """Whether there is nothing in it but the time."""
        return all(value is None for name, value in as_dict(self).items() if name != "at_s")


class Figures(Record):
    """What a job used of one GPU from its beginning to its end; None for what the GPU does not tell.

    Attributes:
        samples: readings after the first.
        covered_s: time between the first reading and the last.
        time_active_percentage: average.
        time_active_max_percentage: of the readings.
        memory_active_percentage: average.
        memory_active_max_percentage: of the readings.
        sm_percentage: average, by GPM.
        sm_max_percentage: of the readings.
        occupancy_percentage: average, by GPM.
        dram_percentage: average, by GPM.
        dram_max_percentage: of the readings.
        idle_percentage: part of the time in which no kernel ran at all, by readings that say 0.
        memory_bytes: most in use beyond what was in use before.
        memory_mean_bytes: average of that.
        memory_steady_percentage: part of the time after it was taken in which it stood at its most.
        power_w: average; by the energy counter where there is one.
        power_max_w: of the readings.
        energy_j: over the time covered.
        power_cap_percentage: part of the time in which the power cap kept clocks down.
        pcie_sent_gb_per_s: average.
        pcie_received_gb_per_s: average.
        links: bytes by number of the NVLink, as far as its counters went on.
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
    """A quantity that is read again and again: its average over time, and the most.

    Args:
        before: what it was at first, for one that says what is now: between two readings it is
            taken for their mean. None for one that says what has been since the reading before.
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
    """A quantity that only grows, until the driver starts it anew: then what it lost is not counted."""

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
        """Growth in a second."""
        return self.grown / self._covered_s if self._covered_s else None


class _Memory:
    """Device memory: the most, the average, and for how long it stood at the most."""

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
        if most > before * (1 + STEADY_BYTES):  # a new most: what was steady before was not
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
    """Readings of one GPU, added up as they come.

    Args:
        first: before the job begins. What is in use of the memory then is not the job's.
    """

    def __init__(self, first: Reading) -> None:
        self._levels = {
            name: _Level(getattr(first, name) if name in _INSTANT else None) for name in _LEVELS
        }
        self._counters = {name: _Counter() for name in _COUNTERS}
        self._idle, self._capped = _Level(), _Level()
        self._memory = _Memory(first.memory_bytes or 0)
        self._links: dict[int, tuple[_Counter, _Counter]] = {}
        self._first_s = self._last_s = first.at_s
        self._samples = 0
        self._count(first)

    def add(self, reading: Reading) -> None:
        """Take one more reading; what it says of a level holds from the one before until now."""
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
        """What has come together so far."""
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
            pcie_sent_gb_per_s=_traffic(counters["pcie_sent_bytes"], levels["pcie_sent_gb_per_s"]),
            pcie_received_gb_per_s=_traffic(
                counters["pcie_received_bytes"], levels["pcie_received_gb_per_s"]
            ),
            links={
                link: LinkBytes(int(out.grown), int(back.grown))
                for link, (out, back) in self._links.items()
                if out.rate is not None and back.rate is not None
            },
        )


def _traffic(counter: _Counter, level: _Level) -> float | None:
    """GB/s by the counter, else by what was seen from time to time."""
    return level.mean if counter.rate is None else counter.rate / 1e9
