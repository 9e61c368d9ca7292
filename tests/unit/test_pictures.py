"""Machines as text: what is in it."""

import io
import re

import pytest
from values import wiring

from gpulaunch.cli.screen import make_console
from gpulaunch.cli.topo import topology_lines
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.gpu import Gpu, Mig, mig_index
from gpulaunch.machine.link import wired
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
    "one": machine("one", 1, lambda *_: wiring("SYS")),
    "two-switches": machine(
        "two-switches", 8, lambda a, b: wiring("PIX" if a // 4 == b // 4 else "PXB")
    ),
    "long-socket": machine(
        "long-socket", 16, lambda *_: wiring("NODE", 1), gpu={"nvlink_version": 3}
    ),
    "mig": machine("mig", 4, lambda *_: wiring("SYS", 4), split=2, gpu={"nvlink_version": 3}),
    "rack-split": machine(
        "rack-split", 18, lambda *_: wiring("SYS"), split=9, gpu={"nvswitch_links": 18}
    ),
    "hostile": machine(HOSTILE, 2, lambda *_: wiring("PIX"), model=HOSTILE, source=HOSTILE),
}
SHIPPED = ("dgx1-v100", "dgx2", "gh200-4", "nvl72", "summit", "torus-2d-16")
MACHINES = {name: load_described_machine(name)[0] for name in SHIPPED} | MADE_UP
EVERY = pytest.mark.parametrize("topology", MACHINES.values(), ids=MACHINES)


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


def test_bandwidths():
    """The matrix has the names of the links, and the legend their bandwidths and meanings."""
    lines = text(MACHINES["dgx1-v100"], width=60)
    assert lines[2] == "  0 X   NV1 NV1 NV2 NV2 SYS SYS SYS 0"
    assert "GB/s per direction: NV2 50, NV1 25, SYS 12; NV# = so many" in lines


def test_instances_below_their_card() -> None:
    """MIG instances are below their card with profile and memory; the matrix is the cards'."""
    assert text(MACHINES["mig"])[:7] == [
        "mig: 4 x A100, 80 GiB, 2 of them in MIG mode",
        "GPU 0   1   2   3   NUMA",
        "  0 X   NV4 NV4 NV4 ?",
        "  0:0 MIG 3g.40gb, 80 GiB",
        "  0:1 MIG 3g.40gb, 80 GiB",
        "  1 NV4 X   NV4 NV4 ?",
        "  1:0 MIG 3g.40gb, 80 GiB",
    ]


def test_models_that_differ():
    """GPUs of several models have it at the end of their row."""
    gpus = (Gpu(0, "GPU-0", "A100", 80 << 30), Gpu(1, "GPU-1", "Tesla T4", 15 << 30))
    lines = text(Topology("mixed", gpus, wired(gpus, lambda *_: wiring("PIX")), "made up"))
    assert lines[0] == "mixed: 2 GPUs"
    found = [line.partition("?")[2].strip() for line in lines[2:4]]
    assert found == ["A100, 80 GiB", "Tesla T4, 15 GiB"]
