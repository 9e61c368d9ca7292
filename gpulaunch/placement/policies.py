"""Placement policies: each is a row of POLICIES.

Most policies name the scores that decide: the first is maximised, the next one breaks its ties, and
so on. What is still equal then is decided by the lowest indices, so nothing is left to chance. The
others choose one set by a function of their own, which then comes before all others.
"""
# pure: decides on plain values

from collections.abc import Callable, Iterator
from itertools import chain
from math import comb
from typing import Literal

from gpulaunch.placement.mapping import EXACT_RANKS
from gpulaunch.placement.problem import MOST_SETS, PlacementProblem, ScoreName, Scores, positions
from gpulaunch.records import Record

MachineFigure = ScoreName | Literal["utility", "fewest_free_gpus"]
"""A figure by which a policy compares machines of a cluster."""

Choice = tuple[int, ...] | None
"""What a policy chooses by itself: GPUs by index, in rank order if it goes by utility; or none."""


def best_fit(problem: PlacementProblem) -> Choice:
    """Pack bins: the socket with the fewest free GPUs first, then the next (topo-aware-sc17 5.2).

    Where the job must stay in one NUMA node, the node with the fewest free GPUs comes first, too.
    """
    if not problem.groups:
        return None
    fullest = min(problem.groups, key=problem.count_free_beside)
    sockets = sorted(problem.split_by_socket(fullest), key=problem.count_free_beside)
    return tuple(chain.from_iterable(sockets))[: problem.count]


def topo_aware(problem: PlacementProblem) -> Choice:
    """Maximise the utility to the system, by three costs (topo-aware-sc17 4).

    The costs are communication, interference and fragmentation. docs/decisions/topo-aware.md says
    what of the paper is read differently, and why.
    """
    return _most_useful(problem)


def topo_aware_drb(problem: PlacementProblem) -> Choice:
    """Choose by dual recursive bipartitioning, as published (topo-aware-sc17 Algorithms 2 and 3).

    For comparison: topo_aware, which tries all sets, is never of less use to the system.
    """
    return _most_useful(problem, as_published=True)


def topo_aware_p(problem: PlacementProblem) -> Choice:
    """Choose as topo_aware, but for the job where the system's best is of too little use to it.

    decide() puts off what is still of too little use (topo-aware-sc17 Algorithm 1). Without the set
    that is best for the job, a job might wait for ever for what is there.
    """
    best = _most_useful(problem)
    use = utility_of(problem, best) if best else -1.0
    if use < problem.least_utility:
        own = _most_useful(problem, for_job=True)
        if own and utility_of(problem, own) > use:
            return own
    return best


def all_tried(problem: PlacementProblem) -> bool:
    """Return whether no placement is of more use to the job than the one that topo_aware_p takes.

    It is sure only where all sets and mappings are tried.
    """
    sets = comb(len(problem.admitted), problem.count)
    return problem.count <= EXACT_RANKS and sets <= MOST_SETS


def _most_useful(
    problem: PlacementProblem, *, for_job: bool = False, as_published: bool = False
) -> Choice:
    """Return the set that is of most use to the system or, if asked, to the job.

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
    return chosen


def utility_of(problem: PlacementProblem, gpus: tuple[int, ...]) -> float:
    """Return how useful GPUs are to the job of a problem, 0 to 1.

    Args:
        gpus: GPUs by index, in rank order.

    Source: topo-aware-sc17 Eq. 2.
    """
    from gpulaunch.placement.topo_aware import Valuation, job_weights

    return Valuation(problem, job_weights(problem.weights)).worth_of(gpus)[0]


def best_effort(problem: PlacementProblem) -> Choice:
    """Choose as the Kubernetes device plugin: the best set of the best partition of all free GPUs.

    Source: NVIDIA go-gpuallocator, besteffort_policy.go; see best_of_partition for the departures.
    """
    from gpulaunch.placement.best_effort import best_of_partition

    if not problem.groups:
        return None
    return best_of_partition(problem.topology, problem.groups[0], problem.count, problem.required)


class Policy(Record):
    """A placement policy, with everything that is known of it.

    Attributes:
        by: the scores that decide among sets, a bandwidth first; () for the lowest indices.
        insensitive_by: the same for jobs whose speed does not depend on their links; None for `by`.
        choose: chooses a set by itself; None where the policy only compares.
        bandwidth_model: the bandwidth model that it goes by unless the user names one.
        goes_by_utility: it weighs the utility to the job, so that neighbours matter, and which
            began last.
        waits_for_utility: a job waits for GPUs of the least utility that was asked for.
        compares_machines_by: what it compares machines of a cluster by, the first figure first; ()
            takes the first machine that fits, None the scores that decided on the machine.
    """

    help: str
    source: str
    by: tuple[ScoreName, ...] = ()
    insensitive_by: tuple[ScoreName, ...] | None = None
    choose: Callable[[PlacementProblem], Choice] | None = None
    bandwidth_model: str = "cut"
    goes_by_utility: bool = False
    waits_for_utility: bool = False
    compares_machines_by: tuple[MachineFigure, ...] | None = None


_LASTING: tuple[ScoreName, ...] = (
    "lasting_bandwidth",
    "aggregate_bandwidth",
    "sockets",
    "fragmentation",
)
_USEFUL: tuple[ScoreName, ...] = ("effective_bandwidth", "fragmentation")  # of those not chosen

POLICIES: dict[str, Policy] = {
    # It is also the FCFS of topo-aware-sc17 5.2, which takes the first free GPUs, socket after
    # socket, where the GPUs of a socket have indices in a row, as on every shipped machine.
    "baseline": Policy(
        help="nothing: the lowest indices, as `docker run --gpus N` takes them",
        source="mapa-sc21 4",
        compares_machines_by=(),
    ),
    "best_fit": Policy(
        help="makes: the socket with the fewest free GPUs first, then the next",
        source="topo-aware-sc17 5.2",
        choose=best_fit,
        compares_machines_by=("fewest_free_gpus",),
    ),
    "greedy": Policy(
        help="aggregate bandwidth",
        source="mapa-sc21 4",
        by=("aggregate_bandwidth",),
    ),
    # Bandwidth for sensitive jobs, and kept from insensitive ones: mapa-sc21 Algorithm 1 with two
    # departures. What is left counts not only now, among free GPUs, but also once those that run
    # have left: else insensitive jobs lie across sockets, and nobody after them gets a whole one.
    # Ties are chosen instead of left to the order of enumeration: what no link tells apart lies on
    # few sockets, and fills those that others have begun. docs/results/bake-off.md measures that.
    "preserve": Policy(
        help="sensitive jobs: effective, lasting, aggregate bandwidth, sockets, fragmentation; "
        "insensitive ones: the last four",
        source="mapa-sc21 Algorithm 1, with chosen ties and what is left counted now and later "
        "([why](../decisions/preserve.md))",
        by=("effective_bandwidth", *_LASTING),
        insensitive_by=_LASTING,
    ),
    # Its comparisons are strict, and it enumerates in order of indices. The set that it starts
    # with, {}, must count as worse than any: read literally it would refuse sets below Eq. 2 at
    # (0,0,0), and any set for insensitive jobs.
    "preserve_paper": Policy(
        help="sensitive jobs: effective bandwidth, by Eq. 2 unless a model is named; "
        "insensitive ones: preserved bandwidth",
        source="mapa-sc21 Algorithm 1 as printed",
        by=("effective_bandwidth",),
        insensitive_by=("preserved_bandwidth",),
        bandwidth_model="mapa",
    ),
    "topo_aware": Policy(
        help="makes: the most utility to the system, by communication, interference, fragmentation",
        source="topo-aware-sc17 4 ([departures](../decisions/topo-aware.md))",
        by=_USEFUL,
        choose=topo_aware,
        goes_by_utility=True,
        compares_machines_by=("utility", "fragmentation"),
    ),
    "topo_aware_drb": Policy(
        help="makes: what dual recursive bipartitioning of machine and job comes to",
        source="topo-aware-sc17 Algorithms 2 and 3 as published",
        by=_USEFUL,
        choose=topo_aware_drb,
        goes_by_utility=True,
        compares_machines_by=("utility", "fragmentation"),
    ),
    "topo_aware_p": Policy(
        help="as `topo-aware`, but it waits while the job's utility is under `min_utility`",
        source="topo-aware-sc17 Algorithm 1",
        by=_USEFUL,
        choose=topo_aware_p,
        goes_by_utility=True,
        waits_for_utility=True,
        compares_machines_by=("utility", "fragmentation"),
    ),
    "best_effort": Policy(
        help="makes: the set with the most points out of the best partition of all free GPUs into "
        "such sets",
        source="Kubernetes' GPU device plugin (go-gpuallocator)",
        by=("aggregate_bandwidth",),
        choose=best_effort,
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
    row = POLICIES[policy]
    by = row.by if problem.sensitive or row.insensitive_by is None else row.insensitive_by
    choice = row.choose(problem) if row.choose else None
    chosen: int | None = None
    if choice is not None and problem.allows(choice):
        chosen = problem.mask(choice)
        yield _placement(problem, row, by, chosen, choice)
    for mask in problem.ranked(by):
        if mask != chosen and problem.meets(mask):
            yield _placement(problem, row, by, mask)


def _placement(
    problem: PlacementProblem,
    policy: Policy,
    by: tuple[ScoreName, ...],
    mask: int,
    choice: Choice = None,
) -> Placement:
    """Return a set in the rank order that the user or the policy gave, else in the best one."""
    fabric, mapper = problem.fabric, problem.mapper
    rank_order = problem.rank_order
    if choice and policy.goes_by_utility:
        rank_order = rank_order or choice
    if rank_order:
        places = [fabric.position[gpu] for gpu in rank_order]
        mapping = mapper.figures([place for place in places if fabric.bit[place] & mask])
    else:
        slowest_first = problem.is_slowest_first(by)
        mapping = mapper.best(positions(fabric, mask), slowest_first=slowest_first)
    gpus = tuple(fabric.gpus[place] for place in mapping.gpus)
    return Placement(
        gpus,
        problem.scores(mapping),
        by if choice is None else (),
        problem.candidates,
        choice is not None,
        utility_of(problem, gpus) if policy.goes_by_utility else None,
    )
