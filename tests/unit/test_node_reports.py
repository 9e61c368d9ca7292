"""Reports of nodes: whole after a way on which lines of many tasks mix."""

import random

import pytest
from values import machine

from gpulaunch.cluster.cluster import Node
from gpulaunch.cluster.node import read_reports, report_lines
from gpulaunch.errors import FailedError
from gpulaunch.records import replace

NODES = [
    Node(f"n{task}", replace(machine(name), digest=None), sockets)
    for task, (name, sockets) in enumerate(
        [("dgx1-v100", ((0, 1), (40, 41))), ("nvl72", ((*range(72),),)), ("power8-minsky", ())]
    )
]


def test_reports_survive_mixed_lines() -> None:
    """Lines of several tasks in any order, between others, give the nodes by task."""
    lines = [line for task, node in enumerate(NODES) for line in report_lines(task, node)]
    assert max(map(len, lines)) < 1000  # tasks' output keeps so many characters together
    noise = ["", "slurmstepd: a warning", "gpulaunch-node is a word", "gpulaunch-node a b c d"]
    lines += noise
    random.Random(1).shuffle(lines)
    assert read_reports("\n".join(lines)) == NODES


@pytest.mark.parametrize(
    "lines", [report_lines(1, NODES[1])[1:], ["gpulaunch-node 1 0 1 QUJD"]], ids=["lost", "other"]
)
def test_an_incomplete_report_is_refused(lines: list[str]) -> None:
    """A report without one of its lines, or of other content, names the node and a likely cause."""
    with pytest.raises(FailedError, match="the report of node 1 cannot be read") as caught:
        read_reports("\n".join(lines))
    assert caught.value.hint == "is the same version of gpulaunch installed on all nodes?"
