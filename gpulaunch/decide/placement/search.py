"""The candidates in order, the best first, without weighing all of them in full.

Every candidate waits under what its scores could be at most. Whoever comes first by that is weighed
a little better, and waits again if it is worse than it seemed; who comes first with nothing left to
weigh is the next best.
"""
# pure: decides on plain values

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from gpulaunch.decide.placement.scores import Score, Weigh
from gpulaunch.records import Record

MOST_TRIES = 2_000_000
"""Times the cube of the set's size: so many exchanges are tried.

What it costs to weigh a set grows like that.
"""


class Ranked(Record):
    """A candidate in its place.

    Attributes:
        mask: the set.
        figures: its scores in the order in which they are compared; those after the one that put it
            in its place may be no more than bounds.
    """

    mask: int
    figures: tuple[int, ...]


def ranked(masks: Sequence[int], scores: Sequence[Score], known: int = 0) -> Iterator[Ranked]:
    """Candidates by their first score, then the second, and so on, then the lowest indices.

    Args:
        masks: sets, of which the larger number has the lower indices.
        scores: in order of weight.
        known: so many of the first figures are to be exact in any case.
    """
    stages: list[tuple[int, Weigh]] = [
        (i, stage) for i, score in enumerate(scores) for stage in score.stages
    ]
    exact = [
        *(place for place, _ in stages),
        len(scores),
    ]  # so many figures are, after so many stages
    columns = [[-score.bound(mask) for mask in masks] for score in scores]
    waiting = [(*entry, 0) for entry in zip(*columns, (-mask for mask in masks), strict=True)]
    heapify(waiting)
    while waiting:
        *figures, mask, done = waiting[0]
        sure = exact[done]
        if done == len(stages) or (
            sure >= known and all(tuple(figures[:sure]) < rival[:sure] for rival in waiting[1:3])
        ):
            heappop(waiting)
            yield Ranked(-mask, tuple(-figure for figure in figures))
        else:
            place, weigh = stages[done]
            figures[place] = -weigh(-mask)
            heapreplace(waiting, (*figures, mask, done + 1))


def climbed(
    start: Sequence[int],
    swaps: Sequence[int],
    scores: Sequence[Score],
    allowed: Callable[[int], bool],
) -> Ranked:
    """The best of the sets that a chain of better and better single swaps leads to.

    Args:
        start: sets to begin with, at least one.
        swaps: bits of the GPUs that may be swapped in and out.
        scores: in order of weight.
        allowed: whether a set may be chosen.
    """
    best = max((_weighed(mask, scores) for mask in start), key=_order)
    tries = max(MOST_TRIES // best.mask.bit_count() ** 3, len(swaps))
    improved = True
    while improved and tries > 0:
        improved = False
        for out in [bit for bit in swaps if best.mask & bit]:
            for into in [bit for bit in swaps if not best.mask & bit]:
                if tries > 0 and best.mask & out and allowed(best.mask ^ out ^ into):
                    tries -= 1
                    other = _weighed(best.mask ^ out ^ into, scores, best.figures)
                    if _order(other) > _order(best):
                        best, improved = other, True
    return best


def _order(candidate: Ranked) -> tuple[tuple[int, ...], int]:
    return candidate.figures, candidate.mask


def _weighed(mask: int, scores: Sequence[Score], least: tuple[int, ...] = ()) -> Ranked:
    """A set with its scores, as far as is needed to see that it is not as good as the least."""
    figures: list[int] = []
    for i, score in enumerate(scores):
        for weigh in (score.bound, *score.stages):
            figure = weigh(mask)
            if least and (*figures, figure) < least[: i + 1]:
                return Ranked(mask, (*figures, figure))
        figures.append(figure)
    return Ranked(mask, tuple(figures))
