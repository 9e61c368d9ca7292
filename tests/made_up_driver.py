"""A driver of two GPUs that do not exist: all that a new driver's module needs but its entry.

MADE_UP_BUSY is the index of a GPU that a process without a lease uses; each reading is a line in
MADE_UP_READINGS.
"""

import os
from collections.abc import Collection, Iterable
from itertools import combinations
from pathlib import Path

from gpulaunch.machine.driver import Build, DriverEntry, Finding, Health, Load, OutsideUse
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.link import connect
from gpulaunch.machine.topology import Topology

ENTRY = DriverEntry(
    module="made_up_driver", visible_variable="TEST_VISIBLE_DEVICES", cdi_kind="example.com/gpu"
)
GPUS = tuple(Gpu(index, f"TEST-{index}", "Made-up One", 8 << 30) for index in range(2))


def is_present() -> bool:
    return True


def fingerprint() -> str:
    return " ".join(gpu.uuid for gpu in GPUS)


def read() -> Build:
    with Path(os.environ["MADE_UP_READINGS"]).open("a") as file:
        file.write("read\n")
    links = tuple(connect(a, b, "PIX") for a, b in combinations(GPUS, 2))
    return Build(Topology("made-up-host", GPUS, links, "imagination"), (), is_steady=True)


def read_use(gpus: Iterable[Gpu], ignored: Collection[str]) -> tuple[OutsideUse, ...]:
    busy = os.environ.get("MADE_UP_BUSY", "")
    return tuple(
        OutsideUse(gpu.uuid, "a game")
        for gpu in gpus
        if str(gpu.index) == busy and "game" not in ignored
    )


def pids_at_work(uuids: Iterable[str]) -> dict[int, int]:  # noqa: ARG001
    return {}


def version() -> str:
    return "1.0"


def diagnose() -> list[Finding]:
    return [Finding("fans", "warning", "they are loud", "open a window")]


def read_health(gpus: Iterable[Gpu]) -> tuple[Health, ...]:
    return tuple(Health(gpu.uuid) for gpu in gpus)


def read_load(gpus: Iterable[Gpu]) -> tuple[Load, ...]:
    return tuple(Load(gpu.uuid) for gpu in gpus)


def watch_faults(gpus: Iterable[Gpu]) -> None:  # noqa: ARG001
    return None
