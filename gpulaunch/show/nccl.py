"""The document of an NCCL log, and lines for a terminal."""

from gpulaunch.errors import counted
from gpulaunch.records import as_dict
from gpulaunch.show import Document
from gpulaunch.show.scan import verdict_lines
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.measure.logs.nccl_log import LoggedTraffic


def nccl_document(found: "LoggedTraffic", file: str) -> Document:
    """Return the document of `--scan-nccl-log --json`: the keys of a source scan, and more.

    Args:
        found: from communication.
        file: path of the log.
    """
    calls = [{"file": file} | as_dict(one) for one in found.calls]
    return as_dict(found) | {"calls": calls}


def nccl_lines(document: Document) -> list[str]:
    """Return lines on each function, the transports, who talks to whom, and the conclusion.

    Args:
        document: the document from nccl_document.
    """
    found = []
    for call in document["calls"]:
        size = f"{call['message_bytes'] / 1e6:.4g} MB on average"
        place = f"{call['file']}:{call['line']}"
        found.append(f"{place}  {call['api']}  {call['pattern']}  {call['calls']} calls  {size}")
    if document["connections"]:
        ways = document["connections"].items()
        found.append(f"connections: {', '.join(f'{way} {count}' for way, count in ways)}")
    if document["groups"]:
        groups = (" ".join(map(str, group)) for group in document["groups"])
        found.append(f"communicators of ranks {', '.join(groups)}")
    found += [f"ranks {a} and {b}: {gb:.3g} GB" for a, b, gb in document["edges"]]
    verdict = verdict_lines(document, counted(document["ranks"], "rank"))
    return [*found, *([""] if found else []), *verdict]
