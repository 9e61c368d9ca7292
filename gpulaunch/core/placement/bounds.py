"""What a set's links, counted by kind, allow at most: bounds of its scores, in 1e-6 GB/s.

In every function `counts` is the number of links of each kind among the GPUs of a set.
"""

from collections.abc import Sequence
from math import gcd

from gpulaunch.core.placement.fabric import Fabric
from gpulaunch.core.placement.mapping import Traffic


def most_cut(fabric: Fabric, counts: Sequence[int], size: int) -> int:
    """At least the effective bandwidth of a set of this size by the model `cut`.

    With NVLinks enough to connect it no cut is wider than what its GPUs have on average, in whole links; a ring or a
    tree over whatever is faster for each two GPUs is as fast as the last of its links.
    """
    joined = most_joined(fabric, counts, size)
    if _wired(fabric, counts) < size - 1:
        return joined
    direct = sum(count * kind.planned for count, kind in zip(counts, fabric.kinds, strict=True) if kind.direct)
    step = gcd(*(kind.planned for kind in fabric.kinds if kind.direct)) or 1
    nvls = round(max(fabric.nvls) * 2 * (size - 1) / (size + 1))
    return max(2 * direct // size // step * step + max(fabric.into_switch), joined, nvls)


def most_joined(fabric: Fabric, counts: Sequence[int], size: int) -> int:
    """At least what a set carries that a cut of NVLinks does not bound: the widest links that join all its parts.

    With NVLinks too few to connect it so many parts must be joined over PCIe, and the last of those links decides.
    """
    over_pcie = _widest_first(counts, [0 if kind.count else kind.hop for kind in fabric.kinds])
    wired = _wired(fabric, counts)
    if wired < size - 1:
        return over_pcie[size - 2 - wired]
    return max(_widest_first(counts, [kind.hop for kind in fabric.kinds])[size - 2], over_pcie[0])


def _wired(fabric: Fabric, counts: Sequence[int]) -> int:
    return sum(count for count, kind in zip(counts, fabric.kinds, strict=True) if kind.count)


def most_aggregate(traffic: Traffic, counts: Sequence[int]) -> int:
    """At least the aggregate bandwidth of any mapping: the heaviest edges on the fastest links."""
    weights = _widest_first(counts, traffic.gain[0])
    edges = sorted(share for _, _, share in traffic.edges)
    if len(traffic.gain) == 1:
        return sum(weights[: len(edges)])
    shares = [traffic.shares[share] for share in edges]
    return sum(int(weight * share) + 1 for weight, share in zip(weights, shares, strict=False))


def most_slowest(traffic: Traffic, counts: Sequence[int]) -> int:
    """At least the speed of the slowest edge of any mapping: the heaviest edges on the fastest links."""
    if not traffic.speed:
        return 0
    speeds = _widest_first(counts, traffic.speed[0])
    edges = sorted(share for _, _, share in traffic.edges)
    return min(round(speed / traffic.shares[share]) for speed, share in zip(speeds, edges, strict=False))


def links_of_gpu(fabric: Fabric, counts: Sequence[int]) -> int:
    """What the direct NVLinks of one GPU carry together: no cut is wider."""
    return sum(count * kind.planned for count, kind in zip(counts, fabric.kinds, strict=True) if kind.direct)


def widest(traffic: Traffic, counts: Sequence[int], edges: int) -> int:
    """The most that so many edges could add to a total."""
    return sum(_widest_first(counts, traffic.gain[0])[:edges])


def nth_speeds(traffic: Traffic, counts: Sequence[int], degrees: Sequence[int]) -> tuple[int, ...]:
    """How fast ranks with so many edges are on a GPU with these links: at most the last of their links."""
    speeds = _widest_first(counts, traffic.speed[-1]) if traffic.speed else [0] * sum(counts)
    return tuple(speeds[degree - 1] for degree in degrees)


def _widest_first(counts: Sequence[int], figures: Sequence[int]) -> list[int]:
    """The figure of each link, descending."""
    order = sorted(range(len(counts)), key=lambda kind: -figures[kind])
    return [figures[kind] for kind in order for _ in range(counts[kind])]
