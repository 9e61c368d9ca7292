"""How long a placement takes, and how far its heuristics stay from the best.

A decision is all that a launch pays once it knows its machine: links laid out, levels, candidates,
search, mapping. What the process remembers is forgotten before each, as a launch is a process of
its own. A figure is the median of several decisions after one to warm up; one that takes long is
taken alone.

Run: python tests/bench/placement.py [--quick]
"""

import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpulaunch.decide.placement import candidates, mapping
from gpulaunch.decide.placement.fabric import Fabric
from gpulaunch.decide.placement.mapping import Mapper
from gpulaunch.decide.placement.place import MAPPING_EFFORT, place
from gpulaunch.decide.placement.policies import POLICIES
from gpulaunch.decide.placement.problem import PlacementProblem
from gpulaunch.decide.placement.scores import Scorer
from gpulaunch.decide.placement.traffic import Mapping, Traffic
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.link import Wire, wired
from gpulaunch.machine.topology import Topology
from gpulaunch.profiles.pattern import PATTERNS, Pattern
from gpulaunch.records import replace

if TYPE_CHECKING:
    from gpulaunch.machine.link_bandwidth import PathType

QUICK = "--quick" in sys.argv[1:]
RUNS = 1 if QUICK else 3
BUSY_SETS = 1 if QUICK else 4
REPEATED_MS = 200  # what takes longer is measured once
PATIENCE_MS = 1_000  # after a pattern that takes longer the others are not tried
RANDOM_16 = "random-16"

GOAL_MS = {
    "power8-minsky": 1,
    "summit": 1,
    "dgx1-v100": 1,
    "pcie-8gpu-workstation": 1,
    "dgx-h100": 1,
    "dgx2": 10,
    "torus-2d-16": 50,
    "cube-mesh-16": 50,
    RANDOM_16: 50,
    "nvl72": 10,
}
"""By machine: 1 ms up to 8 GPUs, 10 ms for 16 interchangeable or an NVL72, 50 ms for any 16."""

RACK_SIZES = (1, 2, 4, 8, 16, 24, 36, 48, 64, 72)

PUBLISHED_MS = {
    "dgx1-v100": {3: 2, 4: 9, 5: 65, 6: 890, 7: 8_300, 8: 80_000},
    "torus-2d-16": {3: 16, 4: 267, 5: 10_700},
}
"""By job size, the time of socal-ucr/MAPA's Preserve of August 2021: sensitive, ring, idle.

It was run once, not here. On 16 GPUs it runs out of 20 GiB of memory from 6 on.
"""

PUBLISHED_GOAL = 100
"""So many times faster than that."""


def random_machine(seed: int, count: int = 16) -> Topology:
    """Draw V100 on two sockets with random NVLinks and paths: no two are interchangeable."""
    rng = random.Random(seed)
    near: tuple[PathType, ...] = ("PIX", "PXB", "PHB")
    far: tuple[PathType, ...] = ("SYS",)
    pairs = list(combinations(range(count), 2))
    nvlinks = {pair: rng.choice((0, 0, 0, 1, 2)) for pair in pairs}
    paths = {
        (a, b): rng.choice(near if a * 2 // count == b * 2 // count else far) for a, b in pairs
    }
    v100 = load_described_machine("dgx1-v100")[0].gpus[0]
    gpus = [replace(v100, index=i, uuid=f"GPU-{i}", numa_node=i * 2 // count) for i in range(count)]
    links = wired(gpus, lambda a, b: Wire(paths[a, b], nvlinks[a, b]))
    return Topology(f"random-{count}-{seed}", tuple(gpus), links, "made up")


def machine(name: str) -> Topology:
    """Return a shipped machine, or the random one."""
    return random_machine(0) if name == RANDOM_16 else load_described_machine(name)[0]


# ----------------------------------------------------------------------------------- decision times


class Job(NamedTuple):
    """One placement to be decided, sensitive, of any free GPUs."""

    topology: Topology
    free: Sequence[int]
    gpus: int
    pattern: Pattern
    policy: str = "preserve"
    model: str = "cut"

    def problem(self) -> PlacementProblem:
        """Return the problem as decide() makes it."""
        topology, free, count, pattern, _, model = self
        return PlacementProblem(
            topology,
            free=free,
            admitted=free,
            count=count,
            pattern=pattern,
            sensitive=True,
            model=model,
        )


class Slowest(NamedTuple):
    """The worst of several decisions; `more` if not all of them were tried."""

    ms: float
    job: Job
    more: bool = False

    def __str__(self) -> str:
        """Return milliseconds, for a cell of a table."""
        return f"{'>' if self.more else ''}{self.ms:.{1 if self.ms < 99.95 else 0}f}"


def remembered() -> list[Any]:
    """Return everything in gpulaunch that keeps results for the process."""
    modules = [module for name, module in sys.modules.items() if name.startswith("gpulaunch.")]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if hasattr(value, "cache_clear")
    ]


def decision_ms(job: Job) -> float:
    """Return the time of one decision."""
    caches = remembered()

    def once() -> float:
        for cache in caches:
            cache.cache_clear()
        start = time.perf_counter()
        place(job.problem(), job.policy)
        return (time.perf_counter() - start) * 1000

    first = once()
    return first if first > REPEATED_MS else statistics.median(once() for _ in range(RUNS))


def slowest(jobs: Sequence[Job]) -> Slowest:
    """Return the slowest decision, up to the first that takes too long."""
    found: list[Slowest] = []
    for job in jobs:
        found.append(Slowest(decision_ms(job), job))
        if found[-1].ms > PATIENCE_MS:
            break
    return max(found, key=lambda entry: entry.ms)._replace(more=len(found) < len(jobs))


def busy_sets(topology: Topology, seed: int) -> list[list[int]]:
    """Draw halves of the machine that are free."""
    rng = random.Random(seed)
    indices = [gpu.index for gpu in topology.gpus]
    return [sorted(rng.sample(indices, len(indices) // 2)) for _ in range(BUSY_SETS)]


def by_size(
    topology: Topology, frees: Sequence[Sequence[int]], sizes: Iterable[int]
) -> dict[int, Slowest]:
    """Return the worst over patterns and free sets for each job size that fits."""
    return {
        size: slowest(
            [
                Job(topology, free, size, pattern)
                for free, pattern in product(frees, PATTERNS.values())
            ]
        )
        for size in sizes
        if size <= len(frees[0])
    }


def row(name: str, state: str, cells: Iterable[object], width: int) -> None:
    """Print a row of a table."""
    print(f"{name:21} {state:9}" + "".join(f"{cell!s:>{width}}" for cell in cells))


def decision_times() -> None:
    """Print decision times by job size and machine, idle and half full, beside the goals."""
    print(
        f"1. Decision time in ms by job size: preserve, sensitive, cut; worst over {len(PATTERNS)} "
        "patterns"
    )
    print(f"   idle, and half full: worst over {BUSY_SETS} random sets of busy GPUs\n")
    shown: tuple[int, ...] = ()
    verdicts = []
    for name, goal in GOAL_MS.items():
        topology = machine(name)
        count = len(topology.gpus)
        sizes = RACK_SIZES if count > 16 else tuple(range(1, 17 if count > 8 else 9))
        if sizes != shown:
            row("", "", sizes, 5)
            shown = sizes
        for state, frees in (("idle", [range(count)]), ("half full", busy_sets(topology, 1))):
            found = by_size(topology, frees, sizes)
            row(name if state == "idle" else "", state, found.values(), 5)
            verdicts.append((name, state, goal, found))
    print(f"\n{'':21} {'':9} {'goal':>5} {'worst':>6}  {'with':22} verdict")
    for name, state, goal, found in verdicts:
        worst = max(found.values(), key=lambda entry: entry.ms)
        over = [size for size, entry in found.items() if entry.ms > goal]
        verdict = f"missed for {len(over)} of {len(found)} sizes" if over else "met"
        print(
            f"{name if state == 'idle' else '':21} {state:9} {goal:5} {worst!s:>6}  "
            f"{f'{worst.job.gpus} GPUs, {worst.job.pattern.name}':22} {verdict}"
        )


def beside_published() -> None:
    """Print Figure 19 of mapa-sc21 beside the times of the published code."""
    print(
        "\n2. mapa-sc21 Figure 19: decision time in ms by job size, idle, ring, sensitive preserve"
    )
    print(
        "   published: socal-ucr/MAPA (August 2021), run once, not in this run; mem: more than 20 "
        "GiB of memory\n"
    )
    row("", "", range(1, 17), 6)
    for name, size in (("summit", 6), ("dgx1-v100", 8), ("torus-2d-16", 16)):
        topology = machine(name)
        sizes = range(1, size + 1)
        ours = {k: decision_ms(Job(topology, range(size), k, PATTERNS["ring"])) for k in sizes}
        published = PUBLISHED_MS.get(name, {})
        ratios = {k: published[k] / ours[k] for k in published}
        row(name, "ours", (f"{ours[k]:.2f}" for k in sizes), 6)
        if published:
            row(
                "",
                "published",
                (published.get(k, "mem" if k > max(published) else "") for k in sizes),
                6,
            )
            row("", "faster", (f"{ratios[k]:.0f}" if k in ratios else "" for k in sizes), 6)
            reached = [str(k) for k in published if ratios[k] >= PUBLISHED_GOAL]
            row("", f"{PUBLISHED_GOAL} times or more for {', '.join(reached) or 'none'}", (), 6)


def by_policy() -> None:
    """Print the times of every policy, with both models that need no measurements."""
    patterns = [
        pattern for pattern in PATTERNS.values() if not QUICK or pattern.name in ("ring", "star")
    ]
    print(
        "\n3. Decision time in ms by policy and job size, idle, sensitive, worst over "
        f"{len(patterns)} patterns"
    )
    print(
        f"   >: after a pattern that takes more than {PATIENCE_MS / 1000:g} s the others are not "
        "tried\n"
    )
    for name, sizes in (("dgx1-v100", range(1, 9)), ("torus-2d-16", (1, 2, 4, 6, 8, 12, 16))):
        topology = machine(name)
        free = range(len(topology.gpus))
        print(f"{name:16} model", *(f"{size:>6}" for size in sizes))
        for policy, model in product(POLICIES, ("cut", "mapa")):
            cells = [
                slowest([Job(topology, free, size, p, policy, model) for p in patterns])
                for size in sizes
            ]
            print(
                f"{policy if model == 'cut' else '':16} {model:5}",
                *(f"{cell!s:>6}" for cell in cells),
            )


# ----------------------------------------------------------------------------------------- how good


@contextmanager
def instead(module: object, name: str, value: int) -> Iterator[None]:
    """Set another limit for a while."""
    usual = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, usual)


def walk_total(gain: np.ndarray, *, closed: bool) -> int:
    """Return the largest sum along a path through all GPUs; -1 if none (Held and Karp).

    Args:
        gain: of each two GPUs; under 0 where there is no way.
        closed: whether it returns to where it began.
    """
    count = len(gain)
    never = -(1 << 60)
    step = np.where(gain < 0, never, gain)
    best = np.full(
        (1 << count, count), never
    )  # by the set that was visited, and where the way ends
    for start in range(1 if closed else count):
        best[1 << start, start] = 0
    bits = 1 << np.arange(count)
    for visited in range(1, 1 << count):
        inside = (visited & bits) > 0
        if best[visited].max() < 0 or inside.all():
            continue
        reach = (best[visited][:, None] + step).max(axis=0)
        for to in np.flatnonzero(~inside):
            best[visited | 1 << to, to] = max(best[visited | 1 << to, to], reach[to])
    ends = best[-1] + (step[:, 0] if closed else 0)
    return max(-1, int(ends.max()))


def walked(traffic: Traffic, gpus: Sequence[int], *, closed: bool) -> tuple[int, int]:
    """Return slowest edge and total of the best ring or chain, slowest first (Held and Karp)."""
    kind = np.array([[traffic.fabric.kind[a][b] for b in gpus] for a in gpus])
    gain = np.array(traffic.gain[0])[kind]
    np.fill_diagonal(gain, -1)
    speed = np.array(traffic.speed[0])[kind] if traffic.speed else np.zeros_like(kind)
    for floor in sorted(set(speed.flat), reverse=True):
        total = walk_total(np.where(speed >= floor, gain, -1), closed=closed)
        if total >= 0:
            return int(floor), total
    return 0, -1


def figures(found: Mapping, pattern: Pattern) -> tuple[int, int]:
    """Return the figures by which a mapping is judged, the most important first."""
    return (found.total, 0) if pattern.collective else (found.slowest, found.total)


class Gap(NamedTuple):
    """A heuristic's figures, and the best ones."""

    got: tuple[int, ...]
    best: tuple[int, ...]

    @property
    def lost(self) -> float:
        """Of the first figure, as a share of the best."""
        return 1 - self.got[0] / self.best[0] if self.best[0] else 0.0

    @property
    def then_lost(self) -> float:
        """Of the next figure, where nothing of the first was lost."""
        return (
            1 - self.got[1] / self.best[1]
            if self.got[0] == self.best[0] and self.best[1] > 0
            else 0.0
        )


GAP_HEADER = f"{'cases':>6}{'best':>7}{'first':>7}{'loss':>7}{'worst':>7}   {'then':>7}{'worst':>7}"


def gap_row(gaps: Sequence[Gap]) -> str:
    """Return how often all figures, or the first, are the best; and what the first two lose."""
    whole, first = (
        100 * statistics.mean(gap.got[:n] == gap.best[:n] for gap in gaps) for n in (None, 1)
    )
    lost, then = [100 * gap.lost for gap in gaps], [100 * gap.then_lost for gap in gaps]
    losses = (f"{statistics.mean(values):6.1f}%{max(values):6.1f}%" for values in (lost, then))
    return f"{len(gaps):6}{whole:6.0f}%{first:6.0f}%" + "   ".join(losses)


def mapping_gap() -> None:
    """Compare mappings of more ranks than are searched in full."""
    print(
        f"\n4. Mappings of 9 to 12 ranks ({mapping.EXACT_RANKS} are exact), to random sets of "
        "GPUs, beside the best"
    )
    print("   first: the total of a collective, else the slowest edge; then the total")
    print(
        "   best: the search without its limit, which must agree with Held and Karp's for rings "
        "and chains\n"
    )
    print(f"{'machines':14} {'pattern':11} {GAP_HEADER}")
    machines = {name: [machine(name)] for name in ("torus-2d-16", "cube-mesh-16")}
    machines["random-16"] = [random_machine(seed) for seed in range(2 if QUICK else 6)]
    for name, topologies in machines.items():
        for pattern in PATTERNS.values():
            if pattern.name not in ("all_to_all", "none"):  # every mapping of those is the same
                sets = 1 if QUICK else 6 // len(topologies) or 1
                gaps = [
                    gap
                    for t in topologies
                    for n in range(9, 13)
                    for gap in mapped_gaps(t, pattern, n, sets)
                ]
                print(f"{name:14} {pattern.name:11} {gap_row(gaps)}")


def mapped_gaps(topology: Topology, pattern: Pattern, ranks: int, sets: int) -> Iterator[Gap]:
    """Yield the heuristic's mapping beside the best, for some sets of so many GPUs."""
    rng = random.Random(ranks)
    fabric = Fabric(topology)
    free = range(len(fabric.gpus))
    speeds = Scorer(
        fabric, free, ranks, pattern, "cut", range(len(fabric.gpus)), many=False
    ).traffic.speed
    for _ in range(sets):
        gpus = sorted(rng.sample(free, ranks))
        traffic = Traffic(fabric, pattern.edges(ranks), speeds[0] if speeds else None)
        got = figures(
            Mapper(traffic).best(gpus, slowest_first=True, effort=MAPPING_EFFORT), pattern
        )
        with instead(mapping, "EXACT_RANKS", ranks):
            best = figures(Mapper(traffic).best(gpus, slowest_first=True), pattern)
        if pattern.name in ("ring", "chain"):
            slowest_edge, total = walked(traffic, gpus, closed=pattern.name == "ring")
            held_karp = (total, 0) if pattern.collective else (slowest_edge, total)
            assert best == held_karp, (topology.name, pattern.name, gpus, best, held_karp)
        yield Gap(got, best)


def set_gap() -> None:
    """Compare sets that are found by climbing, because there are too many to compare."""
    print(
        f"\n5. Sets that are climbed to, as where more than {candidates.MOST_SETS} differ, beside "
        "the best"
    )
    print(
        "   random machines of 16 GPUs, idle, preserve: effective bandwidth first (none: "
        "preserved), then the next\n"
    )
    print(f"{'job':22} {GAP_HEADER}")
    machines = [random_machine(seed) for seed in range(100, 104 if QUICK else 116)]
    for name in ("ring", "chain", "none"):
        for size in (4, 6, 8):
            gaps = [
                climb_gap(Job(topology, range(16), size, PATTERNS[name])) for topology in machines
            ]
            print(f"{size} GPUs, {name:14} {gap_row(gaps)}")
    print("\ntime on a random machine of 32 GPUs, idle, in ms, a single decision")
    topology = random_machine(0, 32)
    for name in ("ring", "chain", "none"):
        for size in (8, 16):
            print(
                f"{size} GPUs, {name:14} "
                f"{decision_ms(Job(topology, range(32), size, PATTERNS[name])):6.0f}"
            )


def climb_gap(job: Job) -> Gap:
    """Return the scores of the set found by climbing, beside those of the best."""
    problem = job.problem()
    by = POLICIES[job.policy].order(problem).by
    best = problem.scores_by(next(problem.ranked(by)).mask, by)
    with instead(candidates, "MOST_SETS", 10):
        found = next(job.problem().ranked(by)).mask
    return Gap(problem.scores_by(found, by), best)


def main() -> None:
    """Print all tables."""
    start = time.perf_counter()
    load = os.getloadavg()[0]
    print(
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {load:.1f}\n"
    )
    for table in (decision_times, beside_published, by_policy, mapping_gap, set_gap):
        table()
        sys.stdout.flush()
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
