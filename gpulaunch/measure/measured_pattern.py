"""A profile's [communication] from the link counters of a run (mapa-sc21 3.1)."""
# pure: decides on plain values

from math import comb

from gpulaunch.measure.measured_run import GpuRun, Run
from gpulaunch.measure.measured_runs import rounded
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


class MeasuredPattern(Record):
    """The communication that counters show.

    Attributes:
        section: the [communication] section; empty if the counters show nothing of use to a launch.
        lines: sentences on what is known and what cannot be known.
    """

    section: dict[str, Any]
    lines: tuple[str, ...]


def communication_of(run: Run, source: str) -> MeasuredPattern:
    """Return which ranks of a run exchanged data, as far as the GPUs' counters show.

    Edges are kept where they join all ranks; a launch on as many GPUs takes them for its pattern.

    Args:
        run: a run on any number of GPUs; on one there is no communication.
        source: the beginning of the section's source.
    """
    if len(run.gpus) < 2:
        return MeasuredPattern({}, ())
    graph = traffic_graph([_traffic_of(gpu) for gpu in run.gpus], run.duration_s)
    section: dict[str, Any] = {}
    lines = [*graph.known, *graph.unknown]
    if graph.edges and not graph.hidden and is_whole(graph.edges, graph.ranks):
        section["edges"] = [[a, b, rounded(gb)] for a, b, gb in graph.edges]
    elif _is_silent(graph):
        section |= {"pattern": "none", "confidence": "likely"}
        lines.append("no rank talked to another over NVLink")
    if section:
        models = ", ".join(sorted({gpu.model for gpu in run.gpus}))
        section["source"] = f"{source}: NVLink counters of {len(run.gpus)} {models}, {run.date}"
    return MeasuredPattern(section, tuple(lines))


def _is_silent(graph: TrafficGraph) -> bool:
    """Return whether every rank's traffic is known, and nothing was moved."""
    if graph.hidden:
        return set(graph.totals_gb) == {0.0}
    # Pairs that no NVLink joins may have talked over PCIe, whose counters name no peer.
    return not graph.edges and len(graph.pairs) == comb(graph.ranks, 2)


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
