"""The sets of GPUs that a request could get, and the best of them.

A set is a mask over the positions of a Fabric: of two sets the larger number has the lower indices.
GPUs that have the same links to all others and to a switch, on the same socket, are
interchangeable: only the lowest of them are taken. So are whole sockets of such GPUs, as in an
NVSwitch machine: the first sockets get the most.
"""
# pure: decides on plain values

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace, nlargest
from itertools import accumulate, pairwise, product
from math import comb, inf
from operator import mul

from gpulaunch.placement.fabric import Fabric
from gpulaunch.records import Record

MOST_SETS = 20_000
"""Number of sets that are compared at most; 8 of 16 GPUs, all different, are 12,870."""

MOST_GROWN = 640_000
"""GPUs of sets that are looked at while sets grow, each time anew: some 0.2 s on 32 GPUs."""

Cell = list[list[int]]
"""For each number of GPUs the masks that a part of the machine has to offer."""


class Limits(Record):
    """The rules that sets must keep, as masks.

    Attributes:
        admitted: GPUs that may be taken.
        required: GPUs that must be taken.
        groups: sets of GPUs of which a candidate lies in one.
        at_most: groups of which only so many GPUs may be taken.
    """

    admitted: int
    required: int
    groups: tuple[int, ...]
    at_most: tuple[tuple[int, int], ...] = ()

    def allow(self, mask: int) -> bool:
        """Return whether a set keeps the rules."""
        return (
            mask & self.required == self.required
            and not mask & ~(self.admitted | self.required)
            and any(not mask & ~group for group in self.groups)
            and self.bound(mask)
        )

    def bound(self, mask: int) -> bool:
        """Return whether a set has no more GPUs of a group than it may have."""
        return all((mask & group).bit_count() <= most for group, most in self.at_most)

    def count(self, gpus: int) -> int:
        """Return how many sets there are, alike or not, were there no limit by at_most."""
        required = self.required.bit_count()
        eligible = ((group & self.admitted | self.required) for group in self.groups)
        return sum(comb(group.bit_count() - required, gpus - required) for group in eligible)


def enumerate_sets(fabric: Fabric, free: int, count: int, limits: Limits) -> list[int] | None:
    """Return all sets of a size that are not alike, as masks.

    Those that are free, admitted or not, tell which sockets are alike.

    Returns:
        None if there are more than MOST_SETS.
    """
    members: dict[int, list[int]] = {}
    for gpu in fabric.positions(free):
        members.setdefault(fabric.socket[gpu], []).append(gpu)
    found: list[int] = []
    for group in limits.groups:
        eligible = limits.admitted & group & ~limits.required
        twins = _twins(fabric, fabric.positions(eligible), limits)
        cells = _make_cells(fabric, twins, members, whole_sockets=not limits.at_most)
        masks = combine(cells, count - limits.required.bit_count(), 2 * MOST_SETS)
        if masks is None:
            return None
        found += [limits.required | mask for mask in masks] if limits.required else masks
    masks = list(set(found)) if len(limits.groups) > 1 else found
    masks = [mask for mask in masks if limits.bound(mask)]
    return masks if len(masks) <= MOST_SETS else None


def _twins(fabric: Fabric, positions: Sequence[int], limits: Limits) -> list[list[int]]:
    """Return GPUs in groups that have the same links to all and a switch, and the same limits.

    Two such GPUs reach the same GPUs over each kind of link, once each has itself among those that
    it reaches over the link of the two.
    """
    groups: list[list[int]] = []
    known: dict[object, list[int]] = {}
    for gpu in positions:
        reached, bit = fabric.reached_by_kind[gpu], fabric.bit[gpu]
        limited = tuple(bool(group & bit) for group, _ in limits.at_most)
        own = limited, fabric.into_switch[gpu], fabric.nvls[gpu]
        keys = [
            (own, *reached[:kind], masks | bit, *reached[kind + 1 : -1])
            for kind, masks in enumerate(reached[:-1])
        ]
        twins = next((known[key] for key in keys if key in known), None)
        if twins is None:
            twins = []
            groups.append(twins)
            known |= dict.fromkeys(keys, twins)
        twins.append(gpu)
    return groups


def _make_cells(
    fabric: Fabric, twins: list[list[int]], members: dict[int, list[int]], *, whole_sockets: bool
) -> list[Cell]:
    """Return what the parts of the machine have to offer.

    Args:
        fabric: the links.
        twins: GPUs that may be taken, those together that are interchangeable by their links.
        members: free GPUs of each socket, whether or not they may be taken.
        whole_sockets: whether whole sockets may be interchangeable, too.
    """
    cells: list[Cell] = []
    for group in twins:
        parts: dict[int, list[int]] = {}
        for gpu in group:
            parts.setdefault(fabric.socket[gpu], []).append(gpu)
        # Only if they follow each other does the first socket have the lowest GPUs.
        in_order = whole_sockets and all(a[-1] < b[0] for a, b in pairwise(parts.values()))
        alike: dict[object, list[list[int]]] = {}
        for socket, part in parts.items():
            pure = in_order and members[socket] == part
            key = (fabric.socket_size[socket], len(part)) if pure else (socket,)
            alike.setdefault(key, []).append(part)
        cells += [_make_sockets_cell(fabric, sockets) for sockets in alike.values()]
    return cells


def _make_sockets_cell(fabric: Fabric, sockets: list[list[int]]) -> Cell:
    """Return the sets out of sockets that are alike.

    The first sockets get the most, and give their lowest GPUs.
    """
    size = len(sockets[0])
    if comb(len(sockets) + size, size) > MOST_SETS:  # then sockets are not told apart
        sockets = [sorted(gpu for socket in sockets for gpu in socket)]
        size = len(sockets[0])
    # lowest[n][s]: the lowest n GPUs of each of the first s sockets
    lowest = [
        list(accumulate((fabric.mask(socket[:n]) for socket in sockets), initial=0))
        for n in range(size + 1)
    ]
    options = [(0, 0, 0)]  # sockets that have given GPUs, how many GPUs, which
    for n in range(size, 0, -1):
        options = [
            (end, taken + n * (end - start), mask | lowest[n][end] ^ lowest[n][start])
            for start, taken, mask in options
            for end in range(start, len(sockets) + 1)
        ]
    cell: Cell = [[] for _ in range(size * len(sockets) + 1)]
    for _, taken, mask in options:
        cell[taken].append(mask)
    return cell


def combine(cells: Sequence[Cell], count: int, most: int) -> list[int] | None:
    """Return all ways to take `count` GPUs out of the cells; None if they are more than `most`."""
    ways = [1] + [0] * count
    for cell in cells:
        sizes = list(map(len, cell))
        ways = [sum(map(mul, sizes, reversed(ways[: n + 1]))) for n in range(count + 1)]
    if ways[count] > most:
        return None
    # GPUs that the cells after each one have
    after = [sum(len(cell) - 1 for cell in cells[i + 1 :]) for i in range(len(cells))]
    masks_by_count: dict[int, list[int]] = {0: [0]}
    for cell, later in zip(cells, after, strict=True):
        joined: dict[int, list[int]] = {}
        for (taken, masks), (more, options) in product(masks_by_count.items(), enumerate(cell)):
            if count - later <= taken + more <= count:
                joined.setdefault(taken + more, []).extend([a | b for b in options for a in masks])
        masks_by_count = joined
    return masks_by_count.get(count, [])


class Criterion(Record):
    """One figure by which sets are compared, a whole number; more is better.

    Attributes:
        value: returns it, given the mask of a set.
        bound: returns at least that, where it is slow to tell; None where it is quick.
        most_weighed: number of sets, the most promising, that are weighed at most; the others count
            as 0.
    """

    value: Callable[[int], int]
    bound: Callable[[int], int] | None = None
    most_weighed: float = inf


def ranked(masks: Sequence[int], figures: Sequence[Criterion]) -> Iterator[int]:
    """Yield sets, the most of the first figure first, of equals that of the second, and so on.

    Of those that are still equal the one with the lowest indices comes first.

    A set is looked at more closely only while it may be the best of those that are left: first at
    what is quick, then at the slow figures. Until then a bound counts, or any amount at all.
    """
    steps = [(place, figure.bound or figure.value) for place, figure in enumerate(figures)]
    steps += [(place, _sparing(figure)) for place, figure in enumerate(figures) if figure.bound]
    # Negative, since a heap has the least in front; a larger mask has lower indices.
    known: tuple[float, ...] = (-inf,) * len(figures)
    heap = [(known, -mask, 0) for mask in masks]
    if steps:
        _, weigh = steps[0]
        heap = [((-weigh(mask), *known[1:]), -mask, 1) for mask in masks]
        heapify(heap)
    else:
        heap.sort()
    while heap:
        known, negative, done = heap[0]
        if done == len(steps):
            heappop(heap)
            yield -negative
        else:
            place, weigh = steps[done]
            known = (*known[:place], -weigh(-negative), *known[place + 1 :])
            heapreplace(heap, (known, negative, done + 1))


def _sparing(figure: Criterion) -> Callable[[int], int]:
    """Return the value of a figure for the first sets that are asked for, and 0 for the others."""
    left = figure.most_weighed

    def weigh(mask: int) -> int:
        nonlocal left
        left -= 1
        return figure.value(mask) if left >= 0 else 0

    return weigh


def grow_sets(fabric: Fabric, count: int, limits: Limits, worth: Callable[[int], int]) -> list[int]:
    """Return sets that grew one GPU at a time, where all sets are too many to compare.

    Of all that one more GPU makes of the sets so far those with the most worth grow on: beam search
    (Lowerre, The HARPY speech recognition system, 1976).

    Args:
        fabric: the links.
        count: number of GPUs in a set.
        limits: rules that the sets keep.
        worth: returns what a set is worth while it grows.

    Returns:
        As many as grew to this size, perhaps none.
    """
    found: set[int] = set()
    for group in limits.groups:
        gpus = fabric.positions(limits.admitted & group & ~limits.required)
        # A set is looked at for each GPU that it may grow by, in each of `count` steps.
        looks = len(limits.groups) * count * max(1, len(gpus))
        width = max(1, MOST_GROWN // (looks * count))
        beam = [limits.required]
        for _ in range(limits.required.bit_count(), count):
            grown = {part | fabric.bit[gpu] for part in beam for gpu in gpus}
            grown = {mask for mask in grown.difference(beam) if limits.bound(mask)}
            beam = nlargest(width, grown, key=lambda mask: (worth(mask), mask))
        found.update(mask for mask in beam if limits.allow(mask))
    return list(found)
