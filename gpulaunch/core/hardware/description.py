"""A topology -> the document of a machine file that describes it: the inverse of described_topology."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

from gpulaunch.core.hardware.bandwidth import PCIE_PATHS, pcie_bandwidth
from gpulaunch.core.hardware.cpuset import format_cpuset
from gpulaunch.core.hardware.topology import Gpu, Link, Topology


def machine_document(topology: Topology) -> dict[str, Any]:
    """What a machine file says of this topology.

    A description has no UUIDs and PCI addresses, counts its GPUs from 0, and says of peer-to-peer only what is true of
    all pairs.
    """
    cards, links = _cards(topology)
    document: dict[str, Any] = {
        "name": topology.name,
        "source": topology.source,
        "gpus": {
            "count": len(cards),
            "model": _one_or_each(card.model for card in cards),
            "memory_mib": _one_or_each(card.memory_bytes >> 20 for card in cards),
        },
    }
    if all(card.compute_capability for card in cards):
        document["gpus"]["compute_capability"] = _one_or_each(card.compute_capability for card in cards)
    if any(card.nvlink_version for card in cards) or any(link.nvlink_count for link in links.values()):
        document["nvlink"] = _nvlink(cards, links)
    document["pcie"] = _pcie(cards, links)
    nodes = _numa(cards)
    if nodes:
        document["numa"] = nodes
    instances = _instances(topology)
    if instances:
        document["mig"] = instances
    return document


def _cards(topology: Topology) -> tuple[list[Gpu], dict[tuple[int, int], Link]]:
    """The cards by ascending index, with MIG instances put together again, and a link for every two by position."""
    number = {gpu.index: gpu.card for gpu in topology.gpus}
    cards: dict[int, Gpu] = {}
    for gpu in sorted(topology.gpus, key=lambda gpu: gpu.card):
        whole = (
            gpu._replace(model=gpu.model.removesuffix(f" MIG {gpu.mig.profile}"), memory_bytes=0) if gpu.mig else gpu
        )
        cards.setdefault(gpu.card, whole)
    place = {card: i for i, card in enumerate(cards)}
    links: dict[tuple[int, int], Link] = {}
    for link in topology.links:
        a, b = sorted((place[number[link.a]], place[number[link.b]]))
        if a != b:
            links[a, b] = link
    return list(cards.values()), links


def _nvlink(cards: Sequence[Gpu], links: dict[tuple[int, int], Link]) -> dict[str, Any]:
    keys: dict[str, Callable[[Gpu], float]] = {
        "switch_links_per_gpu": lambda card: card.nvswitch_links,
        "cpu_links_per_gpu": lambda card: card.cpu_nvlinks,
        "gb_per_s_per_link": lambda card: card.nvlink_gb_per_s,
    }
    table: dict[str, Any] = {"version": _one_or_each(card.nvlink_version for card in cards)}
    direct = [[a, b, link.nvlink_count] for (a, b), link in sorted(links.items()) if link.kind == "nvlink"]
    if direct:
        table["links"] = direct
    return table | {key: _one_or_each(map(ask, cards)) for key, ask in keys.items() if any(map(ask, cards))}


def _pcie(cards: Sequence[Gpu], links: dict[tuple[int, int], Link]) -> dict[str, Any]:
    table: dict[str, Any] = {
        "generation": _one_or_each(card.pcie_generation for card in cards),
        "width": _one_or_each(card.pcie_width for card in cards),
    }
    stated = {link.pcie_gb_per_s for link in links.values() if link.pcie_gb_per_s != _computed(link)}
    if len(stated) == 1:
        table["bandwidth_gb_per_s"] = stated.pop()
    usable = {link.peer_to_peer for link in links.values()}
    if len(usable) == 1 and usable != {None}:
        table["peer_to_peer"] = usable.pop()
    groups = _groups(len(cards), links)
    if groups:
        table["groups"] = groups
    return table


def _computed(link: Link) -> float:
    usable = link.peer_to_peer is not False
    return pcie_bandwidth(link.pcie_path, link.pcie_generation, link.pcie_width, peer_to_peer=usable)


def _groups(count: int, links: dict[tuple[int, int], Link]) -> dict[str, list[list[int]]]:
    """For each path type the groups of GPUs that meet so or nearer.

    Where that relation does not split the machine into groups, as in a text that somebody made up, pairs say it.
    """
    groups: dict[str, list[list[int]]] = {}
    reach: set[tuple[int, int]] = set()
    for path in PCIE_PATHS[:-1]:
        pairs = {pair for pair, link in links.items() if link.pcie_path == path}
        if not pairs:
            continue
        reach |= pairs
        near = [[b for b in range(count) if b == a or (min(a, b), max(a, b)) in reach] for a in range(count)]
        found = [group for a, group in enumerate(near) if len(group) > 1 and group[0] == a]
        covered = {pair for group in found for pair in combinations(group, 2)}
        groups[path] = found if covered == reach else [list(pair) for pair in sorted(pairs)]
    return groups


def _numa(cards: Sequence[Gpu]) -> list[dict[str, Any]]:
    entries: dict[tuple[int | None, str], list[int]] = {}
    for i, card in enumerate(cards):
        if card.numa_node is not None or card.cpuset:
            entries.setdefault((card.numa_node, format_cpuset(card.cpuset)), []).append(i)
    return [
        ({} if node is None else {"node": node}) | {"gpus": gpus} | ({"cpuset": cpuset} if cpuset else {})
        for (node, cpuset), gpus in entries.items()
    ]


def _instances(topology: Topology) -> list[dict[str, Any]]:
    entries: dict[tuple[int, str, int], list[int]] = {}
    cards = sorted({gpu.card for gpu in topology.gpus})
    for gpu in topology.gpus:
        if gpu.mig:
            key = (cards.index(gpu.mig.card), gpu.mig.profile, gpu.memory_bytes >> 20)
            entries.setdefault(key, []).append(gpu.mig.instance)
    return [
        {"gpu": card, "profile": profile, "memory_mib": mib, "instances": instances}
        for (card, profile, mib), instances in entries.items()
    ]


def _one_or_each(values: Iterable[Any]) -> Any:  # noqa: ANN401
    found = list(values)
    return found[0] if len(set(found)) == 1 else found
