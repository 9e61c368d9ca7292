"""The best of many sets, by figures that are compared one after the other."""
# pure: decides on plain values

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from operator import add

from gpulaunch.decide.placement.candidates import Limits
from gpulaunch.decide.placement.fabric import Fabric
from gpulaunch.records import Record
from gpulaunch.typing import Any

Weigh = Callable[[int], Any]
"""A figure of a set, given its mask: a whole number or a tuple of numbers; more is better."""

MOST_GROWN = 20_000
"""Sets that are looked at while sets grow, where all are too many to compare: some 40 ms."""

MOST_NEAR = 32
"""GPUs by which each set may grow, those with the best links to it."""

MOST_ALIKE = 2
"""Sets that are linked alike, of which each grows on."""

_FEW = 10


class Criterion(Record):
    """One figure by which sets are compared.

    Attributes:
        value: returns it.
        bound: returns at least that, where it is slow to tell; None where it is quick.
        tighten: given a set and a bound of it, returns the bound if that is the figure, else a
            lower one; None for the figure.
        most_weighed: number of sets, those with the largest bounds, that are weighed at most; None
            for all that may be the best.
    """

    value: Weigh
    bound: Weigh | None = None
    tighten: Callable[[int, Any], Any] | None = None
    most_weighed: int | None = None


def best_set(masks: Sequence[int], criteria: Sequence[Criterion]) -> int:
    """Return the set with the most of the first figure, of equals of the second, and so on.

    Of those that are still equal it has the lowest indices.

    Args:
        masks: at least one set.
        criteria: what decides, the first one first.
    """
    for place, criterion in enumerate(criteria, 1):
        if len(masks) == 1:
            break
        if criterion.bound:
            quick = takewhile(lambda one: not one.bound, criteria[place:])
            then = [one.value for one in quick]
            if place + len(then) == len(criteria):
                then.append(int)  # a mask is a number: no other set need be as good
            masks = _most_of_slow(masks, criterion, then)
        else:
            values = [criterion.value(mask) for mask in masks]
            most = max(values)
            masks = [mask for mask, figure in zip(masks, values, strict=True) if figure == most]
    return max(masks)


def _most_of_slow(
    masks: Sequence[int], criterion: Criterion, then: Sequence[Weigh]
) -> Sequence[int]:
    """Return the sets with the most of a slow figure, and of those the ones that stay best.

    Sets are weighed by their bounds, and where those are equal by the quick figures that follow, so
    that few are.
    """
    bound, tighten = criterion.bound or criterion.value, criterion.tighten
    bounds = {mask: bound(mask) for mask in masks}
    if criterion.most_weighed:
        ranked = sorted(zip(bounds.values(), masks, strict=True), reverse=True)
        masks = [mask for _, mask in ranked[: criterion.most_weighed]]
    waiting: dict[Any, list[int]] = {}
    for mask in masks:
        waiting.setdefault(bounds[mask], []).append(mask)
    found: list[int] = []
    while not found:
        level = max(waiting)
        best: tuple[Any, ...] = ()
        masks = waiting.pop(level)
        columns = [map(weigh, masks) for weigh in then]
        for rank in sorted(zip(*columns, masks, strict=True), reverse=True):
            if found and rank[:-1] < best:
                break
            mask = rank[-1]
            figure = tighten(mask, level) if tighten else criterion.value(mask)
            if figure == level:
                best = rank[:-1]
                found.append(mask)
            else:
                waiting.setdefault(figure, []).append(mask)
    return found


def ranked(masks: Sequence[int], criteria: Sequence[Criterion]) -> Iterator[int]:
    """Yield sets, the best first; of the first few without the slow figures of all others."""
    left = masks
    for _ in range(min(_FEW, len(masks))):
        best = best_set(left, criteria)
        yield best
        left = [mask for mask in left if mask != best]
    yield from sorted(
        left, key=lambda mask: (*[one.value(mask) for one in criteria], mask), reverse=True
    )


class Guide(Record):
    """What sets are worth that grow.

    Attributes:
        own: worth of each position.
        links: worth of each two positions of a set.
    """

    own: Sequence[int]
    links: Sequence[Sequence[int]]


class _Part(Record):
    """A set that grows.

    Attributes:
        mask: the set.
        worth: its worth.
        pulls: what each GPU that is to be chosen would add, or has added.
    """

    mask: int
    worth: int
    pulls: list[int]


def grow_sets(fabric: Fabric, count: int, limits: Limits, guide: Guide) -> list[int]:
    """Return sets that grew one GPU at a time, where all sets are too many to compare.

    Of all that one more GPU makes of the sets so far those with the most worth grow on: beam search
    (Lowerre, The HARPY speech recognition system, 1976). Of sets that are linked alike, to
    themselves and all others, only MOST_ALIKE do, so that a machine that looks the same from
    everywhere is not searched everywhere.

    Args:
        fabric: the links.
        count: number of GPUs in a set.
        limits: rules that the sets keep.
        guide: what sets are worth.

    Returns:
        As many as grew to this size, perhaps none.
    """
    found: dict[int, None] = {}
    for group in limits.groups:
        gpus = fabric.positions(limits.admitted & group & ~limits.required)
        width = max(1, MOST_GROWN // (len(limits.groups) * count * max(1, len(gpus))))
        start = fabric.positions(limits.required)
        links = [[guide.links[gpu][other] for other in gpus] for gpu in gpus]
        pulls = [guide.own[gpu] + sum([guide.links[gpu][b] for b in start]) for gpu in gpus]
        beam = [_Part(limits.required, 0, pulls)]
        for size in range(len(start), count):
            grown: dict[int, tuple[int, int, _Part]] = {}
            for part in beam:
                near = _allowed(part, [fabric.bit[gpu] for gpu in gpus], limits)
                if size:
                    near = sorted(near, key=part.pulls.__getitem__, reverse=True)[:MOST_NEAR]
                for place in near:
                    mask = part.mask | fabric.bit[gpus[place]]
                    grown[mask] = part.worth + part.pulls[place], place, part
            beam = _grown_on(grown, links, width if size else len(gpus))
        found |= dict.fromkeys(part.mask for part in beam)
    return list(found)


def _allowed(part: _Part, bits: Sequence[int], limits: Limits) -> list[int]:
    """Return the places of the GPUs by which a set may grow."""
    barred = part.mask
    for held, most in limits.at_most:
        if (part.mask & held).bit_count() >= most:
            barred |= held
    return [place for place, bit in enumerate(bits) if not bit & barred]


def _grown_on(
    grown: dict[int, tuple[int, int, _Part]], links: Sequence[Sequence[int]], width: int
) -> list[_Part]:
    """Return the sets with the most worth, by mask: worth, the place of the new GPU, the rest."""
    beam: list[_Part] = []
    alike: Counter[tuple[int, ...]] = Counter()
    best = sorted([(worth, mask) for mask, (worth, *_) in grown.items()], reverse=True)
    for worth, mask in best[: 4 * width]:
        if len(beam) == width:
            break
        _, place, part = grown[mask]
        pulls = list(map(add, part.pulls, links[place]))
        shape = tuple(sorted(pulls))
        alike[shape] += 1
        if alike[shape] <= MOST_ALIKE:
            beam.append(_Part(mask, worth, pulls))
    return beam
