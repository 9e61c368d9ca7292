"""Slurm's topology.yaml, of Slurm 25.05 and later."""

from collections.abc import Mapping

from gpulaunch.cluster.hostlist import expand_hostlist
from gpulaunch.cluster.network import Switch
from gpulaunch.errors import FieldError, printable, quoted
from gpulaunch.files.yaml import Lined, parse_yaml
from gpulaunch.typing import Any

_KINDS = ("tree", "block", "flat")
_ABOVE_BLOCKS = "blocks"


def read_topology_yaml(text: str) -> tuple[Switch, ...]:
    """Return the switches of the cluster's default topology, or of the first one without a default.

    Blocks are switches below one for all; () stands for a flat topology.

    Raises:
        FieldError: the text is wrong; its path is the line of the table at fault.
        UsageError: PyYAML is not installed.

    Source: topology.yaml(5) of Slurm 25.05.
    """
    topologies = parse_yaml(text)
    if not isinstance(topologies, list) or not topologies:
        raise FieldError((), "it is no list of topologies")
    tables = [_table(one, topologies) for one in topologies]
    chosen = next((table for table in tables if table.get("cluster_default") is True), tables[0])
    kinds = [kind for kind in _KINDS if kind in chosen]
    if len(kinds) != 1:
        raise FieldError(
            (chosen.line,), f"a topology is one of {', '.join(_KINDS)}, here {len(kinds)}"
        )
    if kinds == ["flat"]:
        return ()
    inside = _table(chosen[kinds[0]], chosen)
    if kinds == ["tree"]:
        return tuple(_read_switch(one, inside) for one in _list(inside, "switches"))
    blocks = tuple(_read_block(one, inside) for one in _list(inside, "blocks"))
    top = _ABOVE_BLOCKS
    while top in {block.name for block in blocks}:
        top += "_"
    return (*blocks, Switch(top, (), tuple(block.name for block in blocks), (inside.line,)))


def _table(value: object, around: object) -> Lined:
    if not isinstance(value, Lined):
        line = (around.line,) if isinstance(around, Lined) else ()
        raise FieldError(line, f"{printable(repr(value))[:40]} is no table of a topology")
    return value


def _list(table: Lined, key: str) -> list[Any]:
    value = table.get(key)
    if not isinstance(value, list) or not value:
        raise FieldError((table.line,), f"{key}: a list is wanted")
    return value


def _read_switch(value: object, around: Lined) -> Switch:
    table = _table(value, around)
    name = _name(table, "switch")
    return Switch(name, _hosts(table, "nodes"), _hosts(table, "children"), (table.line,))


def _read_block(value: object, around: Lined) -> Switch:
    table = _table(value, around)
    return Switch(_name(table, "block"), _hosts(table, "nodes"), (), (table.line,))


def _name(table: Lined, key: str) -> str:
    name = table.get(key)
    if name is None or isinstance(name, Mapping | list):
        raise FieldError((table.line,), f"key {quoted(key)} is missing")
    return str(name)


def _hosts(table: Lined, key: str) -> tuple[str, ...]:
    text = table.get(key)
    if text is None:
        return ()
    try:
        return expand_hostlist(str(text))
    except ValueError as problem:
        raise FieldError((table.line,), printable(str(problem))) from None
