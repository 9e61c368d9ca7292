"""The shipped machines and GPU models: facts, mistakes, and the way to a topology and back."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from toml_parser import tomllib
from values import machine

from gpulaunch.errors import FieldError, UsageError
from gpulaunch.machine.catalog import described_topology, load_gpu_models, machine_names
from gpulaunch.machine.gpu import GpuModel, find_gpu_model, parse_gpu_model
from gpulaunch.machine.write_description import machine_document
from gpulaunch.records import replace

ROOT = Path(__file__).parents[2]
DATA: dict[str, Any] = tomllib.loads(Path(__file__).with_name("machines.toml").read_text())
GPU_FILES = sorted((ROOT / "profiles" / "gpus").glob("*.toml"))


# --------------------------------------------------------------------------------- shipped machines

# MAPA's published edges, read as they were meant, give four GPUs of this machine one NVLink more
# than a V100 has
DEGREES = {"cube-mesh-16": 7}


@pytest.mark.parametrize("name", DATA["machines"])
def test_facts(name: str) -> None:
    """A shipped machine has the GPUs, NVLinks and NUMA nodes that its sources say.

    Its GPUs are of a known model of their compute capability, with no more NVLinks than these have,
    and have the same CPUs if they share a NUMA node, and others if not.
    """
    count, pairs, gb_per_s, nodes = DATA["machines"][name]
    topology = machine(name)
    assert [gpu.index for gpu in topology.gpus] == list(range(count))
    assert len(topology.links) == count * (count - 1) // 2
    found = Counter(str(link.nvlink_count) for link in topology.links if link.nvlink_count)
    assert found == pairs
    assert all(link.nvlink_gb_per_s == link.nvlink_count * gb_per_s for link in topology.links)
    assert [gpu.numa_node for gpu in topology.gpus] == nodes
    models = load_gpu_models()
    for gpu in topology.gpus:
        capability = gpu.compute_capability
        assert find_gpu_model(models, gpu.model).compute_capability == capability, gpu
        direct = sum(
            link.nvlink_count
            for link in topology.links
            if link.kind == "nvlink" and gpu.index in (link.a, link.b)
        )
        most = DEGREES.get(name, DATA["nvlinks"][capability])
        assert direct + gpu.nvswitch_links + gpu.cpu_nvlinks <= most, gpu
    near = {(gpu.numa_node, gpu.cpuset) for gpu in topology.gpus}
    assert len(near) == len(set(nodes))
    assert sum(len(cpus) for _, cpus in near) == len(frozenset().union(*(cpus for _, cpus in near)))


def test_every_machine_is_known() -> None:
    """The table of facts and the page about machines have every machine, and no other."""
    page = (ROOT / "docs" / "reference" / "machines.md").read_text()
    rows = page.partition("## Shipped machines")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `([^`]+)` \|", rows, re.MULTILINE)) == machine_names()
    assert sorted(DATA["machines"]) == machine_names()


def test_sums_of_mapa() -> None:
    """On MAPA's machines NVLinks, and pairs by PCIe at 12 GB/s, sum to what its weights give."""
    for name, want in {
        "dgx1-v100": (600, 744),
        "dgx1-p100": (320, 464),
        "summit": (300, 408),
        "torus-2d-16": (1150, 2206),
        "cube-mesh-16": (1175, 2231),
    }.items():
        links = machine(name).links
        assert {link.pcie_gb_per_s for link in links} == {12}
        nvlink = sum(link.nvlink_gb_per_s for link in links)
        assert (nvlink, sum(link.bandwidth_gb_per_s for link in links)) == want, name


@pytest.mark.parametrize(
    ("name", "cpu_links", "want"),
    [
        ("power8-minsky", 2, {(0, 1): 40, (2, 3): 40, (0, 2): 6, (1, 3): 6}),
        ("a100-pcie-4gpu", 0, {(0, 1): 300, (2, 3): 300, (1, 2): 12}),
        ("pcie-8gpu-workstation", 0, {(0, 1): 24, (1, 2): 20, (3, 4): 12, (6, 7): 24}),
        ("torus-2d-16", 0, {(0, 1): 50, (0, 3): 25, (0, 12): 50, (0, 5): 12, (0, 15): 12}),
    ],
)
def test_bandwidths(name: str, cpu_links: int, want: dict[tuple[int, int], float]) -> None:
    """Named pairs have the bandwidth that a source says; POWER alone has NVLinks to the CPU."""
    topology = machine(name)
    got = {(link.a, link.b): link.bandwidth_gb_per_s for link in topology.links}
    assert {pair: got[pair] for pair in want} == want
    assert {gpu.cpu_nvlinks for gpu in topology.gpus} == {cpu_links}


# ----------------------------------------------------------------------------------- there and back


def made_up(**tables: Any) -> dict[str, Any]:
    """Describe a machine of four cards; `tables` are added to its sections or stand beside them."""
    document: dict[str, Any] = {
        "name": "box",
        "source": "made up",
        "gpus": {"count": 4, "model": "A100", "memory_mib": 40960, "compute_capability": "8.0"},
        "nvlink": {"version": 3},
        "pcie": {"generation": 4, "width": 16},
    }
    for key, value in tables.items():
        document[key] = {**document.get(key, {}), **value} if isinstance(value, dict) else value
    return document


SPLIT = {"gpu": 1, "profile": "3g.20gb", "memory_mib": 20096, "instances": [0, 1]}
MEASURED = {"ring": ["NV2 50", "NV1 25"], "all_reduce_gb_per_s": 21.5}
NODES = [
    {"node": 8, "gpus": [2], "cpuset": "0-3,8"},
    {"gpus": [0], "cpuset": "4-7"},
    {"node": 0, "gpus": [3, 1]},
]
SMALL = {"gpu": 3, "profile": "1g.5gb", "memory_mib": 4864, "instances": [2, 0, 7]}
OTHER = {"gpu": 3, "profile": "2g.10gb", "memory_mib": 9856, "instances": [1]}
DIRECT = {"links": [[0, 1, 4], [3, 1, 2]]}
EACH = {"model": ["A100", "V100", "A100", "T4"], "memory_mib": [0, 1, 40960, 16160]}
OF_EACH = {"version": [1, 2, 3, 4], "cpu_links_per_gpu": [0, 2, 0, 2]}
BUS_OF_EACH = {"generation": [0, 3, 4, 5], "width": [16, 8, 1, 0]}
GROUPS = {"PIX": [[0, 1], [1, 2]], "PHB": [[2, 3]]}
STATED = {"bandwidth_gb_per_s": 24.0, "groups": {"PIX": [[0, 1]]}}
DESCRIPTIONS = {
    "MIG, two sizes on one card": made_up(mig=[SPLIT, SMALL, OTHER]),
    "a switch, and links beside it": made_up(nvlink=DIRECT | {"switch_links_per_gpu": 6}),
    "links into the CPU": made_up(nvlink={"cpu_links_per_gpu": 2, "gb_per_s_per_link": 40.5}),
    "no peer-to-peer": made_up(pcie={"peer_to_peer": False}, nvlink=DIRECT),
    "a stated bandwidth that some pairs would have anyway": made_up(pcie=STATED),
    "a PCIe matrix that is no tree": made_up(pcie={"groups": GROUPS}),
    "figures for each GPU": made_up(gpus=EACH, nvlink=OF_EACH | DIRECT, pcie=BUS_OF_EACH),
    "the same with MIG": made_up(gpus=EACH, nvlink=OF_EACH, pcie=BUS_OF_EACH, mig=[SPLIT]),
    "measurements": made_up(measured=[MEASURED, {**MEASURED, "ring": ["SYS 12", "SYS 12"]}]),
    "NUMA nodes out of order, without number or CPUs": made_up(numa=NODES),
}


@pytest.mark.parametrize("document", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_there_and_back(document: dict[str, Any]) -> None:
    """Whatever a description can say survives the way into a topology and back."""
    topology = described_topology(document, "")
    again = described_topology(machine_document(topology), "")
    assert (again.gpus, again.links) == (topology.gpus, topology.links)
    assert again.measured == topology.measured
    assert machine_document(again) == machine_document(topology)


def test_what_a_description_cannot_say() -> None:
    """What is known of no GPU is left out, and a name becomes one that a file can have."""
    topology = described_topology(made_up(gpus={"memory_mib": 0, "compute_capability": ""}), "")
    assert machine_document(topology)["gpus"] == {"count": 4, "model": "A100"}
    for name, want in (("Büro 1/a.b_c", "B-ro-1-a.b_c"), ("", "machine")):
        assert machine_document(replace(topology, name=name))["name"] == want


def test_instances_that_cannot_be() -> None:
    """What no numbering of GPUs can hold is refused where the instances stand."""
    for document, path in (
        (made_up(gpus={"count": 1}, mig=[SPLIT | {"gpu": 0, "instances": []}]), ("mig",)),
        (made_up(gpus={"count": 101}, mig=[SPLIT]), ("mig",)),  # card 100, and instances of card 0
        (made_up(mig=[1]), ("mig", 0)),
    ):
        with pytest.raises(FieldError) as problem:
            described_topology(document, "")
        assert problem.value.path == path


# --------------------------------------------------------------------------------------- GPU models

MODEL: dict[str, Any] = {
    "name": "Big",
    "models": ["NVIDIA Big 1", "Big 1"],
    "compute_capability": "8.0",
    "sm_count": 100,
    "max_clock_mhz": 1500,
    "dram_bandwidth_gb_per_s": 1000,
    "power_limit_w": 300,
    "mps_clients": 48,
    "source": "made up for this test",
    "estimated": ["sm_count"],
}


def test_gpu_model() -> None:
    """Every key of a GPU model that is a figure arrives in its record; all but one are needed."""
    figures = {key: MODEL[key] for key in MODEL if key not in ("models", "source", "estimated")}
    assert parse_gpu_model(MODEL) == GpuModel(models=("NVIDIA Big 1", "Big 1"), **figures)
    for key in MODEL.keys() - {"estimated"}:
        with pytest.raises(FieldError, match=f"key '{key}' is missing"):
            parse_gpu_model({name: value for name, value in MODEL.items() if name != key})


@pytest.mark.parametrize(
    ("key", "value", "want"),
    [
        ("nvlinks", 12, "unknown key 'nvlinks': known here are name, models, "),
        ("models", [], "models: 0 values, 1 to "),
        ("models", ["Big 1", 2], "models: 2 is not text"),
        ("sm_count", 0, "sm_count: 0 is not within 1 to 4096"),
    ],
)
def test_mistakes_in_a_gpu_model(key: str, value: object, want: str) -> None:
    """A mistake in a GPU model is named with its key and what was found."""
    with pytest.raises(FieldError) as problem:
        parse_gpu_model({**MODEL, key: value})
    assert problem.value.path[0] == key
    assert problem.value.message.startswith(want)


@pytest.mark.parametrize(
    ("known", "product_name", "want"),
    [
        (["A100-SXM4-40GB"], "NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        (["NVIDIA A100-SXM4-40GB"], "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM4-40GB"),
        (["NVIDIA H100", "NVIDIA H100 PCIe"], "NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        (["NVIDIA H100 PCIe", "H100"], "NVIDIA H100 NVL", "H100"),
        (["nvidia t4"], "NVIDIA T4", "nvidia t4"),
        (["NVIDIA A10"], "NVIDIA A100X", None),
        (["GeForce RTX 3090"], "NVIDIA GeForce RTX 3090 Ti", None),
        (["GeForce RTX 4090"], "NVIDIA GeForce RTX 4090 Laptop GPU", None),
        (["NVIDIA T4"], "", None),
        ([], "NVIDIA T4", None),
    ],
)
def test_which_model_a_gpu_is(known: list[str], product_name: str, want: str | None) -> None:
    """A whole name counts before a part, a long part before a short; part of a word is no match."""
    models = [parse_gpu_model(MODEL | {"name": name, "models": [name]}) for name in known]
    found = find_gpu_model(models, product_name)
    assert (found.name if found else None) == want


def test_shipped_gpu_models() -> None:
    """Every shipped GPU model is read, has plausible figures, and shares no product name.

    Its SMs can draw more from its memory than that gives, at 64 bytes each in a clock.
    """
    models = load_gpu_models()
    assert len(models) == len(GPU_FILES)
    for model in models:
        assert all(find_gpu_model(models, text) is model for text in model.models), model
        drawn_gb_per_s = model.sm_count * model.max_clock_mhz * 0.064
        assert model.dram_bandwidth_gb_per_s < drawn_gb_per_s, model


def test_figures() -> None:
    """A shipped GPU model has the vendor's figures, and is not taken for one of the same chip."""
    models = load_gpu_models()
    for product_name, want in DATA["gpu_models"].items():
        found = find_gpu_model(models, product_name)
        got = found.compute_capability, found.sm_count
        assert [*got, found.mps_clients, found.power_limit_w] == want, product_name


@pytest.mark.parametrize(("file", "more"), [("t4.toml", 0), ("zz.toml", 1)])
def test_own_gpu_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, more: int
) -> None:
    """A user's own GPU model stands before a shipped one, whether their file names agree or not.

    A mistake in it is named with path, line and what was found.
    """
    directory = tmp_path / "gpulaunch" / "gpus"
    directory.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = directory / file
    text = (ROOT / "profiles" / "gpus" / "t4.toml").read_text()
    path.write_text(re.sub('^name = ".*"', 'name = "mine"', text, flags=re.MULTILINE))
    models = load_gpu_models()
    assert len(models) == len(GPU_FILES) + more
    assert find_gpu_model(models, "Tesla T4") is models[0]
    assert models[0].name == "mine"
    path.write_text('name = "mine"\nsm_count = 0\n')
    with pytest.raises(UsageError) as problem:
        load_gpu_models()
    assert problem.value.message == f"{path}:2: sm_count: 0 is not within 1 to 4096"
