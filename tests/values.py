"""Values that tests build: small machines, placement problems, requests, leases and tickets.

Everything that a test does not name is filled in, and does not matter to it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from gpulaunch.decide.decision import Request
from gpulaunch.errors import UsageError
from gpulaunch.leases.lease import Lease, Ticket
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.link import PathType, Wiring, wired
from gpulaunch.machine.topology import TableKey, Topology
from gpulaunch.placement.problem import PlacementProblem
from gpulaunch.process import Process
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.records import Record

_RECORD = {
    "user_id": 1000,
    "table": TableKey("box", "0badc0de", "/profiles/box.toml"),
    "launcher": Process(4000, 123456),
    "command": ("python", "train.py", ""),
    "profile": "vgg16",
    "name": "my job",
    "boot_id": "7a1c",
}


def uuids(indices: Iterable[int]) -> tuple[str, ...]:
    """Return the UUIDs of GPUs of a box."""
    return tuple(f"GPU-{index}" for index in indices)


def card(
    nvlink_version: int, compute_capability: str, pcie_generation: int, pcie_width: int = 16
) -> dict[str, Any]:
    """Return the facts of a model of GPUs that bandwidths depend on."""
    return {
        "nvlink_version": nvlink_version,
        "compute_capability": compute_capability,
        "pcie_generation": pcie_generation,
        "pcie_width": pcie_width,
    }


V100, A100, H100 = card(2, "7.0", 3), card(3, "8.0", 4), card(4, "9.0", 5)


def cards(count: int, **facts: Any) -> list[Gpu]:
    """Make GPUs of 16 GiB."""
    return [Gpu(i, uuid, "test", 16 << 30, **facts) for i, uuid in enumerate(uuids(range(count)))]


def wiring(path: PathType, nvlinks: int = 0, pcie_gb_per_s=None, peer_to_peer=None) -> Wiring:
    """Return what joins two cards."""
    return path, nvlinks, pcie_gb_per_s, peer_to_peer


def wired_up(gpus: Sequence[Gpu], wire: Callable[[int, int], Wiring], name="test") -> Topology:
    """Make a machine of GPUs, given what joins each two of them by index, the lower first."""
    return Topology(name, tuple(gpus), wired(gpus, wire), "a test")


def box(count: int = 8) -> Topology:
    """Make a machine of GPUs that all meet alike."""
    return wired_up(cards(count), lambda *_: wiring("PHB"), "box")


class Needs(Record):
    """What a set of GPUs must be, as PlacementProblem takes it."""

    required: frozenset[int] = frozenset()
    within: tuple[frozenset[int], ...] = ()
    nvlink: bool = False
    least_gb_per_s: float = 0.0


def posed(
    topology: Topology,
    count: int,
    pattern: str = "ring",
    free: Sequence[int] | None = None,
    **fields: Any,
) -> PlacementProblem:
    """Pose the problem of a sensitive job that may have any of the free GPUs."""
    free = [gpu.index for gpu in topology.gpus] if free is None else free
    defaults = {"admitted": free, "pattern": PATTERNS[pattern], "sensitive": True, "model": "cut"}
    return PlacementProblem(topology, free=free, count=count, **{**defaults, **fields})


def request(gpus: int | None = 1, **fields: Any) -> Request:
    """Make a request of a job that talks in a ring and takes the first GPUs that are free."""
    defaults = {
        "pattern": PATTERNS["ring"],
        "bandwidth_sensitive": True,
        "policy": "baseline",
        "bandwidth_model": "cut",
    }
    return Request(gpus, **{**defaults, **fields})


def lease(id_: str, *indices: int, within: Lease | None = None, **fields: Any) -> Lease:
    """Make a lease of GPUs of a box.

    Args:
        id_: the lease's.
        indices: the GPUs'.
        within: the lease that it was taken from.
        fields: what else a test cares about.
    """
    defaults = _RECORD | {
        "uuids": uuids(indices),
        "job": Process(4001, 123460),
        "assumed": ("pattern",),
        "started_at": "2026-01-02T03:04:05Z",
        "ancestors": (within.id, *within.ancestors) if within else (),
    }
    return Lease(id=id_, **{**defaults, **fields})


def ticket(number: int, gpus: int = 1, only: Iterable[int] = range(8), **fields: Any) -> Ticket:
    """Make the ticket of a launch that waits for some GPUs of a box, and lets none pass."""
    defaults = _RECORD | {
        "id": f"t{number}",
        "within": None,
        "passable_until_s": 0.0,
        "since": "2026-01-02T03:04:05Z",
    }
    return Ticket(number=number, gpus=gpus, uuids=uuids(only), **{**defaults, **fields})


def machine(name: str) -> Topology:
    """Return a machine that is shipped."""
    return load_described_machine(name)[0]


def cases(rows: Mapping[str, Sequence[Any]], *names: str) -> pytest.MarkDecorator:
    """Parametrise a test with rows of a table, each named by the sentence that it proves."""
    params = [pytest.param(*row, id=sentence) for sentence, row in rows.items()]
    return pytest.mark.parametrize(names, params)


def complaint(load: Callable[[str], object], path: str) -> str:
    """Return what is said about a file that is refused, after its path."""
    with pytest.raises(UsageError) as problem:
        load(path)
    assert problem.value.exit_status == 2
    assert problem.value.message.startswith(f"{path}:")
    return problem.value.message.removeprefix(f"{path}:")
