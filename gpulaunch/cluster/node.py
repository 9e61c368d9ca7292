"""What a node of an allocation tells about itself, as lines that survive being mixed with others.

Output of many tasks arrives line by line, and long lines may be cut or interleaved. A report is
therefore sent in numbered lines of less than 1,000 characters.
"""

import json
import os
import zlib
from base64 import b64decode, b64encode

from gpulaunch.cluster.cluster import Node
from gpulaunch.cluster.engines import read_place
from gpulaunch.errors import FailedError
from gpulaunch.machine.topology import Topology, to_rows, topology_of_rows

_CPUS = "/sys/devices/system/cpu"
_MARK = "gpulaunch-node"
_CHARACTERS = 800


def describe_this_node(topology: Topology) -> tuple[int, Node]:
    """Return the number of this task, which orders the nodes of an allocation, and this node.

    Args:
        topology: the GPUs that were granted here.
    """
    place = read_place(os.environ)
    name = (place and place.node) or os.uname().nodename
    task = place.rank.number if place and place.rank else 0
    return task, Node(name, topology, _sockets())


def _sockets() -> tuple[tuple[int, ...], ...]:
    """Return the CPUs that this process may use, one for each core, by socket."""
    sockets: dict[int, dict[int, int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        socket, core = _number(cpu, "physical_package_id", 0), _number(cpu, "core_id", cpu)
        sockets.setdefault(socket, {}).setdefault(core, cpu)
    return tuple(tuple(cores.values()) for _, cores in sorted(sockets.items()))


def _number(cpu: int, name: str, otherwise: int) -> int:
    """Return a number from the kernel's description of a CPU."""
    try:
        with open(f"{_CPUS}/cpu{cpu}/topology/{name}") as file:
            return int(file.read())
    except (OSError, ValueError):
        return otherwise


def report_lines(task: int, node: Node) -> list[str]:
    """Return the lines to print."""
    document = {"name": node.name, "topology": to_rows(node.topology), "sockets": node.sockets}
    packed = zlib.compress(json.dumps(document, separators=(",", ":")).encode())
    text = b64encode(packed).decode()
    parts = [text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS)]
    return [f"{_MARK} {task} {number} {len(parts)} {part}" for number, part in enumerate(parts)]


def read_reports(output: str) -> list[Node]:
    """Return the nodes in the output of all tasks, by task; other lines are skipped.

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
    nodes = []
    for task, texts in sorted(parts.items()):
        try:
            packed = b64decode("".join(texts[number] for number in range(counts[task])))
            document = json.loads(zlib.decompress(packed))
            sockets = tuple(map(tuple, document["sockets"]))
            topology = topology_of_rows(document["topology"])
            nodes.append(Node(document["name"], topology, sockets))
        except (KeyError, TypeError, ValueError, zlib.error):
            raise FailedError(
                f"the report of node {task} cannot be read",
                "is the same version of gpulaunch installed on all nodes?",
            ) from None
    return nodes
