"""The document of an NCCL log, and lines for a terminal."""

from collections.abc import Iterator

from gpulaunch.errors import counted
from gpulaunch.records import as_dict
from gpulaunch.show import Document
from gpulaunch.show.scan import verdict_lines
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.measure.logs.nccl_log import NcclLog
    from gpulaunch.measure.logs.nccl_traffic import LoggedTraffic

_MOST_RINGS = 4


def nccl_document(log: "NcclLog", found: "LoggedTraffic", file: str) -> Document:
    """Return the document of `profile scan --nccl-log`: the keys of a source scan, and more.

    Args:
        log: from read_nccl_log.
        found: from communication.
        file: path of the log.
    """
    return {
        "calls": [
            {"file": file, "line": one.line, "api": f"nccl{one.name}", "pattern": one.pattern}
            for one in sorted(found.collectives, key=lambda one: one.line)
        ],
        "pattern": found.pattern,
        "sensitive": found.sensitive,
        "confidence": found.confidence,
        "pattern_confidence": found.pattern_confidence,
        "reasons": list(found.reasons),
        "ranks": found.ranks,
        "gpus_in_log": log.gpus,
        "nccl_version": log.version,
        "edges": [list(edge) for edge in found.edges],
        "calls_per_gpu": found.calls_per_gpu,
        "message_bytes": found.message_bytes,
        "gb_per_s": found.gb_per_s,
        "duration_s": log.duration_s,
        "collectives": [
            as_dict(one) | {"sizes": [list(size) for size in one.sizes]}
            for one in found.collectives
        ],
        "rings": [{"ranks": list(order), "channels": channels} for order, channels in log.rings],
        "trees": [
            {"edges": [list(edge) for edge in tree], "channels": channels}
            for tree, channels in log.trees
        ],
        "connections": log.ways,
        "damaged": log.damaged,
    }


def nccl_lines(document: Document) -> list[str]:
    """Return one line for each function and place, then rings, transports and the conclusion.

    Args:
        document: the document from nccl_document.
    """
    rows = [
        (
            f"{call['file']}:{call['line']}",
            call["api"],
            call["pattern"],
            f"{one['calls']} calls",
            f"{one['message_bytes'] / 1e6:.4g} MB on average",
        )
        for one in document["collectives"]
        for call in document["calls"]
        if call["api"] == f"nccl{one['name']}"
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(5)]
    found = [
        *(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ),
        *_setup_lines(document),
    ]
    return [
        *found,
        *([""] if found else []),
        *verdict_lines(document, counted(document["ranks"], "rank")),
    ]


def _setup_lines(document: Document) -> Iterator[str]:
    """Yield what NCCL set up: rings, trees, and the transports between ranks."""
    for ring in document["rings"][:_MOST_RINGS]:
        yield f"ring {' '.join(map(str, ring['ranks']))}: {counted(ring['channels'], 'channel')}"
    left = len(document["rings"]) - _MOST_RINGS
    if left > 0:
        yield f"{left} more rings"
    if document["trees"]:
        yield counted(len(document["trees"]), "tree")
    if document["connections"]:
        ways = document["connections"].items()
        yield f"connections: {', '.join(f'{way} {count}' for way, count in ways)}"
