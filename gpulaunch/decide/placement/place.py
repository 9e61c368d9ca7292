"""From a problem and a policy to the GPUs, rank by rank."""
# pure: decides on plain values

from collections.abc import Iterator

from gpulaunch.decide.placement.policies import POLICIES, Order
from gpulaunch.decide.placement.problem import PlacementProblem
from gpulaunch.decide.placement.scores import ScoreName, Scores, slowest_decides
from gpulaunch.decide.placement.traffic import Mapping
from gpulaunch.records import Record

MAPPING_EFFORT = 300
"""Beginnings that are tried for a better mapping of more ranks than the search for the best can
do: 10 ms or so.
"""


class Candidate(Record):
    """A set of GPUs with its best mapping.

    Attributes:
        gpus: indices, in rank order.
        scores: of that mapping.
    """

    gpus: tuple[int, ...]
    scores: Scores


class Placement(Record):
    """The chosen GPUs.

    Attributes:
        gpus: indices, in rank order.
        scores: of them.
        by: the scores that decided, in order of weight.
        candidates: how many sets there were.
        chosen_by_policy: whether the policy made the set itself, and compared none.
        utility: to the job, 0 to 1, of topo-aware-sc17; None by other policies.
    """

    gpus: tuple[int, ...]
    scores: Scores
    by: tuple[ScoreName, ...]
    candidates: int
    chosen_by_policy: bool = False
    utility: float | None = None


def place(problem: PlacementProblem, policy: str) -> Placement | None:
    """The best candidate by a policy, mapped to ranks; None if no candidate has what the job needs.

    Args:
        problem: what is to be decided.
        policy: a key of POLICIES.
    """
    order = POLICIES[policy].order(problem)
    best = next(_ordered(problem, order), None)
    if best is None:
        return None
    made = order.chosen_set is not None and set(best.gpus) == set(order.chosen_set)
    return Placement(
        best.gpus,
        best.scores,
        () if made else order.by,
        problem.candidates,
        made,
        order.utility(best.gpus) if order.utility else None,
    )


def ranking(problem: PlacementProblem, policy: str) -> Iterator[Candidate]:
    """The candidates by a policy, best first: what --explain shows. Of sets that are alike it has one.

    Args:
        problem: what is to be decided.
        policy: a key of POLICIES.
    """
    return _ordered(problem, POLICIES[policy].order(problem))


def _ordered(problem: PlacementProblem, order: Order) -> Iterator[Candidate]:
    """What the policy made, then the others; only what has what the job needs."""
    made = order.chosen_set is not None and problem.allows(order.chosen_set)
    if order.chosen_set is not None and made:
        yield (
            _as_made(problem, order)
            if order.in_rank_order
            else _mapped(problem, order, problem.mask(order.chosen_set))
        )
    for ranked in problem.ranked(order.by):
        if not problem.meets(ranked.figures):
            return
        if not made or order.chosen_set is None or ranked.mask != problem.mask(order.chosen_set):
            yield _mapped(problem, order, ranked.mask)


def _mapped(problem: PlacementProblem, order: Order, mask: int) -> Candidate:
    scorer = problem.scorer
    mapping = scorer.mapper.best(
        scorer.positions(mask),
        slowest_first=slowest_decides((*problem.musts, *order.by)),
        effort=MAPPING_EFFORT,
    )
    return _candidate(problem, mask, mapping)


def _as_made(problem: PlacementProblem, order: Order) -> Candidate:
    positions = [problem.fabric.position[gpu] for gpu in order.chosen_set or ()]
    return _candidate(
        problem, problem.mask(order.chosen_set or ()), problem.scorer.traffic.figures(positions)
    )


def _candidate(problem: PlacementProblem, mask: int, mapping: Mapping) -> Candidate:
    gpus = tuple(problem.fabric.gpus[position] for position in mapping.gpus)
    return Candidate(gpus, problem.scorer.scores(mask, mapping))
