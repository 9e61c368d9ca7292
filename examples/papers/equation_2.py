"""Eq. 2 of mapa-sc21: the effective bandwidth of a ring by the kinds of its links."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise, permutations
from typing import NamedTuple

import gpulaunch

THETA = (
    16.396, 4.536, 1.556, -20.694, -9.467, 7.615, -7.973,
    12.733, -4.195, -8.413, 62.851, 27.418, -5.114, -46.973,
)  # fmt: skip
"""Coefficients (mapa-sc21 Table 2), fitted to rings of 2-5 GPUs on a DGX-1 V100."""


class Ring(NamedTuple):
    """The links of a ring.

    Attributes:
        aggregate_bandwidth: sum of their bandwidths, GB/s.
        doubles: number of double NVLinks, or wider ones.
        singles: number of single NVLinks.
        pcie: number of PCIe paths.
    """

    aggregate_bandwidth: float
    doubles: int
    singles: int
    pcie: int


@cache
def simulator(machine: str) -> gpulaunch.Simulator:
    """Return the simulator of a described machine, which all figures share."""
    return gpulaunch.Simulator(machine)


def equation_2(x: int, y: int, z: int) -> float:
    """Return the bandwidth of x double NVLinks, y single ones and z PCIe paths, GB/s."""
    terms = (
        x, y, z,
        1 / (x + 1), 1 / (y + 1), 1 / (z + 1),
        x * y, y * z, z * x,
        1 / (x * y + 1), 1 / (y * z + 1), 1 / (z * x + 1),
        x * y * z, 1 / (x * y * z + 1),
    )  # fmt: skip
    return sum(theta * term for theta, term in zip(THETA, terms, strict=True))


@cache
def best_ring(machine: str, gpus: frozenset[int]) -> Ring:
    """Return the ring through two GPUs or more with the largest sum of bandwidths.

    Among equals it is the one with the most double NVLinks, then with the most single ones. Two
    GPUs have one link.
    """
    links = {frozenset((link.a, link.b)): link for link in simulator(machine).topology.links}
    first, *others = sorted(gpus)
    rings = []
    for order in permutations(others):
        closing = (first,) if len(gpus) > 2 else ()
        used = [links[frozenset(pair)] for pair in pairwise((first, *order, *closing))]
        doubles = sum(link.nvlink_count > 1 for link in used)
        singles = sum(link.nvlink_count == 1 for link in used)
        bandwidth = sum(link.bandwidth_gb_per_s for link in used)
        rings.append(Ring(bandwidth, doubles, singles, len(used) - doubles - singles))
    return max(rings)


def as_coded(machine: str, gpus: Sequence[int]) -> float:
    """Return Eq. 2 of GPUs' best ring, GB/s; the one link of two GPUs counts twice.

    This follows the published code of mapa-sc21, which also gives a single GPU the value without
    links.
    """
    if len(gpus) == 1:
        return equation_2(0, 0, 0)
    _, x, y, z = best_ring(machine, frozenset(gpus))
    times = 2 if len(gpus) == 2 else 1
    return equation_2(times * x, times * y, times * z)
