"""Random traces from a seed: the job mixes of the two scheduling papers, and of real clusters."""
# pure: decides on plain values

from collections.abc import Callable, Iterator, Mapping
from math import log, sqrt
from random import Random

from gpulaunch.decide.placement.expected import JOB_SIZES
from gpulaunch.records import Record, replace
from gpulaunch.typing import Any

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


def uniform_mix(seed: int, jobs: int = 300, least: int = 1, most: int = 5) -> Iterator[Row]:
    """Yield jobs that arrive at once, with uniform networks and numbers of GPUs.

    Source: mapa-sc21 4: 300 jobs, 1-5 GPUs, a uniform mix of networks. Run times are uniform over
        5-24, as in the published generator.
    """
    draw = Random(seed)  # noqa: S311
    for _ in range(jobs):
        network = draw.choice(list(NETWORKS))
        gpus = draw.randint(least, most)
        yield {
            "name": network,
            "gpus": gpus,
            "pattern": "ring",
            "bandwidth_sensitive": NETWORKS[network],
            "arrival_s": 0.0,
            "duration_s": float(draw.randint(_SHORTEST_S, _LONGEST_S)),
        }


class Mix(Record):
    """The kinds of jobs that come to a machine.

    Attributes:
        sizes: weight of each number of GPUs of a job.
        sensitive: share of jobs that are bandwidth-sensitive, 0 to 1.
        pattern: name of the communication pattern of all jobs.
        mean_s: mean run time in seconds.
        median_s: median run time in seconds; the distribution is lognormal. None: exponential.
        source: where the figures come from, for readers; "" if all are assumed.
    """

    sizes: Mapping[int, float]
    sensitive: float = 0.5
    pattern: str = "ring"
    mean_s: float = 100.0
    median_s: float | None = None
    source: str = ""

    def on(self, gpus: int) -> "Mix":
        """Return the mix without jobs that are too large for a machine with so many GPUs."""
        return replace(self, sizes={n: part for n, part in self.sizes.items() if n <= gpus})


def _uniform(*sizes: int) -> dict[int, float]:
    return dict.fromkeys(sizes, 1.0)


_TRACES = "mean and median run time: cluster_summary.csv of AcmeTrace (NSDI'24), lognormal assumed"

MIXES: dict[str, Mix] = {
    "uniform 1-5": Mix(_uniform(1, 2, 3, 4, 5), source="sizes: mapa-sc21 4"),
    "10 % sensitive": Mix(_uniform(1, 2, 3, 4, 5), sensitive=0.1, source="sizes: mapa-sc21 4"),
    "100 % sensitive": Mix(_uniform(1, 2, 3, 4, 5), sensitive=1.0, source="sizes: mapa-sc21 4"),
    "2 and 4": Mix(_uniform(2, 4)),
    "1, 2, 4": Mix(_uniform(1, 2, 4)),
    "2, 4, 8": Mix(_uniform(2, 4, 8)),
    "large 4-8": Mix(_uniform(4, 5, 6, 7, 8)),
    "mostly 1": Mix({1: 70, 2: 10, 3: 10, 4: 10}),
    "chains": Mix(_uniform(1, 2, 3, 4, 5), pattern="chain", source="sizes: mapa-sc21 4"),
    "all to all": Mix(_uniform(1, 2, 3, 4, 5), pattern="all_to_all", source="sizes: mapa-sc21 4"),
    "Philly": Mix(
        dict(JOB_SIZES["philly"].shares),
        mean_s=18006.055,
        median_s=874.0,
        source=f"sizes: Gavel (OSDI'20), its generator; {_TRACES}",
    ),
    "Helios": Mix(
        dict(JOB_SIZES["helios"].shares),
        mean_s=6651.681,
        median_s=206.0,
        source="sizes: mean 3.716 and median 1 (SC'21, HeliosArtifact), falling geometrically over "
        f"powers of two assumed; {_TRACES}",
    ),
    "PAI": Mix(
        dict(JOB_SIZES["pai"].shares),
        mean_s=4787.109,
        median_s=480.667,
        source=f"sizes: jobs with whole GPUs of ATC'23 (FGD) Table 1; {_TRACES}",
    ),
}
"""Mixes of jobs by name; what their source does not tell is assumed."""


def loaded_mix(seed: int, jobs: int, gpus: int, load: float, mix: Mix) -> list[Row]:
    """Return jobs of a mix that arrive as a Poisson process and load a machine by a given share.

    Args:
        seed: seed of the draw.
        jobs: number of jobs.
        gpus: number of GPUs of the machine; larger jobs of the mix do not come.
        load: GPU time that all jobs ask for, as a share of the machine's until the last one
            arrives; above 0.
        mix: the kinds of jobs.
    """
    draw = Random(seed)  # noqa: S311
    sizes = mix.on(gpus).sizes
    rows: list[Row] = []
    now = asked = 0.0
    for _ in range(jobs):
        now += draw.expovariate(1.0)
        count = draw.choices(list(sizes), list(sizes.values()))[0]
        run_s = round(max(0.01, _run_time(draw, mix)), 6)
        asked += count * run_s
        rows.append(
            {
                "name": "job",
                "gpus": count,
                "pattern": mix.pattern,
                "bandwidth_sensitive": draw.random() < mix.sensitive,
                "arrival_s": now,
                "duration_s": run_s,
            }
        )
    for row in rows:
        row["arrival_s"] = round(row["arrival_s"] * asked / (load * gpus * now), 6)
    return rows


def _run_time(draw: Random, mix: Mix) -> float:
    if mix.median_s is None:
        return draw.expovariate(1 / mix.mean_s)
    # The mean of a lognormal distribution is its median times exp(sigma squared / 2).
    return draw.lognormvariate(log(mix.median_s), sqrt(2 * log(mix.mean_s / mix.median_s)))


def poisson_batches(seed: int, jobs: int = 100, mean_gap_s: float = 10.0) -> Iterator[Row]:
    """Yield arrivals with Poisson gaps; batch class, network and number of GPUs are binomial.

    Source: topo-aware-sc17 5.3 names the distributions, and its published generator the parameters:
        batch class binomial(3, 0.1), network binomial(1, 0.2), GPUs 1 + binomial(2, 0.39), least
        utility uniform over 0.30-0.52, gaps Poisson with mean 10. There a batch class of 2 means
        batch 128, and one of 3 means 64.
    """
    draw = Random(seed)  # noqa: S311
    now = 0
    for _ in range(jobs):
        now += _poisson(draw, mean_gap_s)
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
