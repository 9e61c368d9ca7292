"""What a job's NVLink and PCIe counters tell of who talks to whom (mapa-sc21 3.1, Figure 9b)."""
# pure: decides on plain values

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from math import fsum

from gpulaunch.profiles.pattern import Edge
from gpulaunch.records import Record
from gpulaunch.typing import Literal

NOISE_SHARE = 0.01
"""Pairs that exchanged less than this part of what the busiest pair did have no edge.

An edge counts where it can be the slowest for its weight. Under 1 % its link would have to be 100
times slower than the busiest pair's; from four bonded NVLinks to PCIe 3 x16 it is 9 times. What is
left out is what every process with peer access does: set-up, flags, barriers. Ours.
"""

NOISE_BYTES = 1 << 20
"""Nor has any pair that exchanged less in all: the counters step by 1 KiB, and set-up alone
moves some. Ours.
"""

TOLERANCE = 0.02
"""The two ends of a link may differ by so much: they are not read at the same moment. Ours."""

_GB = 1e9

Remote = Literal["gpu", "switch", "cpu", "down", ""]


class LinkTraffic(Record):
    """What one NVLink of a GPU carried while the job ran.

    Attributes:
        link: its number on this GPU.
        remote: what its other end is; "" if nobody knows, "down" if the link is not in use.
        peer: index of the GPU at the other end; None if it is none, or not known which.
        tx_bytes: sent; None if the counter is missing, or was reset while the job ran.
        rx_bytes: received, likewise.
    """

    link: int
    remote: Remote
    peer: int | None = None
    tx_bytes: int | None = None
    rx_bytes: int | None = None


class GpuTraffic(Record):
    """What one GPU of the job exchanged.

    Attributes:
        gpu: its index, as links name their peers.
        links: its NVLinks.
        pcie_tx_bytes: sent over PCIe; None if not known.
        pcie_rx_bytes: received over PCIe, likewise.
    """

    gpu: int
    links: tuple[LinkTraffic, ...] = ()
    pcie_tx_bytes: int | None = None
    pcie_rx_bytes: int | None = None


class Disagreement(Record):
    """Two ends of the same links that counted differently.

    Attributes:
        a: one rank.
        b: the other.
        percentage: difference of what a sent and b received, or the other way round, of the larger
            of the two.
    """

    a: int
    b: int
    percentage: float


class TrafficGraph(Record):
    """Who exchanged how much, as far as counters tell.

    Attributes:
        ranks: how many the job has.
        edges: pairs of ranks that direct NVLinks join and that talked; GB, both directions
            together.
        pairs: all pairs whose traffic over direct NVLinks is known, also those that did not talk.
        totals_gb: what each rank sent and received over NVLink, without links to GPUs outside of
            the job and to the host; None where a counter is missing.
        pcie_gb: the same over PCIe, which may be the host's data as well as other ranks'.
        hidden: whether some link ends at an NVSwitch or at something unknown, so that edges are
            missing.
        disagreements: pairs whose two ends differ by more than TOLERANCE.
        known: plain sentences.
        unknown: plain sentences on what these figures do not tell.
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
    """Traffic of two ranks over their direct links.

    Attributes:
        amount: bytes of both directions; None if neither end counted one of them.
        apart: largest relative difference of the two ends, 0 to 1.
        ends: whether each direction was counted at both ends.
    """

    amount: float | None
    apart: float
    ends: bool


def traffic_graph(gpus: Sequence[GpuTraffic], duration_s: float) -> TrafficGraph:
    """The communication graph of a job whose counters were read before and after it.

    What one end sent, the other end received: each direction is counted twice, and is the mean of
    the two, or the one that is known. Several links between the same two GPUs add up.

    Args:
        gpus: in rank order, with different indices.
        duration_s: how long the job ran, for averages that people read.

    Source: mapa-sc21 3.1 and Figure 9b, which reads edges off links that join two GPUs directly. It
        says nothing of NVSwitch, of PCIe, and of ends that disagree.
    """
    ranks = range(len(gpus))
    joined = {(a, b): _pair(gpus, a, b) for a, b in combinations(ranks, 2) if _toward(gpus, a, b)}
    measured = {pair: found.amount for pair, found in joined.items() if found.amount is not None}
    floor = max(NOISE_BYTES, NOISE_SHARE * max(measured.values(), default=0.0))
    edges = tuple((*pair, amount / _GB) for pair, amount in measured.items() if amount >= floor)
    totals = tuple(_total(gpu, gpus) for gpu in gpus)
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
        tuple(_known(edges, joined, totals, pcie, duration_s)),
        tuple(_unknown(gpus, joined, pcie, apart)),
    )


def _toward(gpus: Sequence[GpuTraffic], a: int, b: int) -> list[LinkTraffic]:
    """Links of two ranks' GPUs that end at each other, as seen from either."""
    return [*_links(gpus[a], gpus[b].gpu), *_links(gpus[b], gpus[a].gpu)]


def _links(gpu: GpuTraffic, peer: int) -> list[LinkTraffic]:
    return [link for link in gpu.links if link.remote == "gpu" and link.peer == peer]


def _pair(gpus: Sequence[GpuTraffic], a: int, b: int) -> _Pair:
    one, other = _links(gpus[a], gpus[b].gpu), _links(gpus[b], gpus[a].gpu)
    there = _sum(link.tx_bytes for link in one), _sum(link.rx_bytes for link in other)
    back = _sum(link.tx_bytes for link in other), _sum(link.rx_bytes for link in one)
    flows = [_either(*ends) for ends in (there, back)]
    amount = None if None in flows else fsum(flow for flow in flows if flow is not None)
    return _Pair(amount, max(_apart(*there), _apart(*back)), None not in (*there, *back))


def _sum(amounts: Iterable[int | None]) -> int | None:
    """All of them together; None if there is none, or one is not known."""
    values = list(amounts)
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _either(sent: int | None, received: int | None) -> float | None:
    """The mean of the ends that are known."""
    ends = [end for end in (sent, received) if end is not None]
    return sum(ends) / len(ends) if ends else None


def _apart(sent: int | None, received: int | None) -> float:
    """How much the two ends differ, of the larger."""
    if sent is None or received is None or sent == received:
        return 0.0
    return abs(sent - received) / max(sent, received)


def _total(gpu: GpuTraffic, gpus: Sequence[GpuTraffic]) -> float | None:
    """GB over the links that can lead to other ranks; 0 if there is no such link."""
    indices = {other.gpu for other in gpus}
    links = [link for link in gpu.links if link.remote in ("switch", "") or _inside(link, indices)]
    amounts = [_gb(link.tx_bytes, link.rx_bytes) for link in links]
    return None if None in amounts else fsum(amount for amount in amounts if amount is not None)


def _inside(link: LinkTraffic, indices: set[int]) -> bool:
    return link.remote == "gpu" and (link.peer is None or link.peer in indices)


def _gb(sent: int | None, received: int | None) -> float | None:
    return None if sent is None or received is None else (sent + received) / _GB


def _known(
    edges: Sequence[Edge],
    joined: dict[tuple[int, int], _Pair],
    totals: Sequence[float | None],
    pcie: Sequence[float | None],
    duration_s: float,
) -> Iterator[str]:
    """Sentences on what was measured."""
    if edges:
        both = sum(joined[a, b].ends for a, b, _ in edges)
        how = "at both ends" if both == len(edges) else f"{both} of them at both ends"
        yield f"{_count(len(edges), 'pair')} of ranks talked over direct NVLinks, counted {how}"
    elif joined:
        yield "no pair of ranks talked over direct NVLinks"
    for name, amounts in (("NVLink", totals), ("PCIe", pcie)):
        figures = [amount for amount in amounts if amount is not None]
        if figures and (name == "PCIe" or max(figures) > 0):
            yield f"{name}: {_range(figures)} a rank, sent and received, in {duration_s:.3g} s"


def _unknown(
    gpus: Sequence[GpuTraffic],
    joined: dict[tuple[int, int], _Pair],
    pcie: Sequence[float | None],
    apart: Sequence[Disagreement],
) -> Iterator[str]:
    """Sentences on what these figures leave open."""
    indices = {gpu.gpu for gpu in gpus}
    links = [link for gpu in gpus for link in gpu.links]
    if any(link.remote == "switch" for link in links):
        yield "NVSwitch hides who talks to whom: only what each rank sent and received in all is known"
    if any(link.remote == "" or (link.remote == "gpu" and link.peer is None) for link in links):
        yield "some NVLinks have an unknown other end: what they carried is in the ranks' totals only"
    for rank, gpu in enumerate(gpus):
        yield from _missing(rank, gpu, indices)
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
    if _sum(link.tx_bytes for link in outside):
        yield "NVLinks to GPUs outside of the job carried traffic, which is left out: it is not this job's"
    if any(link.remote == "cpu" and link.tx_bytes for link in links):
        yield "NVLinks to the CPU carried traffic: the host's data, or that of ranks on other sockets"
    if len(gpus) > 1 and any(amount for amount in pcie):
        yield "PCIe counters tell no peer: input data, staging in host memory and other ranks cannot be told apart"


def _missing(rank: int, gpu: GpuTraffic, indices: set[int]) -> Iterator[str]:
    numbers = [
        str(link.link)
        for link in gpu.links
        if link.remote != "down"
        and (link.peer is None or link.peer in indices)
        and None in (link.tx_bytes, link.rx_bytes)
    ]
    if numbers:
        yield f"rank {rank}: the counters of NVLink {', '.join(numbers)} are missing or were reset"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _range(figures: Sequence[float]) -> str:
    low, high = (
        f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
        for figure in (min(figures), max(figures))
    )
    return f"{low} GB" if low == high else f"{low} to {high} GB"
