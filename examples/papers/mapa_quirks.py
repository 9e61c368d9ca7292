"""The published simulator of mapa-sc21 under its policy preserve, with its quirks one by one.

Source: github.com/socal-ucr/MAPA, src/MapaSim.hh, MapaPolicies.hh and GpuTopology.hh. Without its
quirks it is gpulaunch's own replay of `preserve-paper`, Algorithm 1 as printed.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

from equation_2 import Ring, coded_bandwidth, equation_2, links_of, rings, simulator

QUIRKS = {
    "order": "Eq. 2 of the ring order that gives most",
    "refusal": "no sensitive job starts on 12.34 GB/s or less",
    "ties": "insensitive ties go to more aggregate bandwidth",
    "skipping": "the job behind one that starts is skipped once",
    "links": "links as coded",
}
"""What the published code does and the paper does not say."""

_DOUBLE, _PCIE = Ring(25.0, 1, 0, 0), Ring(12.0, 0, 0, 1)
CODED_LINKS = {
    "torus-2d-16": {(0, 4): _PCIE},
    "cube-mesh-16": {
        **dict.fromkeys([(0, 11), (1, 5), (3, 8), (9, 13)], _DOUBLE),
        **dict.fromkeys([(4, 5), (12, 13)], _PCIE),
    },
}
"""Links that the published code has otherwise than its machines are meant.

It leaves one out, calls four double that have 25 GB/s, and overwrites two by PCIe.
"""


class Start(NamedTuple):
    """The start of a job.

    Attributes:
        job: the job, as in mapa.job_set().
        gpus: indices of its GPUs.
        cycle: when it starts.
    """

    job: Mapping[str, Any]
    gpus: tuple[int, ...]
    cycle: int


class PublishedSimulator:
    """The published simulator on one machine, for rings of two GPUs and more.

    Args:
        machine: name of a described machine.
        quirks: keys of QUIRKS.
    """

    def __init__(self, machine: str, quirks: Collection[str]) -> None:
        self._quirks = quirks
        self._count = len(simulator(machine).topology.gpus)
        coded = CODED_LINKS.get(machine, {}) if "links" in quirks else {}
        self._links = links_of(machine) | {frozenset(pair): link for pair, link in coded.items()}
        # Many sets of jobs come to the same states.
        self._rings = cache(lambda gpus: rings(self._links, frozenset(gpus)))
        self._choose = cache(self._choose_gpus)

    def bandwidth(self, gpus: tuple[int, ...]) -> float:
        """Return Eq. 2 of GPUs, GB/s, as the simulator reports it."""
        found = self._rings(gpus)
        if "order" in self._quirks:
            return max(map(coded_bandwidth, found))
        return coded_bandwidth(max(found))

    def run(self, jobs: Sequence[Mapping[str, Any]]) -> list[Start]:
        """Replay jobs, which are all there from the beginning; return their starts."""
        free, waiting = frozenset(range(self._count)), list(jobs)
        starts: list[Start] = []
        cycle = 0
        while waiting:
            ended = [one for one in starts if one.cycle + one.job["duration_s"] == cycle]
            free = free.union(*(one.gpus for one in ended))
            place = 0
            while place < len(waiting) and waiting[place]["gpus"] <= len(free):
                job = waiting[place]
                gpus = self._choose(free, job["gpus"], sensitive=job["bandwidth_sensitive"])
                if gpus is None:
                    break
                free -= set(gpus)
                starts.append(Start(job, gpus, cycle))
                del waiting[place]  # the code does so in a loop over the queue, and skips one
                place += "skipping" in self._quirks
            cycle += 1
        return starts

    def _choose_gpus(
        self, free: frozenset[int], size: int, *, sensitive: bool
    ) -> tuple[int, ...] | None:
        """Return the best set of free GPUs, the first among equals; None if none is good enough."""
        sets = list(combinations(sorted(free), size))
        if sensitive:
            best = max(sets, key=self.bandwidth)
            refused = "refusal" in self._quirks and self.bandwidth(best) <= equation_2(0, 0, 0)
            return None if refused else best

        links = {frozenset((gpu,)): 0.0 for gpu in free}
        links |= {pair: link.aggregate_bandwidth for pair, link in self._links.items()}
        reach = {gpu: sum(links[frozenset((gpu, other))] for other in free) for gpu in free}

        def preserved(gpus: tuple[int, ...]) -> tuple[float, float]:
            lost = sum(reach[gpu] for gpu in gpus)
            lost -= sum(links[frozenset(pair)] for pair in combinations(gpus, 2))
            aggregate = max(self._rings(gpus)).aggregate_bandwidth if "ties" in self._quirks else 0
            return -lost, aggregate

        return max(sets, key=preserved)
