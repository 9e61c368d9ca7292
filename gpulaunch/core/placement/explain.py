"""Why the winner won."""

from typing import NamedTuple

from gpulaunch.core.placement.policies import Candidate, Choice, Placement, ScoreName, ranking
from gpulaunch.core.placement.scores import Scores


class Explanation(NamedTuple):
    """The best candidates of a choice, and what set the winner apart.

    Attributes:
        candidates: GPUs by index, and scores; the winner first.
        reason: one sentence.
    """

    candidates: list[tuple[Candidate, Scores]]
    reason: str


def explain(choice: Choice, placement: Placement, policy: str, limit: int) -> Explanation:
    """Rank the candidates again and find the first score in which the winner beats the runner-up.

    Args:
        choice: what was to be decided.
        placement: the winner.
        policy: that decided.
        limit: how many candidates to return.
    """
    ranked = ranking(choice, policy, max(limit, 2))
    return Explanation(ranked[:limit], _reason(choice, placement, ranked))


def _reason(choice: Choice, placement: Placement, ranked: list[tuple[Candidate, Scores]]) -> str:
    winner = choice.named(ranked[0][0])
    if len(ranked) == 1:
        return f"{winner} is the only set of free GPUs that fits"
    if not placement.by:
        return f"{winner} has the lowest indices, which is all that this policy looks at"
    runner_up = ranked[1][0]
    tied: list[ScoreName] = []
    for score in placement.by:
        mine, other = choice.weigh(ranked[0][0], score), choice.weigh(runner_up, score)
        if mine > other:
            after = f", after a tie in {_words(tied)}" if tied else ""
            return f"{winner} has the most {_words([score])}: {mine:.4g} GB/s against {other:.4g}{after}"
        tied.append(score)
    return f"{winner} ties with {choice.named(runner_up)} in {_words(tied)}, and has lower indices"


def _words(scores: list[ScoreName]) -> str:
    return ", ".join(score.replace("_", " ") for score in scores)
