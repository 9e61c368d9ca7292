"""What a measured run's counters tell of who talks to whom, as a profile's [communication] (mapa-sc21 3.1)."""
# pure: decides on plain values

from collections.abc import Iterator

from gpulaunch.measure.measured_run import GpuRun, Run
from gpulaunch.measure.measured_runs import rounded
from gpulaunch.measure.nearest_pattern import Nearest, nearest_pattern, nearest_to_totals
from gpulaunch.measure.traffic_graph import (
    GpuTraffic,
    LinkTraffic,
    Remote,
    TrafficGraph,
    traffic_graph,
)
from gpulaunch.profiles.pattern import is_whole
from gpulaunch.records import Record
from gpulaunch.typing import Any, cast

CERTAIN = 0.97
"""From this similarity on a named pattern is certain; under it, likely.

Ours; docs/communication.md.
"""


class MeasuredPattern(Record):
    """What counters tell.

    Attributes:
        section: [communication]; empty if they tell nothing that a launch could go by.
        lines: what is known, and what cannot be.
    """

    section: dict[str, Any]
    lines: tuple[str, ...]


def communication_of(run: Run, source: str) -> MeasuredPattern:
    """Who talked to whom in a run, as far as its GPUs' counters tell.

    Args:
        run: of any number of GPUs; one talks to nobody.
        source: what to say where it comes from.
    """
    if len(run.gpus) < 2:
        return MeasuredPattern({}, ())
    graph = traffic_graph([_traffic(gpu) for gpu in run.gpus], run.duration_s)
    nearest = _nearest(graph)
    section: dict[str, Any] = {}
    if nearest and nearest.name:
        sure = nearest.similarity >= CERTAIN and not graph.hidden and nearest.name != "none"
        section["pattern"] = nearest.name
        section["confidence"] = "certain" if sure else "likely"
    if graph.edges and not graph.hidden and is_whole(graph.edges, graph.ranks):
        section["edges"] = [[a, b, rounded(gb)] for a, b, gb in graph.edges]
    if section:
        models = ", ".join(sorted({gpu.model for gpu in run.gpus}))
        section["source"] = f"{source}: NVLink counters of {len(run.gpus)} {models}, {run.date}"
    return MeasuredPattern(section, (*graph.known, *graph.unknown, *_verdict(nearest)))


def _traffic(gpu: GpuRun) -> GpuTraffic:
    figures = gpu.figures
    links = tuple(
        LinkTraffic(
            link.number,
            cast("Remote", link.remote),
            link.peer,
            figures.links[link.number].sent if link.number in figures.links else None,
            figures.links[link.number].received if link.number in figures.links else None,
        )
        for link in gpu.links
    )
    sent, received = (
        None if rate is None else round(rate * 1e9 * figures.covered_s)
        for rate in (figures.pcie_sent_gb_per_s, figures.pcie_received_gb_per_s)
    )
    return GpuTraffic(gpu.gpu, links, sent, received)


def _nearest(graph: TrafficGraph) -> Nearest | None:
    """None where the counters tell nothing of it."""
    totals = [total for total in graph.totals_gb if total is not None]
    if graph.hidden:
        return nearest_to_totals(totals) if len(totals) == graph.ranks else None
    all_pairs = graph.ranks * (graph.ranks - 1) // 2
    if not graph.edges and len(graph.pairs) < all_pairs:  # the others may have talked over PCIe
        return None
    return nearest_pattern(graph.ranks, graph.edges, graph.pairs)


def _verdict(nearest: Nearest | None) -> Iterator[str]:
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
