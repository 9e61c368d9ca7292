"""Eq. 2 of mapa-sc21: the effective bandwidth of a ring by the kinds of its links."""

from collections.abc import Mapping, Sequence
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
    """The links of a ring, or one of them.

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
def links_of(machine: str) -> dict[frozenset[int], Ring]:
    """Return what the link of every two GPUs of a machine adds to a ring."""
    return {
        frozenset((link.a, link.b)): Ring(
            link.bandwidth_gb_per_s,
            int(link.nvlink_count > 1),
            int(link.nvlink_count == 1),
            int(not link.nvlink_count),
        )
        for link in simulator(machine).topology.links
    }


def rings(links: Mapping[frozenset[int], Ring], gpus: frozenset[int]) -> set[Ring]:
    """Return all rings through two GPUs or more; two GPUs have one link."""
    first, *others = sorted(gpus)
    closing = (first,) if len(gpus) > 2 else ()
    found = set()
    for order in permutations(others):
        used = [links[frozenset(pair)] for pair in pairwise((first, *order, *closing))]
        found.add(Ring(*map(sum, zip(*used, strict=True))))
    return found


@cache
def best_ring(machine: str, gpus: frozenset[int]) -> Ring:
    """Return the ring through GPUs with the largest sum of bandwidths.

    Among equals it is the one with the most double NVLinks, then with the most single ones.
    """
    return max(rings(links_of(machine), gpus))


def as_coded(machine: str, gpus: Sequence[int]) -> float:
    """Return Eq. 2 of GPUs' best ring as the published code of mapa-sc21 counts, GB/s.

    The code gives a single GPU the value without links.
    """
    if len(gpus) == 1:
        return equation_2(0, 0, 0)
    return coded_bandwidth(best_ring(machine, frozenset(gpus)))


def coded_bandwidth(ring: Ring) -> float:
    """Return Eq. 2 of a ring, GB/s; the one link of two GPUs counts twice."""
    _, x, y, z = ring
    times = 1 if x + y + z > 1 else 2
    return equation_2(times * x, times * y, times * z)
