"""The sets of GPUs that a request could get.

A set is a mask over the positions of a Fabric: of two sets the larger number has the lower indices.
GPUs that have the same links to all others and to a switch, on the same socket, are
interchangeable: only the lowest of them are taken. So are whole sockets of such GPUs, as in an
NVSwitch machine: the first sockets get the most.
"""
# pure: decides on plain values

from collections.abc import Callable, Sequence
from heapq import nlargest
from itertools import accumulate, pairwise

from gpulaunch.placement.fabric import Fabric

MOST_SETS = 20_000
"""Number of sets that are compared at most; 8 of 16 GPUs, all different, are 12,870."""

MOST_GROWN = 640_000
"""GPUs of sets that are looked at while sets grow, each time anew: some 0.2 s on 32 GPUs."""


def enumerate_sets(
    fabric: Fabric, free: int, count: int, required: int, groups: Sequence[int]
) -> list[int] | None:
    """Return all sets of a size that are not alike, as masks.

    Args:
        free: all free GPUs, admitted or not, which tell the sockets that are alike.
        groups: the GPUs that may be taken, in groups of which a set lies in one.

    Returns:
        None if there are more than MOST_SETS.
    """
    found: set[int] = set()
    for group in groups:
        eligible = fabric.positions(group & ~required)
        alike = _sockets_alike(fabric, free, eligible)
        masks = _choose(fabric, alike, count - required.bit_count())
        if masks is None:
            return None
        found.update([required | mask for mask in masks])
    return [*found] if len(found) <= MOST_SETS else None


def _sockets_alike(fabric: Fabric, free: int, eligible: Sequence[int]) -> list[list[list[int]]]:
    """Return GPUs that may be taken: groups of sockets that are alike, each with GPUs alike."""
    free_on: dict[int, list[int]] = {}
    for gpu in fabric.positions(free):
        free_on.setdefault(fabric.socket[gpu], []).append(gpu)
    kinds: list[list[int]] = []
    for gpu in eligible:
        for twins in kinds:
            if _are_twins(fabric, gpu, twins[0]):
                twins.append(gpu)
                break
        else:
            kinds.append([gpu])
    groups: list[list[list[int]]] = []
    for twins in kinds:
        parts: dict[int, list[int]] = {}
        for gpu in twins:
            parts.setdefault(fabric.socket[gpu], []).append(gpu)
        # Only if they follow each other does the first socket have the lowest GPUs.
        in_order = all(a[-1] < b[0] for a, b in pairwise(parts.values()))
        alike: dict[object, list[list[int]]] = {}
        for socket, part in parts.items():
            key: object = socket
            if in_order and free_on[socket] == part:
                key = fabric.socket_size[socket], len(part)
            alike.setdefault(key, []).append(part)
        groups += alike.values()
    return groups


def _are_twins(fabric: Fabric, a: int, b: int) -> bool:
    """Return whether two GPUs have the same links to all others and into a switch."""
    if (fabric.into_switch[a], fabric.nvls[a]) != (fabric.into_switch[b], fabric.nvls[b]):
        return False
    rows = fabric.kind[a], fabric.kind[b]
    return all(rows[0][c] == rows[1][c] for c in range(len(fabric.gpus)) if c not in (a, b))


def _choose(fabric: Fabric, groups: list[list[list[int]]], count: int) -> list[int] | None:
    """Return all ways to take so many GPUs; None if they are far more than can be compared.

    Of sockets that are alike the first give the most, and each gives its lowest GPUs.
    """
    left = sum(len(part) for sockets in groups for part in sockets)
    found = [(0, 0, 0)]  # GPUs that were taken, of them those of the last socket, and which
    for sockets in groups:
        for place, part in enumerate(sockets):
            left -= len(part)
            lowest = [*accumulate([fabric.bit[gpu] for gpu in part], initial=0)]
            grown = []
            for taken, before, mask in found:
                least = max(0, count - taken - left)
                most = min(len(part), count - taken, before if place else count)
                grown += [(taken + n, n, mask | lowest[n]) for n in range(least, most + 1)]
            found = grown
            if len(found) > 2 * MOST_SETS:
                return None
    return [mask for taken, _, mask in found if taken == count]


def grow_sets(
    fabric: Fabric, count: int, required: int, groups: Sequence[int], worth: Callable[[int], int]
) -> list[int]:
    """Return sets that grew one GPU at a time, where all sets are too many to compare.

    Of all that one more GPU makes of the sets so far those with the most worth grow on: beam search
    (Lowerre, The HARPY speech recognition system, 1976).

    Returns:
        As many as grew to this size, perhaps none.
    """
    found: set[int] = set()
    for group in groups:
        gpus = fabric.positions(group & ~required)
        # A set is looked at for each GPU that it may grow by, in each of `count` steps.
        looks = len(groups) * count * max(1, len(gpus))
        width = max(1, MOST_GROWN // (looks * count))
        beam = [required]
        for _ in range(required.bit_count(), count):
            grown = {part | fabric.bit[gpu] for part in beam for gpu in gpus}
            grown.difference_update(beam)
            beam = nlargest(width, grown, key=lambda mask: (worth(mask), mask))
        found.update(beam)
    return list(found)
