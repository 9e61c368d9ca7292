"""The best of many sets, by figures that are compared one after the other."""
# pure: decides on plain values

from collections.abc import Callable, Iterator, Sequence
from heapq import nlargest

from gpulaunch.decide.placement.candidates import Limits
from gpulaunch.decide.placement.fabric import Fabric
from gpulaunch.records import Record

Weigh = Callable[[int], int]
"""A figure of a set, given its mask; more is better."""

MOST_GROWN = 40_000
"""Sets that are looked at while sets grow, where all are too many to compare: some 60 ms."""

_FEW = 10


class Criterion(Record):
    """One figure by which sets are compared.

    Attributes:
        value: returns it.
        largest: returns those of some sets that have the most of it.
    """

    value: Weigh
    largest: Callable[[Sequence[int]], list[int]]


def plain(value: Weigh) -> Criterion:
    """Return a figure that is quick."""

    def largest(masks: Sequence[int]) -> list[int]:
        values = [value(mask) for mask in masks]
        most = max(values)
        return [mask for mask, figure in zip(masks, values, strict=True) if figure == most]

    return Criterion(value, largest)


def bounded(value: Weigh, bound: Weigh) -> Criterion:
    """Return a figure that is slow, but has a quick bound: it is at most that."""

    def largest(masks: Sequence[int]) -> list[int]:
        found: list[int] = []
        most = 0
        for limit, mask in sorted(zip(map(bound, masks), masks, strict=True), reverse=True):
            if found and limit < most:
                break
            figure = value(mask)
            if not found or figure > most:
                most, found = figure, []
            if figure == most:
                found.append(mask)
        return found

    return Criterion(value, largest)


def best_set(masks: Sequence[int], figures: Sequence[Criterion]) -> int:
    """Return the set with the most of the first figure, of equals of the second, and so on.

    Of those that are still equal it has the lowest indices.

    Args:
        masks: at least one set.
        figures: the figures that decide, the first one first.
    """
    for figure in figures:
        if len(masks) == 1:
            break
        masks = figure.largest(masks)
    return max(masks)


def ranked(masks: Sequence[int], figures: Sequence[Criterion]) -> Iterator[int]:
    """Yield sets, the best first; of the first few without the slow figures of all others."""
    left = set(masks)
    for _ in range(min(_FEW, len(left))):
        best = best_set(list(left), figures)
        yield best
        left.remove(best)
    yield from sorted(
        left, key=lambda mask: (*[figure.value(mask) for figure in figures], mask), reverse=True
    )


def grow_sets(
    fabric: Fabric, count: int, limits: Limits, own: Sequence[int], among: int
) -> list[int]:
    """Return sets that grew one GPU at a time, where all sets are too many to compare.

    Of all that one more GPU makes of the sets so far those with the most worth grow on: beam search
    (Lowerre, The HARPY speech recognition system, 1976).

    Args:
        fabric: the links.
        count: number of GPUs in a set.
        limits: rules that the sets keep.
        own: worth of each position, 1e-6 GB/s.
        among: how often w of the links within a set counts besides.

    Returns:
        As many as grew to this size, perhaps none.
    """
    weight = [[among * weight for weight in row] for row in fabric.weight]
    found: dict[int, int] = {}
    for group in limits.groups:
        gpus = fabric.positions(limits.admitted & group & ~limits.required)
        width = max(1, MOST_GROWN // (len(limits.groups) * count * max(1, len(gpus))))
        start = fabric.positions(limits.required)
        pulls = [own[gpu] + sum(weight[gpu][other] for other in start) for gpu in gpus]
        beam = [(0, limits.required, pulls)]
        for _ in range(count - len(start)):
            grown = {}
            for worth, mask, pulls in beam:
                barred = mask
                for held, most in limits.at_most:
                    if (mask & held).bit_count() >= most:
                        barred |= held
                for gpu, pull in zip(gpus, pulls, strict=True):
                    if not fabric.bit[gpu] & barred:
                        grown[mask | fabric.bit[gpu]] = (worth + pull, gpu, pulls)
            best = nlargest(width, ((worth, mask) for mask, (worth, _, _) in grown.items()))
            beam = []
            for worth, mask in best:
                _, gpu, pulls = grown[mask]
                row = weight[gpu]
                beam.append(
                    (
                        worth,
                        mask,
                        [pull + row[other] for pull, other in zip(pulls, gpus, strict=True)],
                    )
                )
        found.update((mask, worth) for worth, mask, _ in beam)
    return list(found)
