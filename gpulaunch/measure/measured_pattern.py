"""A profile's [communication] from a run: its link counters (mapa-sc21 3.1), else NCCL's log."""
# pure: decides on plain values

from collections.abc import Iterator

from gpulaunch.measure.measured_run import GpuRun, Run
from gpulaunch.measure.measured_runs import rounded
from gpulaunch.measure.nearest_pattern import NearestPattern, nearest_pattern, nearest_to_totals
from gpulaunch.measure.traffic_graph import (
    GpuTraffic,
    LinkTraffic,
    Remote,
    TrafficGraph,
    traffic_graph,
)
from gpulaunch.profiles.pattern import PATTERNS, is_whole
from gpulaunch.records import Record
from gpulaunch.typing import Any, cast

CERTAIN = 0.97
"""Least similarity at which a named pattern is certain; below it, it is likely.

Our choice; see docs/explanation/communication.md.
"""


class MeasuredPattern(Record):
    """The communication pattern that counters show.

    Attributes:
        section: the [communication] section; empty if the counters show nothing of use to a launch.
        lines: sentences on what is known and what cannot be known.
    """

    section: dict[str, Any]
    lines: tuple[str, ...]


def communication_of(run: Run, source: str) -> MeasuredPattern:
    """Return which ranks of a run exchanged data, as far as the GPUs' counters show.

    Where they show no traffic, NCCL's log of the run counts, if there is one. A log without
    communication does not count, since data also moves without NCCL.

    Args:
        run: a run on any number of GPUs; on one there is no communication.
        source: the beginning of the section's source.
    """
    if len(run.gpus) < 2:
        return MeasuredPattern({}, ())
    graph = traffic_graph([_traffic_of(gpu) for gpu in run.gpus], run.duration_s)
    nearest = _find_nearest(graph)
    section: dict[str, Any] = {}
    if nearest and nearest.name:
        sure = nearest.similarity >= CERTAIN and not graph.hidden and nearest.name != "none"
        section["pattern"] = nearest.name
        section["confidence"] = "certain" if sure else "likely"
    if graph.edges and not graph.hidden and is_whole(graph.edges, graph.ranks):
        section["edges"] = [[a, b, rounded(gb)] for a, b, gb in graph.edges]
    is_silent = section.get("pattern", "none") == "none" and "edges" not in section
    if is_silent and run.nccl_pattern in PATTERNS and run.nccl_pattern != "none":
        section = {"pattern": run.nccl_pattern, "confidence": run.nccl_confidence}
        section["source"] = f"{source}: NCCL's log, {run.date}"
    elif section:
        models = ", ".join(sorted({gpu.model for gpu in run.gpus}))
        section["source"] = f"{source}: NVLink counters of {len(run.gpus)} {models}, {run.date}"
    return MeasuredPattern(section, (*graph.known, *graph.unknown, *_describe_nearest(nearest)))


def _traffic_of(gpu: GpuRun) -> GpuTraffic:
    figures = gpu.figures
    links = []
    for link in gpu.links:
        carried = figures.links.get(link.number)
        sent = None if carried is None else carried.sent
        received = None if carried is None else carried.received
        remote = cast("Remote", link.remote)
        links.append(LinkTraffic(link.number, remote, link.peer, sent, received))
    pcie_sent = _total_bytes(figures.pcie_sent_gb_per_s, figures.covered_s)
    pcie_received = _total_bytes(figures.pcie_received_gb_per_s, figures.covered_s)
    return GpuTraffic(gpu.gpu, tuple(links), pcie_sent, pcie_received)


def _total_bytes(gb_per_s: float | None, lasting_s: float) -> int | None:
    return None if gb_per_s is None else round(gb_per_s * 1e9 * lasting_s)


def _find_nearest(graph: TrafficGraph) -> NearestPattern | None:
    """Return the nearest pattern; None if the counters do not show the graph."""
    totals = [total for total in graph.totals_gb if total is not None]
    if graph.hidden:
        return nearest_to_totals(totals) if len(totals) == graph.ranks else None
    all_pairs = graph.ranks * (graph.ranks - 1) // 2
    # Without an edge, the pairs that no NVLink joins may have talked over PCIe.
    if not graph.edges and len(graph.pairs) < all_pairs:
        return None
    return nearest_pattern(graph.ranks, graph.edges, graph.pairs)


def _describe_nearest(nearest: NearestPattern | None) -> Iterator[str]:
    if nearest is None or not (nearest.name or nearest.alike or nearest.similarity):
        return
    if nearest.name == "none":
        yield "no rank talked to another over NVLink"
    elif nearest.name:
        yield f"nearest pattern: {nearest.name}, similarity {nearest.similarity:.2f}"
    elif nearest.alike:
        yield f"what each rank carried fits {', '.join(nearest.alike)} alike"
    else:
        yield f"no named pattern is near: the best has similarity {nearest.similarity:.2f}"
