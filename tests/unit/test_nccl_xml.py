"""NCCL's topology file: what NCCL_TOPO_DUMP_FILE wrote is read, and the same can be written."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from gpulaunch.errors import UsageError
from gpulaunch.machine.catalog import load_described_machine, load_text_machine, machine_names
from gpulaunch.machine.cpuset import format_cpuset
from gpulaunch.machine.nccl_xml import nccl_document
from gpulaunch.machine.read_description import described_topology
from gpulaunch.machine.smi_text import TextError
from gpulaunch.machine.topology import Topology, part_of_machine
from gpulaunch.records import replace
from gpulaunch.show.topology.nccl import nccl_xml

CPU = 'host_hash="0x8393fb66b8b750c5" arch="x86_64" vendor="AuthenticAMD" familyid="143"'
SWITCH = 'class="0x060400" vendor="0x1000" device="0xc010"'
GEN_4 = 'link_speed="16.0 GT/s PCIe" link_width="16"'


def gpu(bus: str, dev: int, nvlinks: str = "", sm: int = 80, slot: str = GEN_4) -> str:
    """Write a GPU as NCCL does."""
    return (
        f'<pci busid="{bus}" class="0x030200" vendor="0x10de" device="0x20b0" {slot}>'
        f'<gpu dev="{dev}" sm="{sm}" rank="{dev}" gdr="1">{nvlinks}</gpu></pci>\n'
    )


def nvlink(target: str, count: int, kind: str = "0x068000") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{kind}"/>'


NIC = (
    f'<pci busid="0000:0c:00.0" class="0x020700" {GEN_4}><nic><net name="mlx5_0" dev="0" '
    'speed="200000" port="1" latency="0.000000" maxconn="131072" gdr="1"/></nic></pci>'
)
SIX = "".join(nvlink(f"0000:c{i}:00.0", 2) for i in range(4, 10))
# The form of a DGX A100: https://github.com/NVIDIA/nccl/issues/1505
DGX = f"""<system version="1">
  <cpu {CPU} numaid="3" affinity="ffff0000,00000000,00000000,00000000,ffff0000,00000000">
    <pci busid="0000:01:00.0" {SWITCH} {GEN_4}>
      <pci busid="0000:03:00.0" {SWITCH} {GEN_4}>{gpu("0000:07:00.0", 0, SIX)}</pci>
      <pci busid="0000:0a:00.0" {SWITCH} {GEN_4}>{NIC}{gpu("0000:0f:00.0", 1, SIX)}</pci>
    </pci>
  </cpu>
  <cpu {CPU} numaid="7" affinity="0000ffff">
    <pci busid="0000:81:00.0" {SWITCH} {GEN_4}>{gpu("0000:B7:00.0", 2, SIX)}
      {gpu("0000:bd:00.0", 3, SIX)}</pci>
    {gpu("0000:c1:00.0", 4, SIX)}
  </cpu>
</system>
"""


def read(text: str) -> Topology:
    return described_topology(nccl_document(text, "box", "a file"), "0")


def said(topology: Topology) -> dict[tuple[int, int], tuple[str, int]]:
    return {(link.a, link.b): (link.pcie_path, link.nvlink_count) for link in topology.links}


def test_dump() -> None:
    """The PCIe tree, slots, NVSwitch links, compute capability, nodes and CPUs are the file's."""
    topology = read(DGX)
    paths = {pair: path for pair, (path, _) in said(topology).items()}
    assert paths == {
        (0, 1): "PXB", (0, 2): "SYS", (0, 3): "SYS", (0, 4): "SYS", (1, 2): "SYS",
        (1, 3): "SYS", (1, 4): "SYS", (2, 3): "PIX", (2, 4): "PHB", (3, 4): "PHB",
    }  # fmt: skip
    assert {link.kind for link in topology.links} == {"nvswitch"}
    assert {link.nvlink_count for link in topology.links} == {12}
    assert [gpu.numa_node for gpu in topology.gpus] == [3, 3, 7, 7, 7]
    assert format_cpuset(topology.gpus[0].cpuset) == "48-63,176-191"
    assert {
        (gpu.compute_capability, gpu.nvlink_version, gpu.pcie_generation, gpu.pcie_width)
        for gpu in topology.gpus
    } == {("8.0", 3, 4, 16)}
    assert topology.source == "a file; CPU x86_64 AuthenticAMD family 143"


def test_bridged_pair() -> None:
    """NVLinks to another GPU join the two; those to a GPU that is not in the file are left out.

    The form of two RTX A6000: NCCL notes on version 2.25, class 0x030000.
    """
    pair = (
        f'<system version="1"><cpu {CPU} numaid="-1" affinity="">'
        + gpu("0000:99:00.0", 0, nvlink("0000:bd:00.0", 4, "0x030000"), 86)
        + gpu("0000:bd:00.0", 1, nvlink("0000:99:00.0", 4, "0x030000"), 86)
        + gpu("0000:ce:00.0", 2, nvlink("0000:cf:00.0", 4, "0x030000"), 86)
        + "</cpu></system>"
    )
    topology = read(pair)
    assert said(topology) == {(0, 1): ("PHB", 4), (0, 2): ("PHB", 0), (1, 2): ("PHB", 0)}
    assert topology.links[0].nvlink_gb_per_s == 4 * 14.0625
    assert [gpu.numa_node for gpu in topology.gpus] == [None] * 3


def test_cpu_nvlinks() -> None:
    """NVLinks into a POWER9 are the CPU's."""
    text = DGX.replace(SIX, nvlink("0000:00:00.0", 2, "0x068001"))
    assert [gpu.cpu_nvlinks for gpu in read(text).gpus] == [2] * 5


@pytest.mark.parametrize(
    ("speed", "generation"),
    [("2.5 GT/s PCIe", 1), ("8 GT/s", 3), ("32.0 GT/s PCIe", 5), ("Unknown", 0), ("", 0),
     ("1.2.3 GT/s", 0)],
)  # fmt: skip
def test_speeds(speed: str, generation: int) -> None:
    """The rate of a lane tells the generation, in each form that Linux has printed."""
    slot = f'link_speed="{speed}" link_width="8"'
    topology = read(f'<system version="1"><cpu>{gpu("0", 0, slot=slot)}</cpu></system>')
    assert (topology.gpus[0].pcie_generation, topology.gpus[0].pcie_width) == (generation, 8)


BOMB = '<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY d "&b;&b;">]><system version="1">&d;</system>'


@pytest.mark.parametrize(
    ("text", "line", "want"),
    [
        (BOMB, 1, "this XML declares a document type, and NCCL's topology has none"),
        (DGX[:700], 4, "this XML is not complete"),
        ("<topology/>", 1, "this XML begins with 'topology', and NCCL's topology with 'system'"),
        ('<system version="1"><cpu/></system>', 1, "NCCL's topology names no GPU"),
        ('<system version="1"><gpu dev="0" sm="80"/></system>', 1, "NCCL's topology names no GPU"),
        (DGX.replace("0x8393", "0x1111", 1), 1, "NCCL's topology has 2 machines"),
        (DGX.replace("0f:00", "07:00"), 1, "two GPUs of NCCL's topology have the same PCI address"),
        (DGX.replace('sm="80"', 'sm="90" gcn="942"', 1), 1, "this is RCCL's topology"),
        (DGX.replace(SIX, nvlink("0000:0f:00.0", 3, "0x030200"), 1), 1,
         "GPU 0000:07:00.0 has 3 NVLinks to 0000:0f:00.0, which has 0 back"),
        ("<system><cpu>" + "<pci><gpu/></pci>" * 257 + "</cpu></system>", 1,
         "NCCL's topology names 257 GPUs, more than 256"),
        ("<system>" + "<cpu><pci>" + "<pci>" * 80 + "</pci>" * 80 + "</pci></cpu></system>", 1,
         "NCCL's topology has more than 64 PCI devices in a row"),
    ],
)  # fmt: skip
def test_other_xml(text: str, line: int, want: str) -> None:
    """What is no such file is refused for what it is, and entities are never expanded."""
    with pytest.raises(TextError) as problem:
        nccl_document(text, "box", "a file")
    assert (problem.value.line, problem.value.message[: len(want)]) == (line, want)


def test_file(tmp_path: Path) -> None:
    """--topology and --import read such a file by its content, and the model may be given."""
    file = tmp_path / "system.xml"
    file.write_text(DGX)
    assert load_described_machine(str(file))[0] == load_text_machine(str(file))
    topology = load_text_machine(str(file), gpu_model="A100 SXM4 40 GB")
    assert {gpu.model for gpu in topology.gpus} == {"NVIDIA A100-SXM4-40GB"}
    file.write_text("Our box:\n" + DGX)
    with pytest.raises(UsageError, match="a text around it"):
        load_described_machine(str(file))


def facts(topology: Topology) -> tuple[object, ...]:
    """Return what NCCL's file can say of a machine: NODE and PHB are one, and so are unknown."""
    links = {
        (link.a, link.b): (
            "PHB" if link.pcie_path == "NODE" else link.pcie_path,
            link.kind,
            link.nvlink_count,
        )
        for link in topology.links
    }
    gpus = [
        (gpu.numa_node, gpu.cpuset, gpu.compute_capability, gpu.pcie_generation, gpu.pcie_width,
         gpu.nvswitch_links, gpu.cpu_nvlinks)
        for gpu in topology.gpus
    ]  # fmt: skip
    return links, gpus


ONE_MACHINE = [name for name in machine_names() if name != "minsky-cluster"]


@pytest.mark.parametrize("name", ONE_MACHINE)
def test_written_and_read(name: str) -> None:
    """Every shipped machine is the same after it was NCCL's file."""
    topology, _ = load_described_machine(name)
    assert facts(read(nccl_xml(topology))) == facts(topology)


def test_addresses() -> None:
    """GPUs keep their PCI addresses; what has none gets one of a domain that no machine has."""
    topology = read(DGX)
    known = tuple(
        replace(gpu, pci_address=f"00000000:{gpu.index + 7:02X}:00") for gpu in topology.gpus
    )
    system = ET.fromstring(nccl_xml(replace(topology, gpus=known)))
    buses = [pci.get("busid") for pci in system.iter("pci") if pci.find("gpu") is not None]
    assert buses == [f"0000:0{place}:00.0" for place in "789ab"]
    switches = {pci.get("busid", "")[:2] for pci in system.iter("pci") if pci.find("gpu") is None}
    assert switches == {"ff"}


def test_part_of_a_machine() -> None:
    """The GPUs of a lease are numbered from 0, and their links to others are left out."""
    topology = load_described_machine("dgx1-v100")[0]
    part = part_of_machine(topology, [topology.gpus[i].uuid for i in (2, 3, 6)])
    system = ET.fromstring(nccl_xml(part))
    assert [gpu.get("dev") for gpu in system.iter("gpu")] == ["0", "1", "2"]
    assert [link.get("count") for link in system.iter("nvlink")] == ["2", "1", "2", "1"]


def test_several_machines() -> None:
    """Several machines are refused."""
    topology = load_described_machine("minsky-cluster")[0]
    with pytest.raises(UsageError, match=r"^minsky-cluster is several machines"):
        nccl_xml(topology)


def test_mig_instances() -> None:
    """MIG instances are refused: NCCL knows cards."""
    document = nccl_document(DGX, "box", "a file")
    document["mig"] = [{"gpu": 0, "profile": "1g.5gb", "memory_mib": 4864, "instances": [0]}]
    with pytest.raises(UsageError, match="has MIG instances, which NCCL's topology cannot name"):
        nccl_xml(described_topology(document, "0"))
