"""Random traces from a seed: the job mixes of the two scheduling papers."""
# pure: decides on plain values

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

Row = dict[str, Any]
"""One job, with the keys of a file of jobs."""

NETWORKS = {
    "alexnet": True,
    "inception-v3": True,
    "vgg16": True,
    "resnet50": True,
    "caffenet": False,
    "googlenet": False,
}
"""The six networks of mapa-sc21 2.3, and whether they are bandwidth-sensitive."""

_SHORTEST_S, _LONGEST_S = 5, 24
"""Range of run times in the published generator, in its cycles.

The paper has measured run times that it does not give.
"""

BATCHES = (1, 4, 64, 128)
"""Batch sizes of topo-aware-sc17: tiny, small, medium, big."""


def uniform_mix(seed: int, jobs: int = 300) -> Iterator[Row]:
    """Yield jobs that arrive at once, with uniform networks and numbers of GPUs.

    Source: mapa-sc21 4: 300 jobs, 1-5 GPUs, a uniform mix of networks. Run times are uniform over
        5-24, as in the published generator.
    """
    draw = Random(seed)  # noqa: S311
    for _ in range(jobs):
        network = draw.choice(list(NETWORKS))
        yield {
            "name": network,
            "gpus": draw.randint(1, 5),
            "pattern": "ring",
            "bandwidth_sensitive": NETWORKS[network],
            "arrival_s": 0.0,
            "duration_s": float(draw.randint(_SHORTEST_S, _LONGEST_S)),
        }


def poisson_batches(seed: int, jobs: int = 100) -> Iterator[Row]:
    """Yield arrivals with Poisson gaps; batch class, network and number of GPUs are binomial.

    Source: topo-aware-sc17 5.3 names the distributions, and its published generator the parameters:
        batch class binomial(3, 0.1), network binomial(1, 0.2), GPUs 1 + binomial(2, 0.39), least
        utility uniform over 0.30-0.52, gaps Poisson with mean 10. There a batch class of 2 means
        batch 128, and one of 3 means 64.
    """
    draw = Random(seed)  # noqa: S311
    now = 0
    for _ in range(jobs):
        now += _poisson(draw, 10.0)
        batch = BATCHES[(0, 1, 3, 2)[_binomial(draw, 3, 0.1)]]
        gpus = 1 + _binomial(draw, 2, 0.39)
        network = ("alexnet", "googlenet")[_binomial(draw, 1, 0.2)]
        yield {
            "name": f"{network}-b{batch}",
            "profile": f"{network}-b{batch}-n{gpus}",
            "gpus": gpus,
            "arrival_s": float(now),
            "min_utility": round(draw.uniform(0.30, 0.52), 6),
        }


def _binomial(draw: Random, trials: int, chance: float) -> int:
    return sum(draw.random() < chance for _ in range(trials))


def _poisson(draw: Random, mean: float) -> int:
    """Draw by counting exponential gaps in a span of `mean`, which should be at most about 30."""
    count, left = 0, mean - draw.expovariate(1.0)
    while left > 0:
        count += 1
        left -= draw.expovariate(1.0)
    return count


GENERATORS: dict[str, Callable[[int, int], Iterator[Row]]] = {
    "uniform": uniform_mix,
    "poisson": poisson_batches,
}
"""Name on the command line -> function that draws jobs from a seed and their number."""
