"""The links of a topology laid out for placement, and how fast a set of its GPUs can be.

GPUs are positions in a Fabric instead of indices, and bandwidths whole numbers of 1e-6 GB/s. The
effective bandwidth of a set is that of its collectives, by one of three models (mapa-sc21 3.4).
"""
# pure: decides on plain values

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from math import inf

from gpulaunch.machine.link import Link, nvls_efficiency
from gpulaunch.machine.topology import Level, Topology, distances, machine_tree
from gpulaunch.placement.mapping import Mapper
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.records import as_list, replace

UNIT = 1_000_000
"""Bandwidths are compared as whole numbers of 1e-6 GB/s: the order of a sum makes no difference."""


_latest: "list[Fabric]" = []


def fabric_of(topology: Topology) -> "Fabric":
    """Return the fabric of a topology; the latest is kept, since a launch may decide often."""
    if not _latest or _latest[0].topology is not topology:
        _latest[:] = [Fabric(topology)]
    return _latest[0]


class Fabric:
    """The links of a topology. Position i is the i-th GPU by ascending index.

    GPUs whose kinds of links to all others are the same are interchangeable: where PCIe is slower
    than the NVLink beside it, it makes no difference.

    Attributes:
        kind: for each two positions the number of their kind of link. Of each kind, in order of
            numbers, with that of a GPU to itself, which carries nothing, as the last:
        kind_weight: nominal bandwidth of the best direct connection, w of mapa-sc21 3.2, 1e-6 GB/s.
        kind_planned: what NCCL plans with over NVLink, direct or through a switch, 1e-6 GB/s.
        kind_hop: what one step of a ring carries: the faster of NVLink and PCIe, 1e-6 GB/s.
        kind_count: number of NVLinks.
        kind_direct: what NCCL plans with over NVLinks from GPU to GPU, 1e-6 GB/s.
        kind_name: name of the class of links, such as "NV2 50".
        into_switch: planned bandwidth of each GPU's NVLinks into a switch, 1e-6 GB/s; 0 without.
        nvls: as into_switch, while the switch computes the sum; 0 where it cannot.
        bit: the bit of each position in a mask of GPUs; the first has the largest.
        positions_of_mask: filled as they are asked for.
        effective: likewise the effective bandwidths: name of the model -> mask -> 1e-6 GB/s.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.gpus = tuple(gpu.index for gpu in topology.gpus)
        self.position = {index: i for i, index in enumerate(self.gpus)}
        count = len(self.gpus)
        self.bit = [1 << count - 1 - i for i in range(count)]
        self.positions_of_mask: dict[int, list[int]] = {}
        self.effective: dict[str, dict[int, int]] = {}
        places: dict[tuple[int, int, int, int, int, str], int] = {}
        known: dict[tuple[object, ...], int] = {}
        self.kind = [[0] * count for _ in range(count)]
        self.into_switch = [0] * count
        switched: dict[int, Link] = {}
        instances = {gpu.index for gpu in topology.gpus if gpu.mig}
        for link in topology.links:
            usable = not instances or not (link.a in instances or link.b in instances)
            facts = (usable, *as_list(link)[2:])
            if facts not in known:
                known[facts] = places.setdefault(_kind(link, usable=usable), len(places))
            a, b = self.position[link.a], self.position[link.b]
            self.kind[a][b] = self.kind[b][a] = known[facts]
            if link.kind == "nvswitch":
                switched[a] = switched[b] = link
        for i, link in switched.items():
            per_link = link.nvlink_planned_gb_per_s / link.nvlink_count
            self.into_switch[i] = round(topology.gpus[i].nvswitch_links * per_link * UNIT)
        columns = zip(*places, (0, 0, 0, 0, 0, ""), strict=True)
        self.kind_weight, self.kind_planned, self.kind_hop, *others = columns
        self.kind_count, self.kind_direct, self.kind_name = others
        for i in range(count):
            self.kind[i][i] = len(places)
        self.nvls = [
            0.0 if gpu.mig or not speed else speed * nvls_efficiency(gpu.compute_capability)
            for gpu, speed in zip(topology.gpus, self.into_switch, strict=True)
        ]

    def _between(self, figures: Sequence[int]) -> list[list[int]]:
        """Return for each two positions the figure of their kind of link."""
        return [[figures[kind] for kind in row] for row in self.kind]

    @cached_property
    def weight(self) -> list[list[int]]:
        """The nominal bandwidth w of each two positions, 1e-6 GB/s."""
        return self._between(self.kind_weight)

    @cached_property
    def alike(self) -> bool:
        """Whether all GPUs are linked alike, so that sets of one size have the same bandwidth."""
        return len(self.kind_name) <= 2 and len({*self.into_switch}) == len({*self.nvls}) == 1

    @cached_property
    def hop(self) -> list[list[int]]:
        """What one step of a ring carries between each two positions, 1e-6 GB/s."""
        return self._between(self.kind_hop)

    @cached_property
    def direct(self) -> list[list[int]]:
        """What NCCL plans with over NVLinks from GPU to GPU, 1e-6 GB/s; 0 without."""
        return self._between(self.kind_direct)

    @cached_property
    def nvlinked(self) -> list[int]:
        """The GPUs to which each position has NVLinks, as a mask."""
        masks = []
        for row in self.kind:
            joined = [b for b, kind in enumerate(row) if self.kind_count[kind]]
            masks.append(sum([self.bit[b] for b in joined]))
        return masks

    @cached_property
    def fastest_pcie(self) -> int:
        """What one step of a ring carries at most where it is not over NVLink, 1e-6 GB/s."""
        hops = zip(self.kind_hop, self.kind_planned, strict=True)
        return max((hop for hop, planned in hops if hop > planned), default=0)

    @cached_property
    def tree(self) -> Level:
        """The levels of the machine."""
        return machine_tree(self.topology)

    @cached_property
    def socket(self) -> list[int]:
        """Number of the socket of each position."""
        numbers = {
            gpu: number for number, socket in enumerate(self.tree.sockets) for gpu in socket.gpus
        }
        return [numbers[gpu] for gpu in self.gpus]

    @cached_property
    def socket_size(self) -> list[int]:
        """Number of GPUs that each socket has."""
        return [len(socket.gpus) for socket in self.tree.sockets]

    @cached_property
    def far(self) -> dict[int, dict[int, int]]:
        """The distance of every two GPUs, by index; 0 to itself."""
        return distances(self.topology, self.tree)

    @cached_property
    def measured(self) -> dict[tuple[str, ...], float]:
        """Measured all-reduce bandwidth in GB/s by the links of a set's best ring."""
        return {one.ring: one.all_reduce_gb_per_s for one in self.topology.measured}

    @cached_property
    def calibrated(self) -> "Fabric":
        """This fabric with the measured bandwidth of each class of links, not the planned one."""
        return Fabric(
            replace(
                self.topology, links=tuple(map(self._as_measured, self.topology.links)), measured=()
            )
        )

    def _as_measured(self, link: Link) -> Link:
        bandwidth = self.measured.get((link.name,))
        if bandwidth is None:
            return link
        return (
            replace(link, nvlink_planned_gb_per_s=bandwidth)
            if link.nvlink_count
            else replace(link, pcie_gb_per_s=bandwidth)
        )


def _kind(link: Link, *, usable: bool) -> tuple[int, int, int, int, int, str]:
    """Return the figures of a link's kind, in the order of Fabric's attributes.

    A link of a MIG instance is of no use, since no two of those work together.
    """
    planned = link.nvlink_planned_gb_per_s if link.nvlink_count else 0.0
    return (
        round(link.bandwidth_gb_per_s * UNIT) if usable else 0,
        round(planned * UNIT),
        round(max(planned, link.pcie_gb_per_s) * UNIT),
        link.nvlink_count,
        round(planned * UNIT) if link.kind == "nvlink" else 0,
        link.name,
    )


THETA = (
    16.396, 4.536, 1.556, -20.694, -9.467, 7.615, -7.973,
    12.733, -4.195, -8.413, 62.851, 27.418, -5.114, -46.973,
)  # fmt: skip
"""Coefficients of Eq. 2 (mapa-sc21 Table 2), fitted to rings of 2-5 GPUs on a DGX-1 V100."""


def mapa_equation(x: int, y: int, z: int) -> float:
    """Return the predicted effective bandwidth of a ring, GB/s.

    Args:
        z: number of PCIe edges.

    Source: mapa-sc21 Eq. 2 with Table 2. It has no intercept and is not monotone.

    Example:
        >>> round(mapa_equation(2, 1, 0), 2)
        57.86
    """
    terms = (
        x, y, z,
        1 / (x + 1), 1 / (y + 1), 1 / (z + 1),
        x * y, y * z, z * x,
        1 / (x * y + 1), 1 / (y * z + 1), 1 / (z * x + 1),
        x * y * z, 1 / (x * y * z + 1),
    )  # fmt: skip
    return sum(theta * term for theta, term in zip(THETA, terms, strict=True))


def cut(fabric: Fabric, gpus: Sequence[int]) -> int:
    """Return the fastest all-reduce that the links of at least two GPUs allow.

    It is a ring, or NVSwitch's own. A ring of GPUs that NVLink connects, through each other or
    through NVSwitch, is as fast as the minimum cut of that graph, with the figures that NCCL plans
    with. Otherwise the ring must leave NVLink, and the best PCIe path that joins the parts decides
    (the narrowest edge of a widest spanning tree over them). Where a ring with a hop of whatever is
    faster for each two GPUs beats that, as a wide slot of generation 5 beats a single NVLink, it is
    that ring. docs/explanation/bandwidth.md holds it against published measurements.

    Cost: cubic in the number of GPUs.
    """
    parts = nvlink_parts(fabric, gpus)
    if len(parts) > 1:
        return _widest_join(fabric, parts)
    return max(_joined_bandwidth(fabric, gpus), nvls_bandwidth(fabric, gpus))


def nvls_bandwidth(fabric: Fabric, gpus: Sequence[int]) -> int:
    """Return the bus bandwidth of an all-reduce computed in the NVSwitch that joins the GPUs.

    That is NVLink SHARP; 0 if the switch cannot. Each of n GPUs sends all its data up once, and the
    n-th part of the sum that is its to spread: 1 + 1/n times the data, where a ring sends 2(n-1)/n
    times. So it pays from five GPUs of Hopper on, and from six of Blackwell.

    Source: the count of nccl issue 2140; with it one efficiency fits 5 to 8 GPUs of H200, and 6 to
        8 of B200 (tests/unit/test_bandwidth.py). NCCL plans without the 1/n (src/graph/tuning.cc),
        by which four GPUs would gain, and do not.
    """
    n = len(gpus)
    return round(min(fabric.nvls[gpu] for gpu in gpus) * 2 * (n - 1) / (n + 1))


def _joined_bandwidth(fabric: Fabric, gpus: Sequence[int]) -> int:
    """Return the bandwidth of a ring of GPUs that NVLink connects."""
    direct, into_switch = fabric.direct, fabric.into_switch
    if fabric.alike:  # no cut is narrower than that around one GPU
        a, b = gpus[0], gpus[-1]
        return max(fabric.hop[a][b], direct[a][b] * (len(gpus) - 1) + into_switch[a])
    joined = _widest_join(fabric, [[gpu] for gpu in gpus])
    rows = [[*[direct[a][b] for b in gpus], into_switch[a]] for a in gpus]
    # No cut is wider than the links of one GPU.
    if not any(into_switch[a] for a in gpus) and min(map(sum, rows)) <= joined:
        return joined
    return max(_minimum_cut(rows), joined)


def nvlink_parts(fabric: Fabric, gpus: Sequence[int]) -> list[list[int]]:
    """Split GPUs into parts that NVLink connects."""
    parts: list[list[int]] = []
    left = list(gpus)
    while left:
        part = [left.pop(0)]
        for a in part:  # it grows
            joined = fabric.nvlinked[a]
            found = [b for b in left if joined & fabric.bit[b]]
            if found:
                part += found
                left = [b for b in left if b not in found]
        parts.append(part)
    return parts


def _widest_join(fabric: Fabric, parts: list[list[int]]) -> int:
    """Return the narrowest edge of a widest spanning tree over the parts (Prim)."""
    hop = fabric.hop
    reach = dict.fromkeys(range(1, len(parts)), 0)
    added, narrowest = 0, 1 << 62
    while reach:
        for i in reach:
            widest = max(hop[a][b] for a in parts[added] for b in parts[i])
            reach[i] = max(reach[i], widest)
        added = max(reach, key=reach.__getitem__)
        narrowest = min(narrowest, reach.pop(added))
    return narrowest


def _minimum_cut(rows: Sequence[Sequence[int]]) -> int:
    """Return the global minimum cut with GPUs on both sides (Stoer and Wagner 1997).

    Args:
        rows: for each GPU its bandwidth to every GPU, then to the switch. Every search starts at
            the switch, so that it is never the side that is cut off: with direct NVLinks besides,
            its links can be fewer than any GPU's.
    """
    n = len(rows)
    switch = [row[n] for row in rows]
    weight = [*map(list, rows), [*switch, 0]]
    nodes = [n, *range(n)] if any(switch) else [*range(n)]
    best = 1 << 62
    while len(nodes) > (2 if any(switch) else 1):
        before = nodes[0]
        pull = {a: weight[before][a] for a in nodes[1:]}
        while len(pull) > 1:
            before = max(pull, key=pull.__getitem__)
            del pull[before]
            for a in pull:
                pull[a] += weight[before][a]
        last, cut_off = pull.popitem()
        best = min(best, cut_off)
        nodes.remove(last)
        for a in nodes:
            weight[before][a] += weight[last][a]
            weight[a][before] = weight[before][a]
    return best


def ring_counts(fabric: Fabric, gpus: Sequence[int]) -> tuple[int, int, int]:
    """Return how many double NVLinks, single NVLinks and PCIe paths the best ring of a set has.

    More than two links count as double.
    """
    counts = [fabric.kind_count[kind] for kind in _best_ring(fabric, gpus)]
    return sum(count > 1 for count in counts), counts.count(1), counts.count(0)


@lru_cache(maxsize=8)
def _ring_mapper(fabric: Fabric, ranks: int) -> Mapper:
    """Return a mapper of rings by the sum of w."""
    mapper = Mapper(fabric.kind, PATTERNS["ring"].edges(ranks), fabric.kind_weight)
    mapper.left = inf
    return mapper


def _best_ring(fabric: Fabric, gpus: Sequence[int]) -> list[int]:
    """Return the kinds of the links of the ring with the largest sum of w, the slowest last."""
    ring = _ring_mapper(fabric, len(gpus)).best(sorted(gpus)).gpus
    hops = pairwise(ring) if len(ring) == 2 else pairwise((*ring, ring[0]))
    weight, name = fabric.kind_weight, fabric.kind_name
    kinds = [fabric.kind[a][b] for a, b in hops]
    return sorted(kinds, key=lambda kind: (-weight[kind], name[kind]))


def ring_links(fabric: Fabric, gpus: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the links of the best ring of at least two GPUs, slowest last.

    They tell what kind of set it is.
    """
    return tuple(fabric.kind_name[kind] for kind in _best_ring(fabric, gpus))


def mapa(fabric: Fabric, gpus: Sequence[int]) -> int:
    """Return the effective bandwidth by Eq. 2 over the edges of the best ring of at least two GPUs.

    The best ring is the one with the largest aggregate bandwidth, which is sounder than the order
    that flatters Eq. 2 most. Two or more NVLinks count as double. Outside a DGX-1 V100 this is an
    extrapolation.

    Source: mapa-sc21 3.4.3.
    """
    return round(mapa_equation(*ring_counts(fabric, gpus)) * UNIT)


def measured(fabric: Fabric, gpus: Sequence[int]) -> int:
    """Return the effective bandwidth of at least two GPUs as measured on this machine.

    `gpulaunch topo --measure` measures kinds of sets. It is the median of the set's kind; of a kind
    that was not measured, the cut over links that carry what their class was measured to carry.

    Source: mapa-sc21 3.4 defines the effective bandwidth so.
    """
    known = fabric.measured.get(ring_links(fabric, gpus))
    return cut(fabric.calibrated, gpus) if known is None else round(known * UNIT)


BANDWIDTH_MODELS: dict[str, Callable[[Fabric, Sequence[int]], int]] = {
    "cut": cut,
    "mapa": mapa,
    "measured": measured,
}
"""Effective-bandwidth models by name."""
