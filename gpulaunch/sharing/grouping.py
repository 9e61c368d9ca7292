"""Which workflows of a queue share a GPU: the division that is predicted to be best."""
# pure: decides on plain values

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapreplace
from itertools import combinations

from gpulaunch.sharing.prediction import worth_of
from gpulaunch.sharing.workload import Cost, PlanSite, Workflow, add_up, may_share, share

MOST_IMPROVED = 24
"""Workflows up to which a division is bettered by single moves."""

_TOGETHER = 40
"""Workflows among which partners are sought; in a longer queue those of like duration."""

_DIGITS = 9  # decimals to which predictions are rounded before they are compared

Group = frozenset[int]
"""Workflows by their places."""

Division = tuple[Group, ...]


def divide(flows: Sequence[Workflow], site: PlanSite) -> list[list[Workflow]]:
    """Return the groups into which workflows are divided, in the order in which they start.

    Groups join that save most. Of up to MOST_IMPROVED workflows single ones then move and change
    places as long as that is better, from there and from all alone. There are as many groups as
    GPUs at least: nobody shares beside an empty GPU.

    Args:
        flows: workflows that could all start now.
        site: the GPUs, all free.
    """
    queue = _Queue(flows, site)
    least = min(len(flows), site.gpus)
    best = _grown_division(queue, least)
    if len(flows) <= MOST_IMPROVED:
        alone = tuple(Group([place]) for place in queue.places)
        found = [_moved(queue, division, least) for division in (best, alone)]
        best = max(found, key=lambda division: queue.worth(queue.total(division)))
    return [[flows[place] for place in sorted(group)] for group in queue.in_order(best)]


class _Queue:
    """Workflows and GPUs, with the costs of groups that were looked at."""

    def __init__(self, flows: Sequence[Workflow], site: PlanSite) -> None:
        self.flows, self.site = flows, site
        self.places = range(len(flows))
        self._costs: dict[Group, Cost | None] = {}
        alone = [self.costs((Group([place]),))[0] for place in self.places]
        self.sequential = add_up(alone, sum(cost.time_s for cost in alone), site)

    def cost(self, group: Group) -> Cost | None:
        """Return the cost of a group; None if it may not share a GPU."""
        if group not in self._costs:
            flows = [self.flows[place] for place in sorted(group)]
            found = None
            if len(flows) == 1 or may_share(flows, self.site):
                run = share(flows, self.site).run
                found = Cost(run.time_s, run.energy_j)
            self._costs[group] = found
        return self._costs[group]

    def costs(self, division: Iterable[Group]) -> list[Cost]:
        """Return the costs of groups that may all share a GPU."""
        return [cost for cost in map(self.cost, division) if cost]

    def in_order(self, division: Iterable[Group]) -> list[Group]:
        """Return groups in the order in which they start.

        On several GPUs the longest come first, so that all end at about the same time; then those
        with the lowest utilization (mps-sharing-2024 IV.B criterion 1).
        """

        def key(group: Group) -> tuple[float, float, str]:
            (cost,) = self.costs([group])
            first = min(
                (self.flows[place].demand.sm_utilization_percentage, self.flows[place].job.name)
                for place in group
            )
            return (-cost.time_s if self.site.gpus > 1 else 0.0, *first)

        return sorted(division, key=key)

    def total(self, division: Iterable[Group]) -> Cost:
        """Return the cost of groups that start when GPUs get free."""
        ends = [0.0] * self.site.gpus
        ordered = self.in_order(division)
        for cost in self.costs(ordered):
            heapreplace(ends, ends[0] + cost.time_s)
        return add_up(self.costs(ordered), max(ends), self.site)

    def worth(self, cost: Cost) -> tuple[float, float]:
        """Return what the objective wants most, then throughput."""
        gain = cost.gain_over(self.sequential)
        known = gain.energy_efficiency is not None or self.site.objective.name == "throughput"
        wanted = worth_of(gain, self.site.objective) if known else gain.throughput
        return round(wanted, _DIGITS), round(gain.throughput, _DIGITS)


def _sum_of(one: Cost, other: Cost) -> Cost:
    if one.energy_j is None or other.energy_j is None:
        return Cost(one.time_s + other.time_s, None)
    return Cost(one.time_s + other.time_s, one.energy_j + other.energy_j)


def _grown_division(queue: _Queue, least: int) -> Division:
    """Return a good division into so many groups at least: groups that joined."""
    by_duration = sorted(queue.places, key=lambda place: (queue.flows[place].alone_s, place))
    parts = [by_duration[i : i + _TOGETHER] for i in range(0, len(by_duration), _TOGETHER)]
    division = tuple(group for part in parts for group in _joined(queue, part))
    while len(division) < least:  # nobody shares beside an empty GPU
        largest = max(division, key=len)
        place = max(largest)
        division = (*(one for one in division if one != largest), largest - {place}, Group([place]))
    return division


def _joined(queue: _Queue, places: Sequence[int]) -> list[Group]:
    """Return groups that joined as long as that saves anything, those that save most first."""
    groups = [Group([place]) for place in places]
    savings = {
        (one, other): saved
        for one, other in combinations(groups, 2)
        if (saved := _saved(queue, one, other)) > 0
    }
    while savings:
        one, other = max(savings, key=savings.__getitem__)
        joined = one | other
        groups = [group for group in groups if group not in (one, other)]
        savings = {pair: saved for pair, saved in savings.items() if not {one, other} & set(pair)}
        for group in groups:
            saved = _saved(queue, joined, group)
            if saved > 0:
                savings[joined, group] = saved
        groups.append(joined)
    return groups


def _saved(queue: _Queue, one: Group, other: Group) -> float:
    """Return what two groups save by joining, as a share of the sequential cost."""
    joined, (first, second) = queue.cost(one | other), queue.costs((one, other))
    if joined is None:
        return 0.0
    apart, objective = _sum_of(first, second), queue.site.objective
    time = (apart.time_s - joined.time_s) / queue.sequential.time_s
    whole_j = queue.sequential.energy_j
    if objective.name == "throughput" or not whole_j or joined.energy_j is None:
        return time
    energy = ((apart.energy_j or 0.0) - joined.energy_j) / whole_j
    if objective.name == "energy":
        return energy
    return objective.throughput_weight * time + objective.energy_weight * energy


def _moved(queue: _Queue, division: Division, least: int) -> Division:
    """Return a division in which no workflow is better off elsewhere, nor in another's place."""
    best = queue.worth(queue.total(division))
    better = True
    while better:
        better = False
        for changed in _near(queue, division):
            if len(changed) < least:
                continue
            worth = queue.worth(queue.total(changed))
            if worth > best:
                division, best, better = changed, worth, True
                break
    return division


def _near(queue: _Queue, division: Division) -> Iterator[Division]:
    """Yield divisions in which a workflow has moved, or changed places with another."""
    for one, other in combinations((*division, Group()), 2):
        rest = tuple(group for group in division if group not in (one, other))
        moves = [(one - {place}, other | {place}) for place in one]
        moves += [(one | {place}, other - {place}) for place in other]
        moves += [
            (one - {mine} | {yours}, other - {yours} | {mine}) for mine in one for yours in other
        ]
        for changed in moves:
            groups = tuple(group for group in changed if group)
            if all(map(queue.cost, groups)):
                yield (*rest, *groups)
