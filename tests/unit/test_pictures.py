"""Machines as text and as graphs for Graphviz: what is in them."""

import io
import re

import pytest

from gpulaunch.cli.screen import make_console
from gpulaunch.cli.topo import topology_dot, topology_lines
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.gpu import Gpu, Mig, mig_index
from gpulaunch.machine.link import Wire, wired
from gpulaunch.machine.topology import Topology
from gpulaunch.records import replace

HOSTILE = 'a"b<&>\\c\x1b[31m\n\x00'


def machine(name: str, count: int, wire, *, split: int = 0, **facts) -> Topology:
    """Describe a machine of equal cards, the first `split` of them as two MIG instances each."""
    gpus = []
    for i in range(count):
        card = Gpu(i, f"GPU-{i}", facts.get("model", "A100"), 80 << 30, **facts.get("gpu", {}))
        mig = [(mig_index(i, n), Mig(i, card.uuid, n, "3g.40gb")) for n in range(2)]
        gpus += [replace(card, index=index, mig=one) for index, one in mig] if i < split else [card]
    gpus.sort(key=lambda gpu: gpu.index)
    return Topology(name, tuple(gpus), wired(gpus, wire), facts.get("source", "made up"))


MADE_UP = {
    "one": machine("one", 1, lambda *_: Wire("SYS")),
    "two-switches": machine(
        "two-switches", 8, lambda a, b: Wire("PIX" if a // 4 == b // 4 else "PXB")
    ),
    "long-socket": machine(
        "long-socket", 16, lambda *_: Wire("NODE", 1), gpu={"nvlink_version": 3}
    ),
    "mig": machine("mig", 4, lambda *_: Wire("SYS", 4), split=2, gpu={"nvlink_version": 3}),
    "rack-split": machine(
        "rack-split", 18, lambda *_: Wire("SYS"), split=9, gpu={"nvswitch_links": 18}
    ),
    "hostile": machine(HOSTILE, 2, lambda *_: Wire("PIX"), model=HOSTILE, source=HOSTILE),
}
SHIPPED = ("dgx1-v100", "dgx2", "gh200-4", "minsky-cluster", "nvl72", "summit", "torus-2d-16")
MACHINES = {name: load_described_machine(name)[0] for name in SHIPPED} | MADE_UP
EVERY = pytest.mark.parametrize("topology", MACHINES.values(), ids=MACHINES)


# Text


def text(topology: Topology, width: int | None = None) -> list[str]:
    stream = io.StringIO()
    make_console(stream, width or 4096).print(*topology_lines(topology, width), sep="\n")
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@EVERY
def test_every_text(topology):
    """Up to 16 GPUs have a row each, and a MIG instance one below its card; more have none.

    No line is wider than the terminal, not even those of 16 GPUs in 80 columns, and there is no
    control character in the text.
    """
    plain = text(topology)
    rows = [line for line in plain[2:] if re.match(r" *\d+(:\d+)? (?!have)", line)]
    got = [line.split()[0] for line in rows]
    by_card = sorted(topology.gpus, key=lambda gpu: gpu.card)
    want = list(dict.fromkeys(name for gpu in by_card for name in (str(gpu.card), gpu.name)))
    cards = {gpu.card for gpu in topology.gpus}
    assert got == (want if len(cards) <= 16 else [])
    for width in (80, 100, 120):
        assert [line for line in text(topology, width=width) if len(line) > width] == []
    assert all(line.isprintable() for line in plain)


def test_narrow_terminal():
    """Where bandwidths do not fit in the cells, the legend has them."""
    lines = text(MACHINES["dgx1-v100"], width=60)
    assert lines[2] == "  0 X   NV1 NV1 NV2 NV2 SYS SYS SYS 0"
    assert "GB/s per direction: NV2 50, NV1 25, SYS 12; NV# = so many" in lines


def test_instances_below_their_card() -> None:
    """MIG instances are below their card with profile and memory; the matrix is the cards'."""
    assert text(MACHINES["mig"])[:7] == [
        "mig: 4 x A100, 80 GiB, 2 of them in MIG mode",
        "GPU  0        1        2        3        NUMA",
        "  0  X        NV4 100  NV4 100  NV4 100  ?",
        "  0:0 MIG 3g.40gb, 80 GiB",
        "  0:1 MIG 3g.40gb, 80 GiB",
        "  1  NV4 100  X        NV4 100  NV4 100  ?",
        "  1:0 MIG 3g.40gb, 80 GiB",
    ]


def test_models_that_differ():
    """GPUs of several models have it at the end of their row."""
    gpus = (Gpu(0, "GPU-0", "A100", 80 << 30), Gpu(1, "GPU-1", "Tesla T4", 15 << 30))
    lines = text(Topology("mixed", gpus, wired(gpus, lambda *_: Wire("PIX")), "made up"))
    assert lines[0] == "mixed: 2 GPUs"
    found = [line.partition("?")[2].strip() for line in lines[2:4]]
    assert found == ["A100, 80 GiB", "Tesla T4, 15 GiB"]


# Graphviz

STRING = r'"(?:[^"\\]|\\.)*"'
ATTRIBUTES = rf"\[\w+=(?:{STRING}|\w+)(?:, \w+=(?:{STRING}|\w+))*\]"
STATEMENTS = {  # of what we write; a string is a whole one, so that no name can end it
    "begin": rf"graph {STRING} {{",
    "label": rf" *label={STRING}",
    "layout": r" *layout=fdp; K=3",
    "style": rf" *node {ATTRIBUTES}",
    "cluster": r" *subgraph cluster_\d+ {",
    "gpu": rf" *(\d+) \[label=({STRING})(?:, fillcolor=({STRING}))?\]",
    "edge": rf" *(\d+) -- (\d+) \[label=({STRING}), color=(\w+)(?:, penwidth=\d)?\]",
    "end": r" *}",
}


def dot(topology: Topology, states=None) -> list[tuple[str, tuple[str, ...]]]:
    """Return each statement of a graph, which is a line, by its kind and with its parts."""
    found = []
    for line in topology_dot(topology, states or {}).splitlines():
        (one,) = [
            (kind, match.groups())
            for kind, rule in STATEMENTS.items()
            if (match := re.fullmatch(rule, line))
        ]
        found.append(one)
    return found


def of_kind(graph: list[tuple[str, tuple[str, ...]]], kind: str) -> list[tuple[str, ...]]:
    return [parts for name, parts in graph if name == kind]


@EVERY
def test_every_graph(topology):
    """A graph is well formed, with each GPU once, each link once and a cluster for each socket.

    Drivers and files supply names, of which none ends its string or brings in a control character.
    """
    graph = dot(topology)
    depth = 0
    for kind, _ in graph:
        depth += (kind in ("begin", "cluster")) - (kind == "end")
        assert depth > 0 or (kind, graph[-1][0]) == ("end", "end")
        assert (kind == "gpu") <= (depth == 2)
    assert depth == 0
    gpus = {int(index): label for index, label, _ in of_kind(graph, "gpu")}
    assert sorted(gpus) == [gpu.index for gpu in topology.gpus]
    assert len(of_kind(graph, "gpu")) == len(gpus)
    for gpu in topology.gpus:
        assert gpus[gpu.index].startswith(f'"GPU {gpu.name}\\n')
        assert (f"NUMA {gpu.numa_node}" in gpus[gpu.index]) == (gpu.numa_node is not None)
    edges = of_kind(graph, "edge")
    assert [(int(a), int(b)) for a, b, *_ in edges] == [(link.a, link.b) for link in topology.links]
    for link, (_, _, label, colour) in zip(topology.links, edges, strict=True):
        name = f"NV{link.nvlink_count}" if link.nvlink_count else link.path
        assert label == f'"{name}\\n{link.bandwidth_gb_per_s:.4g} GB/s"'
        assert colour == ("darkgreen" if link.nvlink_count else "gray")
    sockets = {(gpu.node, gpu.numa_node) for gpu in topology.gpus}
    assert len(of_kind(graph, "cluster")) >= len(sockets)


def test_state_of_a_gpu():
    """A GPU has the colour of its state, and its users by name; one without a state is white."""
    fills = set()
    for kind in ("free", "leased", "shared", "outside", "drained", "barred"):
        graph = dot(MACHINES["summit"], {2: (kind, "alice")})
        boxes = of_kind(graph, "gpu")
        assert [fill for index, _, fill in boxes if index != "2"] == [None] * 5
        (label,) = [label for index, label, _ in boxes if index == "2"]
        assert label.endswith(': alice"')
        fills |= {fill for index, _, fill in boxes if index == "2"}
    assert len(fills) == 6


def test_hostile_names() -> None:
    """Quotes and backslashes in names of users and drivers stay in their strings."""
    graph = dot(MACHINES["hostile"], {0: ("leased", HOSTILE), 1: ("leased", '\\"]; x [')})
    labels = [label for _, label, _ in of_kind(graph, "gpu")]
    assert r"a\"b<&>\\c\\x1b[31m" in labels[0]
    assert labels[1].endswith(r'leased: \\\"]; x ["')


def test_clusters():
    """A socket's label says its CPUs, and its machine where there are several."""
    labels = [
        name for name in topology_dot(MACHINES["minsky-cluster"], {}).splitlines() if "CPUs" in name
    ]
    assert labels[:2] == [
        '    label="node 0, NUMA 0 (CPUs 0-63)"',
        '    label="node 0, NUMA 1 (CPUs 64-127)"',
    ]
    assert len(labels) == 10
