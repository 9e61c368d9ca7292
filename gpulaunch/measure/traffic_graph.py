"""The communication graph of a job, from NVLink and PCIe counters (mapa-sc21 3.1, Figure 9b)."""
# pure: decides on plain values

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from math import fsum

from gpulaunch.profiles.pattern import Edge
from gpulaunch.records import Record
from gpulaunch.typing import Literal

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

Remote = Literal["gpu", "switch", "cpu", "down", ""]


class LinkTraffic(Record):
    """The traffic of one NVLink of a GPU while the job ran.

    Attributes:
        link: number of the link on this GPU.
        remote: what is at its other end; "" if unknown, "down" if the link is not in use.
        peer: index of the GPU at the other end; None if it is no GPU, or an unknown one.
        tx_bytes: bytes sent; None if the counter is missing, or was reset while the job ran.
        rx_bytes: bytes received; None if the counter is missing, or was reset while the job ran.
    """

    link: int
    remote: Remote
    peer: int | None = None
    tx_bytes: int | None = None
    rx_bytes: int | None = None


class GpuTraffic(Record):
    """The traffic of one GPU of the job.

    Attributes:
        gpu: index of the GPU, by which links name their peers.
        links: its NVLinks.
        pcie_tx_bytes: bytes sent over PCIe; None if unknown.
        pcie_rx_bytes: bytes received over PCIe; None if unknown.
    """

    gpu: int
    links: tuple[LinkTraffic, ...] = ()
    pcie_tx_bytes: int | None = None
    pcie_rx_bytes: int | None = None


class Disagreement(Record):
    """A pair of ranks whose ends of their links counted differently.

    Attributes:
        a: the lower rank.
        b: the higher rank.
        percentage: difference between what one sent and the other received, 0-100 % of the larger;
            the larger difference of the two directions.
    """

    a: int
    b: int
    percentage: float


class TrafficGraph(Record):
    """The traffic between ranks, as far as counters show it.

    Attributes:
        ranks: number of ranks of the job.
        edges: pairs of ranks that talked over direct NVLinks; GB, both directions together.
        pairs: all pairs whose traffic over direct NVLinks is known, with or without traffic.
        totals_gb: GB that each rank sent and received over NVLink, without links to the host and
            to GPUs outside of the job; None where a counter is missing.
        pcie_gb: GB that each rank sent and received over PCIe, to the host or to other ranks.
        hidden: whether some link ends at an NVSwitch or at something unknown, so that edges are
            missing.
        disagreements: pairs whose two ends differ by more than TOLERANCE.
        known: sentences on what was measured.
        unknown: sentences on what these figures do not show.
    """

    ranks: int
    edges: tuple[Edge, ...]
    pairs: tuple[tuple[int, int], ...]
    totals_gb: tuple[float | None, ...]
    pcie_gb: tuple[float | None, ...]
    hidden: bool
    disagreements: tuple[Disagreement, ...]
    known: tuple[str, ...]
    unknown: tuple[str, ...]


class _Pair(Record):
    """The traffic of two ranks over their direct links.

    Attributes:
        amount: bytes of both directions; None if a direction was counted at neither end.
        apart: largest relative difference of the two ends, 0 to 1.
        ends: whether each direction was counted at both ends.
    """

    amount: float | None
    apart: float
    ends: bool


def traffic_graph(gpus: Sequence[GpuTraffic], duration_s: float) -> TrafficGraph:
    """Build the communication graph of a job from counters read before and after it.

    What one end sent, the other end received: each direction is counted twice, and its traffic is
    the mean of the two, or the one that is known. Several links between two GPUs add up.

    Args:
        gpus: traffic of the job's GPUs in rank order, with different indices.
        duration_s: seconds that the job ran, for the sentences.

    Source: mapa-sc21 3.1 and Figure 9b, which reads edges off links that join two GPUs directly. It
        says nothing of NVSwitch, of PCIe, and of ends that disagree.
    """
    ranks = range(len(gpus))
    joined = {
        (a, b): _measure_pair(gpus, a, b)
        for a, b in combinations(ranks, 2)
        if _links_between(gpus, a, b)
    }
    measured = {pair: found.amount for pair, found in joined.items() if found.amount is not None}
    floor = max(NOISE_BYTES, NOISE_SHARE * max(measured.values(), default=0.0))
    edges = tuple((*pair, amount / _GB) for pair, amount in measured.items() if amount >= floor)
    totals = tuple(_total_gb(gpu, gpus) for gpu in gpus)
    pcie = tuple(_gb(gpu.pcie_tx_bytes, gpu.pcie_rx_bytes) for gpu in gpus)
    apart = tuple(
        Disagreement(*pair, 100 * found.apart)
        for pair, found in joined.items()
        if found.apart > TOLERANCE and (found.amount or 0) >= floor
    )
    hidden = any(link.remote in ("switch", "") for gpu in gpus for link in gpu.links)
    return TrafficGraph(
        len(gpus),
        edges,
        tuple(measured),
        totals,
        pcie,
        hidden,
        apart,
        tuple(_describe_known(edges, joined, totals, pcie, duration_s)),
        tuple(_describe_unknown(gpus, joined, pcie, apart)),
    )


def _links_between(gpus: Sequence[GpuTraffic], a: int, b: int) -> list[LinkTraffic]:
    """Return the links that join the GPUs of two ranks, from both ends."""
    return [*_links_to(gpus[a], gpus[b].gpu), *_links_to(gpus[b], gpus[a].gpu)]


def _links_to(gpu: GpuTraffic, peer: int) -> list[LinkTraffic]:
    return [link for link in gpu.links if link.remote == "gpu" and link.peer == peer]


def _measure_pair(gpus: Sequence[GpuTraffic], a: int, b: int) -> _Pair:
    one, other = _links_to(gpus[a], gpus[b].gpu), _links_to(gpus[b], gpus[a].gpu)
    there = _sum_known(link.tx_bytes for link in one), _sum_known(link.rx_bytes for link in other)
    back = _sum_known(link.tx_bytes for link in other), _sum_known(link.rx_bytes for link in one)
    flows = [_mean_of_ends(*ends) for ends in (there, back)]
    amount = None if None in flows else fsum(flow for flow in flows if flow is not None)
    return _Pair(
        amount,
        max(_relative_difference(*there), _relative_difference(*back)),
        None not in (*there, *back),
    )


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


def _total_gb(gpu: GpuTraffic, gpus: Sequence[GpuTraffic]) -> float | None:
    """Return the GB over the links that can lead to other ranks; None if a counter is missing."""
    indices = {other.gpu for other in gpus}
    links = [
        link for link in gpu.links if link.remote in ("switch", "") or _is_inside(link, indices)
    ]
    amounts = [_gb(link.tx_bytes, link.rx_bytes) for link in links]
    return None if None in amounts else fsum(amount for amount in amounts if amount is not None)


def _is_inside(link: LinkTraffic, indices: set[int]) -> bool:
    return link.remote == "gpu" and (link.peer is None or link.peer in indices)


def _gb(sent: int | None, received: int | None) -> float | None:
    return None if sent is None or received is None else (sent + received) / _GB


def _describe_known(
    edges: Sequence[Edge],
    joined: dict[tuple[int, int], _Pair],
    totals: Sequence[float | None],
    pcie: Sequence[float | None],
    duration_s: float,
) -> Iterator[str]:
    """Yield sentences on what was measured."""
    if edges:
        both = sum(joined[a, b].ends for a, b, _ in edges)
        how = "at both ends" if both == len(edges) else f"{both} of them at both ends"
        pairs = _count_text(len(edges), "pair")
        yield f"{pairs} of ranks talked over direct NVLinks, counted {how}"
    elif joined:
        yield "no pair of ranks talked over direct NVLinks"
    for name, amounts in (("NVLink", totals), ("PCIe", pcie)):
        figures = [amount for amount in amounts if amount is not None]
        if figures and (name == "PCIe" or max(figures) > 0):
            yield f"{name}: {_range_text(figures)} a rank, sent and received, in {duration_s:.3g} s"


def _describe_unknown(
    gpus: Sequence[GpuTraffic],
    joined: dict[tuple[int, int], _Pair],
    pcie: Sequence[float | None],
    apart: Sequence[Disagreement],
) -> Iterator[str]:
    """Yield sentences on what these figures do not show."""
    indices = {gpu.gpu for gpu in gpus}
    links = [link for gpu in gpus for link in gpu.links]
    if any(link.remote == "switch" for link in links):
        yield (
            "NVSwitch hides who talks to whom: only what each rank sent and received in all is "
            "known"
        )
    if any(link.remote == "" or (link.remote == "gpu" and link.peer is None) for link in links):
        yield (
            "some NVLinks have an unknown other end: what they carried is in the ranks' totals only"
        )
    for rank, gpu in enumerate(gpus):
        yield from _describe_missing(rank, gpu, indices)
    lost = [ranks for ranks, found in joined.items() if found.amount is None]
    if lost:
        yield f"no end counted what ranks {', '.join(f'{a} and {b}' for a, b in lost)} exchanged"
    for pair in apart:
        yield (
            f"ranks {pair.a} and {pair.b}: the two ends of their NVLinks differ by "
            f"{pair.percentage:.1f} %, the edge is the mean"
        )
    outside = [
        link
        for link in links
        if link.remote == "gpu" and link.peer is not None and link.peer not in indices
    ]
    if _sum_known(link.tx_bytes for link in outside):
        yield (
            "NVLinks to GPUs outside of the job carried traffic, which is left out: it is not this "
            "job's"
        )
    if any(link.remote == "cpu" and link.tx_bytes for link in links):
        yield (
            "NVLinks to the CPU carried traffic: the host's data, or that of ranks on other sockets"
        )
    if len(gpus) > 1 and any(amount for amount in pcie):
        yield (
            "PCIe counters tell no peer: input data, staging in host memory and other ranks cannot "
            "be told apart"
        )


def _describe_missing(rank: int, gpu: GpuTraffic, indices: set[int]) -> Iterator[str]:
    """Yield a sentence on the NVLinks of a rank whose counters are missing."""
    numbers = []
    for link in gpu.links:
        outside = link.peer is not None and link.peer not in indices
        if link.remote == "down" or outside:
            continue
        if None in (link.tx_bytes, link.rx_bytes):
            numbers.append(str(link.link))
    if numbers:
        yield f"rank {rank}: the counters of NVLink {', '.join(numbers)} are missing or were reset"


def _count_text(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _range_text(figures: Sequence[float]) -> str:
    low, high = (
        f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
        for figure in (min(figures), max(figures))
    )
    return f"{low} GB" if low == high else f"{low} to {high} GB"
