"""A model of jobs that share the GPU of cd-search-ics18: no measurement, and not its simulator.

The paper's curves survive only as captions, so the figures that its text quotes are all there is to
hold a model to.

Quoted:
    - the 14 benchmarks and their classes (Table 1), 24 SMs, linear curves against
      saturating ones (Figure 7)
    - MERGE uses 13.3 % of the DRAM bandwidth; LAVAMD next to none, but much of the LLC's (4.1.1)
    - LAVAMD_MERGE reaches STP 1.64; DWT_LEU gains 38 % over even; optima of mixed pairs at 4-7
      SMs (3.1)
    - memory pairs saturate at 3 SMs each (LBM, DWT2D), 5 (LBM, LAVAMD), 4 (LAVAMD, GAUSSIAN) (3.2)
    - GAUSSIAN and GESUMMV thrash the cache: fewer SMs may be faster (3.2, 7.2)

Assumed, since the text says nothing:
    - how jobs compete: each of two resources, LLC bandwidth and DRAM bandwidth, serves all by the
      same factor, what is offered being proportional to SMs; a job is slowed by the scarcer of
      those that it uses
    - the curves of PVC, SC, GESUMMV, and how steeply GAUSSIAN's falls
    - that all compute-intensive benchmarks but LEU, MERGE are alike, and how much a full
      queue slows them

Its parameters were fixed by the quoted figures before the search was run on it. The averages of the
paper's section 7 were not used.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpulaunch.profiles.demand import CurvePoint, Demand

SPILL = 0.04
"""LLC traffic that goes to DRAM instead, in DRAM units, per SM of a job that thrashes the cache."""


class Benchmark(NamedTuple):
    """A benchmark of Table 1 in the model.

    Attributes:
        memory_intensive: its type in Table 1.
        llc: share of the LLC's bandwidth that one of its SMs asks for.
        dram: the same of DRAM.
        exposure: part of its time that waits for memory once memory cannot keep up, 0-1.
        thrashes: whether its working set drives others' data out of the cache.
    """

    name: str
    memory_intensive: bool
    llc: float = 0.0
    dram: float = 0.0
    exposure: float = 1.0
    thrashes: bool = False


def _compute(name: str, llc: float = 0.0, dram: float = 0.001, exposure: float = 1.0) -> Benchmark:
    return Benchmark(name, memory_intensive=False, llc=llc, dram=dram, exposure=exposure)


def _memory(name: str, llc: float = 0.0, dram: float = 0.0, *, thrashes: bool = False) -> Benchmark:
    return Benchmark(name, memory_intensive=True, llc=llc, dram=dram, thrashes=thrashes)


BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        _compute("DXTC"),
        _compute("TPACF"),
        _compute("BINO"),
        _compute("LEU", exposure=0.565),
        _compute("CP"),
        _compute("MERGE", llc=0.008, dram=0.133 / 24),
        _compute("PATHFINDER"),
        _memory("LAVAMD", llc=0.182),
        _memory("GAUSSIAN", llc=0.1, dram=0.15, thrashes=True),
        _memory("LBM", dram=0.2),
        _memory("DWT2D", dram=0.25),
        _memory("GESUMMV", llc=0.15, dram=0.1, thrashes=True),
        _memory("PVC", dram=0.16),
        _memory("SC", dram=0.22),
    )
}


class Machine(NamedTuple):
    """The simulated GPU of cd-search-ics18 section 6, and its variants of 7.4.

    Attributes:
        sm_count: 24 or 30.
        memory_bandwidth: of DRAM, relative to the paper's baseline.
    """

    sm_count: int = 24
    memory_bandwidth: float = 1.0

    def rates(self, jobs: Sequence[Benchmark], sms: Sequence[int]) -> list[float]:
        """Return each job's instructions per unit of time, in those of an SM that never waits."""
        spill = SPILL * sum(n for job, n in zip(jobs, sms, strict=True) if job.thrashes)
        dram = [job.dram + spill * job.llc for job in jobs]
        llc_served = _served(job.llc * n for job, n in zip(jobs, sms, strict=True))
        dram_served = _served(
            each * n / self.memory_bandwidth for each, n in zip(dram, sms, strict=True)
        )
        served = [
            min(llc_served if job.llc else 1, dram_served if each else 1)
            for job, each in zip(jobs, dram, strict=True)
        ]
        return [
            n * (1 - job.exposure * (1 - part))
            for job, n, part in zip(jobs, sms, served, strict=True)
        ]

    def alone(self, job: Benchmark) -> float:
        """Return the rate of a job that has the whole GPU."""
        return self.rates([job], [self.sm_count])[0]

    def progress(self, jobs: Sequence[Benchmark], sms: Sequence[int]) -> list[float]:
        """Return the speed of each job, 1 being that alone on the whole GPU."""
        return [
            rate / self.alone(job) for job, rate in zip(jobs, self.rates(jobs, sms), strict=True)
        ]

    def stp(self, jobs: Sequence[Benchmark], sms: Sequence[int]) -> float:
        """Return the system throughput; higher is better."""
        return sum(self.progress(jobs, sms))

    def antt(self, jobs: Sequence[Benchmark], sms: Sequence[int]) -> float:
        """Return the average normalized turnaround time; lower is better."""
        return sum(1 / each for each in self.progress(jobs, sms)) / len(jobs)

    def performance(self, jobs: Sequence[Benchmark]) -> Callable[[int, Sequence[int]], float]:
        """Return what the search measures while all of them run."""
        return lambda job, sms: self.rates(jobs, sms)[job]

    def demand(self, job: Benchmark) -> Demand:
        """Return the job's demand with its curve when it runs alone, at every number of SMs."""
        points = [
            CurvePoint(100 * n / self.sm_count, self.rates([job], [n])[0])
            for n in range(1, self.sm_count + 1)
        ]
        asked = job.dram * self.sm_count / self.memory_bandwidth
        return Demand(job.name, 100.0, 100 * min(1.0, asked), 1 << 30, curve=tuple(points))


def _served(loads: Iterable[float]) -> float:
    """Return the part of what is asked of a resource that it serves."""
    return min(1.0, 1 / max(1.0, sum(loads)))


def allocations(jobs: int, sm_count: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to give each job one SM or more, and all SMs away."""
    if jobs == 0:
        yield ()
        return
    fewest = sm_count if jobs == 1 else 1
    for first in range(fewest, sm_count - jobs + 2):
        for others in allocations(jobs - 1, sm_count - first):
            yield (first, *others)


def sms_of(percentages: Sequence[int], sm_count: int) -> list[int]:
    """Return the SMs that clients get under caps, each its part where caps overlap; 1 at least."""
    total = max(100, sum(percentages))
    return [max(1, percentage * sm_count // total) for percentage in percentages]
