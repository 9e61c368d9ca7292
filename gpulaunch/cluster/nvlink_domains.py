"""NVLink domains: nodes whose GPUs reach each other over NVLink, as in a rack of GB200 NVL72."""
# pure: decides on plain values

import re
from collections.abc import Mapping, Sequence

from gpulaunch.cluster.network import Switch
from gpulaunch.errors import FieldError, quoted
from gpulaunch.records import replace

_FABRIC = re.compile(r"^\s*(ClusterUUID|CliqueId)\s*:\s*(\S+)\s*$", re.MULTILINE)
_NO_DOMAIN = {"N/A", "00000000-0000-0000-0000-000000000000"}


def nvlink_domain(text: str) -> str | None:
    """Return the NVLink domain that joins a node's GPUs with those of other nodes; None if none.

    Args:
        text: what `nvidia-smi -q` prints there.

    Returns:
        ClusterUUID and CliqueId of the first GPU that has them, as one name: GPUs of one clique
        reach each other over NVLink.

    Source: nvidia-smi(1), section "Fabric"; the fields are those of nvmlGpuFabricInfo_t.
    """
    found: dict[str, list[str]] = {"ClusterUUID": [], "CliqueId": []}
    for name, value in _FABRIC.findall(text):
        found[name].append(value)
    for cluster, clique in zip(found["ClusterUUID"], found["CliqueId"], strict=False):
        if cluster not in _NO_DOMAIN:
            return f"{cluster}.{clique}"
    return None


def with_domains(
    switches: Sequence[Switch],
    nodes: Mapping[str, float],
    domains: Mapping[str, str | None],
    nvlink_gb_per_s: float,
) -> tuple[tuple[Switch, ...], dict[str, float]]:
    """Return a network in which the nodes of one NVLink domain are on a switch of their own.

    Args:
        switches: the network without the domains; () for one switch that joins all nodes.
        nodes: bandwidth of each node's link to the network in GB/s per direction, by name.
        domains: domain of each node; None or missing if it has none.
        nvlink_gb_per_s: bandwidth of a node's link to its domain: that of its GPUs' NVLinks.

    Returns:
        The switches, and the bandwidth of each node's link to its switch.

    Raises:
        FieldError: the nodes of a domain are on several switches.
    """
    found = list(switches) or [Switch("network", tuple(nodes), (), ())]
    gb_per_s = dict(nodes)
    members: dict[str, list[str]] = {}
    for node in nodes:
        domain = domains.get(node)
        if domain:
            members.setdefault(domain, []).append(node)
    for domain, inside in members.items():
        if len(inside) > 1:
            found = _put_together(found, domain, inside, gb_per_s)
            gb_per_s.update(dict.fromkeys(inside, nvlink_gb_per_s))
    return tuple(found), gb_per_s


def _put_together(
    switches: Sequence[Switch], domain: str, inside: Sequence[str], gb_per_s: Mapping[str, float]
) -> list[Switch]:
    """Return the switches with one for a domain, which a block of exactly its nodes is already."""
    above = [switch for switch in switches if set(switch.nodes) & set(inside)]
    if len(above) > 1:
        names = " and ".join(quoted(switch.name) for switch in above[:2])
        raise FieldError(
            above[1].path, f"the network is no tree: NVLink domain {domain} has nodes on {names}"
        )
    carried = sum(gb_per_s[node] for node in inside)
    if not above:
        raise FieldError((), f"node {quoted(inside[0])} is on no switch of the network")
    switch = above[0]
    others = tuple(node for node in switch.nodes if node not in inside)
    if not others and not switch.switches and len(switches) > 1:
        return [replace(one, gb_per_s=carried) if one is switch else one for one in switches]
    upper = replace(switch, nodes=others, switches=(*switch.switches, domain))
    return [
        *(upper if one is switch else one for one in switches),
        Switch(domain, tuple(inside), (), switch.path, carried),
    ]
