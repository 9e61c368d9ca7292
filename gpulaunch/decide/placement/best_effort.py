"""The best-effort policy of Kubernetes' GPU device plugin: all free GPUs in sets of the size that is asked."""
# pure: decides on plain values

from collections.abc import Sequence
from functools import cache
from itertools import combinations

from gpulaunch.errors import FailedError
from gpulaunch.machine.link import Link
from gpulaunch.machine.link_bandwidth import PathType
from gpulaunch.machine.topology import Topology

MOST_GPUS = 16
"""Of more than that the partitions are too many."""

_PATH_POINTS: dict[PathType, int] = {
    "NET": 0,
    "SYS": 10,
    "NODE": 20,
    "PHB": 30,
    "PXB": 40,
    "PIX": 50,
}
_SAME_CARD_POINTS = 60
_NVLINK_POINTS = 100

_Division = tuple[int, tuple[tuple[int, ...], ...]]
"""The points of a partition, or -1 for none, and its sets."""


def points(link: Link, *, same_card: bool = False) -> int:
    """How well two GPUs are linked, in the plugin's points: by PCIe path, and 100 for each NVLink.

    Departure: NVLinks into an NVSwitch count, which the plugin does not see.

    Source: go-gpuallocator besteffort_policy.go, calculateGPUPairScore.
    """
    return (
        _SAME_CARD_POINTS if same_card else _PATH_POINTS[link.pcie_path]
    ) + _NVLINK_POINTS * link.nvlink_count


def best_of_partition(
    topology: Topology, available: Sequence[int], size: int, required: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """The best set out of the partition with the most points; of equals the first in order of indices.

    All available GPUs are divided into sets of `size` and one of what is left over. Of partitions
    with a set that holds all required GPUs the one with the largest sum of points over all pairs
    within sets is taken, and of that the set with the most points that holds them. A single GPU is
    the first available one, or the required one.

    Args:
        topology: the machine.
        available: indices.
        size: how many are wanted, 1 to len(available).
        required: GPUs that the set must hold, at most `size` of the available ones.

    Departure: what is left over is one set. The plugin pads with empty places and lets them fall
        anywhere, so that it may return fewer GPUs than were asked.

    Raises:
        FailedError: more than MOST_GPUS are available, and not all linked alike.

    Source: go-gpuallocator besteffort_policy.go.
    """
    gpus = sorted(available)
    card = {gpu.index: gpu.card for gpu in topology.gpus}
    score = {
        (link.a, link.b): points(link, same_card=card[link.a] == card[link.b])
        for link in topology.links
    }
    wanted = sorted(required)
    if size == 1:
        return tuple(wanted) or (gpus[0],)
    if len({score[pair] for pair in combinations(gpus, 2)}) == 1:
        return tuple(
            sorted([*wanted, *[gpu for gpu in gpus if gpu not in required][: size - len(wanted)]])
        )
    if len(gpus) > MOST_GPUS:
        raise FailedError(
            f"{len(gpus)} GPUs are free: policy best-effort can partition at most {MOST_GPUS}",
            "narrow the choice with --only, or take another --policy",
        )
    worth = cache(lambda group: sum(score[pair] for pair in combinations(group, 2)))

    @cache
    def divided(left: tuple[int, ...]) -> _Division:
        """The partition of these with the most points; of equals the first."""
        if not left:
            return 0, ()
        best: _Division = (-1, ())
        for others in combinations(left[1:], size - 1):
            group = (left[0], *others)
            if len(required.intersection(group)) in (0, len(required)):
                total, groups = divided(tuple(gpu for gpu in left if gpu not in group))
                if total >= 0:
                    best = max(best, (total + worth(group), (group, *groups)), key=_total)
        return best

    divisions = []
    for rest in combinations([gpu for gpu in gpus if gpu not in required], len(gpus) % size):
        total, groups = divided(tuple(gpu for gpu in gpus if gpu not in rest))
        divisions.append((total + worth(rest), groups))
    groups = max(divisions, key=_total)[1]
    return max((group for group in groups if required.issubset(group)), key=worth)


def _total(division: _Division) -> int:
    return division[0]
