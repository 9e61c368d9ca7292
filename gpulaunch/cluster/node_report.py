"""What a node of an allocation tells about itself, as lines that survive being mixed with others.

Output of many tasks arrives line by line, and long lines may be cut or interleaved. A report is
therefore sent in numbered lines of less than 1,000 characters.
"""
# pure: decides on plain values

import json
import zlib
from base64 import b64decode, b64encode

from gpulaunch.cluster.cluster import Node
from gpulaunch.errors import FailedError
from gpulaunch.machine.topology import to_rows, topology_of_rows
from gpulaunch.records import Record
from gpulaunch.typing import Any

_MARK = "gpulaunch-node"
_CHARACTERS = 800


class NodeReport(Record):
    """One node's report.

    Attributes:
        task: number of the task that made it, which is that of the node in the allocation.
        node: the node, with the GPUs and cores that were granted there.
        address: names of the switches above it, the topmost first; () if unknown.
        domain: NVLink domain that joins its GPUs with those of other nodes, or None.
    """

    task: int
    node: Node
    address: tuple[str, ...] = ()
    domain: str | None = None


def report_document(report: NodeReport) -> dict[str, Any]:
    """Return the report as a JSON document."""
    node = report.node
    return {
        "task": report.task,
        "name": node.name,
        "topology": to_rows(node.topology),
        "sockets": node.sockets,
        "address": report.address,
        "domain": report.domain,
    }


def report_of(document: dict[str, Any]) -> NodeReport:
    """Return the report of a document.

    Raises:
        KeyError, TypeError, ValueError: it is none of this version.
    """
    sockets = tuple(map(tuple, document["sockets"]))
    node = Node(document["name"], topology_of_rows(document["topology"]), sockets)
    return NodeReport(document["task"], node, tuple(document["address"]), document["domain"])


def report_lines(report: NodeReport) -> list[str]:
    """Return the lines to print."""
    packed = zlib.compress(json.dumps(report_document(report), separators=(",", ":")).encode())
    text = b64encode(packed).decode()
    parts = [text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS)]
    return [
        f"{_MARK} {report.task} {number} {len(parts)} {part}" for number, part in enumerate(parts)
    ]


def read_reports(output: str) -> list[NodeReport]:
    """Return the reports in the output of all tasks, by task; other lines are skipped.

    Raises:
        FailedError: a report is incomplete or of another version.
    """
    parts: dict[int, dict[int, str]] = {}
    counts: dict[int, int] = {}
    for line in output.splitlines():
        words = line.partition(_MARK)[2].split()
        if len(words) == 4 and all(word.isdecimal() for word in words[:3]):
            task, number, counts[int(words[0])] = map(int, words[:3])
            parts.setdefault(task, {})[number] = words[3]
    reports = []
    for task, texts in sorted(parts.items()):
        try:
            packed = b64decode("".join(texts[number] for number in range(counts[task])))
            reports.append(report_of(json.loads(zlib.decompress(packed))))
        except (KeyError, TypeError, ValueError, zlib.error):
            raise FailedError(
                f"the report of node {task} cannot be read",
                "is the same version of gpulaunch installed on all nodes?",
            ) from None
    return reports
