"""The options `--cpu-pattern` and `--gpu-pattern`: what the ranks of a job send each other."""

import os
import sys
from collections.abc import Callable

from gpulaunch.cluster.parallel_sizes import is_sizes, parallel_traffic
from gpulaunch.cluster.rank_traffic import RankTraffic, summed
from gpulaunch.cluster.traffic_file import read_traffic_file
from gpulaunch.cluster.traffic_shapes import SHAPES, shape_traffic
from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.files.nearest import did_you_mean
from gpulaunch.profiles.pattern import PATTERNS, Edge
from gpulaunch.profiles.pattern_file import GRAPH_ENDINGS

PATTERN_HELP = (
    "2d, 3d, col (2d:3 weighs the first dimension), all-to-all and the like, sizes such as "
    "tp=8,pp=2, a file of a matrix or graph, profile:NAME, scan:PATH, nccl:LOG"
)


def read_traffic(option: str, text: str, ranks: int) -> RankTraffic:
    """Read a pattern of the command line.

    Args:
        option: the option, for messages.
        text: its value.
        ranks: number of ranks.

    Raises:
        UsageError: there is no such pattern, or it is not one of this many ranks.
    """
    try:
        return _read(text, ranks)
    except UsageError as problem:
        raise UsageError(f"{option}: {problem.message}", problem.hint) from None


def _read(text: str, ranks: int) -> RankTraffic:
    kind, colon, rest = text.partition(":")
    if colon and kind in _SOURCES:
        return _SOURCES[kind](rest, ranks)
    if is_sizes(text):
        return parallel_traffic(text, ranks)
    shape = shape_traffic(text, ranks)
    if shape is not None:
        return shape
    if text.endswith(".toml"):
        return _of_profile(text, ranks)
    if os.sep in text or text.lower().endswith(GRAPH_ENDINGS):
        return read_traffic_file(text, ranks)
    names = [name.replace("_", "-") for name in SHAPES]
    file = f"./{text}" if os.path.isfile(text) else "a file"
    raise UsageError(
        f"unknown pattern {quoted(text)}{did_you_mean(text, names)}",
        f"known are {', '.join(names)}, or give {file}",
    )


def _of_profile(name: str, ranks: int) -> RankTraffic:
    from gpulaunch.profiles.catalog import load_profile

    profile = load_profile(name)
    if profile.graph:
        return _of_edges(f"profile {profile.name}", profile.graph.ranks, profile.graph.given, ranks)
    if profile.communication.pattern is None:
        raise UsageError(f"profile {quoted(name)} has no pattern")
    return _of_pattern(profile.communication.pattern, ranks)


def _of_scan(path: str, ranks: int) -> RankTraffic:
    from gpulaunch.scan.sources import read_sources, scan_sources

    files, unread = read_sources(path)
    found = scan_sources(files, unread, sys.stdlib_module_names)
    if found.pattern == "none" and found.confidence != "certain":
        raise UsageError(
            f"{printable(path)}: no call was found by which ranks communicate: that is a guess",
            "name a pattern, such as ring",
        )
    return _of_pattern(found.pattern, ranks)


def _of_nccl_log(path: str, ranks: int) -> RankTraffic:
    from gpulaunch.files.log_file import log_lines
    from gpulaunch.measure.logs.nccl_log import communication, read_nccl_log

    name = printable(path)
    found = communication(read_nccl_log(log_lines(path)), name)
    if found.edges:
        return _of_edges(name, found.ranks, found.edges, ranks)
    return _of_pattern(found.pattern, ranks)


def _of_pattern(name: str, ranks: int) -> RankTraffic:
    found = shape_traffic(name, ranks) if name in PATTERNS else None
    if found is None:
        raise UsageError(f"pattern {quoted(name)} is no shape of any number of ranks")
    return found


def _of_edges(name: str, found: int, edges: tuple[Edge, ...], ranks: int) -> RankTraffic:
    if found != ranks:
        raise UsageError(f"{name} has {found} ranks, and {ranks} are mapped")
    return summed(ranks, edges)


_SOURCES: dict[str, Callable[[str, int], RankTraffic]] = {
    "profile": _of_profile,
    "scan": _of_scan,
    "nccl": _of_nccl_log,
}
