"""Mixes of jobs of papers and real clusters, from a seed: what benchmarks replay."""

from collections.abc import Mapping
from math import log, sqrt
from random import Random

from gpulaunch.lab.simulate.generate import Row
from gpulaunch.records import Record


class Mix(Record):
    """The kinds of jobs that come to a machine; half of them are bandwidth-sensitive.

    Attributes:
        sizes: weight of each number of GPUs of a job.
        mean_s: mean run time in seconds.
        median_s: median run time in seconds; the distribution is lognormal. None: exponential.
    """

    sizes: Mapping[int, float]
    mean_s: float = 100.0
    median_s: float | None = None


MIXES: dict[str, Mix] = {
    "uniform 1-5": Mix(dict.fromkeys((1, 2, 3, 4, 5), 1.0)),  # mapa-sc21 4
    "2 and 4": Mix({2: 1.0, 4: 1.0}),
    "1, 2, 4": Mix({1: 1.0, 2: 1.0, 4: 1.0}),
    # Sizes: Gavel (OSDI'20), its generator. Mean and median run time: cluster_summary.csv of
    # AcmeTrace (NSDI'24), lognormal assumed.
    "Philly": Mix({1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05}, mean_s=18006.055, median_s=874.0),
}
"""Mixes of jobs by name; what is without a source is assumed."""


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
    sizes = {size: weight for size, weight in mix.sizes.items() if size <= gpus}
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
                "pattern": "ring",
                "bandwidth_sensitive": draw.random() < 0.5,
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
