"""Measure predicted starts on replayed traces: `python tests/bench/when.py [--traces N]`.

Each trace is replayed by gpulaunch's simulator on a DGX-1. When a job joins the queue, its start is
predicted from what a launcher could know then, and compared with when it started.
docs/results/when.md has the tables.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path
from random import Random
from statistics import median

import gpulaunch
from gpulaunch.history.forecast import (
    DRAWS,
    Experience,
    Relation,
    StartRange,
    draw_remaining,
    predict_starts,
    relations_of,
)
from gpulaunch.lab.simulate.machines import ticket_of

sys.path.insert(0, str(Path(__file__).parents[1]))

from mixes import MIXES, loaded_mix

MACHINE = "dgx1-v100"
JOBS = 80
ASKED = 15
"""Jobs of each trace whose start is predicted, chosen at random among those that wait."""

Row = dict
History = list[tuple[str, float]]
"""Commands and durations of jobs that ended before the trace."""


def uniform(seed: int) -> tuple[list[Row], History]:
    """MAPA's mix, all at once, 5 to 24 min; the history has 10 earlier runs of each network."""
    rows = gpulaunch.generate_trace("uniform", seed, JOBS)["job"]
    before = gpulaunch.generate_trace("uniform", seed + 1000, 60)["job"]
    for row in (*rows, *before):
        row["duration_s"] *= 60
    return rows, [(row["name"], row["duration_s"]) for row in before]


def poisson(seed: int) -> tuple[list[Row], History]:
    """topo-aware-sc17's mix; run times differ by 20 %; the history has 3 earlier runs of each."""
    draw = Random(seed)
    trace = gpulaunch.generate_trace("poisson", seed, JOBS)
    rows, history = trace["job"], []
    known: set[str] = set()
    for row in rows:
        usual = trace["profile"][row["profile"]]["resources"]["duration_s"]
        row["name"] = row.pop("profile")
        row |= {"pattern": "ring", "duration_s": usual * draw.lognormvariate(0, 0.2)}
        del row["min_utility"]
        if row["name"] not in known:
            history += [(row["name"], usual * draw.lognormvariate(0, 0.2)) for _ in range(3)]
        known.add(row["name"])
    return rows, history


def heavy(seed: int) -> tuple[list[Row], History]:
    """Sizes and run times of Philly; each command is new, and others have run before."""
    rows = loaded_mix(seed, JOBS, 8, 1.2, MIXES["Philly"])
    before = loaded_mix(seed + 1000, 40, 8, 1.0, MIXES["Philly"])
    for number, row in enumerate(rows):
        row["name"] = f"new{number}"
    return rows, [(f"old{number}", row["duration_s"]) for number, row in enumerate(before)]


def recurrent(seed: int) -> tuple[list[Row], History]:
    """15 commands, from minutes to a day, that differ by 25 % and fail early in one of ten runs."""
    draw = Random(seed)
    rows = loaded_mix(seed, JOBS, 8, 1.2, MIXES["Philly"])
    usual = [min(86400, max(120, draw.lognormvariate(log(2400), 1.3))) for _ in range(15)]

    def run_s(which: int) -> float:
        full = usual[which] * draw.lognormvariate(0, 0.25)
        return full * draw.random() if draw.random() < 0.1 else full

    asked = 0.0
    for row in rows:
        which = draw.randrange(len(usual))
        row |= {"name": f"train{which}", "duration_s": max(1.0, run_s(which))}
        asked += row["gpus"] * row["duration_s"]
    pace = asked / (1.2 * 8 * rows[-1]["arrival_s"])
    for row in rows:
        row["arrival_s"] *= pace
    history = [
        (f"train{which}", max(1.0, run_s(which)))
        for which in range(len(usual))
        for _ in range(draw.randrange(8))
    ]
    return rows, history


KINDS = {"uniform": uniform, "poisson": poisson, "heavy": heavy, "recurrent": recurrent}


Asked = tuple[StartRange | None, float]
"""A prediction, and when the job started, in seconds from the moment at which it came."""


def predictions(kind: str, seed: int, *, limits: bool) -> Iterator[Asked]:
    """Replay one trace and predict the starts of some of its jobs."""
    draw = Random(f"{kind} {seed}")
    rows, history = KINDS[kind](seed)
    for row in rows:
        if limits:
            row["time_limit"] = f"{row['duration_s'] * draw.uniform(1.1, 4) + 60:.0f}s"
    simulator = gpulaunch.Simulator(MACHINE)
    trace = simulator.read_trace({"job": rows})
    requests = [job.request for job in trace.jobs]
    done = simulator.replay(trace, "baseline", time_models=()).jobs
    uuids = tuple(gpu.uuid for gpu in simulator.topology.gpus)
    late = [one for one in done if one.started_s > one.arrival_s]
    for one in draw.sample(late, min(ASKED, len(late))):
        now = one.arrival_s
        past = [(identity(name), seconds) for name, seconds in history]
        past += [
            (identity(job.name), job.run_s)
            for job in sorted(done, key=lambda job: job.ended_s)
            if job.ended_s <= now
        ]
        experience = Experience(past)
        live = [job for job in done if job.started_s <= now < job.ended_s]
        queue = sorted(
            (job for job in done if job.arrival_s <= now < job.started_s),
            key=lambda job: (job.arrival_s, job.id),
        )
        held = [tuple(uuids[gpu] for gpu in job.gpus) for job in live]
        tickets = [ticket_of(trace.jobs[job.id], uuids) for job in queue]
        within = [requests[job.id].ends_within_s for job in live]
        ends = [
            float("inf") if limit is None else job.started_s + limit
            for job, limit in zip(live, within, strict=True)
        ]
        busy = {uuid: end for gpus, end in zip(held, ends, strict=True) for uuid in gpus}

        drawn = []
        seeds = [*range(len(live)), *range(100, 100 + len(queue))]
        for at, job in zip(seeds, [*live, *queue], strict=True):
            limit = requests[job.id].ends_within_s
            ran_s = max(0.0, now - job.started_s)
            parts = experience.of(identity(job.name), limit)
            drawn.append(draw_remaining(parts, ran_s, limit, DRAWS, str(at)))
        running = [*zip(held, drawn, strict=False)]
        waiting = [*zip(tickets, drawn[len(live) :], strict=True)]
        place = [job.id for job in queue].index(one.id)
        found = predict_starts(running, waiting, busy, uuids, now)[place]
        yield found, one.started_s - now


def identity(name: str) -> list[Relation]:
    """Return what a launcher knows of a job: its command, and the user, here always the same."""
    return relations_of(1000, (name,), None, None, 0)


def figures(found: Sequence[Asked]) -> dict[str, float]:
    """Return share inside, median width, median errors, and share without a prediction."""
    told = [(range_, start_s) for range_, start_s in found if range_]
    return {
        "asked": len(found),
        "told": len(told) / len(found),
        "inside": sum(one.from_s <= start_s <= one.to_s for one, start_s in told) / len(told),
        "width": median(one.to_s - one.from_s for one, _ in told),
        "error": median(abs(one.median_s - start_s) for one, start_s in told),
        "wait": median(start_s for _, start_s in told),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=200)
    parser.add_argument("--no-limits", action="store_true")
    options = parser.parse_args()
    every: list[Asked] = []
    columns = "inside | median width | median error | median wait"
    print(f"| traces | predictions | {columns} |")
    print("|---|---|---|---|---|---|")
    for at, kind in enumerate(KINDS):
        seeds = range(options.first_seed + at, options.first_seed + options.traces, len(KINDS))
        found = [
            one for seed in seeds for one in predictions(kind, seed, limits=not options.no_limits)
        ]
        every += found
        print_row(f"{kind} ({len(seeds)})", found)
    print_row(f"all ({options.traces})", every)


def print_row(name: str, found: Sequence[Asked]) -> None:
    """Print one row of the table, in minutes."""
    row = figures(found)
    minutes = [f"{row[key] / 60:.1f} min" for key in ("width", "error", "wait")]
    print(f"| {name} | {row['asked']} | {row['inside']:.0%} | {' | '.join(minutes)} |", flush=True)


if __name__ == "__main__":
    main()
