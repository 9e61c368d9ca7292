"""How good is a placement: bandwidths in GB/s per direction, each with its equation."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import combinations, permutations
from typing import NamedTuple

from gpulaunch.core.hardware.bandwidth import nvls_efficiency
from gpulaunch.core.hardware.link import Link
from gpulaunch.core.hardware.topology import Topology
from gpulaunch.core.workload.pattern import PATTERNS

EXACT_RANKS = 8
"""Up to so many ranks the best mapping is found by trying all."""


class Fabric:
    """The links of a topology, laid out for fast look-up by index pair in either order.

    Attributes:
        weight: nominal bandwidth of the best direct connection, w(a, b).
        pcie: PCIe bandwidth.
        nvlink: planned bandwidth of direct NVLinks; only pairs that have some.
        switch: planned bandwidth of one GPU's NVLinks into a switch; only GPUs that have some.
        nvls: what is left of that where the switch computes the sum; only GPUs for which it can.
        nvlink_count: NVLinks between a pair.
        link: everything about a pair.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.link: dict[tuple[int, int], Link] = {}
        self.weight: dict[tuple[int, int], float] = {}
        self.pcie: dict[tuple[int, int], float] = {}
        self.nvlink: dict[tuple[int, int], float] = {}
        self.nvlink_count: dict[tuple[int, int], int] = {}
        self.switch: dict[int, float] = {}
        for link in topology.links:
            for pair in ((link.a, link.b), (link.b, link.a)):
                self.link[pair] = link
                self.weight[pair] = link.bandwidth_gb_per_s
                self.pcie[pair] = link.pcie_gb_per_s
                self.nvlink_count[pair] = link.nvlink_count
                if link.kind == "nvlink":
                    self.nvlink[pair] = link.nvlink_planned_gb_per_s
            if link.kind == "nvswitch":
                per_link = link.nvlink_planned_gb_per_s / link.nvlink_count
                for gpu in topology.gpus:
                    if gpu.index in (link.a, link.b):
                        self.switch[gpu.index] = gpu.nvswitch_links * per_link
        self.nvls = {
            gpu.index: self.switch[gpu.index] * efficiency
            for gpu in topology.gpus
            if gpu.index in self.switch and not gpu.mig and (efficiency := nvls_efficiency(gpu.compute_capability))
        }

    @cached_property
    def measured(self) -> dict[tuple[str, ...], float]:
        """Measured all-reduce bandwidth by the links of a set's best ring."""
        return dict(self._topology.measured)

    @cached_property
    def calibrated(self) -> "Fabric":
        """The same with the measured bandwidth of each class of links in place of the planned one."""
        return Fabric(self._topology._replace(links=tuple(map(self._as_measured, self._topology.links)), measured=()))

    def _as_measured(self, link: Link) -> Link:
        bandwidth = self.measured.get((link.name,))
        if bandwidth is None:
            return link
        return (
            link._replace(nvlink_planned_gb_per_s=bandwidth)
            if link.nvlink_count
            else link._replace(pcie_gb_per_s=bandwidth)
        )


class Scores(NamedTuple):
    """All scores of one candidate, GB/s; None where a score does not exist."""

    aggregate_bandwidth: float | None
    effective_bandwidth: float | None
    preserved_bandwidth: float


def internal_bandwidth(fabric: Fabric, gpus: Sequence[int]) -> float:
    """Sum of w over all pairs of the GPUs."""
    return sum(fabric.weight[pair] for pair in combinations(gpus, 2))


def preserved_bandwidth(fabric: Fabric, free: Iterable[int], gpus: Sequence[int]) -> float:
    """Sum of w over all pairs of GPUs that stay free when `gpus` are taken.

    Source: mapa-sc21 Eq. 3.
    """
    return internal_bandwidth(fabric, [gpu for gpu in free if gpu not in gpus])


def mapped(fabric: Fabric, gpus: Sequence[int], pattern: str) -> tuple[int, ...]:
    """The GPUs in rank order: the mapping whose pattern edges have the largest sum of w.

    Exact up to EXACT_RANKS ranks and where all pairs are alike; beyond that a nearest-neighbour tour for rings and
    chains, improved by reversing stretches until none helps. Among equals the lowest indices come first.

    Source: mapa-sc21 3.3, which leaves the choice among isomorphic matches to Eq. 1.
    """
    gpus = tuple(sorted(gpus))
    if pattern not in ("ring", "chain") or len(gpus) < 3:
        return gpus
    if len({fabric.weight[pair] for pair in combinations(gpus, 2)}) == 1:
        return gpus
    if len(gpus) <= EXACT_RANKS:
        return _best_tour(fabric, gpus, closed=pattern == "ring")
    return _improved_tour(fabric, gpus, closed=pattern == "ring")


def _tour_bandwidth(fabric: Fabric, tour: Sequence[int], *, closed: bool) -> float:
    total = sum(fabric.weight[tour[i], tour[i + 1]] for i in range(len(tour) - 1))
    return total + fabric.weight[tour[-1], tour[0]] if closed else total


def _best_tour(fabric: Fabric, gpus: tuple[int, ...], *, closed: bool) -> tuple[int, ...]:
    if closed:  # a ring may start anywhere and run either way round
        tours = (gpus[:1] + rest for rest in permutations(gpus[1:]) if rest[0] < rest[-1])
    else:
        tours = (tour for tour in permutations(gpus) if tour[0] < tour[-1])
    return max(tours, key=lambda tour: round(_tour_bandwidth(fabric, tour, closed=closed), 6))


def _improved_tour(fabric: Fabric, gpus: tuple[int, ...], *, closed: bool) -> tuple[int, ...]:
    tour, left = [gpus[0]], list(gpus[1:])
    while left:
        nearest = max(left, key=lambda gpu: (fabric.weight[tour[-1], gpu], -gpu))
        left.remove(nearest)
        tour.append(nearest)
    best = _tour_bandwidth(fabric, tour, closed=closed)
    improved = True
    while improved:
        improved = False
        for i, j in combinations(range(1 if closed else 0, len(tour) + 1), 2):
            other = tour[:i] + tour[i:j][::-1] + tour[j:]
            bandwidth = _tour_bandwidth(fabric, other, closed=closed)
            if bandwidth > best + 1e-6:
                tour, best, improved = other, bandwidth, True
    return tuple(tour)


def aggregate_bandwidth(fabric: Fabric, gpus: Sequence[int], pattern: str) -> float | None:
    """Sum of w over the edges that the pattern uses, at the best mapping; None for a pattern without edges.

    Source: mapa-sc21 Eq. 1.
    """
    edges = PATTERNS[pattern](len(gpus))
    if not edges:
        return None
    ranks = mapped(fabric, gpus, pattern)
    return sum(fabric.weight[ranks[a], ranks[b]] for a, b in edges)


THETA = (
    16.396, 4.536, 1.556, -20.694, -9.467, 7.615, -7.973, 12.733, -4.195, -8.413, 62.851, 27.418, -5.114, -46.973,
)  # fmt: skip
"""Coefficients of Eq. 2 (mapa-sc21 Table 2), fitted to rings of 2-5 GPUs on a DGX-1 V100."""


def mapa_equation(x: int, y: int, z: int) -> float:
    """Predicted effective bandwidth in GB/s of a ring with x double NVLinks, y single NVLinks and z PCIe edges.

    Source: mapa-sc21 Eq. 2 with Table 2. It has no intercept and is not monotone.

    Example:
        >>> round(mapa_equation(2, 1, 0), 2)
        57.86
    """
    return sum(theta * term for theta, term in zip(THETA, mapa_terms(x, y, z), strict=True))


def mapa_terms(x: int, y: int, z: int) -> tuple[float, ...]:
    """What the coefficients of Eq. 2 are multiplied with, in their order."""
    return (
        x, y, z,
        1 / (x + 1), 1 / (y + 1), 1 / (z + 1),
        x * y, y * z, z * x,
        1 / (x * y + 1), 1 / (y * z + 1), 1 / (z * x + 1),
        x * y * z, 1 / (x * y * z + 1),
    )  # fmt: skip


def mapa_bandwidth(fabric: Fabric, gpus: Sequence[int]) -> float | None:
    """Effective bandwidth by Eq. 2 over the edges of the set's best ring; None for a single GPU.

    The best ring is the one with the largest aggregate bandwidth, which is sounder than the order that flatters Eq. 2
    most. Two or more NVLinks count as double. Outside a DGX-1 V100 this is an extrapolation.

    Source: mapa-sc21 3.4.3.
    """
    return mapa_equation(*ring_counts(fabric, gpus)) if len(gpus) > 1 else None


def ring_counts(fabric: Fabric, gpus: Sequence[int]) -> tuple[int, int, int]:
    """How many double NVLinks (or more), single NVLinks and PCIe paths the best ring of at least two GPUs has."""
    ranks = mapped(fabric, gpus, "ring")
    counts = [fabric.nvlink_count[ranks[a], ranks[b]] for a, b in PATTERNS["ring"](len(ranks))]
    return sum(c > 1 for c in counts), counts.count(1), counts.count(0)


def cut_bandwidth(fabric: Fabric, gpus: Sequence[int]) -> float | None:
    """Effective bandwidth: the fastest all-reduce that the links allow, a ring or NVSwitch's own; None for one GPU.

    docs/bandwidth.md holds it against published measurements.

    Cost: cubic in the number of GPUs.
    """
    return max(ring_bandwidth(fabric, gpus), nvls_bandwidth(fabric, gpus)) if len(gpus) > 1 else None


def nvls_bandwidth(fabric: Fabric, gpus: Sequence[int]) -> float:
    """Bus bandwidth of an all-reduce computed in NVSwitch (NVLink SHARP); 0 unless it serves all of the GPUs.

    Each of n GPUs sends all its data up once, and the n-th part of the sum that is its to spread: 1 + 1/n times the
    data, where a ring sends 2(n-1)/n times. So it pays from five GPUs of Hopper on, and from six of Blackwell.

    Source: the count of nccl issue 2140; with it one efficiency fits 5 to 8 GPUs of H200, and 6 to 8 of B200
    (docs/bandwidth.md). NCCL plans without the 1/n (src/graph/tuning.cc), by which four GPUs would gain, and do not.
    """
    n = len(gpus)
    return min(fabric.nvls.get(gpu, 0.0) for gpu in gpus) * 2 * (n - 1) / (n + 1)


def ring_bandwidth(fabric: Fabric, gpus: Sequence[int]) -> float:
    """Bus bandwidth of a ring all-reduce of at least two GPUs: their narrowest cut.

    GPUs that NVLink connects, through each other or through NVSwitch: the minimum cut of that graph, with the figures
    that NCCL plans with. Otherwise the ring must leave NVLink, and the best PCIe path that joins the parts decides
    (the narrowest edge of a widest spanning tree over them). Where PCIe alone is faster, as a wide slot of generation 5
    is than a single NVLink, it is PCIe alone.
    """
    gpus = sorted(gpus)
    parts = _nvlink_parts(fabric, gpus)
    if len(parts) > 1:
        return _widest_join(fabric, parts)
    rows = tuple((*(fabric.nvlink.get((a, b), 0.0) for b in gpus), fabric.switch.get(a, 0.0)) for a in gpus)
    return max(_minimum_cut(rows), _widest_join(fabric, [[gpu] for gpu in gpus]))


def _nvlink_parts(fabric: Fabric, gpus: Sequence[int]) -> list[list[int]]:
    """The GPUs, split into parts that NVLink connects."""
    parts: list[list[int]] = []
    for gpu in gpus:
        touching = [
            part
            for part in parts
            if any((gpu, other) in fabric.nvlink or (gpu in fabric.switch and other in fabric.switch) for other in part)
        ]
        parts = [part for part in parts if part not in touching]
        parts.append([gpu, *(other for part in touching for other in part)])
    return parts


def _widest_join(fabric: Fabric, parts: list[list[int]]) -> float:
    """Narrowest edge of a widest spanning tree over the parts, by PCIe bandwidth (Prim)."""
    joined, left = parts[0], parts[1:]
    narrowest = float("inf")
    while left:
        width, part = max(
            ((max(fabric.pcie[a, b] for a in joined for b in part), part) for part in left), key=lambda found: found[0]
        )
        narrowest = min(narrowest, width)
        joined = joined + part
        left.remove(part)
    return narrowest


@lru_cache(maxsize=4096)
def _minimum_cut(rows: tuple[tuple[float, ...], ...]) -> float:
    """Global minimum cut with GPUs on both sides (Stoer and Wagner 1997).

    Args:
        rows: for each GPU its bandwidth to every GPU, then to the switch. Every search starts at the switch, so that it
            is never the side that is cut off: with direct NVLinks besides, its links can be fewer than any GPU's.
    """
    n = len(rows)
    switch = {a: row[n] for a, row in enumerate(rows) if row[n]}
    weight: dict[int, dict[int, float]] = {n: dict(switch)} if switch else {}
    weight |= {a: {b: w for b, w in enumerate(row) if w} for a, row in enumerate(rows)}
    best = float("inf")
    while len(weight) > (2 if switch else 1):
        order = [next(iter(weight))]
        pull = dict.fromkeys(weight, 0.0)
        while True:
            for neighbour, w in weight[order[-1]].items():
                pull[neighbour] += w
            rest = [node for node in weight if node not in order]
            if not rest:
                break
            order.append(max(rest, key=pull.__getitem__))
        last, before = order[-1], order[-2]
        best = min(best, sum(weight[last].values()))
        for neighbour, w in weight.pop(last).items():
            del weight[neighbour][last]
            if neighbour != before:
                weight[before][neighbour] = weight[neighbour][before] = weight[before].get(neighbour, 0.0) + w
    return best


def ring_links(fabric: Fabric, gpus: Sequence[int]) -> tuple[str, ...]:
    """Names of the links of the best ring of at least two GPUs, slowest last: what kind of set they are."""
    ranks = mapped(fabric, gpus, "ring")
    links = [fabric.link[ranks[a], ranks[b]] for a, b in PATTERNS["ring"](len(ranks))]
    return tuple(link.name for link in sorted(links, key=lambda link: (-link.bandwidth_gb_per_s, link.name)))


def measured_bandwidth(fabric: Fabric, gpus: Sequence[int]) -> float | None:
    """Effective bandwidth as `gpulaunch topo --measure` found it on this machine; None for a single GPU.

    Of a set of a kind that was measured the median of its kind, of any other the cut over links that carry what their
    class was measured to carry.

    Source: mapa-sc21 3.4 defines the effective bandwidth so.
    """
    if len(gpus) < 2:
        return None
    known = fabric.measured.get(ring_links(fabric, gpus))
    return cut_bandwidth(fabric.calibrated, gpus) if known is None else known


BANDWIDTH_MODELS: dict[str, Callable[[Fabric, Sequence[int]], float | None]] = {
    "cut": cut_bandwidth,
    "mapa": mapa_bandwidth,
    "measured": measured_bandwidth,
}
