"""Lines for a terminal about an NCCL log."""

from collections.abc import Iterator

from gpulaunch.errors import counted
from gpulaunch.show import Document
from gpulaunch.show.scan import verdict_lines

_MOST_RINGS = 4


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
