"""The placement that a policy chooses for a problem: GPUs in rank order."""
# pure: decides on plain values

from collections.abc import Iterator, Sequence

from gpulaunch.decide.placement.mapping import MOST_KICKS, Mapping
from gpulaunch.decide.placement.policies import POLICIES, Order
from gpulaunch.decide.placement.problem import PlacementProblem, ScoreName, Scores
from gpulaunch.records import Record


class Candidate(Record):
    """A set of GPUs with its best mapping.

    Attributes:
        gpus: indices, in rank order.
        scores: scores of that mapping.
    """

    gpus: tuple[int, ...]
    scores: Scores


class Placement(Record):
    """The chosen GPUs.

    Attributes:
        gpus: indices, in rank order.
        scores: scores of these GPUs.
        by: the scores that decided, the first one first.
        candidates: number of sets there were.
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
    order = POLICIES[policy].order(problem)
    best = next(_candidates_in_order(problem, order), None)
    if best is None:
        return None
    is_chosen = order.chosen_set is not None and set(best.gpus) == set(order.chosen_set)
    return Placement(
        best.gpus,
        best.scores,
        () if is_chosen else order.by,
        problem.candidates,
        is_chosen,
        order.utility(best.gpus) if order.utility else None,
    )


def ranking(problem: PlacementProblem, policy: str) -> Iterator[Candidate]:
    """Return the candidates by a policy, the best first, one of those that are alike."""
    return _candidates_in_order(problem, POLICIES[policy].order(problem))


def _candidates_in_order(problem: PlacementProblem, order: Order) -> Iterator[Candidate]:
    """Yield what the policy chose, then the others; only those that have what the job needs."""
    chosen: int | None = None
    if order.chosen_set is not None and problem.allows(order.chosen_set):
        chosen = problem.mask(order.chosen_set)
        if order.in_rank_order and not problem.rank_order:
            yield _chosen_candidate(problem, order.chosen_set)
        else:
            yield _map_candidate(problem, order, chosen)
    for mask in problem.ranked(order.by):
        if mask != chosen and problem.meets(mask):
            yield _map_candidate(problem, order, mask)


def _map_candidate(problem: PlacementProblem, order: Order, mask: int) -> Candidate:
    if problem.rank_order:
        gpus = [gpu for gpu in problem.rank_order if problem.mask([gpu]) & mask]
        return _chosen_candidate(problem, gpus)
    mapping = problem.mapper.best(
        problem.fabric.positions(mask),
        slowest_first=problem.is_slowest_first(order.by),
        kicks=min(MOST_KICKS, MOST_KICKS * 16**2 // problem.count**2),
    )
    return _make_candidate(problem, mapping)


def _chosen_candidate(problem: PlacementProblem, gpus: Sequence[int]) -> Candidate:
    """Return a set in the rank order that the policy or the user gave it."""
    positions = [problem.fabric.position[gpu] for gpu in gpus]
    return _make_candidate(problem, problem.mapper.figures(positions))


def _make_candidate(problem: PlacementProblem, mapping: Mapping) -> Candidate:
    gpus = tuple(problem.fabric.gpus[position] for position in mapping.gpus)
    return Candidate(gpus, problem.scores(mapping))
