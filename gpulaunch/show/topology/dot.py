"""A machine -> a graph in the language of Graphviz."""

from collections.abc import Iterator, Mapping

from gpulaunch.errors import printable
from gpulaunch.machine.cards import Card, card_links, cards
from gpulaunch.machine.levels import Level, machine_tree
from gpulaunch.machine.link import Link
from gpulaunch.machine.topology import Topology, machines
from gpulaunch.show.topology.text import link_classes, link_name, socket_name, title

_PCIE = 'color="#8b93a0"'
_MOST_LABELS = 16  # NVLinks that have their name beside them; more would hide each other
_CPUS = {
    "PIX": "CPU and PCIe switch",
    "PXB": "CPU and PCIe switch",
    "SYS": "CPUs",
}  # by how GPUs of a socket meet
_COLOURS = {"nvlink": "#0b7a3b", "nvswitch": "#1585c9"}


def topology_dot(topology: Topology) -> str:
    """The machine for `dot -Tsvg` and its kin: a cluster for each socket, edges for NVLinks and for PCIe levels.

    Of several machines each is a cluster around its sockets, with an edge to the network. Cards
    have their index as node name. MIG instances hang below their card and are named like "1:0".
    """
    carried = ", ".join(
        f"{name} {bandwidth:.3g}" for name, bandwidth in link_classes(card_links(topology).values())
    )
    label = f"{title(topology)}{f'; GB/s per direction: {carried}' if carried else ''}"
    lines = [
        f"graph {_quoted(topology.name)} {{",
        (
            f'  graph [label={_quoted(label)}, labelloc=t, fontname="Helvetica", nodesep=0.45, '
            "ranksep=1]"
        ),
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="Helvetica"]',
        '  edge [fontname="Helvetica", fontsize=10]',
        *(f"  {line}" for line in _machine_lines(topology)),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A text as Graphviz reads it literally."""
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _machine_lines(topology: Topology) -> Iterator[str]:
    parts = machines(topology)
    if len(parts) == 1:
        yield from _level_lines(topology, "cluster")
        yield from _nvlink_lines(topology, "NVSwitch")
        return
    yield "compound=true"
    yield f'network [fillcolor="#d5dae2", width={min(len(parts), 20)}]'
    for node, part in parts.items():
        name = f"cluster_node_{node}"
        yield f"subgraph {name} {{"
        yield f'  label="node {node}"; style=rounded; color="#4a5568"'
        yield from (f"  {line}" for line in _level_lines(part, name))
        yield from (
            f"  {line}" for line in _nvlink_lines(part, _quoted(f"NVSwitch of node {node}"))
        )
        yield "}"
        first = machine_tree(part).sockets[0]
        yield f'network -- {_quoted(_node(first))} [lhead={name}, color="#4a5568", penwidth=3]'


def _level_lines(machine: Topology, name: str) -> Iterator[str]:
    by_index = {card.index: card for card in cards(machine)}
    for i, socket in enumerate(machine_tree(machine).sockets):
        yield f"subgraph {name}_{i} {{"
        yield f'  label={_quoted(socket_name(socket))}; style="rounded,filled"; color="#f3f5f8"'
        yield from (f"  {line}" for line in _below(socket, by_index))
        yield "}"


def _below(level: Level, by_index: Mapping[int, Card]) -> Iterator[str]:
    """A node for the level, and an edge to each node below it."""
    if not level.is_branch:
        yield from _card_lines(by_index[level.cards[0]])
        return
    name = _quoted(_node(level))
    cpu = _CPUS.get(level.path, "CPU")
    label = cpu if level.kind in ("socket", "machine") else level.kind
    yield f'{name} [label={_quoted(label)}, fillcolor="#d5dae2"]'
    for child in level.children:
        yield from _below(child, by_index)
        yield f"{name} -- {_quoted(_node(child))} [{_PCIE}]"


def _card_lines(card: Card) -> Iterator[str]:
    yield f'"{card.index}" [label="GPU {card.index}"]'
    for gpu in card.instances:
        profile = gpu.mig.profile if gpu.mig else ""
        yield f"{_quoted(gpu.name)} [label={_quoted(f'{gpu.name} {profile}')}, fontsize=10]"
        yield f'"{card.index}" -- {_quoted(gpu.name)} [style=dotted]'


def _node(level: Level) -> str:
    """Name of its node: of a card its index."""
    below = ",".join(map(str, sorted(level.cards)))
    return f"{level.kind} {below}" if level.is_branch else below


def _nvlink_lines(machine: Topology, switch: str) -> Iterator[str]:
    links = card_links(machine)
    direct = {pair: link for pair, link in links.items() if link.kind == "nvlink"}
    for (a, b), link in direct.items():
        label = f', xlabel="{link_name(link)}"' if len(direct) <= _MOST_LABELS else ""
        yield f'"{a}" -- "{b}" [{_style(link, link.nvlink_count)}{label}, constraint=false]'
    switched = {
        index: link for pair, link in links.items() if link.kind == "nvswitch" for index in pair
    }
    if switched:
        yield f'{switch} [fillcolor="#cfe6f5"]'
    for card in cards(machine):
        if card.index in switched:
            link = switched[card.index]
            yield f'"{card.index}" -- {switch} [{_style(link, card.gpu.nvswitch_links)}, label="{link_name(link)}"]'


def _style(link: Link, count: int) -> str:
    return f'color="{_COLOURS[link.kind]}", penwidth={min(1 + count, 7)}'
