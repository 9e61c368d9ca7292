"""The best-effort policy of Kubernetes' GPU device plugin: all free GPUs in sets of one size."""
# pure: decides on plain values

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from math import inf

from gpulaunch.errors import FailedError
from gpulaunch.machine.link import Link, PathType
from gpulaunch.machine.topology import Topology

MOST_GPUS = 16
"""Number of free GPUs beyond which the sets are too many."""

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


def points(link: Link, *, same_card: bool = False) -> int:
    """Return how well two GPUs are linked, in the plugin's points.

    They go by PCIe path, and are 100 for each NVLink.

    Departure: NVLinks into an NVSwitch count, which the plugin does not see.

    Source: go-gpuallocator besteffort_policy.go, calculateGPUPairScore.
    """
    path_points = _SAME_CARD_POINTS if same_card else _PATH_POINTS[link.pcie_path]
    return path_points + _NVLINK_POINTS * link.nvlink_count


def best_of_partition(
    topology: Topology, available: Sequence[int], size: int, required: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Return the best set out of the partition with the most points, as the plugin would.

    All available GPUs are divided into sets of `size` and one of what is left over. Of partitions
    with a set of `size` that holds all required GPUs the one with the largest sum of points over
    all pairs within sets is taken, and of that the set with the most points that holds them. Of
    equals the first: partitions are ordered by the set with the first GPU, then by the one with the
    first GPU that is left, and so on; sets by their indices, where what is left over is filled up
    with places above all GPUs.

    Args:
        topology: the machine.
        available: indices of the GPUs that may be taken.
        size: number of GPUs, 1 to len(available).
        required: GPUs that the set must hold, at most `size` of the available ones.

    Raises:
        FailedError: more than MOST_GPUS are available, and not all linked alike.

    Departures: what is left over is never taken; the plugin takes it, and so too few GPUs, where
        it has more points than every whole set (go-gpuallocator #80). Its code overwrites the last
        sets of the best partition where it has seven or more, against a test of its own. Of more
        than MOST_GPUS that are linked alike the first join the required ones.

    Source: go-gpuallocator besteffort_policy.go, Allocate and iterateGPUPartitions.
    """
    gpus = sorted(available)
    card = {gpu.index: gpu.card for gpu in topology.gpus}
    score = {
        (link.a, link.b): points(link, same_card=card[link.a] == card[link.b])
        for link in topology.links
    }
    kinds = {score[pair] for pair in combinations(gpus, 2)}
    if size in (1, len(gpus)) or (len(gpus) > MOST_GPUS and len(kinds) == 1):
        others = [gpu for gpu in gpus if gpu not in required]
        return tuple(sorted([*required, *others[: size - len(required)]]))
    if len(gpus) > MOST_GPUS:
        raise FailedError(
            f"{len(gpus)} GPUs are free: policy best-effort can partition at most {MOST_GPUS}",
            "narrow the choice with --only, or take another --policy",
        )
    rest = len(gpus) % size

    @cache
    def points_of(group: tuple[int, ...]) -> int:
        return sum([score[pair] for pair in combinations(group, 2)])

    @cache
    def divide(left: tuple[int, ...]) -> tuple[float, tuple[tuple[int, ...], ...]]:
        """Return the most points of a partition of these, and the first partition with them."""
        if not left:
            return 0, ()
        groups = list(combinations(left[1:], size - 1))
        if len(left) % size:  # what is left over is not taken yet
            groups = sorted([*groups, *combinations(left[1:], rest - 1)], key=_padded)
        best: tuple[float, tuple[tuple[int, ...], ...]] = -inf, ()
        for others in groups:
            group = (left[0], *others)
            held = required.intersection(group)
            if held and (len(group) < size or held != required):
                continue
            total, more = divide(tuple([gpu for gpu in left[1:] if gpu not in others]))
            total += points_of(group)
            if total > best[0]:
                best = total, (group, *more)
        return best

    _, groups = divide(tuple(gpus))
    whole = [group for group in groups if required.issubset(group) and len(group) == size]
    return max(whole, key=points_of)


def _padded(group: tuple[int, ...]) -> tuple[float, ...]:
    return (*group, inf)
