"""Hold every policy against the default on many mixes of jobs, and write docs/results/bake-off.md.

Each cell is a machine, a mix, a load, a queue, and the bandwidth model by which run times and
bandwidths are judged; all policies replay the same traces of it. Every cell gets 8 traces, and 80
where another policy then seems to be better than the default; then 24, and 80 likewise. A policy
that is slow on a machine gets fewer there, at a load of 0.8 first.

Results are lines of JSON, kept from run to run: what they have is not replayed again. Delete their
file when a policy, a mix or the simulator has changed.

Run: python tests/bench/bake_off.py [--minutes 40] [--jobs 2] [--machines NAME,...]
    [--mixes NAME,...] [--policies NAME,...] [--default NAME] [--results FILE] [--docs FOLDER]
"""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from statistics import fmean

from bake_off_compare import Cell, Results, seemingly_better

from gpulaunch.decide.placement.policies import DEFAULT_POLICY, POLICIES
from gpulaunch.decide.request import Request
from gpulaunch.errors import FailedError
from gpulaunch.machine.find import find_machine
from gpulaunch.machine.topology import Topology
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.records import Record, replace
from gpulaunch.simulate.event_loop import Rules, Stay, simulate
from gpulaunch.simulate.generate import Row
from gpulaunch.simulate.machines import Remembered
from gpulaunch.simulate.measures import quartiles
from gpulaunch.simulate.simulated_job import SimulatedJob
from gpulaunch.simulate.time_model import ENOUGH_GB_PER_S
from gpulaunch.simulate.yardstick import Yardstick

sys.path.insert(0, str(Path(__file__).parents[1]))

from bake_off_page import write_page
from mixes import MIXES, loaded_mix

MACHINES = (
    "dgx1-v100",
    "summit",
    "dgx1-p100",
    "power8-minsky",
    "pcie-8gpu-workstation",
    "a100-pcie-4gpu",
    "torus-2d-16",
    "cube-mesh-16",
    "minsky-cluster",
)
"""Machines on which sets of GPUs differ."""

LOADS = (0.8, 0.5, 0.95)
QUEUES = ("fifo", "backfill")
JUDGES = ("cut", "mapa")
TRACES, MOST_TRACES = (8, 24), 80
JOBS = 100
"""Jobs of a trace."""

LIMIT = 3.0
"""Time limit of a job where jobs may pass others, as a multiple of its run time; assumed."""

MOST_S = 80.0
"""Processor time in seconds that a policy gets on a machine in one run; twice for close cells."""

UNIT_S = 10.0
"""Processor time in seconds after which no further trace of one cell is begun."""


class Unit(Record):
    """Traces of one cell for a worker to replay under one policy.

    Attributes:
        cell: the cell.
        policy: name of the policy.
        seeds: seeds of the traces.
        jobs: number of jobs of each.
    """

    cell: Cell
    policy: str
    seeds: tuple[int, ...]
    jobs: int


@lru_cache(maxsize=1)
def machine_of(name: str) -> tuple[Topology, Remembered]:
    """Return a described machine, and what has been decided on it in this process."""
    topology = find_machine(name, print, "--topology").topology
    return topology, Remembered(topology)


@lru_cache
def request_of(pattern: str, gpus: int, *, sensitive: bool) -> Request:
    """Return a request, the same object for the same arguments."""
    return Request(gpus, PATTERNS[pattern], sensitive, "", "")


def trace(gpus: int, cell: Cell, seed: int, jobs: int) -> list[SimulatedJob]:
    """Return the trace of a cell that a seed makes."""
    mix = MIXES[cell.mix]

    def asked(row: Row) -> Request:
        sensitive = row["bandwidth_sensitive"] and row["gpus"] > 1
        request = request_of(mix.pattern, row["gpus"], sensitive=sensitive)
        if cell.queue == "fifo":
            return request
        return replace(request, ends_within_s=LIMIT * row["duration_s"])

    return [
        SimulatedJob(
            number,
            row["name"],
            asked(row),
            row["arrival_s"],
            row["duration_s"],
        )
        for number, row in enumerate(loaded_mix(seed, jobs, gpus, cell.load, mix))
    ]


def figures(stays: list[Stay], yardstick: Yardstick) -> tuple[float | None, float, float | None]:
    """Return slowdown and 25th percentile of bandwidth of sensitive jobs, and completion of all.

    Returns:
        Mean run time of sensitive jobs of several GPUs as a multiple of that on the best GPUs; mean
        time from arrival to end of all jobs, in seconds; 25th percentile of effective bandwidth of
        those sensitive jobs in GB/s, where more than is enough by the time model counts as enough.
    """
    completion_s = fmean(stay.ended_s - stay.job.arrival_s for stay in stays)
    judged = [stay for stay in stays if stay.job.request.bandwidth_sensitive]
    if not judged:
        return None, completion_s, None
    slowdown = fmean((stay.ended_s - stay.started_s) / stay.job.duration_s for stay in judged)
    bandwidths = [
        yardstick.scores(stay.job.request.pattern, stay.gpus).effective_bandwidth for stay in judged
    ]
    found = quartiles(min(one, ENOUGH_GB_PER_S) for one in bandwidths)
    return slowdown, completion_s, found["p25"]


def replayed(unit: Unit) -> tuple[Unit, dict[int, tuple[float | None, ...]], float]:
    """Return the figures of each trace that a policy could replay in time, and how long it took."""
    began = time.process_time()
    topology, remembered = machine_of(unit.cell.machine)
    yardstick = remembered.yardstick(unit.cell.judge)
    rules = Rules(
        unit.policy,
        POLICIES[unit.policy].bandwidth_model,
        queue=unit.cell.queue,
        time_models=("bandwidth",),
        yardstick=unit.cell.judge,
    )
    found = {}
    for seed in unit.seeds:
        jobs = trace(len(topology.gpus), unit.cell, seed, unit.jobs)
        try:
            stays = simulate(topology, jobs, rules, remembered=remembered)
        except FailedError as problem:  # best-effort has a limit of GPUs
            print(f"{unit.cell.machine}, {unit.policy}: {problem.message}", file=sys.stderr)
            return unit, found, 2 * MOST_S
        found[seed] = figures(stays, yardstick)
        if time.process_time() - began > UNIT_S:
            break
    return unit, found, time.process_time() - began


class BakeOff:
    """A bake-off: its cells, and the results so far.

    Args:
        machines: names of machines.
        mixes: names of mixes.
        policies: names of policies; `default` is among them.
        default: the policy that the others are held against.
        path: file of results, which is read and added to.
        jobs: jobs of a trace.
    """

    def __init__(
        self,
        machines: list[str],
        mixes: list[str],
        policies: list[str],
        default: str,
        path: Path,
        jobs: int = JOBS,
    ) -> None:
        self.policies, self.default, self._jobs = policies, default, jobs
        self.cells = list(cells_of(machines, mixes))
        self.results: Results = {}
        self._spent_s: dict[tuple[str, str], float] = defaultdict(float)
        self._path = path
        if path.exists():
            for line in path.read_text().splitlines():
                *cell, policy, _, traces = json.loads(line)
                self._add(Cell(*cell), policy, dict(traces))

    def _add(self, cell: Cell, policy: str, found: dict) -> None:
        self.results.setdefault(cell, {}).setdefault(policy, {}).update(found)

    def run(self, until: float, workers: int) -> int:
        """Replay until all is done or a time of time.monotonic() has come; return the replays."""
        units, running, replays = self._units(), set(), 0
        with ProcessPoolExecutor(workers, initializer=partial(os.nice, 10)) as pool:
            while True:
                while len(running) < workers + 1 and time.monotonic() < until:
                    unit = next(units, None)
                    if unit is None:
                        break
                    running.add(pool.submit(replayed, unit))
                if not running:
                    return replays
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for unit, found, spent_s in (one.result() for one in done):
                    self._add(unit.cell, unit.policy, found)
                    self._spent_s[unit.cell.machine, unit.policy] += spent_s
                    replays += len(found)
                    with self._path.open("a") as file:
                        line = [*unit.cell, unit.policy, round(spent_s, 3), list(found.items())]
                        print(json.dumps(line), file=file)

    def _units(self) -> Iterator[Unit]:
        """Yield what is to be replayed next: all cells a little, the close ones long; then more."""
        for traces in TRACES:
            for cell, policy in product(self.cells, self.policies):
                yield from self._unit(cell, policy, traces, MOST_S)
            known = {cell: self.results[cell] for cell in self.cells if cell in self.results}
            for cell, policy in seemingly_better(known, self.default):
                for one in (self.default, policy):
                    yield from self._unit(cell, one, MOST_TRACES, 2 * MOST_S)
            print(f"{traces} traces of each cell are done", file=sys.stderr)

    def _unit(self, cell: Cell, policy: str, traces: int, most_s: float) -> Iterator[Unit]:
        known = self.results.get(cell, {}).get(policy, {})
        seeds = tuple(seed for seed in range(traces) if seed not in known)
        if seeds and self._spent_s[cell.machine, policy] < most_s:
            yield Unit(cell, policy, seeds, self._jobs)


def cells_of(machines: list[str], mixes: list[str]) -> Iterator[Cell]:
    """Yield all cells, machine by machine, leaving out mixes that give a machine no choice."""
    for machine in machines:
        gpus = len(machine_of(machine)[0].gpus)
        sizes = {mix: replace(MIXES[mix].on(gpus), source="") for mix in mixes}
        given = [mix for mix in mixes if any(1 < size < gpus for size in sizes[mix].sizes)]
        # A mix may be the same as an earlier one where the machine is too small for some jobs.
        different = {repr(sizes[mix]): mix for mix in reversed(given)}
        for load, queue, judge in product(LOADS, QUEUES, JUDGES):
            for mix in reversed(different.values()):
                yield Cell(machine, mix, load, queue, judge)


def policies_compared() -> list[str]:
    """Return all policies but those that differ from another only for jobs with a least utility."""
    return [name for name, policy in POLICIES.items() if not policy.waits_for_utility]


def main() -> None:
    """Replay, and write the page."""
    began = time.monotonic()
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--mixes", default=";".join(MIXES), help="separated by ;")
    parser.add_argument("--policies", default=",".join(policies_compared()))
    parser.add_argument("--default", default=DEFAULT_POLICY)
    root = Path(__file__).parents[2]
    parser.add_argument("--results", type=Path, default=root / "build" / "bake-off.jsonl")
    parser.add_argument("--docs", type=Path, default=root / "docs" / "results")
    options = parser.parse_args()
    bake_off = BakeOff(
        options.machines.split(","),
        options.mixes.split(";"),
        options.policies.replace("-", "_").split(","),
        options.default.replace("-", "_"),
        options.results,
    )
    replays = bake_off.run(began + 60 * options.minutes, options.jobs)
    print(f"{replays} replays in {time.monotonic() - began:.0f} s", file=sys.stderr)
    chosen = {
        cell: {name: by[name] for name in bake_off.policies if name in by}
        for cell, by in ((cell, bake_off.results.get(cell, {})) for cell in bake_off.cells)
        if bake_off.default in by
    }
    write_page(chosen, bake_off.default, options.docs)


if __name__ == "__main__":
    main()
