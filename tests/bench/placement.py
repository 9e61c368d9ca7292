"""Decisions of this checkout beside those of another one: which differ, and how long they take.

A time is that of the process on its processor. `cold` has everything forgotten that a process
remembers, `warm` has decided the same before. Without another checkout, this one's times alone.

Run: python tests/bench/placement.py [--quick] [--beside DIRECTORY] [PART ...]
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import combinations, product
from pathlib import Path
from statistics import fmean, stdev

HERE = Path(__file__).resolve()
SMALL = (
    "dgx1-v100", "dgx1-p100", "power8-minsky", "summit", "a100-pcie-4gpu", "rtx-a6000-2",
    "rtx-a6000-4", "rtx-4090-8", "rtx-5090-8", "rtx-pro-6000-8", "l40s-8", "pcie-8gpu-workstation",
    "dgx-a100", "dgx-h100", "hgx-a100-4", "hgx-b200", "hgx-b300", "hgx-h200", "gb200-tray",
    "gh200-4",
)  # fmt: skip
"""Shipped machines of up to 8 GPUs."""

GOAL_MS = {
    "power8-minsky": 1, "summit": 1, "dgx1-v100": 1, "pcie-8gpu-workstation": 1, "l40s-8": 1,
    "dgx-h100": 2, "dgx-a100": 2, "dgx2": 2, "nvl72": 10, "torus-2d-16": 250, "cube-mesh-16": 250,
}  # fmt: skip
"""By machine, ms of a warm decision: 8 GPUs, NVSwitch, NVL72, 16 unlike GPUs."""

TRACED = ("dgx1-v100", "summit", "pcie-8gpu-workstation", "dgx-h100")
TRACES, TRACE_JOBS, LOAD = 240, 100, 0.8
STAYING = ("preserve", "preserve_paper", "baseline", "greedy", "best_fit", "best_effort")
"""Policies whose decisions are to stay; topo_aware's may be of as much use elsewhere."""

RANDOM_MACHINES = 5_000


class Decided(dict):
    """Decisions by their question, and the seconds that all of them took."""

    seconds = 0.0


# ------------------------------------------------------ in a process of one checkout: its decisions


def questions_of_masks(quick: bool) -> Iterator[tuple]:
    """Yield every free set of every shipped machine, with every size, by every policy."""
    from gpulaunch.machine.catalog import load_described_machine

    for name in SMALL[:4] if quick else SMALL:
        topology = load_described_machine(name)[0]
        count = len(topology.gpus)
        frees = [f for n in range(1, count + 1) for f in combinations(range(count), n)]
        draw = random.Random(name)
        for free in frees:
            for size, policy in product(range(1, len(free) + 1), (*STAYING, "topo_aware")):
                sensitive = draw.random() < 0.5
                pattern = draw.choice(("all_to_all", "all_to_all", "ring", "chain", "tree"))
                if policy == "preserve":
                    yield topology, free, size, policy, "all_to_all", not sensitive, {}
                if policy != "topo_aware" or draw.random() < 0.1:
                    yield topology, free, size, policy, pattern, sensitive, {}


def questions_of_random_machines(quick: bool) -> Iterator[tuple]:
    """Yield one question to each policy on random machines of 4 to 10 GPUs, some with needs."""
    from gpulaunch.decide.placement.problem import Needs
    from gpulaunch.profiles.pattern import PATTERNS

    for seed in range(RANDOM_MACHINES // 10 if quick else RANDOM_MACHINES):
        draw = random.Random(seed)
        topology = random_machine(seed, draw.randint(4, 10))
        gpus = range(len(topology.gpus))
        free = sorted(draw.sample(gpus, draw.randint(2, len(gpus))))
        size = draw.randint(1, min(8, len(free)))
        needs = {}
        if draw.random() < 0.3:
            required = frozenset(draw.sample(free, draw.randint(0, min(2, size))))
            least = draw.choice((0.0, 0.0, 10.0, 30.0))
            needs = {"needs": Needs(required, nvlink=draw.random() < 0.3, least_gb_per_s=least)}
        pattern, sensitive = draw.choice([*PATTERNS]), draw.random() < 0.6
        for policy in (*STAYING, "topo_aware"):
            yield topology, free, size, policy, pattern, sensitive, needs


def random_machine(seed: int, count: int):
    """Draw NVLinks and PCIe paths of V100 on two sockets: no two GPUs are alike."""
    from gpulaunch.machine.catalog import load_described_machine
    from gpulaunch.machine.link import Wire, wired
    from gpulaunch.machine.topology import Topology
    from gpulaunch.records import replace

    draw = random.Random(seed)
    sparse = draw.choice(((0, 0, 0, 1, 2), (0, 1), (0, 0, 0, 0, 0, 0, 2), (1, 2)))
    halves = [gpu * 2 // count for gpu in range(count)]
    near = ("PIX", "PXB", "PHB")
    wires = {
        (a, b): Wire(draw.choice(near) if halves[a] == halves[b] else "SYS", draw.choice(sparse))
        for a, b in combinations(range(count), 2)
    }
    v100 = load_described_machine("dgx1-v100")[0].gpus[0]
    gpus = [replace(v100, index=i, uuid=f"GPU-{i}", numa_node=halves[i]) for i in range(count)]
    links = wired(gpus, lambda a, b: wires[a, b])
    return Topology(f"random-{count}-{seed}", tuple(gpus), links, "made up")


def answer(question: tuple) -> list:
    """Return what a checkout decides: GPUs in rank order, or what they are worth by topo_aware."""
    from gpulaunch.decide.placement.place import place
    from gpulaunch.decide.placement.policies import POLICIES
    from gpulaunch.decide.placement.problem import PlacementProblem
    from gpulaunch.profiles.pattern import PATTERNS

    topology, free, size, policy, pattern, sensitive, needs = question
    problem = PlacementProblem(
        topology, free=free, admitted=free, count=size, pattern=PATTERNS[pattern],
        sensitive=sensitive, model=POLICIES[policy].bandwidth_model, **needs,
    )  # fmt: skip
    found = place(problem, policy)
    if found is None:
        return []
    scores = found.scores
    return [*found.gpus] if policy != "topo_aware" else [found.utility, scores.communication_cost]


def answers(make: Callable[[bool], Iterator[tuple]], quick: bool) -> dict:
    """Return answers and seconds by machine and policy, in the order of the questions."""
    found: dict = {}
    for question in make(quick):
        topology, _, _, policy, *_ = question
        name = "random" if topology.name.startswith("random") else topology.name
        start = time.process_time()
        got = answer(question)
        row = found.setdefault(f"{name} {policy}", [[], 0.0])
        row[1] += time.process_time() - start
        row[0].append(got)
    return found


def replay_traces(quick: bool) -> dict:
    """Return for each machine the starts of all jobs of each trace, and their mean slowdown."""
    from mixes import MIXES, loaded_mix

    from gpulaunch.decide.request import Request
    from gpulaunch.machine.catalog import load_described_machine
    from gpulaunch.profiles.pattern import PATTERNS
    from gpulaunch.simulate.event_loop import Rules, simulate
    from gpulaunch.simulate.simulated_job import SimulatedJob

    found = {}
    for name in TRACED:
        topology = load_described_machine(name)[0]
        rows, start = [], time.process_time()
        for seed in range(TRACES // 10 if quick else TRACES):
            mix = MIXES[("Philly", "uniform 1-5", "2 and 4")[seed % 3]]
            jobs = []
            for n, row in enumerate(loaded_mix(seed, TRACE_JOBS, len(topology.gpus), LOAD, mix)):
                request = Request(
                    row["gpus"], PATTERNS[row["pattern"]], row["bandwidth_sensitive"], "preserve",
                    "cut",
                )  # fmt: skip
                jobs.append(SimulatedJob(n, "job", request, row["arrival_s"], row["duration_s"]))
            rules = Rules("preserve", "cut", time_models=("mapa",))
            stays = simulate(topology, jobs, rules)
            ran = [stay.ended_s - stay.started_s for stay in stays]
            rows.append([[sorted(stay.gpus) for stay in stays], fmean(ran)])
        found[name] = [rows, time.process_time() - start]
    return found


def time_decisions(quick: bool) -> dict:
    """Return by machine the worst ms of a decision, cold and warm, over patterns and sizes."""
    from gpulaunch.machine.catalog import load_described_machine
    from gpulaunch.profiles.pattern import PATTERNS

    found = {}
    for name in GOAL_MS:
        topology = load_described_machine(name)[0]
        count = len(topology.gpus)
        sizes = (1, 2, 4, 8, 16, 36, 72) if count > 16 else range(1, count + 1)
        half = sorted(random.Random(1).sample(range(count), count // 2))
        rows = []
        for free, pattern in product(([*range(count)], half), PATTERNS):
            for size in [size for size in sizes if size <= len(free)][:: 2 if quick else 1]:
                question = topology, free, size, "preserve", pattern, True, {}
                forget()
                spent = []
                for _ in range(3):
                    start = time.process_time()
                    answer(question)
                    spent.append(1000 * (time.process_time() - start))
                rows.append([pattern, len(free), size, spent[0], min(spent[1:])])
        found[name] = rows
    return found


def forget() -> None:
    """Forget everything in gpulaunch.decide that a process remembers."""
    from gpulaunch.decide.placement import fabric

    for name, module in list(sys.modules.items()):
        if name.startswith("gpulaunch.decide"):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
    fabric._latest.clear()


ASKED = {
    "masks": lambda quick: answers(questions_of_masks, quick),
    "random": lambda quick: answers(questions_of_random_machines, quick),
    "traces": replay_traces,
    "times": time_decisions,
}


# -------------------------------------------------------------------- beside each other: the tables


def ask(checkout: Path, part: str, quick: bool) -> dict:
    """Return what a checkout says, in a process of its own."""
    command = [sys.executable, str(HERE), "--ask", part, *(["--quick"] if quick else [])]
    path = os.pathsep.join(map(str, (checkout, HERE.parent.parent)))
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def print_decisions(old: dict, new: dict) -> None:
    """Print by machine and policy how many decisions are equal, and ms of one in either."""
    print(f"{'machine, policy':42}{'equal':>8}{'differ':>8}{'ms before':>11}{'now':>8}")
    totals = [0, 0]
    for name, (now, now_s) in new.items():
        before, before_s = old[name]
        differ = sum(a != b for a, b in zip(before, now, strict=True))
        totals[0] += len(now) - differ
        totals[1] += differ
        spent = f"{1000 * before_s / len(now):11.2f}{1000 * now_s / len(now):8.2f}"
        print(f"{name:42}{len(now) - differ:8}{differ:8}{spent}")
    print(f"{'all':42}{totals[0]:8}{totals[1]:8}")


def print_traces(old: dict, new: dict) -> None:
    """Print by machine how many traces and stays are equal, and the mean run time of jobs."""
    print(f"preserve, {TRACE_JOBS} jobs a trace, load {LOAD}; mean run time now against before")
    print(f"{'machine':24}{'traces':>7}{'equal':>7}{'stays':>8}{'equal':>8}{'run time':>10}   s")
    for name, (now, now_s) in new.items():
        before, before_s = old[name]
        equal = sum(a[0] == b[0] for a, b in zip(before, now, strict=True))
        pairs = [
            a == b
            for p, q in zip(before, now, strict=True)
            for a, b in zip(p[0], q[0], strict=True)
        ]
        change = [100 * (b[1] / a[1] - 1) for a, b in zip(before, now, strict=True)]
        error = stdev(change) / len(change) ** 0.5
        print(
            f"{name:24}{len(now):7}{equal:7}{len(pairs):8}{sum(pairs):8}{fmean(change):+8.2f} %"
            f" (SE {error:.2f})   {before_s:.1f} -> {now_s:.1f}"
        )


def print_times(old: dict | None, new: dict) -> None:
    """Print by machine the worst decision, cold and warm, and what the goal is."""
    print("worst decision of policy preserve over all patterns and sizes, idle and half full, ms")
    print(f"{'machine':24}{'goal':>5}" + "".join(f"{title:>26}" for title in ("cold", "warm")))
    for name, rows in new.items():
        cells = [f"{name:24}{GOAL_MS[name]:5}"]
        for column in (3, 4):
            pattern, free, size, *_ = worst = max(rows, key=lambda row: row[column])
            before = f"{max(r[column] for r in old[name]):.2f} -> " if old else ""
            where = f"{size} of {free}, {pattern}"
            cells.append(f"{before + format(worst[column], '.2f'):>18} {where:22}")
        print("".join(cells))


def main() -> None:
    """Print the tables that are asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--beside", type=Path, help="directory of another checkout")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    parser.add_argument("parts", nargs="*", choices=[*ASKED, []])
    asked = parser.parse_args()
    if asked.ask:
        json.dump(ASKED[asked.ask](asked.quick), sys.stdout)
        return
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}", end=", ")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for part in asked.parts or ASKED if asked.beside else ["times"]:
        print(f"\n{part}", flush=True)
        new = ask(HERE.parent.parent.parent, part, asked.quick)
        old = ask(asked.beside, part, asked.quick) if asked.beside else None
        if part == "times":
            print_times(old, new)
        else:
            (print_traces if part == "traces" else print_decisions)(old, new)


if __name__ == "__main__":
    main()
