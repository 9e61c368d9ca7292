"""The text of nvidia-smi topo -m as it is printed: read exactly, or refused."""

from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import pytest

from gpulaunch.errors import UsageError
from gpulaunch.machine.catalog import load_described_machine, load_text_machine
from gpulaunch.machine.gpu import parse_cpuset
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

LEGEND = """
Legend:

  X    = Self
  SYS  = further than any other
  NV#  = so many NVLinks
"""


def matrix(
    upper: str, cpus: str = "", nodes: str = "", gpus: str = "", *, counted: bool = False
) -> SmiMatrix:
    """Build a matrix from its upper triangle, CPU lists and nodes; "-" is what the text omits."""
    rows = [row.split() for row in upper.strip().splitlines()]
    count = len(rows) + 1 if rows else 1
    return SmiMatrix(
        tuple(map(int, gpus.split())) or tuple(range(count)),
        {(a, b): rows[a][b - a - 1] for a, b in combinations(range(count), 2)},
        tuple(parse_cpuset(word.strip("-")) for word in (cpus or "- " * count).split()),
        tuple(None if word == "-" else int(word) for word in (nodes or "- " * count).split()),
        counted,
    )


class Case(NamedTuple):
    """A text and what it says."""

    text: str
    want: SmiMatrix


CASES = {
    "newest form: underlined header, adapters with rows and legend, GPU NUMA ID behind two tabs": Case(  # noqa: E501
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA "
        "ID\x1b[0m\n"
        "GPU0\t X \tNV6\tNV6\tNV6\tPIX\tSYS\t0-15,32-47\t0\t\tN/A\n"
        "GPU1\tNV6\t X \tNV6\tNV6\tNODE\tSYS\t0-15,32-47\t0\t\tN/A\n"
        "GPU2\tNV6\tNV6\t X \tNV6\tSYS\tPIX\t16-31,48-63\t1\t\tN/A\n"
        "GPU3\tNV6\tNV6\tNV6\t X \tSYS\tNODE\t16-31,48-63\t1\t\tN/A\n"
        "NIC0\tPIX\tNODE\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
        "NIC1\tSYS\tSYS\tPIX\tNODE\tSYS\t X \t\t\t\t\n" + LEGEND + "\nNIC Legend:\n\n  NIC0: "
        "mlx5_0\n  NIC1: mlx5_1\n",
        matrix(
            "NV6 NV6 NV6\nNV6 NV6\nNV6",
            "0-15,32-47 0-15,32-47 16-31,48-63 16-31,48-63",
            "0 0 1 1",
        ),
    ),
    "old driver: SOC, adapters' rows short of cells, no NUMA column": Case(
        "\tGPU0\tGPU1\tGPU2\tmlx5_0\tmlx5_1\tCPU Affinity\n"
        "GPU0\t X \tNV1\tSOC\tPIX\tSOC\t1-1\n"
        "GPU1\tNV1\t X \tSOC\tPHB\tSOC\t1-1\n"
        "GPU2\tSOC\tSOC\t X \tSOC\tPXB\t1-1\n"
        "mlx5_0\tPIX\tPHB\tSOC\t X \n"
        "mlx5_1\tSOC\n",
        matrix("NV1 SYS\nSYS", "1-1 1-1 1-1"),
    ),
    "a cgroup hides the CPUs of one GPU, and the node of another": Case(
        "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV4\tSYS\t\t1\t\tN/A\n"
        "GPU1\tNV4\t X \tSYS\t4-7\t\t\tN/A\n"
        "GPU2\tSYS\tSYS\t X \t\t\t\tN/A\n",
        matrix("NV4 SYS\nSYS", "- 4-7 -", "1 - -"),
    ),
    "blanks for all tabs, GPUs that are NUMA nodes themselves, N/A for CPUs": Case(
        "        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      SYS     NODE    0-71            0               4\n"
        "GPU1    SYS      X      SYS     N/A             1               12\n"
        "NIC0    NODE    SYS      X\n",
        matrix("SYS", "0-71 -", "0 1"),
    ),
    "of a list of NUMA nodes the lowest has the CPUs, if the others stand apart": Case(
        "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tNODE\tSYS\t0-3\t0-3\n"
        "GPU1\tNODE\t X \tSYS\t0,2,4,6,8,10\t0,5-11\n"
        "GPU2\tSYS\tSYS\t X \t5\t7-7\n",
        matrix("NODE SYS\nSYS", "0-3 0,2,4,6,8,10 5", "- 0 7"),
    ),
    "a terminal's lines around it, and Windows' line ends": Case(
        "user@gpu1:~$ nvidia-smi topo -m\r\n"
        "\tGPU0\tGPU1\tCPU Affinity\r\n"
        "GPU0\t X \tPIX\t0-3\r\n"
        "GPU1\tPIX\t X \t0-3\r\n"
        "\r\n"
        "user@gpu1:~$ # done\r\n"
        "GPU0 and GPU1 share a switch\r\n",
        matrix("PIX", "0-3 0-3", "0 0", counted=True),
    ),
    "numbers with gaps, adapters between the GPUs": Case(
        "\tGPU2\tmlx5_0\tGPU3\tGPU10\tCPU Affinity\n"
        "GPU2\t X \tPIX\tNV2\tPHB\t0-3\n"
        "mlx5_0\tPIX\t X \tPHB\tSYS\n"
        "GPU3\tNV2\tNODE\t X \tSYS\t0-3\n"
        "GPU10\tPHB\tSYS\tSYS\t X \t4-7\n",
        matrix("NV2 PHB\nSYS", "0-3 0-3 4-7", "0 0 1", "2 3 10", counted=True),
    ),
}  # fmt: skip


def said(topology: Topology) -> dict[tuple[int, int], str]:
    """Return a topology's links as nvidia-smi would write them."""
    return {
        (link.a, link.b): f"NV{link.nvlink_count}" if link.nvlink_count else link.pcie_path
        for link in topology.links
    }


def machine(found: SmiMatrix) -> Topology:
    return text_topology(found, "box", "a text", "0")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_form(case: Case) -> None:
    """Each form of the matrix says what it said, and its machine has that and nothing else."""
    assert parse_topology_text(case.text) == case.want
    assert looks_like_matrix(case.text)
    topology = machine(case.want)
    assert said(topology) == case.want.cells
    assert tuple(gpu.cpuset for gpu in topology.gpus) == case.want.cpusets
    assert tuple(gpu.numa_node for gpu in topology.gpus) == case.want.numa_nodes
    assert {(gpu.memory_bytes, gpu.pcie_generation, gpu.pcie_width) for gpu in topology.gpus} == {
        (0, 3, 16)
    }
    assert {link.nvlink_gb_per_s for link in topology.links} == {
        25.0 * link.nvlink_count for link in topology.links
    }


# ----------------------------------------------------------------------------------------- mistakes

GOOD = """\
# three GPUs
\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV2\tSYS\tPIX\t0-3\t0
GPU1\tNV2\t X \tSYS\tPIX\t0-3\t0
GPU2\tSYS\tSYS\t X \tPHB\t4-7\t1
NIC0\tPIX\tPIX\tPHB\t X \t\t
"""
WORDS = "is not one of X, NV1 to NV99, PIX, PXB, PHB, NODE, SYS, SOC"
ONLY_ITSELF = "a GPU has 'X' under itself and nowhere else"


@pytest.mark.parametrize(
    ("sentence", "old", "new", "line", "want"),
    [
        ("X beside the diagonal", "GPU1\tNV2\t X \tSYS", "GPU1\tNV2\t X \t X ", 4,
         f"row GPU1 has 'X' under GPU2: {ONLY_ITSELF}"),
        ("cells that contradict each other", "GPU2\tSYS\tSYS", "GPU2\tSYS\tNODE", 5,
         "row GPU1 has 'SYS' under GPU2, row GPU2 has 'NODE' under GPU1"),
        ("a word that is a whole page", "GPU0\t X \tNV2", "GPU0\t X \t" + "W" * 999, 3,
         f"row GPU0: '{'W' * 40}...' {WORDS}"),
        ("control characters", "GPU0\t X \tNV2", "GPU0\t X \t'\x07", 3,
         rf"row GPU0: ''\x07' {WORDS}"),
        ("a row of more cells than columns", "GPU2\tSYS\tSYS\t X \tPHB",
         "GPU2\tSYS\tSYS\t X \tPHB\tPHB", 5,
         "row GPU2: 'PHB' after its connections is neither a list such as 0-19,40-59 nor N/A"),
        ("a missing row", "GPU1\tNV2\t X \tSYS\tPIX\t0-3\t0\n", "", 2, "column GPU1 has no row"),
        ("a doubled row", "NIC0\tPIX", "GPU2\tSYS\tSYS\t X \tPHB\t4-7\t1\nNIC0\tPIX", 6,
         "row GPU2 is here and in line 5"),
        ("a row without a column", "GPU2\tSYS", "GPU7\tSYS", 5, "row GPU7 has no column"),
        ("a column twice", "GPU0\tGPU1\tGPU2", "GPU0\tGPU1\tGPU1", 2,
         "column 'GPU1' is there twice"),
        ("columns that do not ascend", "GPU0\tGPU1\tGPU2", "GPU0\tGPU2\tGPU1", 2,
         "column GPU1 is after GPU2: they must ascend"),
        ("an adapter behind the titles", "NIC0\tCPU Affinity", "CPU Affinity\tNIC0", 2,
         "column 'NIC0' is after 'CPU Affinity'"),
        ("no header", "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\n", "", 2,
         "row GPU0 is before any line of column names"),
        ("a second matrix", "NIC0\tPIX", "\tGPU0\tGPU1\nNIC0\tPIX", 6,
         "a second matrix begins here: save each in a file of its own"),
        ("CPUs or a node, without tabs", "GPU2\tSYS\tSYS\t X \tPHB\t4-7\t1",
         "GPU2 SYS SYS X PHB 1", 5,
         "row GPU2 has '1' after its connections, for 2 columns"),
    ],
)  # fmt: skip
def test_mistakes(sentence: str, old: str, new: str, line: int, want: str) -> None:
    """A mistake in the text is named with its line, row and word."""
    assert GOOD.count(old) == 1, sentence
    assert refusal(GOOD.replace(old, new)) == (line, want), sentence


def refusal(text: str) -> tuple[int, str]:
    with pytest.raises(TextError) as problem:
        parse_topology_text(text)
    return problem.value.line, problem.value.message


@pytest.mark.parametrize(
    ("titles", "cells", "cpus", "node"),
    [
        ("CPU Affinity", "\t0-3", "0-3", None),
        ("NUMA Affinity", "\t1", "", 1),
        ("CPU Affinity\tNUMA Affinity", "\t\t1", "", 1),
        ("CPU Affinity\tNUMA Affinity", "\tN/A\t1", "", 1),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t\t1\t\tN/A", "", 1),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t0-3\t\t\tN/A", "0-3", None),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", " \t\t1\t\tN/A", "", 1),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t0-3\t1\t\t4", "0-3", 1),
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


NOTHING = "no line of column names such as 'GPU0 GPU1 CPU Affinity', so no matrix"


@pytest.mark.parametrize(
    ("sentence", "text", "line", "want"),
    [
        ("an empty text", "", 1, NOTHING),
        ("adapters without a GPU", "\tNIC0\tNIC1\nNIC0\t X \tPIX\nNIC1\tPIX\t X \n", 1, NOTHING),
        ("another of its commands", "GPU 0: Tesla (UUID: GPU-1)\n", 1, NOTHING),
        ("quoted in mail", "> \tGPU0\tGPU1\n> GPU0\t X \tPIX\n> GPU1\tPIX\t X \n", 1, NOTHING),
        ("wrapped by a narrow terminal", "\tGPU0\tGPU1\tCPU Af\nfinity\nGPU0\t X \tPIX\t0\n", 1,
         "column 'CPU' is not one that nvidia-smi prints"),
        ("a text cut off within a row", "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1", 3,
         "row GPU1 has 0 of 2 cells"),
    ],
)  # fmt: skip
def test_other_texts(sentence: str, text: str, line: int, want: str) -> None:
    """A text that is not a matrix as printed is refused."""
    assert refusal(text) == (line, want), sentence


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


def wires(found: SmiMatrix) -> tuple[list[int], list[int]]:
    """Return each GPU's NVLinks into a switch, and the direct ones of each pair, in a machine."""
    topology = machine(found)
    assert said(topology) == found.cells
    direct = [link.nvlink_count for link in topology.links if link.kind == "nvlink"]
    return [gpu.nvswitch_links for gpu in topology.gpus], direct


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
    assert wires(matrix(upper)) == (ports, direct), sentence


@pytest.mark.parametrize(
    ("sentence", "upper", "nodes", "want"),
    [
        ("nothing is known", "NV4", "- -", "SYS"),
        ("NUMA nodes differ", "NV4", "0 1", "SYS"),
        ("one NUMA node", "NV4", "1 1", "NODE"),
        ("only one node is known", "NV4", "1 -", "SYS"),
    ],
)
def test_pcie_below_nvlink(sentence: str, upper: str, nodes: str, want: str) -> None:
    """Two GPUs with NVLinks are no nearer over PCIe than their NUMA nodes say."""
    count = len(nodes.split())
    assert machine(matrix(upper, "- " * count, nodes)).links[0].pcie_path == want, sentence


def test_source_tells_what_is_assumed() -> None:
    """The source line tells what was assumed of links, and what the GPUs' numbers were."""
    assert machine(matrix("NV2", gpus="3 5")).source == (
        "a text; NVLink 3 is assumed (25 GB/s per link and direction), as the text does not tell; "
        "PCIe 3.0 with 16 lanes is assumed; its GPUs 3, 5 are counted from 0 here"
    )
    assert machine(matrix("PIX")).source == "a text; PCIe 3.0 with 16 lanes is assumed"


@pytest.mark.parametrize(
    ("cell", "count", "want"),
    [
        ("NV18", 8, (4, "9.0")),
        ("NV12", 8, (3, None)),
        ("NV6", 16, (3, None)),
        ("NV13", 2, (4, "9.0")),
    ],
)
def test_nvlink_by_number(cell: str, count: int, want: tuple[int, str | None]) -> None:
    """More NVLinks than A100 has are taken for Hopper's, which the source says."""
    topology = machine(matrix("\n".join(f"{cell} " * (count - 1 - a) for a in range(count - 1))))
    assert (topology.gpus[0].nvlink_version, topology.gpus[0].compute_capability) == want
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


@pytest.mark.parametrize(
    ("model", "nvlink", "capability"),
    [("NVIDIA H100 80GB HBM3", 4, "9.0"), ("b200", 5, "10.0"), ("RTX A6000", 3, "8.6")],
)
def test_model_on_import(tmp_path: Path, model: str, nvlink: int, capability: str) -> None:
    """--gpu-model tells what the text cannot, with the NVLink version of its generation."""
    path = tmp_path / "a.txt"
    path.write_text(GOOD)
    topology = load_text_machine(str(path), gpu_model=model)
    gpu = topology.gpus[0]
    assert (gpu.nvlink_version, gpu.compute_capability) == (nvlink, capability)
    assert "; the GPU model is given as " in topology.source


@pytest.mark.parametrize(
    ("model", "want"),
    [("Voodoo2", "unknown GPU model 'Voodoo2'"), ("A100", "GPU model 'A100' can be 4 models")],
)
def test_model_that_cannot_be(tmp_path: Path, model: str, want: str) -> None:
    """An unknown model, or one that can be several, is refused with those that are known."""
    path = tmp_path / "a.txt"
    path.write_text(GOOD)
    with pytest.raises(UsageError) as problem:
        load_text_machine(str(path), gpu_model=model)
    assert problem.value.message == want
    assert "A100 SXM4 80 GB" in str(problem.value.hint)


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
    with pytest.raises(UsageError, match=r"^unknown topology 'saved'$"):
        load_described_machine("saved")


NEITHER = "neither a matrix of 'nvidia-smi topo -m' as printed nor a machine file in TOML"


@pytest.mark.parametrize(
    ("name", "text", "want"),
    [
        ("a.txt", GOOD.replace("SYS\tSYS", "SYS\tNODE"),
         "5: row GPU1 has 'SYS' under GPU2, row GPU2 has 'NODE' under GPU1"),
        ("a.txt", "Model: Tesla\n", f"1: {NEITHER}: expected '=' after a key in a key/value pair"),
        ("a.toml", "\n\nname = \n", "3: invalid value"),
        ("a.txt", "", " key 'name' is missing"),
    ],
)  # fmt: skip
def test_mistakes_in_a_file(tmp_path: Path, name: str, text: str, want: str) -> None:
    """A wrong text is told from wrong TOML, each with path and line."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError) as problem:
        load_described_machine(str(path))
    assert problem.value.message == f"{path}:{want}"


def test_toml_stays_toml(tmp_path: Path) -> None:
    """A machine file that quotes such a text is a machine file."""
    path = tmp_path / "a.txt"
    path.write_text(
        f'name = "quoting"\nsource = "a text"\ndescription = """\n{GOOD}"""\n'
        'gpus = {count = 2, model = "GPU"}\npcie = {generation = 3, width = 16}\n'
    )
    assert load_described_machine(str(path))[0].name == "quoting"


# ------------------------------------------------------------------------------------------ damage


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_any_damage(case: Case) -> None:
    """A text without one of its characters, or without its end, is read or refused by a line."""
    for i in range(len(case.text)):
        for text in (case.text[:i] + case.text[i + 1 :], case.text[:i]):
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
