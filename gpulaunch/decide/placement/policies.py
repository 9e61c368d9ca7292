"""Placement policies: each is one function from a problem to an order of its candidates.

Most policies name the scores that decide: the first is maximised, the next one breaks its ties, and
so on. What is still equal then is decided by the lowest indices, so nothing is left to chance. The
others choose one set by an algorithm of their own, which then comes before all others.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, combinations, permutations
from math import perm

from gpulaunch.decide.placement.problem import PlacementProblem
from gpulaunch.decide.placement.scores import ScoreName
from gpulaunch.decide.placement.utility import Weights
from gpulaunch.records import Record
from gpulaunch.typing import Literal

MachineFigure = ScoreName | Literal["utility", "fewest_free_gpus"]
"""A figure by which a policy compares machines of a cluster."""


class Order(Record):
    """The order in which a policy takes the candidates of a problem.

    Attributes:
        by: the scores that decide, the first one first.
        chosen_set: the GPUs that the policy chose by itself, by index; None if it only compares.
        in_rank_order: whether `chosen_set` is in rank order.
        utility: returns how useful GPUs are to the job, by index in rank order, 0 to 1; None if the
            policy knows no utility.
    """

    by: tuple[ScoreName, ...]
    chosen_set: tuple[int, ...] | None = None
    in_rank_order: bool = False
    utility: Callable[[tuple[int, ...]], float] | None = None


def baseline(problem: PlacementProblem) -> Order:  # noqa: ARG001
    """Take the lowest indices, as docker run --gpus N does: no score (mapa-sc21 4)."""
    return Order(())


def fcfs(problem: PlacementProblem) -> Order:
    """Take the first GPUs that are free, socket after socket (topo-aware-sc17 5.2)."""
    filled = (_fill(problem, problem.split_by_socket(group)) for group in problem.groups)
    return Order((), next(filled, None))


def best_fit(problem: PlacementProblem) -> Order:
    """Pack bins: the socket with the fewest free GPUs first, then the next (topo-aware-sc17 5.2).

    Where the job must stay in a group, such as one machine of several, the group with the fewest
    free GPUs comes first, too.
    """
    if not problem.groups:
        return Order(())
    fullest = min(problem.groups, key=problem.count_free_beside)
    sockets = sorted(problem.split_by_socket(fullest), key=problem.count_free_beside)
    return Order((), _fill(problem, sockets))


def _fill(problem: PlacementProblem, sockets: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(sockets))[: problem.count]


def greedy(problem: PlacementProblem) -> Order:  # noqa: ARG001
    """Maximise aggregate bandwidth; keep nothing for others (mapa-sc21 4)."""
    return Order(("aggregate_bandwidth",))


def preserve(problem: PlacementProblem) -> Order:
    """Give bandwidth to sensitive jobs, and keep it from insensitive ones.

    Sensitive jobs compare effective, lasting, aggregate bandwidth; insensitive ones lasting and
    aggregate. This is the rule of mapa-sc21 Algorithm 1 with two departures. What is left counts
    not only now, among free GPUs, but also once those that run have left: else insensitive jobs lie
    across sockets, and nobody after them gets a whole one. Ties are chosen instead of left to the
    order of enumeration: what no link tells apart fills a socket that others have begun.
    docs/bake-off.md has what that is worth.
    """
    after: tuple[ScoreName, ...] = ("lasting_bandwidth", "aggregate_bandwidth", "fragmentation")
    return Order(("effective_bandwidth", *after) if problem.sensitive else after)


def lookahead(problem: PlacementProblem) -> Order:
    """Give bandwidth to sensitive jobs, and leave the jobs to come as much as can be expected.

    As preserve, but before lasting bandwidth counts the bandwidth that jobs of the machine's own
    sizes can expect of what is left, now and once those that run have left (expected.py). Where
    that is not known, on machines of more than 8 GPUs, it is preserve. Source: ours.
    """
    order = preserve(problem)
    place = order.by.index("lasting_bandwidth")
    return Order((*order.by[:place], "expected_bandwidth", *order.by[place:]))


def preserve_paper(problem: PlacementProblem) -> Order:
    """Follow mapa-sc21 Algorithm 1 as printed: one score, and the first of equals.

    Its comparisons are strict, and it enumerates in order of indices. The set that it starts with,
    {}, must count as worse than any: read literally it would refuse sets below Eq. 2 at (0,0,0),
    and any set for insensitive jobs.
    """
    return Order(("effective_bandwidth",) if problem.sensitive else ("preserved_bandwidth",))


def topo_aware(problem: PlacementProblem) -> Order:
    """Cut machine and job in two, again and again, by three costs (topo-aware-sc17 4).

    The costs are communication, interference and fragmentation. docs/decisions/topo-aware.md says
    what of the paper is read differently, and why.
    """
    return _bipartition(problem, problem.utility.weights)


def topo_aware_p(problem: PlacementProblem) -> Order:
    """Choose as topo_aware, but for the job where the system's best is of too little use to it.

    decide() puts off what is still of too little use (topo-aware-sc17 Algorithm 1). Without the set
    that is best for the job, a job might wait for ever for what is there; so where bipartition does
    not find it, all are tried if they are not too many.
    """
    tried = []
    for order in _orders_for_the_job(problem):
        tried.append(order)
        if _use_of_chosen(problem, order) >= problem.utility.least:
            break
    return max(tried, key=lambda order: _use_of_chosen(problem, order))


def _orders_for_the_job(problem: PlacementProblem) -> Iterator[Order]:
    """Yield the order for the system, and then those that are ever more for the job alone."""
    weights = problem.utility.weights
    half = weights.fragmentation / 2
    yield _bipartition(problem, weights)
    yield _bipartition(
        problem, Weights(weights.communication + half, weights.interference + half, 0)
    )
    if not too_many_to_try(problem):
        sets = chain.from_iterable(combinations(group, problem.count) for group in problem.groups)
        allowed = filter(problem.allows, sets)
        yield _order_by_use(problem, chain.from_iterable(map(permutations, allowed)))


def _use_of_chosen(problem: PlacementProblem, order: Order) -> float:
    """Return the utility to the job of what a policy chose; -1 if that is not what it needs."""
    if order.chosen_set is None or not order.utility or not problem.allows(order.chosen_set):
        return -1.0
    return order.utility(order.chosen_set)


MOST_TRIED = 1_000
"""Placements beyond which they are not all tried; 3 of 10 GPUs have 720."""


def too_many_to_try(problem: PlacementProblem) -> bool:
    """Return whether sets, each in any order of ranks, are too many for topo_aware_p to try all."""
    return sum(perm(len(group), problem.count) for group in problem.groups) > MOST_TRIED


def _bipartition(problem: PlacementProblem, weights: Weights) -> Order:
    """Return the order whose chosen set comes from recursive bipartition."""
    from gpulaunch.decide.placement.topo_aware import place_tasks

    slowdown, begun = problem.utility.slowdown, problem.utility.begun
    edges = problem.pattern.edges(problem.count)
    sets = []
    for group in problem.groups:
        tree = _tree_around(problem, group)
        sets.append(place_tasks(edges, problem.count, group, *tree, slowdown, weights, begun))
    return _order_by_use(problem, sets)


def _order_by_use(problem: PlacementProblem, placements: Iterable[tuple[int, ...]]) -> Order:
    """Return the order whose chosen set is the most useful of some, or the first of equals."""
    useful = _use_to_job(problem)
    best = max(placements, key=useful, default=None)
    return Order(("effective_bandwidth", "fragmentation"), best, in_rank_order=True, utility=useful)


def utility_of(problem: PlacementProblem, gpus: tuple[int, ...]) -> float:
    """Return how useful GPUs are to the job of a problem, 0 to 1.

    Args:
        problem: the placement problem.
        gpus: GPUs by index, in rank order.

    Source: topo-aware-sc17 Eq. 2.
    """
    return _use_to_job(problem)(gpus)


def _use_to_job(problem: PlacementProblem) -> Callable[[tuple[int, ...]], float]:
    """Return what tells how useful GPUs are, as utility_of; costly once, and then cheap."""
    from gpulaunch.decide.placement.topo_aware import placement_costs
    from gpulaunch.decide.placement.utility import Costs, job_utility

    edges = problem.pattern.edges(problem.count)
    node = {gpu.index: gpu.node for gpu in problem.topology.gpus}
    costs: dict[frozenset[int], Callable[[Sequence[int]], Costs]] = {}

    def useful(gpus: tuple[int, ...]) -> float:
        nodes = frozenset(node[gpu] for gpu in gpus)
        if nodes not in costs:
            tree = _tree_around(problem, gpus)
            costs[nodes] = placement_costs(edges, len(gpus), *tree, problem.utility.slowdown)
        return job_utility(costs[nodes](gpus), problem.utility.weights)

    return useful


def _tree_around(
    problem: PlacementProblem, gpus: Sequence[int]
) -> tuple[Callable[[int, int], int], dict[int, int], dict[int, int], dict[int, int]]:
    """Return the tree of the machines of some GPUs.

    Returns:
        The distance of two GPUs, the socket of each GPU, and by socket the number of all and of
            free GPUs.
    """
    fabric = problem.fabric
    node = {gpu.index: gpu.node for gpu in problem.topology.gpus}
    nodes = {node[gpu] for gpu in gpus}
    sockets = zip(fabric.gpus, fabric.socket, strict=True)
    socket_of = {gpu: socket for gpu, socket in sockets if node[gpu] in nodes}
    totals = dict(Counter(socket_of.values()))
    frees = dict.fromkeys(totals, 0)
    for gpu in problem.free:
        if gpu in socket_of:
            frees[socket_of[gpu]] += 1

    def distance(a: int, b: int) -> int:
        return fabric.distance(fabric.position[a], fabric.position[b])

    return distance, socket_of, totals, frees


def best_effort(problem: PlacementProblem) -> Order:
    """Choose as the Kubernetes device plugin: the best set of the best partition of all free GPUs.

    Source: NVIDIA go-gpuallocator, besteffort_policy.go; see best_of_partition for the departures.
    """
    from gpulaunch.decide.placement.best_effort import best_of_partition

    required = problem.needs.required
    chosen = None
    for group in problem.groups:
        if required.issubset(group):
            chosen = best_of_partition(problem.topology, group, problem.count, required)
            break
    return Order(("aggregate_bandwidth",), chosen)


class Policy(Record):
    """A placement policy, with everything that is known of it.

    Attributes:
        order: returns the order in which the policy takes the candidates of a problem.
        colour: the policy's colour in pictures, as #rrggbb; it reads on light and on dark ground.
        help: what the policy compares or makes, for lists of policies.
        source: where the policy comes from, for lists of policies.
        bandwidth_model: the bandwidth model that it goes by unless the user names one.
        goes_by_utility: it weighs the utility to the job, so that neighbours matter, and which
            began last.
        waits_for_utility: a job waits for GPUs of the least utility that was asked for.
        compares_machines_by: what it compares machines of a cluster by, the first figure first; ()
            takes the first machine that fits, None the scores that decided on the machine.
    """

    order: Callable[[PlacementProblem], Order]
    colour: str
    help: str
    source: str
    bandwidth_model: str = "cut"
    goes_by_utility: bool = False
    waits_for_utility: bool = False
    compares_machines_by: tuple[MachineFigure, ...] | None = None


POLICIES: dict[str, Policy] = {
    "baseline": Policy(
        baseline,
        colour="#979ba3",
        help="nothing: the lowest indices, as `docker run --gpus N` takes them",
        source="mapa-sc21 4",
        compares_machines_by=(),
    ),
    "fcfs": Policy(
        fcfs,
        colour="#505b70",
        help="makes: the first free GPUs, socket after socket",
        source="topo-aware-sc17 5.2",
        compares_machines_by=(),
    ),
    "best_fit": Policy(
        best_fit,
        colour="#a05405",
        help="makes: the socket with the fewest free GPUs first, then the next",
        source="topo-aware-sc17 5.2",
        compares_machines_by=("fewest_free_gpus",),
    ),
    "greedy": Policy(
        greedy,
        colour="#d99a1b",
        help="aggregate bandwidth",
        source="mapa-sc21 4",
    ),
    "preserve": Policy(
        preserve,
        colour="#365ee5",
        help="sensitive jobs: effective, lasting, aggregate bandwidth, fragmentation; "
        "insensitive ones: the last three",
        source="mapa-sc21 Algorithm 1, with chosen ties and what is left counted now and later: "
        "[the winner of a bake-off](bake-off.md)",
    ),
    "lookahead": Policy(
        lookahead,
        colour="#0f8f9c",
        help="as `preserve`, with what jobs to come can expect before lasting bandwidth",
        source="ours",
    ),
    "preserve_paper": Policy(
        preserve_paper,
        colour="#74aef5",
        help="sensitive jobs: effective bandwidth, by Eq. 2 unless a model is named; "
        "insensitive ones: preserved bandwidth",
        source="mapa-sc21 Algorithm 1 as printed",
        bandwidth_model="mapa",
    ),
    "topo_aware": Policy(
        topo_aware,
        colour="#2fae78",
        help="makes: machine and job cut in two again and again, by communication, interference, "
        "fragmentation",
        source="topo-aware-sc17 Algorithms 2 and 3 ([departures](decisions/topo-aware.md))",
        goes_by_utility=True,
        compares_machines_by=("utility", "fragmentation"),
    ),
    "topo_aware_p": Policy(
        topo_aware_p,
        colour="#a44fba",
        help="as `topo-aware`, but it waits while the job's utility is under `--min-utility`",
        source="topo-aware-sc17 Algorithm 1",
        goes_by_utility=True,
        waits_for_utility=True,
        compares_machines_by=("utility", "fragmentation"),
    ),
    "best_effort": Policy(
        best_effort,
        colour="#bf3c49",
        help="makes: the set with the most points out of the best partition of all free GPUs into "
        "such sets",
        source="Kubernetes' GPU device plugin (go-gpuallocator)",
        compares_machines_by=("aggregate_bandwidth",),
    ),
}
"""The policies by name; tests/unit/test_report.py compares their colours."""

DEFAULT_POLICY = "preserve"
"""The policy of a launch that names none; for a sensitive job it prefers fast links."""

CHEAPEST_POLICY = "baseline"
"""The policy that decides quickest, for questions that every policy answers alike."""
