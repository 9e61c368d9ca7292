"""Inputs as large as they may be."""

import pytest
from test_nodes import BARE, several

from gpulaunch.machine.read_description import MAX_GPUS, described_topology


@pytest.mark.parametrize("count", [MAX_GPUS // 8])
def test_most_machines(count: int) -> None:
    """Many machines of one GPU may be described; in the long form as many as there may be GPUs."""
    document = several(count, **BARE)
    assert [gpu.node for gpu in described_topology(document, "").gpus] == list(range(count))
