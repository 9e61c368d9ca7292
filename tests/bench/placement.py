"""How long a decision takes: the worst over all patterns and sizes, in ms of the processor.

`cold` has everything forgotten that a process remembers, `warm` has decided the same before.

Run: python tests/bench/placement.py [--quick]
"""

import random
import sys
import time
from itertools import product

from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.placement import fabric
from gpulaunch.placement.policies import POLICIES, place
from gpulaunch.placement.problem import PlacementProblem
from gpulaunch.profiles.pattern import PATTERNS

GOAL_MS = {
    "power8-minsky": 1, "summit": 1, "dgx1-v100": 1, "pcie-8gpu-workstation": 1, "l40s-8": 1,
    "dgx-h100": 2, "dgx-a100": 2, "dgx2": 2, "nvl72": 10, "torus-2d-16": 400, "cube-mesh-16": 400,
}  # fmt: skip
"""By machine, ms of a warm decision: 8 GPUs, NVSwitch, NVL72, 16 unlike GPUs."""

COLD, WARM = 3, 4
Row = tuple[str, int, int, float, float]
"""Pattern, free GPUs, GPUs asked for, and ms of a cold and a warm decision."""


def decisions(name: str, quick: bool) -> list[Row]:
    """Decide by policy preserve for each pattern and size on a machine, idle and half full."""
    topology = load_described_machine(name)[0]
    count = len(topology.gpus)
    sizes = (1, 2, 4, 8, 16, 36, 72) if count > 16 else range(1, count + 1)
    half = sorted(random.Random(1).sample(range(count), count // 2))
    rows = []
    for free, pattern in product(([*range(count)], half), PATTERNS):
        for size in [size for size in sizes if size <= len(free)][:: 2 if quick else 1]:
            problem = PlacementProblem(
                topology,
                free=free,
                admitted=free,
                count=size,
                pattern=PATTERNS[pattern],
                sensitive=True,
                model=POLICIES["preserve"].bandwidth_model,
            )
            forget()
            spent = []
            for _ in range(3):
                start = time.process_time()
                place(problem, "preserve")
                spent.append(1000 * (time.process_time() - start))
            rows.append((pattern, len(free), size, spent[0], min(spent[1:])))
    return rows


def forget() -> None:
    """Forget everything in gpulaunch.decide that a process remembers."""
    for name, module in list(sys.modules.items()):
        if name.startswith("gpulaunch.decide"):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
    fabric._latest.clear()


def main() -> None:
    """Print the table."""
    print(f"{'machine':24}{'goal':>5}" + "".join(f"{title:>31}" for title in ("cold", "warm")))
    for name, goal_ms in GOAL_MS.items():
        rows = decisions(name, "--quick" in sys.argv[1:])
        cells = []
        for column in (COLD, WARM):
            worst = max(rows, key=lambda row, at=column: row[at])
            pattern, free, size = worst[:3]
            cells.append(f"{worst[column]:9.2f} {f'{size} of {free}, {pattern}':21}")
        print(f"{name:24}{goal_ms:5}{''.join(cells)}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
