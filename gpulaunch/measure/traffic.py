"""The communication graph of a job, from NVLink counters (mapa-sc21 3.1, Figure 9b)."""
# pure: decides on plain values

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import fsum

from gpulaunch.measure.run import CountedLink, GpuRun, Run, rounded
from gpulaunch.profiles.pattern import Edge, is_whole
from gpulaunch.records import Record
from gpulaunch.typing import Any

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

TOLERANCE = 0.02
"""Largest relative difference of the two ends of a link that is not reported: they are not read at
one moment. Our choice.
"""

_GB = 1e9
_MOST_PAIRS = 6  # that a line names


class TrafficGraph(Record):
    """The traffic between the ranks of a job, as far as counters show it.

    Attributes:
        edges: pairs of ranks that talked over direct NVLinks; GB, both directions together.
        hidden: whether some link ends at an NVSwitch or at something unknown, so that edges are
            missing.
        lines: sentences on what was measured, and on what these counters do not show.
    """

    edges: tuple[Edge, ...]
    hidden: bool
    lines: tuple[str, ...]


def traffic_between(gpus: Sequence[GpuRun], duration_s: float) -> TrafficGraph:
    """Build the communication graph of a job from its links' counters.

    What one end sent, the other end received: each direction is counted twice, and its traffic is
    the mean of the two, or the one that is known. Several links between two GPUs add up.

    Args:
        gpus: the job's GPUs in rank order, with different indices.
        duration_s: seconds that the job ran.

    Source: mapa-sc21 3.1 and Figure 9b, which reads edges off links that join two GPUs directly. It
        says nothing of NVSwitch, and of ends that disagree.
    """
    amounts, lost, apart = _measure_pairs(gpus)
    floor = max(NOISE_BYTES, NOISE_SHARE * max(amounts.values(), default=0.0))
    edges = tuple((*pair, amount / _GB) for pair, amount in amounts.items() if amount >= floor)
    lines = []
    if edges:
        lines.append(f"over direct NVLinks, both ways: {_edges_text(edges, duration_s)}")
    elif amounts:
        lines.append("no pair of ranks talked over direct NVLinks")
    remotes = {link.remote for gpu in gpus for link in gpu.links}
    if "switch" in remotes:
        lines.append("NVSwitch hides who talks to whom")
    if "" in remotes:
        lines.append("some NVLinks have an unknown other end: what they carried has no edge")
    totals = [_total_bytes(gpu) for gpu in gpus]
    if any(totals):
        low, high = (f"{total / _GB / duration_s:.3g}" for total in (min(totals), max(totals)))
        shown = low if low == high else f"{low} to {high}"
        lines.append(f"over all NVLinks each rank sent and received {shown} GB/s")
    if lost:
        pairs = ", ".join(f"{a} and {b}" for a, b in lost)
        lines.append(f"no end counted what ranks {pairs} exchanged")
    for a, b, difference in apart:
        if amounts[a, b] >= floor:
            lines.append(
                f"ranks {a} and {b}: the two ends of their NVLinks differ by "
                f"{100 * difference:.1f} %, the edge is the mean"
            )
    return TrafficGraph(edges, bool(remotes & {"switch", ""}), tuple(lines))


def communication_of(run: Run, source: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the [communication] of a profile that a run shows, and lines about it.

    The section is empty if the counters do not show a graph that joins all ranks.

    Args:
        run: a run on any number of GPUs; on one there is no communication.
        source: the beginning of the section's source.
    """
    if len(run.gpus) < 2:
        return {}, ()
    traffic = traffic_between(run.gpus, run.duration_s)
    section: dict[str, Any] = {}
    if not traffic.hidden and is_whole(traffic.edges, len(run.gpus)):
        section["edges"] = [[a, b, rounded(gb)] for a, b, gb in traffic.edges]
        section["source"] = f"{source}: NVLink counters of {len(run.gpus)} {run.models}, {run.date}"
    return section, traffic.lines


def _measure_pairs(
    gpus: Sequence[GpuRun],
) -> tuple[dict[tuple[int, int], float], list[tuple[int, int]], list[tuple[int, int, float]]]:
    """Return what pairs of ranks with direct NVLinks exchanged, in bytes of both directions.

    Returns:
        Bytes by pair; the pairs of which a direction was counted at neither end; those whose two
        ends differ by more than TOLERANCE, with the difference, 0 to 1.
    """
    amounts: dict[tuple[int, int], float] = {}
    lost, apart = [], []
    for a, b in combinations(range(len(gpus)), 2):
        one, other = _links_to(gpus[a], gpus[b]), _links_to(gpus[b], gpus[a])
        if not one and not other:
            continue
        there = _sum_known(link.sent for link in one), _sum_known(link.received for link in other)
        back = _sum_known(link.sent for link in other), _sum_known(link.received for link in one)
        flows = [_mean_of_ends(*there), _mean_of_ends(*back)]
        if None in flows:
            lost.append((a, b))
            continue
        amounts[a, b] = fsum(flow for flow in flows if flow is not None)
        difference = max(_relative_difference(*there), _relative_difference(*back))
        if difference > TOLERANCE:
            apart.append((a, b, difference))
    return amounts, lost, apart


def _total_bytes(gpu: GpuRun) -> int:
    return sum((link.sent or 0) + (link.received or 0) for link in gpu.links)


def _links_to(gpu: GpuRun, peer: GpuRun) -> list[CountedLink]:
    return [link for link in gpu.links if link.remote == "gpu" and link.peer == peer.gpu]


def _sum_known(amounts: Iterable[int | None]) -> int | None:
    """Return the sum of the amounts; None if there are none, or one is unknown."""
    values = list(amounts)
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean_of_ends(sent: int | None, received: int | None) -> float | None:
    """Return the mean of the ends that are known."""
    ends = [end for end in (sent, received) if end is not None]
    return sum(ends) / len(ends) if ends else None


def _relative_difference(sent: int | None, received: int | None) -> float:
    """Return the difference of the two ends as part of the larger; 0 if one is unknown."""
    if sent is None or received is None or sent == received:
        return 0.0
    return abs(sent - received) / max(sent, received)


def _edges_text(edges: Sequence[Edge], duration_s: float) -> str:
    heaviest = sorted(edges, key=lambda edge: -edge[2])
    shown = [f"ranks {a}-{b} {gb / duration_s:.3g} GB/s" for a, b, gb in heaviest[:_MOST_PAIRS]]
    left = len(heaviest) - _MOST_PAIRS
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")
