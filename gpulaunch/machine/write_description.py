"""The machine file of a topology: the inverse of described_topology."""
# pure: decides on plain values

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

from gpulaunch.machine.gpu import Gpu, format_cpuset
from gpulaunch.machine.link import PCIE_PATHS, Link, computed_pcie
from gpulaunch.machine.topology import DEFAULT_DRIVER, Card, Topology, card_links, cards
from gpulaunch.records import as_dict


def machine_document(topology: Topology) -> dict[str, Any]:
    """Return the document of a machine file that describes this topology.

    A description has no UUIDs and PCI addresses, counts its GPUs from 0, and states peer-to-peer
    only if it is the same for all pairs. Characters that are not allowed in its name become "-".
    """
    found = cards(topology)
    gpus = [card.gpu for card in found]
    place = {card.index: i for i, card in enumerate(found)}
    links = {(place[a], place[b]): link for (a, b), link in card_links(topology).items()}
    sections: dict[str, Any] = {
        "gpus": _describe_gpus(found),
        "nvlink": _describe_nvlink(gpus, links),
        "pcie": _describe_pcie(gpus, links),
        "numa": _describe_numa(gpus),
        "mig": _describe_instances(found),
        "measured": [
            {**as_dict(measured), "ring": list(measured.ring)} for measured in topology.measured
        ],
    }
    name = re.sub(r"[^A-Za-z0-9._-]", "-", topology.name) or "machine"
    facts = {"name": name, "source": topology.source}
    if topology.driver != DEFAULT_DRIVER:
        facts["driver"] = topology.driver
    return facts | {key: value for key, value in sections.items() if value}


def _describe_gpus(found: Sequence[Card]) -> dict[str, Any]:
    memory = [card.memory_bytes >> 20 for card in found]
    capabilities = [card.gpu.compute_capability or "" for card in found]
    table = {"count": len(found), "model": _one_or_each(card.model for card in found)}
    known: dict[str, list[Any]] = {"memory_mib": memory, "compute_capability": capabilities}
    return table | {key: _one_or_each(values) for key, values in known.items() if any(values)}


def _describe_nvlink(gpus: Sequence[Gpu], links: dict[tuple[int, int], Link]) -> dict[str, Any]:
    versions = [gpu.nvlink_version for gpu in gpus]
    keys: dict[str, Callable[[Gpu], float]] = {
        "switch_links_per_gpu": lambda gpu: gpu.nvswitch_links,
        "cpu_links_per_gpu": lambda gpu: gpu.cpu_nvlinks,
        "gb_per_s_per_link": lambda gpu: gpu.nvlink_gb_per_s,
    }
    facts: dict[str, Any] = {
        key: _one_or_each(map(ask, gpus)) for key, ask in keys.items() if any(map(ask, gpus))
    }
    direct = [
        [a, b, link.nvlink_count] for (a, b), link in sorted(links.items()) if link.kind == "nvlink"
    ]
    if direct:
        facts["links"] = direct
    return {"version": _one_or_each(versions)} | facts if any(versions) or facts else {}


def _describe_pcie(gpus: Sequence[Gpu], links: dict[tuple[int, int], Link]) -> dict[str, Any]:
    table: dict[str, Any] = {
        "generation": _one_or_each(gpu.pcie_generation for gpu in gpus),
        "width": _one_or_each(gpu.pcie_width for gpu in gpus),
    }
    stated = set()
    for (a, b), link in links.items():
        computed = computed_pcie(gpus[a], gpus[b], link.pcie_path, link.peer_to_peer)
        if link.pcie_gb_per_s != computed:
            stated.add(link.pcie_gb_per_s)
    if len(stated) == 1:
        table["bandwidth_gb_per_s"] = stated.pop()
    usable = {link.peer_to_peer for link in links.values()}
    if len(usable) == 1 and usable != {None}:
        table["peer_to_peer"] = usable.pop()
    groups = _pcie_groups(len(gpus), links)
    if groups:
        table["groups"] = groups
    return table


def _pcie_groups(count: int, links: dict[tuple[int, int], Link]) -> dict[str, list[list[int]]]:
    """Return, for each path type, the groups of GPUs that meet at that level or nearer.

    If the relation does not split the machine into groups, as in a made-up matrix, every pair is a
    group.
    """
    groups: dict[str, list[list[int]]] = {}
    reach: set[tuple[int, int]] = set()
    for path in PCIE_PATHS[:-1]:
        pairs = {pair for pair, link in links.items() if link.pcie_path == path}
        if not pairs:
            continue
        reach |= pairs
        near = [
            [b for b in range(count) if b == a or (min(a, b), max(a, b)) in reach]
            for a in range(count)
        ]
        found = [group for a, group in enumerate(near) if len(group) > 1 and group[0] == a]
        covered = {pair for group in found for pair in combinations(group, 2)}
        groups[path] = found if covered == reach else [list(pair) for pair in sorted(pairs)]
    return groups


def _describe_numa(gpus: Sequence[Gpu]) -> list[dict[str, Any]]:
    entries: dict[tuple[int | None, str], list[int]] = {}
    for i, gpu in enumerate(gpus):
        if gpu.numa_node is not None or gpu.cpuset:
            entries.setdefault((gpu.numa_node, format_cpuset(gpu.cpuset)), []).append(i)
    tables = []
    for (node, cpuset), places in entries.items():
        table: dict[str, Any] = {} if node is None else {"node": node}
        table["gpus"] = places
        if cpuset:
            table["cpuset"] = cpuset
        tables.append(table)
    return tables


def _describe_instances(found: Sequence[Card]) -> list[dict[str, Any]]:
    entries: dict[tuple[int, str, int], list[int]] = {}
    for i, card in enumerate(found):
        for gpu in card.instances:
            if gpu.mig:
                entries.setdefault((i, gpu.mig.profile, gpu.memory_bytes >> 20), []).append(
                    gpu.mig.instance
                )
    return [
        {"gpu": card, "profile": profile, "memory_mib": mib, "instances": instances}
        for (card, profile, mib), instances in entries.items()
    ]


def _one_or_each(values: Iterable[Any]) -> Any:  # noqa: ANN401
    found = list(values)
    return found[0] if len(set(found)) == 1 else found
