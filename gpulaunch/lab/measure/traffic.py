"""The communication graph of a job, from NVLink counters (mapa-sc21 3.1, Figure 9b)."""
# pure: decides on plain values

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from gpulaunch.lab.measure.run import GpuRun, Run, rounded
from gpulaunch.profiles.pattern import is_whole

NOISE_SHARE = 0.01
"""Least traffic of a pair that has an edge, as part of the busiest pair's. Our choice.

An edge matters where it can be the slowest for its weight. Under 1 % its link would have to be 100
times slower than the busiest pair's; from four bonded NVLinks to PCIe 3 x16 it is 9 times. What is
left out is what every process with peer access does: set-up, flags, barriers.
"""

NOISE_BYTES = 1 << 20
"""Least traffic of a pair that has an edge: the counters step by 1 KiB, and set-up alone moves
some. Our choice.
"""

_GB = 1e9
_MOST_PAIRS = 6  # that a line names


def communication_of(run: Run, source: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the [communication] of a profile that a run shows, and lines about it.

    The section is empty if the counters do not show a graph that joins all ranks.

    Args:
        run: a run on any number of GPUs; on one there is no communication.
    """
    if len(run.gpus) < 2:
        return {}, ()
    if any(gpu.hides_peers for gpu in run.gpus):
        return {}, ("who talks to whom does not show: NVLinks end at an NVSwitch, or unknown",)
    amounts = traffic_between(run.gpus)
    if amounts is None:
        return {}, ("who talks to whom does not show: some NVLinks have no counters",)
    floor = max(NOISE_BYTES, NOISE_SHARE * max(amounts.values(), default=0.0))
    edges = [(*pair, amount / _GB) for pair, amount in amounts.items() if amount >= floor]
    lines = []
    if edges:
        heaviest = sorted(edges, key=lambda edge: -edge[2])[:_MOST_PAIRS]
        shown = [f"ranks {a}-{b} {gb / run.duration_s:.3g} GB/s" for a, b, gb in heaviest]
        more = f" and {len(edges) - _MOST_PAIRS} more" if len(edges) > _MOST_PAIRS else ""
        lines.append(f"over direct NVLinks, both ways: {', '.join(shown)}{more}")
    elif amounts:
        lines.append("no pair of ranks talked over direct NVLinks")
    section: dict[str, Any] = {}
    if is_whole(edges, len(run.gpus)):
        section["edges"] = [[a, b, rounded(gb)] for a, b, gb in edges]
        section["source"] = f"{source}: NVLink counters of {len(run.gpus)} {run.models}, {run.date}"
    return section, tuple(lines)


def traffic_between(gpus: Sequence[GpuRun]) -> dict[tuple[int, int], float] | None:
    """Return the bytes that each pair of ranks with direct NVLinks exchanged, in both directions.

    What one end sent, the other end received: each direction is counted twice, and its traffic is
    the mean of the two, or the one that is known. It is None if a direction was counted at neither.

    Args:
        gpus: the job's GPUs in rank order, with different indices.

    Source: mapa-sc21 3.1 and Figure 9b, which reads edges off links that join two GPUs directly. It
        says nothing of NVSwitch, and of ends that disagree.
    """
    amounts = {}
    for a, b in combinations(range(len(gpus)), 2):
        one = [traffic for traffic in gpus[a].traffic if traffic.peer == gpus[b].gpu]
        other = [traffic for traffic in gpus[b].traffic if traffic.peer == gpus[a].gpu]
        if not one and not other:
            continue
        there = [each.sent for each in one] + [each.received for each in other]
        back = [each.received for each in one] + [each.sent for each in other]
        amounts[a, b] = 0.0
        for ends in (there, back):
            known = [end for end in ends if end is not None]
            if not known:
                return None
            amounts[a, b] += sum(known) / len(known)
    return amounts
