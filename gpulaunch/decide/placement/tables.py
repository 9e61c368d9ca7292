"""Figures of all sets of a machine's GPUs, made once, so that decisions only look them up.

A decision comes out the same with tables and without, only sooner, but that on 9 GPUs and more
only they know what jobs to come can expect. Machines of up to 16 GPUs have them: for each set that,
its cut, the sum of w over its pairs, and the slowest edge of each built-in pattern; machines of up
to 8 GPUs the best mapping of each pattern, too.
"""
# pure: decides on plain values

import json
from zlib import crc32

from gpulaunch.decide.placement.expected import JobSizes, expected_bandwidths
from gpulaunch.decide.placement.fabric import MAPPED_GPUS, Fabric
from gpulaunch.decide.placement.scores import Scorer
from gpulaunch.profiles.pattern import PATTERNS

_FORM = 1
"""Number of the form of a file; another one is not read."""


def tabulate(fabric: Fabric, sizes: JobSizes) -> None:
    """Make all tables of a machine of at most TABULATED_GPUS GPUs.

    Args:
        fabric: the machine; it keeps the tables.
        sizes: sizes of the jobs that it gets.

    Cost: about 1 s for 8 GPUs and 15 s for 16, all different.
    """
    count = len(fabric.gpus)
    everything = range(count)
    names = {"cut": PATTERNS["all_to_all"]}
    names |= {f"{p.name} slowest": p for p in PATTERNS.values() if not p.collective and p.edges(2)}
    tables = {name: [0] * (1 << count) for name in names}
    orders = {p.name: bytearray(MAPPED_GPUS << count) for p in PATTERNS.values() if p.edges(2)}
    for size in range(2, count + 1):
        masks = [mask for mask in range(1 << count) if mask.bit_count() == size]
        for name, pattern in names.items():
            scorer = Scorer(fabric, everything, size, pattern, "cut", everything)
            value = scorer.figure("effective_bandwidth", ("effective_bandwidth",)).value
            for mask in masks:
                tables[name][mask] = value(mask)
        for name, order in orders.items() if count <= MAPPED_GPUS else ():
            scorer = Scorer(fabric, everything, size, PATTERNS[name], "cut", everything)
            for mask in masks:
                start = MAPPED_GPUS * mask
                order[start : start + size] = bytes(scorer.mapping(mask, slowest_first=True).gpus)
    fabric.tables |= tables | {"among": fabric.sums_among}
    fabric.tables[sizes.table] = expected_bandwidths(fabric, sizes)
    if count <= MAPPED_GPUS:
        fabric.orders |= {name: bytes(order) for name, order in orders.items()}


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
