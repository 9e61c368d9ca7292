"""The best-effort policy of Kubernetes' GPU device plugin: all free GPUs in sets of one size."""
# pure: decides on plain values

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from math import inf

from gpulaunch.errors import FailedError
from gpulaunch.machine.link import Link, PathType
from gpulaunch.machine.topology import Topology

MOST_GPUS = 16
"""Number of free GPUs beyond which the sets are too many."""

_PATH_POINTS: dict[PathType, int] = {
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
    return (
        _SAME_CARD_POINTS if same_card else _PATH_POINTS[link.pcie_path]
    ) + _NVLINK_POINTS * link.nvlink_count


def best_of_partition(
    topology: Topology, available: Sequence[int], size: int, required: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Return the best set out of the partition with the most points, as the plugin would.

    All available GPUs are divided into sets of `size` and one of what is left over. Of partitions
    with a set of `size` that holds all required GPUs the one with the largest sum of points over
    all pairs within sets is taken, and of that the set with the most points that holds them. Of
    equals the first: partitions stand in order of the set with the first GPU, then of the one with
    the first GPU that is left, and so on; sets in order of their indices, where what is left over
    is filled up with one above all others.

    Args:
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
    bit = {gpu: 2 << place for place, gpu in enumerate(reversed(gpus))}
    held = sum(bit[gpu] for gpu in required)
    everything = sum(bit.values()) + (len(gpus) % size > 0)
    groups = [
        tuple(gpu for gpu in gpus if mask & bit[gpu])
        for mask in _best_partition(everything, _lacks(gpus, score, size, bit, held))
        if mask & (held | 1) == held
    ]
    return max(groups, key=lambda group: sum(score[pair] for pair in combinations(group, 2)))


def _lacks(
    gpus: Sequence[int],
    score: Mapping[tuple[int, int], int],
    size: int,
    bit: Mapping[int, int],
    held: int,
) -> dict[int, int]:
    """Return what each set that a partition may have lacks of the best one of its size.

    Sets are masks with the first GPU in the highest bit, so that the largest is the first. The
    lowest bit marks what is left over. A set costs what the best links of each of its GPUs are
    worth, which is the same for all partitions, less what it has of them, from both ends.
    """
    worth = {}
    for gpu in gpus:
        links = sorted((score[p] for p in combinations(gpus, 2) if gpu in p), reverse=True)
        worth[gpu] = sum(links[: size - 1])
    lacks: dict[int, int] = {}
    for count, left_over, allowed in ((size, 0, (0, held)), (len(gpus) % size, 1, (0,))):
        costs = {}
        for group in combinations(gpus, count):
            mask = sum([bit[gpu] for gpu in group])
            if mask & held in allowed:
                has = sum([score[pair] for pair in combinations(group, 2)])
                costs[mask + left_over] = sum([worth[gpu] for gpu in group]) - 2 * has
        least = min(costs.values())
        lacks |= {mask: cost - least for mask, cost in costs.items()}
    return lacks


def _best_partition(left: int, lacks: Mapping[int, int]) -> Iterator[int]:
    """Yield the sets of the first partition of those that together lack the least."""
    by_first = defaultdict[int, list[int]](list)
    for mask in sorted(sorted(lacks, reverse=True), key=lacks.__getitem__):
        by_first[mask.bit_length()].append(mask)

    @cache
    def divided(left: int) -> tuple[float, int]:
        """Return what the best partition of these lacks, and its first set, negated."""
        if left in lacks:
            return lacks[left], -left
        best = (inf, 0)
        for mask in by_first[left.bit_length()]:
            if lacks[mask] > best[0]:
                break
            if mask & left == mask and (lacks[mask], -mask) < best:
                best = min(best, (lacks[mask] + divided(left ^ mask)[0], -mask))
        return best

    while left:
        yield (first := -divided(left)[1])
        left ^= first
