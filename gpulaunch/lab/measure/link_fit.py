"""The sets of GPUs to measure, and bandwidth models fitted to the figures.

mapa-sc21 3.4 defines the effective bandwidth of a set as a measurement, the peak all-reduce
bandwidth, and measures one set of each kind. The kind of a set is the links of its best ring.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import comb, sqrt
from statistics import fmean

from gpulaunch.machine.topology import Topology
from gpulaunch.placement.effective import cut, mapa_equation, mapa_terms, ring_counts, ring_links
from gpulaunch.placement.fabric import UNIT, Fabric
from gpulaunch.records import Record

MOST_GPUS = 5
"""Largest size of which every kind of set is measured, as in mapa-sc21."""

_MOST_SETS = 20_000  # sizes with more sets are skipped


class Figure(Record):
    """The measured all-reduce bandwidth of a set of GPUs.

    Attributes:
        gpus: indices of the GPUs.
        ring: the links of its best ring, by class, slowest last.
        all_reduce_gb_per_s: the peak bus bandwidth over all message sizes.
    """

    gpus: tuple[int, ...]
    ring: tuple[str, ...]
    all_reduce_gb_per_s: float


class Comparison(Record):
    """A measured figure and what each model predicts for it, all in GB/s.

    Attributes:
        figure: what was measured.
        cut: prediction of the cut model.
        mapa: prediction of Eq. 2 with the paper's coefficients.
        refit: prediction of Eq. 2 with coefficients fitted to these figures; None without numpy.
    """

    figure: Figure
    cut: float
    mapa: float
    refit: float | None


def sets_to_measure(
    topology: Topology, idle: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Return one set of each kind, of 2 to MOST_GPUS idle GPUs, and the set of all idle GPUs.

    Args:
        topology: the machine.
        idle: indices of the GPUs to choose from; no MIG instances.

    Returns:
        Indices of the GPUs, and the links of their best ring, by class, slowest last.
    """
    fabric = Fabric(topology)
    sizes = [
        size
        for size in range(2, min(MOST_GPUS, len(idle)) + 1)
        if comb(len(idle), size) <= _MOST_SETS
    ]
    if len(idle) > MOST_GPUS:
        sizes.append(len(idle))
    found: dict[tuple[int, tuple[str, ...]], tuple[int, ...]] = {}
    for size in sizes:
        for gpus in combinations(sorted(idle), size):
            ring = ring_links(fabric, _positions(fabric, gpus))
            found.setdefault((size, ring), gpus)
    return [(gpus, ring) for (_, ring), gpus in found.items()]


def _positions(fabric: Fabric, gpus: Sequence[int]) -> list[int]:
    return [fabric.position[gpu] for gpu in gpus]


def compare(topology: Topology, figures: Sequence[Figure]) -> list[Comparison]:
    """Return every figure with the predictions of `cut`, of Eq. 2, and of Eq. 2 fitted anew."""
    fabric = Fabric(topology)
    counts = [ring_counts(fabric, _positions(fabric, figure.gpus)) for figure in figures]
    refits = refit_equation(counts, [figure.all_reduce_gb_per_s for figure in figures])
    comparisons = []
    for figure, count in zip(figures, counts, strict=True):
        refit = None
        if refits is not None:
            terms = mapa_terms(*count)
            refit = sum(theta * term for theta, term in zip(refits, terms, strict=True))
        planned = cut(fabric, _positions(fabric, figure.gpus)) / UNIT
        comparisons.append(Comparison(figure, planned, mapa_equation(*count), refit))
    return comparisons


def refit_equation(
    counts: Sequence[tuple[int, int, int]], bandwidths: Sequence[float]
) -> list[float] | None:
    """Fit the coefficients of Eq. 2 to this machine by least squares.

    Where the figures do not determine the coefficients, the shortest vector of them is returned.

    Args:
        counts: double NVLinks, single NVLinks and PCIe paths of each sample's ring.
        bandwidths: GB/s of each sample.

    Returns:
        14 numbers in the order of THETA; None without numpy.

    Source: mapa-sc21 3.4.3, which fits 31 samples.
    """
    try:
        import numpy as np
    except ImportError:
        return None
    terms = np.array([mapa_terms(*count) for count in counts], dtype=float)
    return [
        float(theta)
        for theta in np.linalg.lstsq(terms, np.array(bandwidths, dtype=float), rcond=None)[0]
    ]


def model_errors(comparisons: Sequence[Comparison]) -> dict[str, float | None]:
    """Return the root mean square error of each model in GB/s; None without predictions."""
    measured = [entry.figure.all_reduce_gb_per_s for entry in comparisons]
    errors: dict[str, float | None] = {}
    for model in ("cut", "mapa", "refit"):
        values = [getattr(entry, model) for entry in comparisons]
        errors[model] = None
        if None not in values:
            squares = ((a - b) ** 2 for a, b in zip(values, measured, strict=True))
            errors[model] = sqrt(fmean(squares))
    return errors


def ring_text(ring: Sequence[str]) -> str:
    """Describe a ring by its link classes, such as "2x NV2 50, NV1 25"."""
    return ", ".join(
        name if count == 1 else f"{count}x {name}" for name, count in Counter(ring).items()
    )
