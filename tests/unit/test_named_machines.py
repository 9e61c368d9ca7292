"""Placements that are right to whoever knows the machine: each row a sentence."""

from collections.abc import Iterable
from typing import NamedTuple

import pytest
from values import Needs, machine

from gpulaunch.machine.catalog import machine_names
from gpulaunch.placement.fabric import fabric_of
from gpulaunch.placement.policies import place
from gpulaunch.placement.problem import PlacementProblem
from gpulaunch.profiles.pattern import PATTERNS, Pattern
from gpulaunch.records import as_dict

HEAVY_MIDDLE = Pattern(
    "heavy", collective=False, ranks=4, given=((0, 1, 1.0), (1, 2, 10.0), (2, 3, 1.0))
)


class Asked(NamedTuple):
    """So many GPUs of a machine on which some are busy."""

    machine: str
    count: int
    busy: Iterable[int] = ()
    pattern: Pattern = PATTERNS["ring"]
    sensitive: bool = True
    policy: str = "preserve"
    needs: Needs = Needs()

    def placed(self) -> tuple[int, ...] | None:
        """Return the GPUs in rank order."""
        topology = machine(self.machine)
        free = [gpu.index for gpu in topology.gpus if gpu.index not in {*self.busy}]
        problem = PlacementProblem(
            topology,
            free=free,
            admitted=free,
            count=self.count,
            pattern=self.pattern,
            sensitive=self.sensitive,
            model="cut",
            **as_dict(self.needs),
        )
        placement = place(problem, self.policy)
        return placement and placement.gpus


CHAIN, STAR, CUBE = PATTERNS["chain"], PATTERNS["star"], PATTERNS["stencil_3d"]

MINSKY, A100 = "power8-minsky", "a100-pcie-4gpu"
DGX1, DGX_A100, DGX_H100 = "dgx1-v100", "dgx-a100", "dgx-h100"
EIGHT_CARDS = "pcie-8gpu-workstation"
BOTH = Needs(required=frozenset((1, 6)))
FAST = Needs(least_gb_per_s=50)
WHOLE = Asked("summit", 2, busy=(5,), sensitive=False)


@pytest.mark.parametrize(
    ("sentence", "asked", "want"),
    [
        # bridges and pairs
        ("a bridged pair before any pair across sockets", Asked(A100, 2, busy=(0,)), (2, 3)),
        ("a lone GPU goes where a bridge is broken already", Asked(A100, 1, busy=(2,)), (3,)),
        ("a triangle that is whole is left alone", WHOLE, (3, 4)),
        ("two that talk take the pair with dual NVLink", Asked(MINSKY, 2, busy=(1,)), (2, 3)),
        ("the heavy edge gets a bridge", Asked(A100, 4, pattern=HEAVY_MIDDLE), (0, 2, 3, 1)),
        ("a pipeline goes between sockets once", Asked(A100, 4, pattern=CHAIN), (0, 1, 2, 3)),
        # the hybrid cube mesh
        ("the other square if one GPU is busy", Asked(DGX1, 4, busy=(2,)), (4, 5, 6, 7)),
        ("eight of a DGX-1 go round by double NVLinks", Asked(DGX1, 8), (0, 3, 2, 1, 5, 6, 7, 4)),
        ("a cube lies on the cube", Asked(DGX1, 8, pattern=CUBE), (0, 1, 3, 2, 4, 5, 7, 6)),
        ("a slow hop rides a double NVLink", Asked(DGX1, 4, pattern=CHAIN), (0, 3, 2, 1)),
        ("a double link across squares", Asked(DGX1, 2, busy=(0, 2, 3, 4, 6, 7)), (1, 5)),
        ("the GPU that 1 and 6 have a double link to", Asked(DGX1, 3, needs=BOTH), (1, 5, 6)),
        ("no pair of a DGX-1 has 50 GB/s", Asked(DGX1, 2, needs=FAST), None),
        # PCIe alone
        ("two of eight cards share a switch", Asked(EIGHT_CARDS, 2, busy=(0, 2)), (4, 5)),
        ("two of eight 4090 stay on one socket", Asked(EIGHT_CARDS, 2, busy=(0, 2, 4, 6)), (1, 3)),
        ("four stay on one socket, idle or not", Asked(EIGHT_CARDS, 4, busy=(3,)), (4, 5, 6, 7)),
        ("one goes beside a card whose switch is begun", Asked(EIGHT_CARDS, 1, busy=(5,)), (4,)),
        ("a star's centre", Asked(EIGHT_CARDS, 3, busy=(0, 5), pattern=STAR), (2, 1, 3)),
        # NVSwitch
        ("two share the socket that is begun", Asked(DGX_H100, 2, busy=(4,)), (5, 6)),
        ("four fill the socket that is idle", Asked(DGX_H100, 4, busy=(1,)), (4, 5, 6, 7)),
        ("an odd one goes to the odd one", Asked(DGX_A100, 1, busy=(5,), sensitive=False), (4,)),
        ("four of a rack fill sockets that are whole", Asked("nvl72", 4, busy=(0,)), (2, 3, 4, 5)),
    ],
)
def test_placement(sentence: str, asked: Asked, want: tuple[int, ...] | None) -> None:
    """On a machine that one knows the placement is the one that one would take."""
    assert asked.placed() == want, sentence


def test_the_lowest_indices_are_the_first_sockets() -> None:
    """On every shipped machine `baseline` is the FCFS of topo-aware-sc17: socket after socket."""
    for name in machine_names():
        socket = fabric_of(machine(name)).socket
        assert socket == sorted(socket), name
