"""Several outputs in one file, in the forms of mail and web pages: what is read of them."""

from pathlib import Path

import pytest

from gpulaunch.errors import UsageError
from gpulaunch.machine.catalog import load_described_machine, load_text_machine
from gpulaunch.machine.pasted_text import TextError
from gpulaunch.machine.smi_affinity import nodes_by_cpus
from gpulaunch.machine.smi_text import parse_topology_text
from gpulaunch.machine.topology import Topology

PLAIN = """\
\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tSYS\tPIX\t0-31\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tPIX\t0-31\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPIX\tPIX\tSYS\t X \t\t\t\t
"""
MARKDOWN = """\
| | GPU0 | GPU1 | **GPU2** | NIC0 | CPU Affinity | NUMA Affinity | GPU NUMA ID |
|---|:---:|:---:|---|---|---|---|---|
| GPU0 | X | `NV4` | SYS | PIX | 0-31 | 0 | N/A |
| GPU1 | `NV4` | X | SYS | PIX | 0-31 | 0 | N/A |
| GPU2 | SYS | SYS | X | SYS | 32-63 | 1 | N/A |
"""
WRAPPED = """\
        GPU0    GPU1    GPU2    NIC0    CPU Af
finity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV4     SYS     PIX     0-3
1      0               N/A
GPU1    NV4      X      SYS     PIX     0-3
1      0               N/A
GPU2    SYS     SYS      X      SYS     32-
63     1               N/A
NIC0    PIX     PIX     SYS      X
"""


def marked(mark: str) -> str:
    return "".join(mark + line for line in PLAIN.splitlines(keepends=True))


@pytest.mark.parametrize(
    ("sentence", "text"),
    [
        ("quoted in mail", "On Monday Ann wrote:\n" + marked("> ")),
        ("quoted twice", marked("> > ")),
        ("quoted without a blank", marked(">")),
        ("shell comments", "set -e\n" + marked("# ")),
        ("comments of C++", marked("// ")),
        ("a table in Markdown", MARKDOWN),
        ("a quoted table in Markdown", MARKDOWN.replace("|", "> |", 1).replace("\n|", "\n> |")),
        ("a table of box-drawing characters", MARKDOWN.replace("|", "│")),
        ("wrapped by a narrow terminal", WRAPPED),
        ("adapters' cells run together", PLAIN.replace("PIX\t0", "PIXNODE\t0")),
        ("adapters' cells nobody knows", PLAIN.replace("PIX\t0", "?\t0")),
        ("the same matrix twice", PLAIN + PLAIN),
        ("no-break spaces", PLAIN.replace("\t", "\xa0\xa0 ")),
    ],
)
def test_forms_of_pasting(sentence: str, text: str) -> None:
    """Marks around the lines and what stands under adapters change nothing."""
    assert parse_topology_text(text) == parse_topology_text(PLAIN), sentence


def load(directory: Path, text: str, model: str | None = None) -> Topology:
    file = directory / "box.txt"
    file.write_text(text)
    return load_text_machine(str(file), gpu_model=model)


@pytest.mark.parametrize("form", [marked("# "), marked("> "), MARKDOWN, WRAPPED])
def test_forms_as_a_topology(tmp_path: Path, form: str) -> None:
    """--topology reads them as --import does, and takes none for TOML."""
    file = tmp_path / "box.txt"
    file.write_text(form)
    assert load_described_machine(str(file))[0] == load(tmp_path, form)
    assert [gpu.numa_node for gpu in load(tmp_path, form).gpus] == [0, 0, 1]


@pytest.mark.parametrize(
    ("header", "rows", "want"),
    [
        ("\tGPU0\tGPU1\tCPU\n Aff\ninity", ["\tX\tPIX\t0", "\tPIX\tX\t1"], [[0], [1]]),
        ("\tGPU0\tGPU1\tCPU Affinity", ["\tX\tPIX\t0,\n2", "\tPIX\tX\t1,\n3"], [[0, 2], [1, 3]]),
        ("\tGPU0\tGPU1\tCPU Affinity", ["\tX\tP\nIX\t0", "\tPIX\tX\t1"], [[0], [1]]),
    ],
    ids=["header", "list of CPUs", "connection"],
)
def test_wrapped_lines(header: str, rows: list[str], want: list[list[int]]) -> None:
    """A wrapped line is joined where only one way of joining it can be read."""
    found = parse_topology_text(f"{header}\nGPU0{rows[0]}\nGPU1{rows[1]}\n")
    assert [sorted(cpus) for cpus in found.cpusets] == want


def test_wrapped_line_that_can_be_two() -> None:
    """A piece that is a node, or the end of a CPU's number, is refused."""
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\tX\t0-1\n2\n"
    with pytest.raises(TextError, match=r"^row GPU0 is wrapped, and its pieces can"):
        parse_topology_text(text)


STATES = (
    "\n$ nvidia-smi topo -p2p {}\n \tGPU0\tGPU1\tGPU2\n"
    " GPU0\tX\t{}\t{}\n GPU1\t{}\tX\t{}\n GPU2\t{}\t{}\tX\n"
)


@pytest.mark.parametrize(
    ("sentence", "states", "want"),
    [
        ("reading works", STATES.format("r", *["OK"] * 6), True),
        ("reading does not work over PCIe", STATES.format("r", "OK", "NS", "OK", "NS", "NS", "NS"),
         False),
        ("writing does not work", STATES.format("w", *["CNS"] * 6), False),
        ("it differs", STATES.format("r", "OK", "NS", "OK", "OK", "NS", "OK"), None),
        ("about NVLink alone", STATES.format("n", "OK", *["NS"] * 5), None),
        ("of an unknown kind", STATES.format("", *["NS"] * 6), None),
    ],
)  # fmt: skip
def test_peer_to_peer(tmp_path: Path, sentence: str, states: str, want: bool | None) -> None:
    """Matrices of topo -p2p r and w beside the matrix tell whether PCIe carries peer-to-peer."""
    topology = load(tmp_path, "$ nvidia-smi topo -m\n" + PLAIN + states)
    assert {link.peer_to_peer for link in topology.links} == {want}, sentence


def test_second_matrix_with_pcie_paths(tmp_path: Path) -> None:
    """The matrix of topo -mp tells the PCIe paths below NVLinks, in either order."""
    below = PLAIN.replace("NV4", "PHB")
    for text in (PLAIN + below, below + PLAIN):
        link = load(tmp_path, text).links[0]
        assert (link.nvlink_count, link.pcie_path) == (4, "PHB")


@pytest.mark.parametrize(
    ("sentence", "second"),
    [
        ("other links", PLAIN.replace("SYS\tPIX", "NODE\tPIX").replace("SYS\tSYS", "NODE\tNODE")),
        ("other GPUs", "\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tPIX\tX\n"),
        ("other NVLinks", PLAIN.replace("NV4", "NV2")),
    ],
)
def test_two_machines(sentence: str, second: str) -> None:
    """Two matrices that contradict each other are two machines."""
    with pytest.raises(TextError) as problem:
        parse_topology_text(PLAIN + second)
    assert problem.value.message.startswith("a second matrix begins here, of "), sentence


LIST = "".join(f"GPU {i}: NVIDIA A100-SXM4-40GB (UUID: GPU-{i})\n" for i in range(3))
TABLE = "".join(
    f"|   {i}  NVIDIA A100-SXM4-40GB          On  | 00000000:0{i}:00.0 Off |    0 |\n"
    for i in range(3)
)
QUERY = "".join(
    f"""GPU 00000000:0{i}:00.0
    Product Name                          : NVIDIA A100-SXM4-40GB
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 1
                Device Current            : 1
            Link Width
                Max                       : 16x
                Current                   : 8x
    FB Memory Usage
        Total                             : 40960 MiB
"""
    for i in range(3)
)


@pytest.mark.parametrize("beside", [LIST, TABLE, QUERY], ids=["-L", "table", "-q"])
@pytest.mark.parametrize("first", [True, False])
def test_models_beside_the_matrix(tmp_path: Path, beside: str, first: bool) -> None:
    """What nvidia-smi -L, -q or its table says of the models becomes the GPUs' and the links'."""
    topology = load(tmp_path, beside + PLAIN if first else PLAIN + beside)
    assert {gpu.model for gpu in topology.gpus} == {"NVIDIA A100-SXM4-40GB"}
    assert {gpu.compute_capability for gpu in topology.gpus} == {"8.0"}
    assert topology.links[0].nvlink_version == 3
    assert "NVLink 3 is assumed" not in topology.source


def test_query_beside_the_matrix(tmp_path: Path) -> None:
    """nvidia-smi -q also tells the memory and the PCIe slots, at their best."""
    gpu = load(tmp_path, PLAIN + QUERY).gpus[2]
    assert (gpu.memory_bytes, gpu.pcie_generation, gpu.pcie_width) == (40960 << 20, 4, 16)


def test_models_of_other_gpus(tmp_path: Path) -> None:
    """A list of fewer GPUs than the matrix has is of another machine."""
    with pytest.raises(UsageError, match="2 GPUs have a name in this text, and its matrix has 3"):
        load(tmp_path, PLAIN + LIST.rsplit("GPU 2", 1)[0])


@pytest.mark.parametrize(
    ("model", "nvlink", "capability"),
    [
        ("NVIDIA H100 80GB HBM3", 4, "9.0"),
        ("b200", 5, "10.0"),
        ("Tesla V100-SXM2-16GB", 2, "7.0"),
        ("RTX A6000", 3, "8.6"),
    ],
)
def test_model_on_import(tmp_path: Path, model: str, nvlink: int, capability: str) -> None:
    """--gpu-model tells what the text cannot, with the NVLink version of its generation."""
    topology = load(tmp_path, PLAIN, model)
    gpu = topology.gpus[0]
    assert (gpu.nvlink_version, gpu.compute_capability) == (nvlink, capability)
    assert f"the GPU model is given as {model}" in topology.source


@pytest.mark.parametrize(
    ("model", "want"),
    [("Voodoo2", "unknown GPU model 'Voodoo2'"), ("A100", "GPU model 'A100' can be 4 models")],
)
def test_model_that_cannot_be(tmp_path: Path, model: str, want: str) -> None:
    """An unknown model, or one that can be several, is refused with those that are known."""
    with pytest.raises(UsageError) as problem:
        load(tmp_path, PLAIN, model)
    assert problem.value.message == want
    assert "A100 SXM4 80 GB" in str(problem.value.hint)


def uniform(cell: str, count: int) -> str:
    rows = ["\t" + "\t".join(f"GPU{b}" for b in range(count))]
    for a in range(count):
        cells = [" X " if a == b else cell for b in range(count)]
        rows.append("\t".join([f"GPU{a}", *cells]))
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("cell", "count", "want"),
    [
        ("NV18", 8, (4, "9.0")),
        ("NV6", 4, (4, "9.0")),
        ("NV12", 8, (3, None)),
        ("NV6", 16, (3, None)),
        ("NV4", 4, (3, None)),
        ("NV13", 2, (4, "9.0")),
    ],
)
def test_nvlink_by_number(
    tmp_path: Path, cell: str, count: int, want: tuple[int, str | None]
) -> None:
    """More NVLinks than A100 has are taken for Hopper's, which the source says."""
    topology = load(tmp_path, uniform(cell, count))
    assert (topology.gpus[0].nvlink_version, topology.gpus[0].compute_capability) == want
    assert ("of Hopper is assumed" in topology.source) == (want[0] == 4)


@pytest.mark.parametrize(
    ("sentence", "cpus", "named", "far", "want"),
    [
        ("two sockets", ["a", "a", "b", "b"], "----", [], "0011"),
        ("the lists' order is that of the CPUs", ["b", "a"], "--", [], "10"),
        ("one hidden list", ["a", "", "b"], "---", [], "0-1"),
        ("a list with a named node", ["a", "b", "a"], "3--", [], "3-3"),
        ("lists that overlap", ["a", "ab"], "--", [], "--"),
        ("equal lists across sockets", ["a", "a"], "--", [(0, 1)], "--"),
        ("one GPU", ["a"], "-", [], "-"),
        ("nothing", ["", ""], "--", [], "--"),
    ],
)
def test_nodes_by_cpus(
    sentence: str, cpus: list[str], named: str, far: list[tuple[int, int]], want: str
) -> None:
    """GPUs with equal CPU lists are in one node, unless something speaks against it."""
    nodes = [None if node == "-" else int(node) for node in named]
    got = nodes_by_cpus([frozenset(map(ord, text)) for text in cpus], nodes, far)
    assert "".join("-" if node is None else str(node) for node in got) == want, sentence
