"""The classification-driven search of cd-search-ics18: SMs for each of several jobs.

It asks a function for performance, so it runs on recorded curves and against a simulator of jobs
that run together.
"""
# pure: decides on plain values

from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal

from gpulaunch.records import Record
from gpulaunch.sharing.curve import keeps

STEPS = 12
"""Parts of the GPU of which a lone memory-intensive job gives up one at a time at first.

Source: 2 of the paper's 24 SMs.
"""

Performance = Callable[[int, Sequence[int]], float]
"""Performance of a job, given its index and the SMs of all jobs.

It is above 0, in any unit of that job's own.
"""

Mode = Literal["performance", "power", "even"]
"""Memory- and compute-intensive jobs; only memory-intensive ones; only compute-intensive ones."""


class Allocation(Record):
    """The result of a search.

    Attributes:
        mode: how the SMs were divided.
        sms: SMs of each job, in the order given; at least 1.
        evaluations: how often the performance of a job was asked for.
    """

    mode: Mode
    sms: tuple[int, ...]
    evaluations: int


def cd_search(
    memory_intensive: Sequence[bool], sm_count: int, performance: Performance
) -> Allocation:
    """Divide the SMs of a GPU among jobs that run together.

    - performance: memory-intensive jobs get the fewest SMs that keep them within 5 % of their
      performance at an even share; the others divide the rest evenly.
    - power: as performance, without others; the rest stays idle.
    - even: without memory-intensive jobs there is nothing to gain.

    Args:
        memory_intensive: whether each job is; one or more.
        sm_count: SMs of the GPU. More jobs than SMs get one each.
        performance: asked only for memory-intensive jobs, all others having their even share.

    Cost: up to 6 evaluations with one memory-intensive job, and 2 for each halving of the step, 12
        in all on a GPU of 132 SMs; with m such jobs 3 m, and m for every SM that the tentative
        numbers were too low.

    Source: cd-search-ics18 4.2, 4.3 and 7.4.3. Departures: docs/decisions/partition.md.

    Example:
        >>> cd_search([True, False], 24, lambda job, sms: min(5, sms[job]))
        Allocation(mode='performance', sms=(5, 19), evaluations=6)
    """
    jobs = len(memory_intensive)
    start = [max(1, sm_count // jobs)] * jobs
    memory = [job for job in range(jobs) if memory_intensive[job]]
    meter = _Meter(performance)
    if len(memory) == 1 and jobs > 1:
        start[memory[0]] = _step_down(meter, memory[0], start, max(1, sm_count // STEPS))
    else:
        start = _grow_together(meter, memory, start)
    others = [job for job in range(jobs) if not memory_intensive[job]]
    rest = sm_count - sum(start[job] for job in memory)
    for place, job in enumerate(others):
        start[job] = max(1, (rest + len(others) - 1 - place) // len(others))
    mode: Mode = "even" if not memory else "performance" if others else "power"
    return Allocation(mode, tuple(start), meter.evaluations)


class _Meter:
    """Asks for performance, for a job in one allocation only once, and counts."""

    def __init__(self, performance: Performance) -> None:
        self._performance = performance
        self._known: dict[tuple[int, ...], float] = {}

    def __call__(self, job: int, sms: Sequence[int]) -> float:
        case = (job, *sms)
        if case not in self._known:
            self._known[case] = self._performance(job, sms)
        return self._known[case]

    @property
    def evaluations(self) -> int:
        return len(self._known)


def _step_down(meter: _Meter, job: int, start: Sequence[int], step: int) -> int:
    """Take SMs from a job as long as it keeps its performance, at last by single ones.

    What it must keep is the best seen on the way: where fewer SMs are faster, that gain is not
    given away again.
    """
    best, held = meter(job, start), start[job]
    while step:
        fewer = held - step
        if fewer >= 1 and keeps(performance := meter(job, _replace_sms(start, {job: fewer})), best):
            best, held = max(best, performance), fewer
        else:
            step //= 2
    return held


def _grow_together(meter: _Meter, jobs: Sequence[int], start: Sequence[int]) -> list[int]:
    """Give jobs tentative numbers of SMs, then one more at a time, each job for itself.

    All give up SMs at once: while one alone did, the others would take the bandwidth that it needs.
    """
    full = {job: meter(job, start) for job in jobs}
    single = _replace_sms(start, dict.fromkeys(jobs, 1))
    sms = _replace_sms(
        start, {job: min(start[job], _estimate_need(full[job], meter(job, single))) for job in jobs}
    )
    short = jobs
    while short:
        short = [
            job for job in jobs if sms[job] < start[job] and not keeps(meter(job, sms), full[job])
        ]
        sms = _replace_sms(sms, {job: sms[job] + 1 for job in short})
    return sms


def _estimate_need(full: float, single: float) -> int:
    """Return the SMs for full performance, if it grows linearly from that of a single one."""
    return max(1, ceil(full / single - 1e-9))


def _replace_sms(sms: Sequence[int], changed: dict[int, int]) -> list[int]:
    return [changed.get(job, n) for job, n in enumerate(sms)]
