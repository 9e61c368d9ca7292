"""Placement policies: each is one function from a problem to an order of its candidates.

Most policies name the scores that decide: the first is maximised, the next one breaks its ties, and
so on. What is still equal then is decided by the lowest indices, so nothing is left to chance. The
others choose one set by an algorithm of their own, which then comes before all others.
"""
# pure: decides on plain values

from collections.abc import Callable, Iterator
from itertools import chain
from math import comb
from typing import Literal

from gpulaunch.placement.mapping import EXACT_RANKS
from gpulaunch.placement.problem import MOST_SETS, PlacementProblem, ScoreName, Scores
from gpulaunch.records import Record

MachineFigure = ScoreName | Literal["utility", "fewest_free_gpus"]
"""A figure by which a policy compares machines of a cluster."""


class Order(Record):
    """The order in which a policy takes the candidates of a problem.

    Attributes:
        by: the scores that decide, the first one first.
        chosen_set: the GPUs that the policy chose by itself, by index, in rank order if it goes by
            utility; None if it only compares.
    """

    by: tuple[ScoreName, ...]
    chosen_set: tuple[int, ...] | None = None


def baseline(problem: PlacementProblem) -> Order:  # noqa: ARG001
    """Take the lowest indices, as docker run --gpus N does: no score (mapa-sc21 4).

    It is also the FCFS of topo-aware-sc17 5.2, which takes the first free GPUs, socket after
    socket, where the GPUs of a socket have indices in a row, as on every shipped machine.
    """
    return Order(())


def best_fit(problem: PlacementProblem) -> Order:
    """Pack bins: the socket with the fewest free GPUs first, then the next (topo-aware-sc17 5.2).

    Where the job must stay in one NUMA node, the node with the fewest free GPUs comes first, too.
    """
    if not problem.groups:
        return Order(())
    fullest = min(problem.groups, key=problem.count_free_beside)
    sockets = sorted(problem.split_by_socket(fullest), key=problem.count_free_beside)
    return Order((), tuple(chain.from_iterable(sockets))[: problem.count])


def greedy(problem: PlacementProblem) -> Order:  # noqa: ARG001
    """Maximise aggregate bandwidth; keep nothing for others (mapa-sc21 4)."""
    return Order(("aggregate_bandwidth",))


def preserve(problem: PlacementProblem) -> Order:
    """Give bandwidth to sensitive jobs, and keep it from insensitive ones.

    Sensitive jobs compare effective, lasting, aggregate bandwidth; insensitive ones lasting and
    aggregate. This is the rule of mapa-sc21 Algorithm 1 with two departures. What is left counts
    not only now, among free GPUs, but also once those that run have left: else insensitive jobs lie
    across sockets, and nobody after them gets a whole one. Ties are chosen instead of left to the
    order of enumeration: what no link tells apart lies on few sockets, and fills those that others
    have begun. docs/results/bake-off.md has what that is worth.
    """
    after: tuple[ScoreName, ...] = (
        "lasting_bandwidth",
        "aggregate_bandwidth",
        "sockets",
        "fragmentation",
    )
    return Order(("effective_bandwidth", *after) if problem.sensitive else after)


def preserve_paper(problem: PlacementProblem) -> Order:
    """Follow mapa-sc21 Algorithm 1 as printed: one score, and the first of equals.

    Its comparisons are strict, and it enumerates in order of indices. The set that it starts with,
    {}, must count as worse than any: read literally it would refuse sets below Eq. 2 at (0,0,0),
    and any set for insensitive jobs.
    """
    return Order(("effective_bandwidth",) if problem.sensitive else ("preserved_bandwidth",))


def topo_aware(problem: PlacementProblem) -> Order:
    """Maximise the utility to the system, by three costs (topo-aware-sc17 4).

    The costs are communication, interference and fragmentation. docs/decisions/topo-aware.md says
    what of the paper is read differently, and why.
    """
    return _most_useful(problem)


def topo_aware_drb(problem: PlacementProblem) -> Order:
    """Choose by dual recursive bipartitioning, as published (topo-aware-sc17 Algorithms 2 and 3).

    For comparison: topo_aware, which tries all sets, is never of less use to the system.
    """
    return _most_useful(problem, as_published=True)


def topo_aware_p(problem: PlacementProblem) -> Order:
    """Choose as topo_aware, but for the job where the system's best is of too little use to it.

    decide() puts off what is still of too little use (topo-aware-sc17 Algorithm 1). Without the set
    that is best for the job, a job might wait for ever for what is there.
    """
    best = _most_useful(problem)
    use = _use_of_chosen(problem, best)
    if use < problem.least_utility:
        own = _most_useful(problem, for_job=True)
        if _use_of_chosen(problem, own) > use:
            return own
    return best


def all_tried(problem: PlacementProblem) -> bool:
    """Return whether no placement is of more use to the job than the one that topo_aware_p takes.

    It is sure only where all sets and mappings are tried.
    """
    sets = comb(len(problem.admitted), problem.count)
    return problem.count <= EXACT_RANKS and sets <= MOST_SETS


def _use_of_chosen(problem: PlacementProblem, order: Order) -> float:
    """Return the utility to the job of what a policy chose; -1 if it chose nothing."""
    return utility_of(problem, order.chosen_set) if order.chosen_set else -1.0


def _most_useful(
    problem: PlacementProblem, *, for_job: bool = False, as_published: bool = False
) -> Order:
    """Return the order whose chosen set is of most use to the system or, if asked, to the job.

    As published, the machine is cut in two again and again; else all sets are tried.
    """
    from gpulaunch.placement.topo_aware import (  # late: few launches go by utility
        LEAST_WORST_SLOWDOWN,
        WORST_SLOWDOWN,
        Valuation,
        cut_in_two,
        job_weights,
        place_tasks,
    )

    weights, worst = job_weights(problem.weights), WORST_SLOWDOWN
    if not for_job:
        weights = problem.weights
        slowdowns = [problem.slowdown.get(gpu, 0.0) for gpu in problem.admitted]
        worst = max(LEAST_WORST_SLOWDOWN, *slowdowns)
    place = cut_in_two if as_published else place_tasks
    most, chosen = None, None
    value = Valuation(problem, weights, worst)
    for group in problem.groups:
        gpus = place(value, group, problem.allows)
        if gpus and (most is None or value.worth_of(gpus) > most):
            most, chosen = value.worth_of(gpus), gpus
    return Order(("effective_bandwidth", "fragmentation"), chosen)


def utility_of(problem: PlacementProblem, gpus: tuple[int, ...]) -> float:
    """Return how useful GPUs are to the job of a problem, 0 to 1.

    Args:
        gpus: GPUs by index, in rank order.

    Source: topo-aware-sc17 Eq. 2.
    """
    from gpulaunch.placement.topo_aware import Valuation, job_weights

    return Valuation(problem, job_weights(problem.weights)).worth_of(gpus)[0]


def best_effort(problem: PlacementProblem) -> Order:
    """Choose as the Kubernetes device plugin: the best set of the best partition of all free GPUs.

    Source: NVIDIA go-gpuallocator, besteffort_policy.go; see best_of_partition for the departures.
    """
    from gpulaunch.placement.best_effort import best_of_partition

    chosen = None
    if problem.groups:
        gpus, required = problem.groups[0], problem.required
        chosen = best_of_partition(problem.topology, gpus, problem.count, required)
    return Order(("aggregate_bandwidth",), chosen)


class Policy(Record):
    """A placement policy, with everything that is known of it.

    Attributes:
        bandwidth_model: the bandwidth model that it goes by unless the user names one.
        goes_by_utility: it weighs the utility to the job, so that neighbours matter, and which
            began last.
        waits_for_utility: a job waits for GPUs of the least utility that was asked for.
        compares_machines_by: what it compares machines of a cluster by, the first figure first; ()
            takes the first machine that fits, None the scores that decided on the machine.
    """

    order: Callable[[PlacementProblem], Order]
    help: str
    source: str
    bandwidth_model: str = "cut"
    goes_by_utility: bool = False
    waits_for_utility: bool = False
    compares_machines_by: tuple[MachineFigure, ...] | None = None


POLICIES: dict[str, Policy] = {
    "baseline": Policy(
        baseline,
        help="nothing: the lowest indices, as `docker run --gpus N` takes them",
        source="mapa-sc21 4",
        compares_machines_by=(),
    ),
    "best_fit": Policy(
        best_fit,
        help="makes: the socket with the fewest free GPUs first, then the next",
        source="topo-aware-sc17 5.2",
        compares_machines_by=("fewest_free_gpus",),
    ),
    "greedy": Policy(
        greedy,
        help="aggregate bandwidth",
        source="mapa-sc21 4",
    ),
    "preserve": Policy(
        preserve,
        help="sensitive jobs: effective, lasting, aggregate bandwidth, sockets, fragmentation; "
        "insensitive ones: the last four",
        source="mapa-sc21 Algorithm 1, with chosen ties and what is left counted now and later "
        "([why](../decisions/preserve.md))",
    ),
    "preserve_paper": Policy(
        preserve_paper,
        help="sensitive jobs: effective bandwidth, by Eq. 2 unless a model is named; "
        "insensitive ones: preserved bandwidth",
        source="mapa-sc21 Algorithm 1 as printed",
        bandwidth_model="mapa",
    ),
    "topo_aware": Policy(
        topo_aware,
        help="makes: the most utility to the system, by communication, interference, fragmentation",
        source="topo-aware-sc17 4 ([departures](../decisions/topo-aware.md))",
        goes_by_utility=True,
        compares_machines_by=("utility", "fragmentation"),
    ),
    "topo_aware_drb": Policy(
        topo_aware_drb,
        help="makes: what dual recursive bipartitioning of machine and job comes to",
        source="topo-aware-sc17 Algorithms 2 and 3 as published",
        goes_by_utility=True,
        compares_machines_by=("utility", "fragmentation"),
    ),
    "topo_aware_p": Policy(
        topo_aware_p,
        help="as `topo-aware`, but it waits while the job's utility is under `min_utility`",
        source="topo-aware-sc17 Algorithm 1",
        goes_by_utility=True,
        waits_for_utility=True,
        compares_machines_by=("utility", "fragmentation"),
    ),
    "best_effort": Policy(
        best_effort,
        help="makes: the set with the most points out of the best partition of all free GPUs into "
        "such sets",
        source="Kubernetes' GPU device plugin (go-gpuallocator)",
        compares_machines_by=("aggregate_bandwidth",),
    ),
}
"""The policies by name."""

DEFAULT_POLICY = "preserve"
"""The policy of a launch that names none; for a sensitive job it prefers fast links."""

CHEAPEST_POLICY = "baseline"
"""The policy that decides quickest, for questions that every policy answers alike."""


class Placement(Record):
    """A set of GPUs with its mapping of ranks.

    Attributes:
        gpus: indices, in rank order.
        by: the scores that decide, the first one first.
        chosen_by_policy: whether the policy chose the set by itself, and compared none.
        utility: utility to the job, 0 to 1; None if the policy knows none.
    """

    gpus: tuple[int, ...]
    scores: Scores
    by: tuple[ScoreName, ...]
    candidates: int
    chosen_by_policy: bool = False
    utility: float | None = None


def place(problem: PlacementProblem, policy: str) -> Placement | None:
    """Return the best candidate by a policy; None if no candidate has what the job needs."""
    return next(ranking(problem, policy), None)


def ranking(problem: PlacementProblem, policy: str) -> Iterator[Placement]:
    """Yield the candidates by a policy, the best first, one of those that are alike.

    What the policy chose by itself comes before all others.
    """
    order = POLICIES[policy].order(problem)
    chosen: int | None = None
    if order.chosen_set is not None and problem.allows(order.chosen_set):
        chosen = problem.mask(order.chosen_set)
        yield _placement(problem, policy, order, chosen, is_chosen=True)
    for mask in problem.ranked(order.by):
        if mask != chosen and problem.meets(mask):
            yield _placement(problem, policy, order, mask)


def _placement(
    problem: PlacementProblem, policy: str, order: Order, mask: int, *, is_chosen: bool = False
) -> Placement:
    """Return a set in the rank order that the user or the policy gave, else in the best one."""
    fabric, mapper = problem.fabric, problem.mapper
    knows_utility = POLICIES[policy].goes_by_utility
    rank_order = problem.rank_order
    if is_chosen and knows_utility:
        rank_order = rank_order or order.chosen_set or ()
    if rank_order:
        positions = [fabric.position[gpu] for gpu in rank_order]
        mapping = mapper.figures([place for place in positions if fabric.bit[place] & mask])
    else:
        slowest_first = problem.is_slowest_first(order.by)
        mapping = mapper.best(fabric.positions(mask), slowest_first=slowest_first)
    gpus = tuple(fabric.gpus[place] for place in mapping.gpus)
    return Placement(
        gpus,
        problem.scores(mapping),
        () if is_chosen else order.by,
        problem.candidates,
        is_chosen,
        utility_of(problem, gpus) if knows_utility else None,
    )
