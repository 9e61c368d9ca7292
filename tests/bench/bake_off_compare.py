"""Values of the bake-off (tests/bench/bake_off.py), and what counts as better."""

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean, stdev
from typing import NamedTuple


class Cell(NamedTuple):
    """One comparison: all policies replay the same traces of it."""

    machine: str
    mix: str
    load: float
    queue: str
    judge: str


Traces = dict[int, Sequence[float | None]]
"""Seed -> figures."""

Results = dict[Cell, dict[str, Traces]]
"""Cell -> policy -> traces."""

FIGURES = ("slowdown", "completion", "25 % bandwidth")
MORE_IS_BETTER = (False, False, True)
CLEAR = 3.0
"""Standard errors from which a difference counts."""

LEAST_PERCENT = 0.1
"""Difference in percent below which nothing counts, however sure it is."""

FEWEST = 8
"""Traces below which nothing counts."""


class Gain(NamedTuple):
    """By how much one policy is better than another by one figure; negative if it is worse."""

    percent: float
    errors: float
    traces: int

    @property
    def counts(self) -> bool:
        """Whether the difference is large and sure enough to be told."""
        large = abs(self.errors) >= CLEAR and abs(self.percent) >= LEAST_PERCENT
        return large and self.traces >= FEWEST


class Loss(NamedTuple):
    """A cell where another policy is better by a figure."""

    gain: Gain
    policy: str
    cell: Cell
    figure: int


def gain_of(own: Traces, other: Traces, figure: int) -> Gain:
    """Compare two policies by the ratio of a figure, trace by trace, where both have one."""
    ratios = []
    for seed in own.keys() & other.keys():
        a, b = own[seed][figure], other[seed][figure]
        if a and b and a > 0 and b > 0:  # Eq. 2 of mapa-sc21 can be negative
            ratios.append(log(a / b) if MORE_IS_BETTER[figure] else log(b / a))
    mean = fmean(ratios) if ratios else 0.0
    spread = stdev(ratios) if len(ratios) > 1 else 0.0
    errors = mean / spread * len(ratios) ** 0.5 if spread else 0.0
    return Gain(100 * (exp(mean) - 1), errors, len(ratios))


def gains(by_policy: Mapping[str, Traces], own: str) -> dict[tuple[str, int], Gain]:
    """Return by how much a policy is better than each other one in a cell, by each figure."""
    return {
        (policy, figure): gain_of(by_policy[own], traces, figure)
        for policy, traces in by_policy.items()
        if policy != own and own in by_policy
        for figure in range(len(FIGURES))
    }


def seemingly_better(results: Results, own: str) -> list[tuple[Cell, str]]:
    """Return where more traces might show a policy to be better than this one, surest first."""
    found: dict[tuple[Cell, str], float] = {}
    for cell, by_policy in results.items():
        for (policy, _), gain in gains(by_policy, own).items():
            if gain.errors < -CLEAR / 2 and gain.percent < -LEAST_PERCENT / 2:
                found[cell, policy] = min(gain.errors, found.get((cell, policy), 0.0))
    return sorted(found, key=lambda pair: found[pair])


def losses_of(results: Results, own: str) -> list[Loss]:
    """Return where another policy is better than this one, the best of them, worst first."""
    found = []
    for cell, by_policy in results.items():
        compared = gains(by_policy, own)
        for figure in range(len(FIGURES)):
            worse = [
                Loss(gain, policy, cell, figure)
                for (policy, at), gain in compared.items()
                if at == figure and gain.counts and gain.percent < 0
            ]
            found += [min(worse)] if worse else []
    return sorted(found)
