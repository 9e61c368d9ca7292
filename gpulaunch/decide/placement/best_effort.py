"""The best-effort policy of Kubernetes' GPU device plugin: all free GPUs in sets of one size."""
# pure: decides on plain values

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from math import inf

from gpulaunch.errors import FailedError
from gpulaunch.machine.link import Link
from gpulaunch.machine.link_bandwidth import PathType
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
    the first GPU that is left, and so on; sets in order of indices, where what is left over ends
    in indices above all others.

    Args:
        topology: the machine.
        available: indices of the GPUs that may be taken.
        size: number of GPUs, 1 to len(available).
        required: GPUs that the set must hold, at most `size` of the available ones.

    Raises:
        FailedError: two or more of more than MOST_GPUS that are not all linked alike.

    Departures: what is left over is never taken; the plugin takes it, and so too few GPUs, where
        it has more points than any other set (go-gpuallocator #80). Released plugins overwrite
        the last sets of the best partition where it has seven or more; a test that was added to
        go-gpuallocator since asks for what is returned here.

    Source: go-gpuallocator besteffort_policy.go, Allocate and iterateGPUPartitions.
    """
    gpus = sorted(available)
    free = frozenset(gpus)
    card = {gpu.index: gpu.card for gpu in topology.gpus}
    score = {
        (link.a, link.b): points(link, same_card=card[link.a] == card[link.b])
        for link in topology.links
        if link.a in free and link.b in free
    }
    if size in (1, len(gpus)) or len(set(score.values())) == 1:
        return _first_of_equals([gpu for gpu in gpus if gpu not in required], size, required)
    if len(gpus) > MOST_GPUS:
        raise FailedError(
            f"{len(gpus)} GPUs are free: policy best-effort can partition at most {MOST_GPUS}",
            "narrow the choice with --only, or take another --policy",
        )
    place = {gpu: bit for bit, gpu in enumerate(reversed(gpus))}
    held = sum(1 << place[gpu] for gpu in required)
    groups = [
        tuple(gpu for gpu in gpus if mask >> place[gpu] & 1)
        for mask in _best_partition((1 << len(gpus)) - 1, size, _lacks(place, score, size, held))
        if mask.bit_count() == size and mask & held == held
    ]
    return max(groups, key=lambda group: sum(score[pair] for pair in combinations(group, 2)))


def _first_of_equals(others: Sequence[int], size: int, required: frozenset[int]) -> tuple[int, ...]:
    """Return the set with the required GPUs out of the first partition that has one."""
    own = sorted([*required, *others[: size - len(required)]])
    left = len(others) + len(required)
    count = size if left >= 2 * size else left % size
    if own < [*others[:count], inf]:
        return tuple(own)
    return _first_of_equals(others[count:], size, required)


def _lacks(
    place: Mapping[int, int], score: Mapping[tuple[int, int], int], size: int, held: int
) -> dict[int, int]:
    """Return what each set that a partition may have lacks of the best of as many GPUs.

    Sets are masks with the first GPU in the highest bit: the largest stands first. GPUs count
    against their set what their best links are worth, the same in all partitions.
    """
    table = [0]
    for gpu in place:
        links = sorted((score[pair] for pair in score if gpu in pair), reverse=True)
        row = [sum(links[: size - 1])]
        for other in list(place)[: place[gpu]]:
            row += [value - 2 * score[gpu, other] for value in row]
        table += [a + b for a, b in zip(table, row, strict=True)]
    lacks: dict[int, int] = {}
    for count, allowed in ((size, (0, held)), (len(place) % size, (0,))):
        kind = {
            mask: cost
            for mask, cost in enumerate(table)
            if mask.bit_count() == count and mask & held in allowed
        }
        least = min(kind.values())
        lacks |= {mask: cost - least for mask, cost in kind.items()}
    return lacks


def _best_partition(left: int, size: int, lacks: Mapping[int, int]) -> Iterator[int]:
    """Yield the sets of the first partition of those that together lack the least."""
    by_first = defaultdict[int, list[int]](list)
    for mask in sorted(sorted(lacks, reverse=True), key=lacks.__getitem__):
        by_first[mask.bit_length()].append(mask)

    @cache
    def divided(left: int) -> tuple[float, int]:
        """Return what the best partition of these lacks, and its first set, negated."""
        if left.bit_count() <= size:
            return lacks.get(left, inf), -left
        uneven = left.bit_count() % size > 0
        best = (inf, 0)
        for mask in by_first[left.bit_length()]:
            if lacks[mask] > best[0]:
                break
            fits = mask & left == mask and (uneven or mask.bit_count() == size)
            if fits and (lacks[mask], -mask) < best:
                best = min(best, (lacks[mask] + divided(left ^ mask)[0], -mask))
        return best

    while left:
        yield (first := -divided(left)[1])
        left ^= first
