"""Figures of all sets of a machine's GPUs, made once, so that decisions only look them up.

A decision comes out the same with tables and without, only sooner, unless it gives up (explain says
so) without them. Machines of up to 16 GPUs have
them: for each set its cut, the sum of w over its pairs, and the slowest edge of a chain and a star;
machines of up to 8 GPUs also that of the other built-in patterns, and the best mapping of each.
What takes too long to be sure of is left out.
"""
# pure: decides on plain values

import json
from collections.abc import Callable, Sequence
from zlib import crc32

from gpulaunch.decide.placement.effective import effective_bandwidth
from gpulaunch.decide.placement.fabric import MAPPED_GPUS, Fabric
from gpulaunch.decide.placement.mapping import Mapper
from gpulaunch.decide.placement.scores import Scorer
from gpulaunch.profiles.pattern import PATTERNS, Pattern
from gpulaunch.typing import TypeVar

_FORM = 1
"""Number of the form of a file; another one is not read."""

_EFFORT = 5_000
"""Partial mappings to try for one set, some 50 ms: of all sets of a 4 x 4 torus none needs 850."""

T = TypeVar("T")


def tabulate(fabric: Fabric) -> None:
    """Make all tables of a machine of at most TABULATED_GPUS GPUs.

    Args:
        fabric: the machine; it keeps the tables.

    Cost: 0.3 s for 8 GPUs, 10 s or so for 16, all different.
    """
    masks = range(1 << len(fabric.gpus))
    tables: dict[str, Sequence[int]] = {
        "cut": [effective_bandwidth(fabric, "cut", m) if m & m - 1 else 0 for m in masks],
        "among": fabric.sums_among,
    }
    small = len(fabric.gpus) <= MAPPED_GPUS
    for name, pattern in PATTERNS.items():
        if not pattern.collective and (small or name in ("chain", "star")):
            slowest = _of_all_sets(fabric, pattern, _slowest, 0)
            if slowest:
                tables[f"{name} slowest"] = slowest
        orders = _of_all_sets(fabric, pattern, _order, bytes(MAPPED_GPUS)) if small else None
        if orders:
            fabric.orders[name] = b"".join(orders)
    fabric.tables |= tables


def _slowest(mapper: Mapper, gpus: Sequence[int]) -> int:
    return mapper.slowest(gpus, slowest_first=True)


def _order(mapper: Mapper, gpus: Sequence[int]) -> bytes:
    return bytes(mapper.best(gpus, slowest_first=True).gpus).ljust(MAPPED_GPUS, b"\0")


def _of_all_sets(
    fabric: Fabric, pattern: Pattern, ask: Callable[[Mapper, Sequence[int]], T], none: T
) -> list[T] | None:
    """Return by mask what is asked of a pattern's mappings to a set; `none` of less than two GPUs.

    Returns:
        None without edges, or if it is not sure of one set, because the search gave up.
    """
    if not pattern.edges(2):
        return None
    every = range(len(fabric.gpus))
    mappers = [
        Scorer(fabric, every, n, pattern, "cut", every).mapper for n in range(2, len(every) + 1)
    ]
    found = []
    for mask in range(1 << len(every)):
        gpus = fabric.positions(mask)
        if len(gpus) < 2:
            found.append(none)
            continue
        mapper = mappers[len(gpus) - 2]
        mapper.start_over(_EFFORT)
        found.append(ask(mapper, gpus))
        if mapper.gave_up:
            return None
    return found


def to_bytes(fabric: Fabric) -> bytes:
    """Return a machine's tables as the content of a file.

    Four bytes of a checksum of all that follows, a line of JSON, the figures.
    """
    title = {
        "form": _FORM,
        "links": fabric.text,
        "tables": [*fabric.tables],
        "orders": [*fabric.orders],
    }
    figures = b"".join(
        figure.to_bytes(8, "little") for table in fabric.tables.values() for figure in table
    )
    content = (
        json.dumps(title).encode() + b"\n" + figures + b"".join(map(bytes, fabric.orders.values()))
    )
    return crc32(content).to_bytes(4, "little") + content


def read_tables(fabric: Fabric, content: bytes) -> None:
    """Give a machine its tables out of the content of a file, unless that is another machine's.

    Raises:
        ValueError: the content is damaged.
    """
    if crc32(memoryview(content)[4:]) != int.from_bytes(content[:4], "little"):
        raise ValueError("another checksum")
    start = content.index(b"\n", 4) + 1
    title = json.loads(content[4:start])
    if title["form"] != _FORM or title["links"] != fabric.text:
        return
    each, figures = 8 << len(fabric.gpus), memoryview(content)[start:]
    parts = [figures[start : start + each] for start in range(0, len(figures), each)]
    tables, orders = parts[: len(title["tables"])], parts[len(title["tables"]) :]
    fabric.tables = dict(zip(title["tables"], (part.cast("Q") for part in tables), strict=True))
    fabric.orders = dict(zip(title["orders"], orders, strict=True))
