"""The best of many sets, by figures that are compared one after the other."""
# pure: decides on plain values

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import add

from gpulaunch.decide.placement.candidates import Limits
from gpulaunch.decide.placement.fabric import Fabric
from gpulaunch.records import Record

Weigh = Callable[[int], int]
"""A figure of a set, given its mask; more is better."""

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
        largest: returns those of some sets that have the most of it.
    """

    value: Weigh
    largest: Callable[[Sequence[int]], list[int]]


def plain(value: Weigh) -> Criterion:
    """Return a criterion whose figure is quick."""

    def largest(masks: Sequence[int]) -> list[int]:
        values = [value(mask) for mask in masks]
        most = max(values)
        return [mask for mask, figure in zip(masks, values, strict=True) if figure == most]

    return Criterion(value, largest)


def bounded(value: Weigh, bound: Weigh, most_weighed: int | None = None) -> Criterion:
    """Return a criterion whose figure is slow, but has a quick bound: it is at most that.

    Args:
        value: the figure.
        bound: its bound.
        most_weighed: number of sets, those with the largest bounds, that are weighed at most; None
            for all that may be the best.
    """

    def largest(masks: Sequence[int]) -> list[int]:
        found: list[int] = []
        most = 0
        best = sorted(zip(map(bound, masks), masks, strict=True), reverse=True)
        for limit, mask in best[:most_weighed]:
            if found and limit < most:
                break
            figure = value(mask)
            if not found or figure > most:
                most, found = figure, []
            if figure == most:
                found.append(mask)
        return found

    return Criterion(value, largest)


def best_set(masks: Sequence[int], criteria: Sequence[Criterion]) -> int:
    """Return the set with the most of the first figure, of equals of the second, and so on.

    Of those that are still equal it has the lowest indices.

    Args:
        masks: at least one set.
        criteria: what decides, the first one first.
    """
    for criterion in criteria:
        if len(masks) == 1:
            break
        masks = criterion.largest(masks)
    return max(masks)


def ranked(masks: Sequence[int], criteria: Sequence[Criterion]) -> Iterator[int]:
    """Yield sets, the best first; of the first few without the slow figures of all others."""
    left = set(masks)
    for _ in range(min(_FEW, len(left))):
        best = best_set(list(left), criteria)
        yield best
        left.remove(best)
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
