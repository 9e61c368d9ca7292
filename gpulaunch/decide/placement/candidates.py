"""The sets of GPUs that a request could get, without those that differ from another in name only.

A set is a mask: bit n-1-i stands for the i-th of n free GPUs, so that of two sets the larger number
has the lower indices. GPUs that have the same links to all others, on the same socket, are
interchangeable: of those only the lowest are taken. So are whole sockets of such GPUs, as in an
NVSwitch machine: of those the first get the most.
"""
# pure: decides on plain values

from collections.abc import Sequence
from itertools import combinations_with_replacement, pairwise, product
from math import comb

from gpulaunch.records import Record

MOST_SETS = 20_000
"""So many sets are compared; 8 of 16 GPUs, all different, are 12,870."""

Cell = list[list[int]]
"""For each number of GPUs the masks that a part of the machine has to offer."""


class Limits(Record):
    """What rules sets out. GPUs are places among the free ones.

    Attributes:
        admitted: may be taken.
        required: must be taken.
        within: each group may be taken from, but not two of them; empty for no such rule.
        at_most: of a group only so many.
    """

    admitted: frozenset[int]
    required: frozenset[int] = frozenset()
    within: tuple[frozenset[int], ...] = ()
    at_most: tuple[tuple[frozenset[int], int], ...] = ()


def mask_of(places: Sequence[int] | frozenset[int], free: int) -> int:
    """The set as a mask, of so many free GPUs."""
    return sum(1 << free - 1 - place for place in places)


def places_of(mask: int, free: int) -> list[int]:
    """The inverse, ascending."""
    return [place for place in range(free) if mask >> free - 1 - place & 1]


def sets(
    kind: Sequence[Sequence[int]], domain: Sequence[tuple[int, int]], count: int, limits: Limits
) -> list[int] | None:
    """All sets of a size that are not alike, as masks.

    Args:
        kind: of the links of each free GPU, to all that are free and then to all others, which also
            tell GPUs apart.
        domain: of each free GPU its socket, and how many GPUs that has in all.
        count: how many GPUs, at least 1.
        limits: what rules sets out.

    Returns:
        None if there are more than MOST_SETS.
    """
    free = len(kind)
    groups = limits.within or (limits.admitted,)
    twins = _twins(kind, limits.admitted | limits.required)
    alike = _split(twins, [held for held, _ in limits.at_most])
    found: dict[int, None] = {}
    for group in groups:
        if not limits.required <= group:
            continue
        eligible = (limits.admitted & group) - limits.required
        cells = _cells(alike, domain, eligible, free, whole=not limits.at_most)
        made = _joined(cells, count - len(limits.required))
        if made is None:
            return None
        base = mask_of(limits.required, free)
        found.update(dict.fromkeys(base | mask for mask in made))
    masks = list(found)
    for group, most in limits.at_most:
        held = mask_of(group, free)
        masks = [mask for mask in masks if (mask & held).bit_count() <= most]
    return masks if len(masks) <= MOST_SETS else None


def is_allowed(mask: int, free: int, limits: Limits) -> bool:
    """Whether nothing rules a set out, of so many free GPUs."""
    held = frozenset(places_of(mask, free))
    return (
        limits.required <= held <= limits.admitted | limits.required
        and (not limits.within or any(held <= group for group in limits.within))
        and all(len(held & group) <= most for group, most in limits.at_most)
    )


def how_many(limits: Limits, count: int) -> int:
    """How many sets there are, alike or not, if none is ruled out by at_most."""
    groups = [group & limits.admitted for group in limits.within] or [limits.admitted]
    required = len(limits.required)
    return sum(
        comb(len(group | limits.required) - required, count - required)
        for group in groups
        if not limits.within or limits.required <= group
    )


def _twins(kind: Sequence[Sequence[int]], places: frozenset[int]) -> list[list[int]]:
    """The places, in groups that have the same links to all GPUs."""
    groups: list[list[int]] = []
    by_profile: dict[tuple[int, ...], list[list[int]]] = {}
    for place in sorted(places):
        row = kind[place]
        alike = by_profile.setdefault(tuple(sorted(row)), [])  # what twins have in common at least
        group = next(
            (group for group in alike if _same_links(kind[group[0]], row, group[0], place)), None
        )
        if group is None:
            group = []
            alike.append(group)
            groups.append(group)
        group.append(place)
    return groups


def _split(twins: list[list[int]], groups: Sequence[frozenset[int]]) -> list[list[int]]:
    """Twins that are in the same of these groups."""
    parts: dict[tuple[int, ...], list[int]] = {}
    for number, members in enumerate(twins):
        for place in members:
            parts.setdefault((number, *(place in group for group in groups)), []).append(place)
    return list(parts.values())


def _same_links(one: Sequence[int], other: Sequence[int], a: int, b: int) -> bool:
    """Whether two rows agree on everybody else."""
    return all(
        one[start:end] == other[start:end] for start, end in ((0, a), (a + 1, b), (b + 1, len(one)))
    )


def _cells(
    twins: list[list[int]],
    domain: Sequence[tuple[int, int]],
    eligible: frozenset[int],
    free: int,
    *,
    whole: bool,
) -> list[Cell]:
    """What the parts of the machine have to offer.

    Args:
        twins: interchangeable by their links.
        domain: see sets.
        eligible: what may be taken.
        free: how many GPUs are free.
        whole: whether whole domains may be interchangeable, too.
    """
    members: dict[tuple[int, int], list[int]] = {}
    for place in range(free):
        members.setdefault(domain[place], []).append(place)
    cells: list[Cell] = []
    for group in twins:
        parts: dict[tuple[int, int], list[int]] = {}
        for place in group:
            if place in eligible:
                parts.setdefault(domain[place], []).append(place)
        alike: dict[object, list[list[int]]] = {}
        one_by_one = all(
            a[-1] < b[0] for a, b in pairwise(parts.values())
        )  # else the first would not be the lowest
        for name, part in parts.items():
            pure = whole and one_by_one and members[name] == part
            alike.setdefault((name[1], len(part)) if pure else (name,), []).append(part)
        cells += [_sockets_cell(sockets, free) for sockets in alike.values()]
    return cells


def _sockets_cell(sockets: list[list[int]], free: int) -> Cell:
    """Sets out of sockets that are alike: the first get the most, and give their lowest GPUs."""
    size = len(sockets[0])
    if comb(len(sockets) + size, size) > MOST_SETS:  # then sockets are not told apart
        sockets = [sorted(place for socket in sockets for place in socket)]
        size = len(sockets[0])
    first = [[mask_of(socket[:count], free) for count in range(size + 1)] for socket in sockets]
    cell: Cell = [[] for _ in range(size * len(sockets) + 1)]
    for counts in combinations_with_replacement(range(size, -1, -1), len(sockets)):
        cell[sum(counts)].append(sum(first[i][count] for i, count in enumerate(counts)))
    return cell


def _joined(cells: list[Cell], count: int) -> list[int] | None:
    """All ways to take `count` GPUs out of the cells; None if they are too many."""
    after = [
        sum(len(cell) - 1 for cell in cells[i + 1 :]) for i in range(len(cells))
    ]  # what the later ones have
    made: dict[int, list[int]] = {0: [0]}
    for cell, later in zip(cells, after, strict=True):
        joined: dict[int, list[int]] = {}
        for (taken, masks), (more, options) in product(made.items(), enumerate(cell)):
            if count - later <= taken + more <= count:
                joined.setdefault(taken + more, []).extend([a | b for b in options for a in masks])
        made = joined
        if sum(map(len, made.values())) > 2 * MOST_SETS:
            return None
    return made.get(count, [])
