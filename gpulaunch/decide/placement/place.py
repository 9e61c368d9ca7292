"""From a choice and a policy to the GPUs, rank by rank."""
# pure: decides on plain values

from collections.abc import Iterator
from typing import NamedTuple

from gpulaunch.decide.placement.choice import Choice
from gpulaunch.decide.placement.policies import POLICIES, Order
from gpulaunch.decide.placement.scores import ScoreName, Scores, slowest_decides
from gpulaunch.decide.placement.traffic import Mapping

MAPPING_EFFORT = 300
"""Beginnings that are tried for a better mapping of more ranks than the search for the best can
do: 10 ms or so.
"""


class Candidate(NamedTuple):
    """A set of GPUs with its best mapping.

    Attributes:
        gpus: indices, in rank order.
        scores: of that mapping.
    """

    gpus: tuple[int, ...]
    scores: Scores


class Placement(NamedTuple):
    """The chosen GPUs.

    Attributes:
        gpus: indices, in rank order.
        scores: of them.
        by: the scores that decided, in order of weight.
        candidates: how many sets there were.
        made: whether the policy made the set itself, and compared none.
        utility: to the job, 0 to 1, of topo-aware-sc17; None by other policies.
    """

    gpus: tuple[int, ...]
    scores: Scores
    by: tuple[ScoreName, ...]
    candidates: int
    made: bool = False
    utility: float | None = None


def place(choice: Choice, policy: str) -> Placement | None:
    """The best candidate by a policy, mapped to ranks; None if no candidate has what the job needs.

    Args:
        choice: what is to be decided.
        policy: a key of POLICIES.
    """
    order = POLICIES[policy].order(choice)
    best = next(_ordered(choice, order), None)
    if best is None:
        return None
    made = order.made is not None and set(best.gpus) == set(order.made)
    return Placement(
        best.gpus,
        best.scores,
        () if made else order.by,
        choice.candidates,
        made,
        order.utility(best.gpus) if order.utility else None,
    )


def ranking(choice: Choice, policy: str) -> Iterator[Candidate]:
    """The candidates by a policy, best first: what --explain shows. Of sets that are alike it has one.

    Args:
        choice: what is to be decided.
        policy: a key of POLICIES.
    """
    return _ordered(choice, POLICIES[policy].order(choice))


def _ordered(choice: Choice, order: Order) -> Iterator[Candidate]:
    """What the policy made, then the others; only what has what the job needs."""
    made = order.made is not None and choice.allows(order.made)
    if order.made is not None and made:
        yield (
            _as_made(choice, order)
            if order.ranks
            else _mapped(choice, order, choice.mask(order.made))
        )
    for ranked in choice.ranked(order.by):
        if not choice.meets(ranked.figures):
            return
        if not made or order.made is None or ranked.mask != choice.mask(order.made):
            yield _mapped(choice, order, ranked.mask)


def _mapped(choice: Choice, order: Order, mask: int) -> Candidate:
    scale = choice.scale
    mapping = scale.mapper.best(
        scale.positions(mask),
        slowest_first=slowest_decides((*choice.musts, *order.by)),
        effort=MAPPING_EFFORT,
    )
    return _candidate(choice, mask, mapping)


def _as_made(choice: Choice, order: Order) -> Candidate:
    positions = [choice.fabric.position[gpu] for gpu in order.made or ()]
    return _candidate(
        choice, choice.mask(order.made or ()), choice.scale.traffic.figures(positions)
    )


def _candidate(choice: Choice, mask: int, mapping: Mapping) -> Candidate:
    gpus = tuple(choice.fabric.gpus[position] for position in mapping.gpus)
    return Candidate(gpus, choice.scale.scores(mask, mapping))
