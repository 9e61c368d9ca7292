"""Inputs as large as they may be."""

from test_nodes import BARE, several

from gpulaunch.machine.described import MAX_GPUS, described_topology


def test_most_machines() -> None:
    """As many machines of one GPU may be described as there may be GPUs."""
    document = several(MAX_GPUS, **BARE)
    assert [gpu.node for gpu in described_topology(document, "").gpus] == list(range(MAX_GPUS))
