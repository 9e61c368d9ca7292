"""Which sets of GPUs to measure, and what follows from the figures: links that are slow, and models fitted to them.

mapa-sc21 3.4 defines the effective bandwidth of a set as a measurement, the peak all-reduce
bandwidth, and measures one set of each kind. What kind a set is, its best ring says: the links that
it uses.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import comb, sqrt
from statistics import fmean, median

from gpulaunch.decide.placement.effective import (
    cut,
    mapa_equation,
    mapa_terms,
    ring_counts,
    ring_links,
)
from gpulaunch.decide.placement.fabric import UNIT, Fabric
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record

MOST_GPUS = 5
"""Of a set that is measured: up to so many mapa-sc21 goes."""

FAR_UNDER = 0.75
"""A link slower than this share of its class is not well."""

_MOST_SETS = 20_000  # of one size: the kinds of more are not looked for


class Sample(Record):
    """A set of GPUs to be measured.

    Attributes:
        gpus: indices.
        ring: the links of its best ring, by class, slowest last.
    """

    gpus: tuple[int, ...]
    ring: tuple[str, ...]


class Figure(Record):
    """What a sample's all-reduce carried.

    Attributes:
        sample: what was measured.
        sizes: message size in bytes and bus bandwidth in GB/s, ascending.
    """

    sample: Sample
    sizes: tuple[tuple[int, float], ...]

    @property
    def all_reduce_gb_per_s(self) -> float:
        """The peak over all sizes."""
        return max(bandwidth for _, bandwidth in self.sizes)


class Comparison(Record):
    """A figure beside the models, all in GB/s.

    Attributes:
        figure: what was measured.
        cut: the cut model's.
        mapa: Eq. 2 with the paper's coefficients.
        refit: Eq. 2 with coefficients fitted to these figures; None without numpy.
    """

    figure: Figure
    cut: float
    mapa: float
    refit: float | None


def samples(topology: Topology, idle: Sequence[int], *, every_pair: bool = False) -> list[Sample]:
    """One set of each kind, of 2 to MOST_GPUS idle GPUs, and all of them together.

    Args:
        topology: the machine.
        idle: indices of GPUs to choose from; no MIG instances.
        every_pair: take all pairs instead of one of each kind.
    """
    fabric = Fabric(topology)
    sizes = [
        size
        for size in range(2, min(MOST_GPUS, len(idle)) + 1)
        if comb(len(idle), size) <= _MOST_SETS
    ]
    found: dict[object, Sample] = {}
    for size in [*sizes, *([len(idle)] if len(idle) > MOST_GPUS else [])]:
        for gpus in combinations(sorted(idle), size):
            sample = Sample(gpus, ring_links(fabric, _positions(fabric, gpus)))
            found.setdefault((gpus if every_pair and size == 2 else size, sample.ring), sample)
    return list(found.values())


def others_of_class(topology: Topology, idle: Sequence[int], pair: Sample) -> list[Sample]:
    """All other pairs of the same link class: what to measure when one is slow."""
    return [
        sample
        for sample in samples(topology, idle, every_pair=True)
        if len(sample.gpus) == 2 and sample.ring == pair.ring and sample != pair
    ]


def slow_links(topology: Topology, figures: Sequence[Figure]) -> list[str]:
    """A line for each pair that is far under its class, or whose class is far under what is planned with."""
    fabric = Fabric(topology)
    classes: dict[tuple[str, ...], list[Figure]] = {}
    for figure in figures:
        if len(figure.sample.gpus) == 2:
            classes.setdefault(figure.sample.ring, []).append(figure)
    lines = []
    for (name,), members in classes.items():
        planned = _cut_gb_per_s(fabric, members[0].sample.gpus)
        usual = median(figure.all_reduce_gb_per_s for figure in members)
        if usual < FAR_UNDER * planned:
            lines.append(
                f"links of class {name} carry {usual:.4g} GB/s, far under the {planned:.4g} "
                "planned with"
            )
        for figure in members:
            a, b = figure.sample.gpus
            if figure.all_reduce_gb_per_s < FAR_UNDER * usual:
                carried = f"{figure.all_reduce_gb_per_s:.4g} GB/s"
                lines.append(
                    f"the link of GPUs {a} and {b} carries {carried}, far under its class {name} "
                    f"at {usual:.4g}"
                )
    return lines


def _positions(fabric: Fabric, gpus: Sequence[int]) -> list[int]:
    return [fabric.position[gpu] for gpu in gpus]


def _cut_gb_per_s(fabric: Fabric, gpus: Sequence[int]) -> float:
    return cut(fabric, _positions(fabric, gpus)) / UNIT


def compare(topology: Topology, figures: Sequence[Figure]) -> list[Comparison]:
    """Every figure beside `cut`, Eq. 2 as published, and Eq. 2 fitted anew."""
    fabric = Fabric(topology)
    counts = [ring_counts(fabric, _positions(fabric, figure.sample.gpus)) for figure in figures]
    refits = refit_equation(counts, [figure.all_reduce_gb_per_s for figure in figures])
    return [
        Comparison(
            figure,
            _cut_gb_per_s(fabric, figure.sample.gpus),
            mapa_equation(*count),
            None
            if refits is None
            else sum(theta * term for theta, term in zip(refits, mapa_terms(*count), strict=True)),
        )
        for figure, count in zip(figures, counts, strict=True)
    ]


def refit_equation(
    counts: Sequence[tuple[int, int, int]], bandwidths: Sequence[float]
) -> list[float] | None:
    """Coefficients of Eq. 2 for this machine, by least squares; the shortest of them where they are not determined.

    Args:
        counts: double NVLinks, single NVLinks and PCIe paths of each sample's ring.
        bandwidths: GB/s of each.

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
    """Root mean square difference of each model from the figures, GB/s; None for one that says nothing."""
    models = ("cut", "mapa", "refit")
    known = {model: [getattr(entry, model) for entry in comparisons] for model in models}
    measured = [entry.figure.all_reduce_gb_per_s for entry in comparisons]
    return {
        model: None
        if None in values
        else sqrt(fmean((a - b) ** 2 for a, b in zip(values, measured, strict=True)))
        for model, values in known.items()
    }


def kinds(sample: Sample) -> str:
    """A ring in words: "2x NV2 50, NV1 25"."""
    return ", ".join(
        name if count == 1 else f"{count}x {name}" for name, count in Counter(sample.ring).items()
    )
