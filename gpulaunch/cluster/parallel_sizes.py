"""Traffic of training by the sizes of its kinds of parallelism, such as "tp=8,pp=2,dp=4"."""
# pure: decides on plain values

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise, product
from math import prod

from gpulaunch.cluster.rank_traffic import RankTraffic, summed
from gpulaunch.cluster.traffic_shapes import MOST_EDGES
from gpulaunch.errors import UsageError, quoted
from gpulaunch.profiles.pattern import Edge
from gpulaunch.records import Record

DEFAULT_VOLUMES = {"tp": 42.0, "cp": 10.0, "ep": 40.0, "dp": 2.0, "pp": 1.0}
"""What each rank sends for each kind, where the user does not say it: assumed, in any unit.

tp, dp and pp follow from the formulas of Narayanan et al. 2021 (arXiv 2104.04473) for GPT-3 with
96 layers, hidden size 12288, sequences of 2048, tp 8, pp 8 and 48 micro-batches: 84, 4.5 and 2
times the activations of a micro-batch, rounded. cp and ep depend on the model even more: that ep
is near tp (two experts for each token, four exchanges in a layer), and cp a quarter, is a guess.
"""

_ORDER = ("tp", "cp", "dp", "pp")  # the fastest first
_SIZE = re.compile(r"(\w+)=([0-9]{1,7})(?::([0-9.eE+-]{1,32}))?", re.ASCII)


class Sizes(Record):
    """Sizes of the kinds of parallelism, and what each rank sends for each.

    Attributes:
        sizes: size by kind; 1 for a kind that is not used.
        volumes: volume by kind, above 0.
    """

    sizes: Mapping[str, int]
    volumes: Mapping[str, float]


def is_sizes(text: str) -> bool:
    """Return whether a text is meant as sizes of parallelism."""
    return bool(re.match(r"(?:tp|cp|ep|dp|pp)=", text))


def parallel_traffic(text: str, ranks: int) -> RankTraffic:
    """Return the traffic of training with these sizes of parallelism.

    Ranks are numbered as Megatron does by default, tp-cp-ep-dp-pp with tp fastest. Experts (ep) are
    spread over ranks of cp and dp with the same tp and pp. tp, cp and dp are rings, ep an
    all-to-all, pp a chain.

    Args:
        text: sizes in any order, such as "tp=8,pp=2"; a size may have a colon and a volume, what
            each rank sends for it, in any unit that is the same for all. A missing dp is what is
            left of the ranks.
        ranks: number of ranks.

    Raises:
        UsageError: a size is unknown, stands twice, or the sizes do not give this many ranks.

    Source: order and groups: initialize_model_parallel in Megatron Core's parallel_state.py.
    """
    found = _read_sizes(text, ranks)
    sizes = found.sizes
    others = sizes["cp"] * sizes["dp"] // max(sizes["ep"], 1)
    pairs = ranks * (sizes["ep"] + 5) // 2
    if pairs > MOST_EDGES:
        raise UsageError(f"{quoted(text)} has about {pairs} pairs: {MOST_EDGES} at most")
    edges: list[Edge] = []
    for kind in ("tp", "cp", "dp"):
        for group in _groups(sizes, kind):
            edges += _ring(group, found.volumes[kind])
    for group in _groups(sizes, "pp"):
        edges += [(a, b, found.volumes["pp"]) for a, b in pairwise(group)]
    for stage, tp, other in product(range(sizes["pp"]), range(sizes["tp"]), range(others)):
        first = stage * (ranks // sizes["pp"]) + other * sizes["ep"] * sizes["tp"] + tp
        group = range(first, first + sizes["ep"] * sizes["tp"], sizes["tp"])
        edges += _all_to_all(group, found.volumes["ep"])
    return summed(ranks, edges)


def _read_sizes(text: str, ranks: int) -> Sizes:
    sizes: dict[str, int] = {}
    volumes = dict(DEFAULT_VOLUMES)
    for part in text.split(","):
        match = _SIZE.fullmatch(part)
        if not match or match[1] not in DEFAULT_VOLUMES or int(match[2]) < 1:
            raise UsageError(
                f"{quoted(text)}: {quoted(part)} is no size of parallelism",
                "sizes are such as tp=8,cp=1,ep=2,dp=4,pp=2, or with volumes tp=8:42,dp=4:2",
            )
        if match[1] in sizes:
            raise UsageError(f"{quoted(text)}: {match[1]} stands twice")
        sizes[match[1]] = int(match[2])
        if match[3] is not None:
            volumes[match[1]] = _read_volume(text, match[3])
    given = prod(sizes.get(kind, 1) for kind in _ORDER)
    if "dp" not in sizes and ranks % given == 0:
        sizes["dp"] = ranks // given
    full = {kind: sizes.get(kind, 1) for kind in DEFAULT_VOLUMES}
    total = prod(full[kind] for kind in _ORDER)
    if total != ranks:
        named = " x ".join(f"{kind} {full[kind]}" for kind in _ORDER if full[kind] > 1) or "no size"
        raise UsageError(f"{quoted(text)}: {named} is {total} ranks, and {ranks} are mapped")
    if full["cp"] * full["dp"] % full["ep"]:
        raise UsageError(
            f"{quoted(text)}: ep {full['ep']} does not divide cp x dp = {full['cp'] * full['dp']}"
        )
    return Sizes(full, volumes)


def _read_volume(text: str, volume: str) -> float:
    try:
        value = float(volume)
    except ValueError:
        value = 0.0
    if not 1e-9 <= value <= 1e18:
        raise UsageError(f"{quoted(text)}: {quoted(volume)} is no volume above 0")
    return value


def _groups(sizes: Mapping[str, int], kind: str) -> Iterator[range]:
    """Yield the ranks of each group of a kind, which differ in its index alone."""
    at = _ORDER.index(kind)
    stride = prod(sizes[one] for one in _ORDER[:at])
    length = stride * sizes[kind]
    for block in range(0, prod(sizes[one] for one in _ORDER), length):
        for first in range(block, block + stride):
            yield range(first, block + length, stride)


def _ring(group: Sequence[int], volume: float) -> list[Edge]:
    """Return a ring in which each rank sends the volume to its successor."""
    if len(group) < 2:
        return []
    return [(a, group[(i + 1) % len(group)], volume) for i, a in enumerate(group)]


def _all_to_all(group: Sequence[int], volume: float) -> list[Edge]:
    """Return all pairs of a group in which each rank sends the volume to all others together."""
    return [(a, b, 2 * volume / (len(group) - 1)) for a, b in combinations(group, 2)]
