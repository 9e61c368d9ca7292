"""Slurm's texts about the network: topology.conf, `scontrol show topology`, addresses of nodes."""
# pure: decides on plain values

from collections.abc import Iterator, Mapping
from itertools import pairwise

from gpulaunch.cluster.hostlist import expand_hostlist
from gpulaunch.cluster.network import Switch
from gpulaunch.errors import FieldError, printable, quoted

_KEYS = {
    "switchname": ("nodes", "switches", "level", "linkspeed"),
    "blockname": ("nodes", "blockindex", "blocksize"),
    "aggregatedblock": ("nodes", "blockindex", "blocksize"),
    "blocksizes": (),
}
"""First key of a line, in lower case -> the keys that may follow it."""

_BLOCKS = "blocks"


def read_topology_conf(text: str) -> tuple[Switch, ...]:
    """Return the switches in a topology.conf of topology/tree or topology/block, or in what
    `scontrol show topology` prints for one.

    Blocks are switches of their own below one for all. BlockSizes and the aggregated blocks that
    scontrol adds say what jobs may have, and not how blocks are joined; they are skipped. LinkSpeed
    is in a unit of each site's own, which Slurm does not use; it is skipped, too.

    Raises:
        FieldError: a line is wrong; its path is the line's number.

    Source: topology.conf(5) of Slurm 25.05; scontrol lists all nodes below a switch, and not only
        those on it, in lines that have Switches.
    """
    switches: list[Switch] = []
    blocks: list[str] = []
    for number, line in _lines(text):
        first, values = _read_line(line, number)
        if first == "switchname":
            below = _read_hosts(values, "switches", number)
            from_scontrol = bool(below) and "level" in values
            nodes = () if from_scontrol else _read_hosts(values, "nodes", number)
            switches.append(Switch(values[first], nodes, below, (number,)))
        elif first == "blockname":
            blocks.append(values[first])
            nodes = _read_hosts(values, "nodes", number)
            switches.append(Switch(values[first], nodes, (), (number,)))
    if not switches:
        raise FieldError((), "no SwitchName= and no BlockName= in it")
    if blocks:
        switches.append(Switch(_free_name(switches), (), tuple(blocks), switches[0].path))
    return tuple(switches)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that say something, without comments, continued ones put together."""
    before, start = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        stated = line.partition("#")[0].rstrip()
        start = start if before else number
        if stated.endswith("\\"):
            before += f"{stated[:-1]} "
        else:
            if (before + stated).strip():
                yield start, (before + stated).strip()
            before = ""
    if before.strip():
        yield start, before.strip()


def _read_line(line: str, number: int) -> tuple[str, dict[str, str]]:
    """Return the first key of a line, and all its values by key, in lower case."""
    values: dict[str, str] = {}
    for word in line.split():
        key, equals, value = word.partition("=")
        known = _KEYS if not values else _KEYS[next(iter(values))]
        if not equals or not value or key.lower() in values:
            raise FieldError((number,), f"{quoted(word)} is no KEY=VALUE of a topology")
        if key.lower() not in known:
            raise FieldError((number,), f"unknown key {quoted(key)} in a topology")
        values[key.lower()] = value
    return next(iter(values)), values


def _read_hosts(values: Mapping[str, str], key: str, number: int) -> tuple[str, ...]:
    if key not in values:
        return ()
    try:
        return expand_hostlist(values[key])
    except ValueError as problem:
        raise FieldError((number,), printable(str(problem))) from None


def _free_name(switches: list[Switch]) -> str:
    taken = {switch.name for switch in switches}
    return next(
        name
        for name in (_BLOCKS, *(f"{_BLOCKS}{i}" for i in range(len(taken))))
        if name not in taken
    )


def split_address(address: str, pattern: str) -> tuple[str, ...]:
    """Return the switches above a node, the topmost first, from what Slurm tells its tasks.

    Args:
        address: value of SLURM_TOPOLOGY_ADDR, such as "top.s2.n2".
        pattern: value of SLURM_TOPOLOGY_ADDR_PATTERN, such as "switch.switch.node".

    Raises:
        ValueError: the two do not fit.

    Source: srun(1), OUTPUT ENVIRONMENT VARIABLES.
    """
    kinds = pattern.split(".")
    parts = address.split(".", len(kinds) - 1)  # a node's name may have dots
    if len(parts) != len(kinds) or kinds[-1] != "node" or not all(parts):
        raise ValueError(f"address {address!r} does not fit its pattern {pattern!r}")
    return tuple(parts[:-1])


def switches_of_addresses(addresses: Mapping[str, tuple[str, ...]]) -> tuple[Switch, ...]:
    """Return the switches that the addresses of nodes name.

    Args:
        addresses: switches above each node, the topmost first; () if a node has none.

    Returns:
        The switches; () if no node has any, or some have none, so that nothing is known of what
        joins them.
    """
    nodes: dict[str, list[str]] = {}
    below: dict[str, dict[str, None]] = {}
    for node, switches in addresses.items():
        if not switches:
            return ()
        for switch in switches:
            below.setdefault(switch, {})
        for upper, lower in pairwise(switches):
            below[upper][lower] = None
        nodes.setdefault(switches[-1], []).append(node)
    return tuple(
        Switch(name, tuple(nodes.get(name, ())), tuple(children), ())
        for name, children in below.items()
    )
