"""A machine as a graph in the language of Graphviz."""

from collections.abc import Iterator, Mapping

from gpulaunch.errors import printable
from gpulaunch.machine.cards import Card, card_links, cards
from gpulaunch.machine.levels import Level, machine_tree
from gpulaunch.machine.link import Link
from gpulaunch.machine.topology import Topology, machines
from gpulaunch.show.topology.text import link_classes, link_name, socket_name, title

_PCIE = 'color="#8b93a0"'
_MOST_LABELS = 16  # NVLinks whose names are shown; more would hide each other
# by how the GPUs of a socket meet
_CPUS = {"PIX": "CPU and PCIe switch", "PXB": "CPU and PCIe switch", "SYS": "CPUs"}
_COLOURS = {"nvlink": "#0b7a3b", "nvswitch": "#1585c9"}


def topology_dot(topology: Topology) -> str:
    """Return the machine for `dot -Tsvg`: sockets as clusters, NVLinks and PCIe as edges.

    Each of several machines is a cluster around its sockets, with an edge to the network. Cards
    have their index as node name. MIG instances are below their card and named like "1:0".
    """
    carried = ", ".join(
        f"{name} {bandwidth:.3g}" for name, bandwidth in link_classes(card_links(topology).values())
    )
    label = f"{title(topology)}{f'; GB/s per direction: {carried}' if carried else ''}"
    lines = [
        f"graph {_quote(topology.name)} {{",
        (
            f'  graph [label={_quote(label)}, labelloc=t, fontname="Helvetica", nodesep=0.45, '
            "ranksep=1]"
        ),
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="Helvetica"]',
        '  edge [fontname="Helvetica", fontsize=10]',
        *(f"  {line}" for line in _machine_lines(topology)),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    """Quote a text so that Graphviz reads it literally."""
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
        yield from (f"  {line}" for line in _nvlink_lines(part, _quote(f"NVSwitch of node {node}")))
        yield "}"
        first = machine_tree(part).sockets[0]
        yield f'network -- {_quote(_node_name(first))} [lhead={name}, color="#4a5568", penwidth=3]'


def _level_lines(machine: Topology, name: str) -> Iterator[str]:
    by_index = {card.index: card for card in cards(machine)}
    for i, socket in enumerate(machine_tree(machine).sockets):
        yield f"subgraph {name}_{i} {{"
        yield f'  label={_quote(socket_name(socket))}; style="rounded,filled"; color="#f3f5f8"'
        yield from (f"  {line}" for line in _lines_below(socket, by_index))
        yield "}"


def _lines_below(level: Level, by_index: Mapping[int, Card]) -> Iterator[str]:
    """Yield a node for the level, and an edge to each node below it."""
    if not level.is_branch:
        yield from _card_lines(by_index[level.cards[0]])
        return
    name = _quote(_node_name(level))
    cpu = _CPUS.get(level.path, "CPU")
    label = cpu if level.kind in ("socket", "machine") else level.kind
    yield f'{name} [label={_quote(label)}, fillcolor="#d5dae2"]'
    for child in level.children:
        yield from _lines_below(child, by_index)
        yield f"{name} -- {_quote(_node_name(child))} [{_PCIE}]"


def _card_lines(card: Card) -> Iterator[str]:
    yield f'"{card.index}" [label="GPU {card.index}"]'
    for gpu in card.instances:
        profile = gpu.mig.profile if gpu.mig else ""
        yield f"{_quote(gpu.name)} [label={_quote(f'{gpu.name} {profile}')}, fontsize=10]"
        yield f'"{card.index}" -- {_quote(gpu.name)} [style=dotted]'


def _node_name(level: Level) -> str:
    """Return the name of a level's node: its index if it is a card."""
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
            label = f'label="{link_name(link)}"'
            yield f'"{card.index}" -- {switch} [{_style(link, card.gpu.nvswitch_links)}, {label}]'


def _style(link: Link, count: int) -> str:
    return f'color="{_COLOURS[link.kind]}", penwidth={min(1 + count, 7)}'
