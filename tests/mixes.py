"""Mixes of jobs of papers and real clusters, from a seed: what benchmarks replay."""

from collections.abc import Mapping
from math import log, sqrt
from random import Random

from gpulaunch.records import Record, replace
from gpulaunch.simulate.generate import Row


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
        {1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05},
        mean_s=18006.055,
        median_s=874.0,
        source=f"sizes: Gavel (OSDI'20), its generator; {_TRACES}",
    ),
    "Helios": Mix(
        {1: 0.578, 2: 0.244, 4: 0.103, 8: 0.043, 16: 0.018},
        mean_s=6651.681,
        median_s=206.0,
        source="sizes: mean 3.716 and median 1 (SC'21, HeliosArtifact), falling geometrically over "
        f"powers of two assumed; {_TRACES}",
    ),
    "PAI": Mix(
        {1: 0.982, 2: 0.004, 4: 0.004, 8: 0.010},
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
    draw = Random(seed)
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
