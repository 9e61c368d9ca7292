"""Machines as text and as SVG: what is in them, and that nothing is drawn over another."""

import re
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest

from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.gpu import Gpu, Mig, mig_index
from gpulaunch.machine.link import Wire, wired
from gpulaunch.machine.read_description import described_topology
from gpulaunch.machine.topology import Topology
from gpulaunch.records import replace
from gpulaunch.show.topology.svg import GpuState, topology_svg
from gpulaunch.show.topology.text import topology_lines

HOSTILE = 'a"b<&>\\c\x1b[31m\n\x00'
SVG = "{http://www.w3.org/2000/svg}"


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


def text(topology: Topology, **options) -> list[str]:
    return topology_lines(topology, **{"colour": False, **options})


@EVERY
def test_every_text(topology):
    """Up to 16 GPUs have a row each, and a MIG instance one below its card; more have none.

    No line is wider than the terminal, not even those of 16 GPUs in 80 columns. Without colour
    there is no control character in the text; with it the words are the same.
    """
    plain, coloured = text(topology), text(topology, colour=True)
    rows = [line for line in plain[2:] if re.match(r" *\d+(:\d+)? (?!have)", line)]
    got = [line.split()[0] for line in rows]
    by_card = sorted(topology.gpus, key=lambda gpu: gpu.card)
    want = list(dict.fromkeys(name for gpu in by_card for name in (str(gpu.card), gpu.name)))
    cards = {gpu.card for gpu in topology.gpus}
    assert got == (want if len(cards) <= 16 else [])
    for width in (80, 100, 120):
        assert [line for line in text(topology, width=width) if len(line) > width] == []
    assert all(line.isprintable() for line in plain)
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured] == plain
    assert coloured != plain


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


# SVG


def picture(topology: Topology, states=None) -> ET.Element:
    return ET.fromstring(topology_svg(topology, states))


def of_class(svg: ET.Element, name: str) -> list[ET.Element]:
    return [element for element in svg.iter() if name in element.get("class", "").split()]


def frame(element: ET.Element) -> tuple[float, ...]:
    """Return left, top, right, bottom of a box."""
    left, top, width, height = (float(element.get(name)) for name in ("x", "y", "width", "height"))
    return left, top, left + width, top + height


def gpu_frames(svg: ET.Element) -> list[tuple[float, ...]]:
    return [frame(group.find(f"{SVG}rect")) for group in of_class(svg, "gpu")]


def card_frames(svg: ET.Element) -> list[tuple[float, ...]]:
    """Return the boxes of cards; an instance lies within its card's."""
    cards = [frame(group.find(f"{SVG}rect")) for group in of_class(svg, "card")]
    return cards + [box for box in gpu_frames(svg) if not any(inside(box, card) for card in cards)]


def inside(box: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return other[0] <= box[0] and other[1] <= box[1] and box[2] <= other[2] and box[3] <= other[3]


def points(path: str) -> list[tuple[float, float]]:
    """Return points on one of our curves: straight to the right, or one cubic Bezier curve."""
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
    if "L" in path:
        (x, y, end, _) = numbers
        return [(x + (end - x) * i / 50, y) for i in range(51)]
    p = [complex(*numbers[i : i + 2]) for i in range(0, 8, 2)]
    weights = [
        ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
        for t in (i / 200 for i in range(201))
    ]
    curve = [sum(w * z for w, z in zip(four, p, strict=True)) for four in weights]
    return [(z.real, z.imag) for z in curve]


@EVERY
def test_every_picture(topology):
    """A picture has a named box for each GPU, and a line for each two cards with NVLinks.

    So has each GPU with some into a switch. The picture is well formed, has a ground of its own,
    and neither scripts, styles, images nor addresses.
    """
    svg = picture(topology)
    boxes = of_class(svg, "gpu")
    assert sorted(int(box.get("data-gpu")) for box in boxes) == [gpu.index for gpu in topology.gpus]
    said = {int(box.get("data-gpu")): "".join(box.find(f"{SVG}text").itertext()) for box in boxes}
    assert all(gpu.name in said[gpu.index] for gpu in topology.gpus)
    card = {gpu.index: gpu.card for gpu in topology.gpus}
    direct, switched = set(), set()
    for link in topology.links:
        ends = card[link.a], card[link.b]
        if link.kind == "nvlink":
            direct.add(tuple(sorted(ends)))
        elif link.kind == "nvswitch":
            switched |= {*ends}
    pairs = [tuple(map(int, line.get("data-pair").split("-"))) for line in of_class(svg, "nvlink")]
    assert sorted(pairs) == sorted(direct)
    assert len(of_class(svg, "uplink")) == len(switched)
    tags = {element.tag.removeprefix(SVG) for element in svg.iter()}
    assert tags <= {"svg", "title", "g", "rect", "line", "path", "text"}
    assert topology_svg(topology).count("http") == 1 + topology.source.count("http")
    assert svg.find(f"{SVG}rect").get("fill") == "#ffffff"


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@EVERY
def test_nothing_lies_on_another(topology):
    """Boxes and bars keep apart, no NVLink runs through a box, and all is within the picture."""
    svg = picture(topology)
    boxes = card_frames(svg)
    groups = [group for name in ("cpu", "host-bridge", "switch") for group in of_class(svg, name)]
    bars = [frame(group.find(f"{SVG}rect")) for group in groups]
    assert [pair for pair in combinations(bars + boxes, 2) if overlap(*pair)] == []
    _, _, width, height = map(float, svg.get("viewBox").split())
    rects = [element for element in svg.iter(f"{SVG}rect") if element.get("x")]
    assert [frame(rect) for rect in rects if not inside(frame(rect), (0, 0, width, height))] == []
    for line in of_class(svg, "nvlink"):
        for x, y in points(line.get("d")):
            assert 0 < x < width
            assert 0 < y < height
            assert not any(a < x < c and b < y < d for a, b, c, d in boxes)


def test_state_of_a_gpu():
    """A GPU's state is the class of its box, its label is in it, and the legend explains it."""
    for kind in ("free", "leased", "shared", "outside", "drained"):
        svg = picture(MACHINES["summit"], {2: GpuState(kind, "alice")})
        (box,) = of_class(svg, kind)
        words = [element.text for element in box.iter(f"{SVG}text")]
        assert (box.get("data-gpu"), words) == ("2", ["GPU 2", "alice"])
        fill = box.find(f"{SVG}rect").get("fill")
        (legend,) = of_class(svg, "legend")
        assert [rect.get("fill") for rect in legend.iter(f"{SVG}rect")] == [fill]


def test_hostile_names() -> None:
    """Names of users and drivers are escaped: the document is well formed, without new elements."""
    states = {
        0: GpuState("leased", HOSTILE),
        1: GpuState("leased", "</text><script>x</script>\x07"),
    }
    svg = picture(MACHINES["hostile"], states)
    tags = {element.tag.removeprefix(SVG) for element in svg.iter()}
    assert tags <= {"svg", "title", "g", "rect", "line", "text"}
    assert "\\x1b" in svg.find(f"{SVG}title").text


def test_long_label_is_cut():
    """A user's name that is too long for the box is cut there, and whole in the tooltip.

    A MIG instance has a box and a label of its own.
    """
    name = "a-name-as-long-as-they-come"
    (box,) = of_class(picture(MACHINES["summit"], {0: GpuState("leased", name)}), "leased")
    assert box.findall(f"{SVG}text")[1].text.endswith("…")
    assert f"leased ({name})" in box.find(f"{SVG}title").text
    (box,) = of_class(picture(MACHINES["mig"], {101: GpuState("leased", "bob")}), "leased")
    assert (box.get("data-gpu"), box.find(f"{SVG}text").text) == ("101", "0:1 bob")


LONG = "A" * 300


def test_word_longer_than_the_picture():
    """A long single-word name ends in an ellipsis within the picture, and is whole in its title."""
    topology = machine(LONG, 2, lambda *_: Wire("PIX"), split=1, model=LONG, source=LONG)
    svg = picture(topology)
    _, _, width, _ = map(float, svg.get("viewBox").split())
    lines = [element for element in svg.iter(f"{SVG}text") if element.get("text-anchor") == "start"]
    assert all(float(line.get("x")) + len(line.text) * 5.6 <= width for line in lines)
    assert any(line.text.endswith("…") for line in lines)
    assert LONG in svg.find(f"{SVG}title").text


def test_unequal_links_into_a_switch() -> None:
    """A card with fewer NVLinks into the switch has its class's colour; the bar has no figure."""
    document = {
        "name": "uneven",
        "source": "made up: eighteen links from three cards, six from the fourth",
        "gpus": {"count": 4, "model": "H100", "compute_capability": "9.0"},
        "nvlink": {"version": 4, "switch_links_per_gpu": [18, 18, 18, 6]},
        "pcie": {"generation": 5, "width": 16},
    }
    svg = picture(described_topology(document, ""))
    uplinks = [line.get("stroke") for line in of_class(svg, "uplink")]
    assert (len(set(uplinks[:3])), uplinks[3] != uplinks[0]) == (1, True)
    words = [text.text for text in svg.iter(f"{SVG}text")]
    assert "NVSwitch: 6 or 18 NVLinks from each GPU" in words
