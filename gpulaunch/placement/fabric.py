"""The links of a topology laid out for placement: by position instead of index, by kind."""
# pure: decides on plain values

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import combinations

from gpulaunch.machine.link import Link, nvls_efficiency
from gpulaunch.machine.topology import Level, Topology, distances, machine_tree
from gpulaunch.records import Record, as_list, replace

UNIT = 1_000_000
"""Bandwidths are compared as whole numbers of 1e-6 GB/s: the order of a sum makes no difference."""


class Kind(Record):
    """One kind of links as placement sees it; bandwidths in 1e-6 GB/s per direction.

    Attributes:
        weight: nominal bandwidth of the best direct connection: w of mapa-sc21 3.2.
        planned: what NCCL plans with over NVLink, direct or through a switch; 0 without NVLink.
        hop: what one step of a ring carries here: the faster of NVLink and PCIe.
        direct: whether its NVLinks lead from GPU to GPU, not into a switch.
        name: name of the class of links, such as "NV2 50".
    """

    weight: int
    planned: int
    hop: int
    count: int
    direct: bool
    name: str


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
        kinds: all kinds of links; the last is that of a GPU to itself, which carries nothing.
        kind: for each two positions the place in `kinds` of their link.
        into_switch: planned bandwidth of each GPU's NVLinks into a switch, 1e-6 GB/s; 0 without.
        nvls: as into_switch, while the switch computes the sum; 0 where it cannot.
        bit: the bit of each position in a mask of GPUs; the first has the largest.
        effective: the table of effective bandwidths, filled as they are asked for: name of the
            model -> mask -> 1e-6 GB/s.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.gpus = tuple(gpu.index for gpu in topology.gpus)
        self.position = {index: i for i, index in enumerate(self.gpus)}
        count = len(self.gpus)
        self.bit = [1 << count - 1 - i for i in range(count)]
        self._positions: dict[int, list[int]] = {}
        self.effective: dict[str, dict[int, int]] = {}
        places: dict[Kind, int] = {}
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
        self.kinds = (*places, Kind(0, 0, 0, 0, False, ""))
        for i in range(count):
            self.kind[i][i] = len(places)
        self.nvls = [
            0.0 if gpu.mig or not speed else speed * nvls_efficiency(gpu.compute_capability)
            for gpu, speed in zip(topology.gpus, self.into_switch, strict=True)
        ]

    def mask(self, positions: Iterable[int]) -> int:
        """Return a set of positions as a mask."""
        return sum([self.bit[i] for i in positions])

    def positions(self, mask: int) -> list[int]:
        """Return the positions of a mask, ascending."""
        found = self._positions.get(mask)
        if found is None:
            found = [i for i, bit in enumerate(self.bit) if mask & bit]
            self._positions[mask] = found
        return found

    def _between(self, figures: Sequence[int]) -> list[list[int]]:
        """Return for each two positions the figure of their kind of link."""
        return [[figures[kind] for kind in row] for row in self.kind]

    @cached_property
    def weight(self) -> list[list[int]]:
        """The nominal bandwidth w of each two positions, 1e-6 GB/s."""
        return self._between([kind.weight for kind in self.kinds])

    @cached_property
    def alike(self) -> bool:
        """Whether all GPUs are linked alike, so that sets of one size have the same bandwidth."""
        return len(self.kinds) <= 2 and len({*self.into_switch}) == len({*self.nvls}) == 1

    @cached_property
    def hop(self) -> list[list[int]]:
        """What one step of a ring carries between each two positions, 1e-6 GB/s."""
        return self._between([kind.hop for kind in self.kinds])

    @cached_property
    def direct(self) -> list[list[int]]:
        """What NCCL plans with over NVLinks from GPU to GPU, 1e-6 GB/s; 0 without."""
        return self._between([kind.planned if kind.direct else 0 for kind in self.kinds])

    @cached_property
    def nvlinked(self) -> list[int]:
        """The GPUs to which each position has NVLinks, as a mask."""
        masks = []
        for row in self.kind:
            joined = [b for b, kind in enumerate(row) if self.kinds[kind].count]
            masks.append(self.mask(joined))
        return masks

    @cached_property
    def fastest_pcie(self) -> int:
        """What one step of a ring carries at most where it is not over NVLink, 1e-6 GB/s."""
        return max((kind.hop for kind in self.kinds if kind.hop > kind.planned), default=0)

    def sum_among(self, mask: int) -> int:
        """Return the sum of w over all pairs of a set."""
        return sum_over_pairs(self.weight, self.positions(mask))

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


def sum_over_pairs(figures: Sequence[Sequence[int]], gpus: Sequence[int]) -> int:
    """Return the sum over all pairs of positions of what every two have."""
    return sum([figures[a][b] for a, b in combinations(gpus, 2)])


def _kind(link: Link, *, usable: bool) -> Kind:
    """Return the kind of a link.

    A link of a MIG instance is of no use, since no two of those work together.
    """
    planned = link.nvlink_planned_gb_per_s if link.nvlink_count else 0.0
    return Kind(
        weight=round(link.bandwidth_gb_per_s * UNIT) if usable else 0,
        planned=round(planned * UNIT),
        hop=round(max(planned, link.pcie_gb_per_s) * UNIT),
        count=link.nvlink_count,
        direct=link.kind == "nvlink",
        name=link.name,
    )
