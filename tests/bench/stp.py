"""STP of jobs that came one after the other, by a model that the decisions know nothing of.

The jobs of tests/corun.py are launched by `gpulaunch --share -p PROFILE -- CLIENT` on the stand-ins
of driver and MPS (tests/arrivals.py). The caps that their clients found go into the model, beside
even shares, which is what the model makes of no caps, and beside one job after the other, which is
1. What the deciding functions give for the same arrivals must be the same caps. A model, not a
measurement.

Run: python tests/bench/stp.py [EVERY]

Every so many of the mixes of each kind are launched, 1 by default. All take a quarter of an hour.

The rule refuses most pairs of the model, whose jobs never pause and often use all bandwidth; three
and more it refuses always.
"""

import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from arrivals import Arrivals, arrivals, foretold
from corun import BENCHMARKS, Benchmark, Machine, sms_of

Jobs = tuple[Benchmark, ...]

MODEL = Machine()


def mixes() -> dict[str, list[Jobs]]:
    """Return mixes by kind, compute-intensive jobs first."""
    jobs = sorted(BENCHMARKS.values(), key=lambda job: job.memory_intensive)
    pairs = list(combinations(jobs, 2))
    kinds = ("compute pairs", "mixed pairs", "memory pairs")
    return {
        kind: [pair for pair in pairs if sum(job.memory_intensive for job in pair) == i]
        for i, kind in enumerate(kinds)
    }


def stp(jobs: Jobs, caps: Sequence[int]) -> float:
    """Return the model's STP of jobs under caps; those that did not come together have 1."""
    return MODEL.stp(jobs, sms_of(caps, MODEL.sm_count)) if len(caps) == len(jobs) else 1.0


def spread(values: Iterable[float]) -> str:
    """Return the mean and range as text."""
    values = list(values)
    if not values:
        return "-"
    return f"{statistics.mean(values):.1f} ({min(values):.1f}..{max(values):.1f})"


def row(site: Arrivals, name: str, chosen: Sequence[Jobs]) -> None:
    """Launch mixes and print a line of their figures."""
    over_even, over_none, differ = [], [], 0
    for jobs in chosen:
        caps = site.caps(jobs)
        wanted = foretold(MODEL, jobs)
        if caps != wanted:
            differ += 1
            names = " ".join(job.name for job in jobs)
            print(f"{names}: received {caps}, decided {wanted}", file=sys.stderr)
        got, even = stp(jobs, caps), MODEL.stp(jobs, [MODEL.sm_count // len(jobs)] * len(jobs))
        over_none.append(100 * (got - 1))
        if len(caps) == len(jobs):
            over_even.append(100 * (got / even - 1))
    print(
        f"{name:38}{len(chosen):4}{len(over_even):8}{spread(over_even):>24}"
        f"{spread(over_none):>24}{differ:8}",
        flush=True,
    )


def main(every: int = 1) -> None:
    """Print the tables."""
    heads = f"{'n':>4}{'shared':>8}{'STP over even %':>24}{'over no sharing %':>24}{'differ':>8}"
    with tempfile.TemporaryDirectory(prefix="stp") as folder, arrivals(MODEL, Path(folder)) as site:
        print(f"{'pairs that the rule lets together':38}{heads}")
        for kind, found in mixes().items():
            chosen = found[::every]
            row(site, f"{kind}, compute-intensive first", chosen)
            row(site, f"{kind}, memory-intensive first", [jobs[::-1] for jobs in chosen])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
