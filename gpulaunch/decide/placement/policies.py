"""How to choose: each policy is one function from a problem to an order of its candidates.

Most policies name the scores that decide: the first is maximised, the next one breaks its ties, and
so on; what is still equal then is decided by the lowest indices, so nothing is left to chance. The
others make one set by an algorithm of their own, which then comes before all others.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from gpulaunch.decide.placement.problem import PlacementProblem
from gpulaunch.decide.placement.scores import ScoreName
from gpulaunch.decide.placement.utility import Weights
from gpulaunch.records import Record

MachineFigure = ScoreName | Literal["utility", "fewest_free_gpus"]


class Order(Record):
    """How a policy orders the candidates of a problem.

    Attributes:
        by: the scores that decide, in order of weight.
        chosen_set: the set that the policy made itself, GPUs by index in rank order or not; None if it
            only compares.
        in_rank_order: whether `chosen_set` is in rank order.
        utility: how useful GPUs are to the job, by index in rank order, 0 to 1; None if the policy
            knows none.
    """

    by: tuple[ScoreName, ...]
    chosen_set: tuple[int, ...] | None = None
    in_rank_order: bool = False
    utility: Callable[[tuple[int, ...]], float] | None = None


def baseline(problem: PlacementProblem) -> Order:  # noqa: ARG001
    """The lowest indices, as docker run --gpus N takes them: no score (mapa-sc21 4)."""
    return Order(())


def fcfs(problem: PlacementProblem) -> Order:
    """The first GPUs that are free, socket after socket (topo-aware-sc17 5.2)."""
    return Order(
        (), next((_filled(problem, problem.sockets(group)) for group in problem.groups), None)
    )


def best_fit(problem: PlacementProblem) -> Order:
    """Bin packing: the socket with the fewest free GPUs first, then the next (topo-aware-sc17 5.2).

    Where the job must stay in a group, such as a machine of several, likewise in the one with the
    fewest.
    """
    groups = sorted(problem.groups, key=problem.free_beside)
    filled = (
        _filled(problem, sorted(problem.sockets(group), key=problem.free_beside))
        for group in groups
    )
    return Order((), next(filled, None))


def _filled(problem: PlacementProblem, sockets: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(gpu for socket in sockets for gpu in socket)[: problem.count]


def greedy(problem: PlacementProblem) -> Order:  # noqa: ARG001
    """Aggregate bandwidth; nothing is kept for others (mapa-sc21 4)."""
    return Order(("aggregate_bandwidth",))


def preserve(problem: PlacementProblem) -> Order:
    """Sensitive jobs: effective, lasting, aggregate bandwidth. Insensitive ones: lasting, aggregate.

    The rule of mapa-sc21 Algorithm 1, sensitive jobs get bandwidth and insensitive ones leave it,
    with two departures. What is left counts not only now, among free GPUs, but also once those that
    run have left: else insensitive jobs lie across sockets, and nobody after them gets a whole one.
    Ties are chosen instead of left to the order of enumeration: what no link tells apart fills a
    socket that others have begun. docs/bake-off.md has what that is worth.
    """
    after: tuple[ScoreName, ...] = ("lasting_bandwidth", "aggregate_bandwidth", "fragmentation")
    return Order(("effective_bandwidth", *after) if problem.sensitive else after)


def preserve_paper(problem: PlacementProblem) -> Order:
    """mapa-sc21 Algorithm 1 as it is printed: one score, and of equals the first that enumeration meets.

    Its comparisons are strict, and it enumerates in order of indices. The set that it starts with,
    {}, must count as worse than any: read literally it would refuse sets below Eq. 2 at (0,0,0),
    and any set for insensitive jobs.
    """
    return Order(("effective_bandwidth",) if problem.sensitive else ("preserved_bandwidth",))


def topo_aware(problem: PlacementProblem) -> Order:
    """Recursive bipartition of machine and job, by communication, interference and fragmentation (topo-aware-sc17 4).

    docs/decisions/topo-aware.md says what of the paper is read differently, and why.
    """
    return _bipartitioned(problem, problem.utility.weights)


def topo_aware_p(problem: PlacementProblem) -> Order:
    """The same, of which decide() puts off what is of too little use to the job (topo-aware-sc17 Algorithm 1).

    Where the set that is best for the whole system is of too little use, the one that is best for
    the job is taken: else a job might wait for ever for what is there.
    """
    weights = problem.utility.weights
    order = _bipartitioned(problem, weights)
    if (
        order.chosen_set is None
        or order.utility is None
        or order.utility(order.chosen_set) >= problem.utility.least
    ):
        return order
    own = Weights(
        weights.communication + weights.fragmentation / 2,
        weights.interference + weights.fragmentation / 2,
        0,
    )
    other = _bipartitioned(problem, own)
    return (
        other
        if other.chosen_set and order.utility(other.chosen_set) > order.utility(order.chosen_set)
        else order
    )


def _bipartitioned(problem: PlacementProblem, weights: Weights) -> Order:
    from gpulaunch.decide.placement.topo_aware import place_tasks

    slowdown, begun = problem.utility.slowdown, problem.utility.begun
    edges = problem.pattern.edges(problem.count)

    def useful(gpus: tuple[int, ...]) -> float:
        return utility_of(problem, gpus)

    made = [
        place_tasks(
            edges, problem.count, group, *_tree_of(problem, group), slowdown, weights, begun
        )
        for group in problem.groups
    ]
    best = max(made, key=useful, default=None)
    return Order(("effective_bandwidth", "fragmentation"), best, in_rank_order=True, utility=useful)


def utility_of(problem: PlacementProblem, gpus: tuple[int, ...]) -> float:
    """How useful GPUs are to the job of a problem, by index in rank order, 0 to 1 (topo-aware-sc17 Eq. 2)."""
    from gpulaunch.decide.placement.topo_aware import placement_costs
    from gpulaunch.decide.placement.utility import job_utility

    edges = problem.pattern.edges(problem.count)
    costs = placement_costs(edges, gpus, *_tree_of(problem, gpus), problem.utility.slowdown)
    return job_utility(costs, problem.utility.weights)


def _tree_of(
    problem: PlacementProblem, gpus: Sequence[int]
) -> tuple[Callable[[int, int], int], dict[int, int], dict[int, int], dict[int, int]]:
    """Of the machines of these GPUs: distances, the socket of each GPU, GPUs of each in all, and free ones."""
    fabric = problem.fabric
    node = {gpu.index: gpu.node for gpu in problem.topology.gpus}
    nodes = {node[gpu] for gpu in gpus}
    socket_of = {
        gpu: socket
        for gpu, socket in zip(fabric.gpus, fabric.socket, strict=True)
        if node[gpu] in nodes
    }
    totals = dict(Counter(socket_of.values()))
    frees = dict.fromkeys(totals, 0) | Counter(
        socket_of[gpu] for gpu in problem.free if gpu in socket_of
    )

    def distance(a: int, b: int) -> int:
        return fabric.distance(fabric.position[a], fabric.position[b])

    return distance, socket_of, totals, frees


def best_effort(problem: PlacementProblem) -> Order:
    """What the Kubernetes device plugin does: the best set of the best partition of all free GPUs into such sets.

    Source: NVIDIA go-gpuallocator, besteffort_policy.go; see best_of_partition for the departures.
    """
    from gpulaunch.decide.placement.best_effort import best_of_partition

    groups = (group for group in problem.groups if problem.needs.required.issubset(group))
    made = (
        best_of_partition(problem.topology, group, problem.count, problem.needs.required)
        for group in groups
    )
    return Order(("aggregate_bandwidth",), next(made, None))


class Policy(Record):
    """A placement policy, with everything that is known of it.

    Attributes:
        order: Returns the order in which the policy takes the candidates of a problem.
        colour: The policy's colour in pictures, as #rrggbb; it reads on light and on dark ground.
        help: What the policy compares or makes, for lists of policies.
        source: Where the policy comes from, for lists of policies.
        bandwidth_model: The bandwidth model that it goes by unless the user names one.
        goes_by_utility: It weighs the utility to the job: neighbours matter, and their order.
        waits_for_utility: A job waits for GPUs of the least utility that was asked for.
        compares_machines_by: What it compares machines of a cluster by, the first figure first;
            () takes the first machine that fits, None the scores that decided on the machine.
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
"""The policies by name. tests/test_report.py checks that everybody can tell their colours apart."""

DEFAULT_POLICY = "preserve"
"""The policy of a launch that names none; its first choice for a sensitive job are fast links."""

CHEAPEST_POLICY = "baseline"
"""The policy that decides quickest, for questions that every policy answers alike."""
