"""The text of nvidia-smi topo -m as it is printed and published: read exactly, or refused."""

from itertools import combinations, product
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from toml_parser import tomllib
from values import cases, complaint

from gpulaunch.errors import UsageError
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.gpu import format_cpuset, parse_cpuset
from gpulaunch.machine.smi_text import (
    SmiMatrix,
    TextError,
    looks_like_matrix,
    nodes_by_cpus,
    parse_topology_text,
    text_topology,
)
from gpulaunch.machine.topology import Topology
from gpulaunch.records import as_list

FILE = Path(__file__).parents[1] / "topology_texts.toml"
DATA: dict[str, Any] = tomllib.loads(FILE.read_text())
TEXTS = {entry["source"]: entry for entry in DATA["text"]}


def cells(topology: Topology) -> list[str]:
    """Return a topology's links as nvidia-smi would write them, pair by pair."""
    return [
        f"NV{link.nvlink_count}" if link.nvlink_count else link.pcie_path for link in topology.links
    ]


@pytest.mark.parametrize("entry", TEXTS.values(), ids=TEXTS)
def test_published_text(entry: dict[str, Any], tmp_path: Path) -> None:
    """--topology FILE has the text's links, CPUs and nodes, or refuses it for what it is.

    What the text does not tell is assumed: PCIe 3.0 with 16 lanes, 25 GB/s for each NVLink.
    """
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
    assert cells(topology) == entry["links"].replace(" / ", " ").split()
    assert " ".join(format_cpuset(gpu.cpuset) or "-" for gpu in gpus) == entry["cpus"]
    nodes = ["-" if gpu.numa_node is None else str(gpu.numa_node) for gpu in gpus]
    assert " ".join(nodes) == entry["nodes"]
    facts = {(gpu.memory_bytes, gpu.pcie_generation, gpu.pcie_width) for gpu in gpus}
    assert facts == {(0, 3, 16)}
    assert {link.nvlink_gb_per_s - 25 * link.nvlink_count for link in topology.links} <= {0}


# ----------------------------------------------------------------------------------------- mistakes

GOOD = """\
# three GPUs
\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV2\tSYS\tPIX\t0-3\t0
GPU1\tNV2\t X \tSYS\tPIX\t0-3\t0
GPU2\tSYS\tSYS\t X \tPHB\t4-7\t1
NIC0\tPIX\tPIX\tPHB\t X \t\t
"""


@cases(DATA["mistakes"], "old", "new", "line", "want")
def test_mistakes(old: str, new: str, line: int, want: str) -> None:
    """A mistake in the text is named with its line, row and word."""
    assert GOOD.count(old) == 1
    assert refusal(GOOD.replace(old, new)) == (line, want)


def refusal(text: str) -> tuple[int, str]:
    with pytest.raises(TextError) as problem:
        parse_topology_text(text)
    return problem.value.line, problem.value.message


@pytest.mark.parametrize(
    ("titles", "cells", "cpus", "node"),
    [
        ("CPU Affinity", "\t0-3", "0-3", None),
        ("CPU Affinity\tNUMA Affinity", "\t\t1", "", 1),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t\t1\t\tN/A", "", 1),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t0-3\t\t\tN/A", "0-3", None),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", " \t\t1\t\tN/A", "", 1),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t4", None, None),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", " 0-3 1", None, None),
    ],
)
def test_affinities(titles: str, cells: str, cpus: str | None, node: int | None) -> None:
    """With tabs an empty cell is told from a wide one; what can be read in two ways is refused."""
    text = f"\tGPU0\t{titles}\nGPU0\t X{cells}\n"
    if cpus is None:
        with pytest.raises(
            TextError, match=r"^row GPU0 has .* after its connections, for 3 columns$"
        ):
            parse_topology_text(text)
    else:
        found = parse_topology_text(text)
        assert as_list(found)[2:4] == [(parse_cpuset(cpus),), (node,)]


def test_no_slip_is_believed() -> None:
    """A single cell between GPUs cannot change unnoticed."""
    cells = [(row, column) for row in range(3) for column in range(3)]
    for (row, column), new in product(cells, ["", "X", "NV1", "PIX", "OK", "0-3", "N/A"]):
        lines = GOOD.split("\n")
        words = lines[2 + row].split("\t")
        words[1 + column] = new
        text = "\n".join([*lines[: 2 + row], "\t".join(words), *lines[3 + row :]])
        if row == column and new == "X":
            assert parse_topology_text(text) == parse_topology_text(GOOD)
        else:
            refusal(text)


# -------------------------------------------------------------------------------------- the machine


def matrix(upper: str, nodes: str = "", gpus: str = "") -> SmiMatrix:
    """Build a matrix from its upper triangle, NUMA nodes and indices; "-" is what is not told."""
    rows = [row.split() for row in upper.strip().splitlines()]
    count = len(rows) + 1
    return SmiMatrix(
        tuple(map(int, gpus.split())) or tuple(range(count)),
        {(a, b): rows[a][b - a - 1] for a, b in combinations(range(count), 2)},
        (frozenset(),) * count,
        tuple(None if word == "-" else int(word) for word in (nodes or "- " * count).split()),
        False,
    )


def machine(found: SmiMatrix) -> Topology:
    return text_topology(found, "box", "a text", "0")


@pytest.mark.parametrize(
    ("sentence", "upper", "ports", "direct"),
    [
        ("more in a row than any GPU has", "NV12 NV12\nNV12", [12, 12, 12], []),
        ("so many or fewer", "NV9 NV9\nNV9", [0, 0, 0], [9, 9, 9]),
        ("a GPU with fewer links is the narrow end of its pairs",
         "NV18 NV17 NV18\nNV17 NV18\nNV17", [18, 18, 17, 18], []),
        ("a pair with fewer", "NV12 NV12 NV12\nNV12 NV11\nNV12", [0, 0, 0, 0],
         [12, 12, 12, 12, 11, 12]),
        ("a pair without", "NV12 NV12 SYS\nNV12 NV12\nNV12", [0, 0, 0, 0], [12, 12, 12, 12, 12]),
        ("a GPU beside it with a direct link", "NV12 NV12 NV1\nNV12 SYS\nSYS", [12, 12, 12, 0],
         [1]),
    ],
)  # fmt: skip
def test_switch(sentence: str, upper: str, ports: list[int], direct: list[int]) -> None:
    """More NVLinks in a row than any GPU has end in a switch, if one explains the whole matrix."""
    topology = machine(matrix(upper))
    assert cells(topology) == upper.split(), sentence
    assert [gpu.nvswitch_links for gpu in topology.gpus] == ports, sentence
    links = [link.nvlink_count for link in topology.links if link.kind == "nvlink"]
    assert links == direct, sentence


@pytest.mark.parametrize(
    ("nodes", "want"), [("- -", "SYS"), ("0 1", "SYS"), ("1 1", "NODE"), ("1 -", "SYS")]
)
def test_pcie_below_nvlink(nodes: str, want: str) -> None:
    """Two GPUs with NVLinks are no nearer over PCIe than their NUMA nodes say."""
    assert machine(matrix("NV4", nodes)).links[0].pcie_path == want


def test_source_tells_what_is_assumed() -> None:
    """The source line tells what was assumed of links, and what the GPUs' numbers were."""
    assert machine(matrix("NV2", gpus="3 5")).source == (
        "a text; NVLink 3 is assumed (25 GB/s per link and direction), as the text does not tell; "
        "PCIe 3.0 with 16 lanes is assumed; its GPUs 3, 5 are counted from 0 here"
    )
    assert machine(matrix("PIX")).source == "a text; PCIe 3.0 with 16 lanes is assumed"


def test_nvlink_by_number() -> None:
    """More NVLinks than A100 has are taken for Hopper's, which the source says."""
    for cell, count, *want in (("NV18", 8, 4, "9.0"), ("NV12", 8, 3, None), ("NV13", 2, 4, "9.0")):
        upper = "\n".join(f"{cell} " * (count - 1 - a) for a in range(count - 1))
        topology = machine(matrix(upper))
        assert [topology.gpus[0].nvlink_version, topology.gpus[0].compute_capability] == want
        assert ("of Hopper is assumed" in topology.source) == (want[0] == 4)


@pytest.mark.parametrize(
    ("sentence", "cpus", "far", "want"),
    [
        ("two sockets", ["a", "a", "b", "b"], [], "0011"),
        ("the lists' order is that of the CPUs", ["b", "a"], [], "10"),
        ("one hidden list", ["a", "", "b"], [], "0-1"),
        ("lists that overlap", ["a", "ab"], [], "--"),
        ("equal lists across sockets", ["a", "a"], [(0, 1)], "--"),
        ("one GPU", ["a"], [], "-"),
    ],
)
def test_nodes_by_cpus(
    sentence: str, cpus: list[str], far: list[tuple[int, int]], want: str
) -> None:
    """GPUs with equal CPU lists are in one node, unless something speaks against it."""
    got = nodes_by_cpus([frozenset(map(ord, text)) for text in cpus], far)
    assert "".join("-" if node is None else str(node) for node in got) == want, sentence


# -------------------------------------------------------------------------------------------- files


def test_topology_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--topology takes such a text by any path, or by a name in .txt; its stem is the name."""
    text = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"
    path = tmp_path / "node 7 (gpu).txt"
    path.write_text(text)
    topology, found_at = load_described_machine(str(path))
    assert (topology.name, found_at) == ("node-7--gpu-", str(path))
    assert topology.digest == f"{crc32(text.encode()):08x}"
    assert topology.source.startswith("nvidia-smi topo -m in node 7 (gpu).txt; NVLink 3 is assumed")
    monkeypatch.chdir(tmp_path)
    assert load_described_machine(path.name) == (topology, str(path))
    path.rename(tmp_path / "saved")
    assert load_described_machine("./saved")[0].name == "saved"
    with pytest.raises(UsageError, match=r"^unknown topology 'saved'$") as problem:
        load_described_machine("saved")
    assert str(problem.value.hint).endswith("or give ./saved")


def test_mistakes_in_a_file(tmp_path: Path) -> None:
    """A wrong text is told from wrong TOML, each with path and line.

    A machine file that quotes such a text is a machine file.
    """
    path = tmp_path / "a.txt"
    neither = "neither a matrix of 'nvidia-smi topo -m' as printed nor a machine file in TOML"
    for text, want in (
        ("Model: Tesla\n", f"1: {neither}: expected '=' after a key in a key/value pair"),
        ("", " key 'name' is missing"),
    ):
        path.write_text(text)
        assert complaint(load_described_machine, str(path)) == want
    path.write_text(
        f'name = "quoting"\nsource = "a text"\ndescription = """\n{GOOD}"""\n'
        'gpus = {count = 2, model = "GPU"}\npcie = {generation = 3, width = 16}\n'
    )
    assert load_described_machine(str(path))[0].name == "quoting"


# ------------------------------------------------------------------------------------------ damage

FORMS = ("newest form", "old driver", "a cgroup hides", "numbers with gaps")


@pytest.mark.parametrize("form", FORMS)
def test_any_damage(form: str) -> None:
    """A text without one of its characters, or without its end, is read or refused by a line."""
    (found,) = (entry["text"] for name, entry in TEXTS.items() if name.startswith(form, 9))
    whole = found.lstrip("\n")
    for i in range(len(whole)):
        for text in (whole[:i] + whole[i + 1 :], whole[:i]):
            looks_like_matrix(text)
            problem = damage_found(text)
            assert problem is None or 1 <= problem.line <= text.count("\n") + 1
            assert problem is None or problem.message.isprintable()


def damage_found(text: str) -> TextError | None:
    """Return why a text is refused; what is read of it stands in a row of each GPU of a pair."""
    try:
        found = parse_topology_text(text)
    except TextError as problem:
        return problem
    rows = [line.replace("SOC", "SYS").split() for line in text.split("\n")]
    for pair, cell in found.cells.items():
        for i in pair:
            name = f"GPU{found.gpus[i]}"
            assert any(row[:1] == [name] and cell in row for row in rows), (pair, cell)
    return None
