"""What people publish: read rightly, or refused with what was found; never a wrong link."""

from pathlib import Path
from typing import Any

import pytest

from gpulaunch.errors import UsageError
from gpulaunch.files.toml import tomllib
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.gpu import format_cpuset
from gpulaunch.machine.topology import Topology

FILE = Path(__file__).parents[1] / "topology_texts.toml"
TEXTS: list[dict[str, Any]] = tomllib.loads(FILE.read_text())["text"]


def said(topology: Topology) -> str:
    """Return the upper triangle of a topology's links, as nvidia-smi would write them."""
    rows: dict[int, list[str]] = {}
    for link in topology.links:
        name = f"NV{link.nvlink_count}" if link.nvlink_count else link.pcie_path
        rows.setdefault(link.a, []).append(name)
    return " / ".join(" ".join(row) for row in rows.values())


@pytest.mark.parametrize("entry", TEXTS, ids=[entry["source"] for entry in TEXTS])
def test_published_text(entry: dict[str, Any], tmp_path: Path) -> None:
    """--topology FILE has the text's links, CPUs and nodes, or refuses it for what it is."""
    file = tmp_path / "a.txt"
    file.write_text(entry["text"].lstrip("\n"))
    if "refused" in entry:
        with pytest.raises(UsageError) as problem:
            load_described_machine(str(file))
        assert entry["refused"] in problem.value.message
        assert problem.value.message.startswith(f"{file}:")
        return
    topology, _ = load_described_machine(str(file))
    gpus = topology.gpus
    assert said(topology) == entry["links"]
    assert " ".join(format_cpuset(gpu.cpuset) or "-" for gpu in gpus) == entry["cpus"]
    nodes = ["-" if gpu.numa_node is None else str(gpu.numa_node) for gpu in gpus]
    assert " ".join(nodes) == entry["nodes"]
