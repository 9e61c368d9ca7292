"""Lines for a terminal about an NCCL log."""

from gpulaunch.show import Document
from gpulaunch.show.scan import verdict_lines


def nccl_lines(document: Document) -> list[str]:
    """Return one line for each function and place, then the conclusion from all of them.

    Args:
        document: the document from nccl_document.
    """
    file = document["calls"][0]["file"]
    rows = [
        (
            f"{file}:{one['line']}",
            f"nccl{one['name']}",
            one["pattern"],
            f"{one['calls']} calls",
            f"{one['message_bytes'] / 1e6:.4g} MB on average",
        )
        for one in document["collectives"]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        *(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ),
        "",
        *verdict_lines(document, f"{document['ranks']} ranks"),
    ]
