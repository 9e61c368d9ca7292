"""The pattern of a job whose NCCL log has no calls, from what NCCL set up for them."""
# pure: decides on plain values

import re

from gpulaunch.measure.logs.nccl_log import NcclLog
from gpulaunch.measure.nearest_pattern import nearest_pattern
from gpulaunch.profiles.confidence import Confidence
from gpulaunch.profiles.pattern_union import union
from gpulaunch.records import Record

UNKNOWN = "unknown"
"""Stands for a pattern that the log does not show; a profile then says nothing of it."""

CONNECTS_LATE = (2, 22)
"""First version that connects rings and trees when a call first needs them, and not before.

Source: NCCL's user guide, NCCL_RUNTIME_CONNECT (since 2.22, on by default).
"""

MOST_COMPARED = 128
"""Most ranks whose pairs are compared with named patterns, which takes 1.5 s; a torn line may have
millions.
"""

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")


class Setup(Record):
    """What a log without calls tells of the job.

    Attributes:
        ranks: number of ranks of the largest communicator.
        pattern: name of the pattern; UNKNOWN if what was set up does not tell it.
        sensitive: False if nothing can be sent; None otherwise, since nobody knows the sizes.
        confidence: confidence of the pattern.
        reasons: sentences for the user.
    """

    ranks: int
    pattern: str
    sensitive: bool | None
    confidence: Confidence
    reasons: tuple[str, ...]


def read_setup(log: NcclLog) -> Setup | None:
    """Return what rings, trees and connections tell of a job; None if the log has none.

    Before CONNECTS_LATE, NCCL joins all ranks in rings and in trees whatever the job will call, so
    that the pattern that holds both is a guess. Since then a joined ring or tree was used.
    """
    sizes = {member.ranks for member in log.members.values()} or _guess_sizes(log)
    if not sizes:
        return None
    ranks = max(sizes)
    if ranks == 1:
        return Setup(1, "none", False, "likely", ("every communicator has one rank",))
    parts = {member.ranks for member in log.members.values()} - {1, ranks}
    if parts:
        shown = ", ".join(map(str, sorted(parts)))
        why = f"communicators of {shown} and {ranks} ranks: which of them carry the data is unknown"
        return Setup(ranks, UNKNOWN, None, "guess", (why,))
    shapes, confidence, reasons = _find_shapes(log)
    pairs = {pair for pair in _sending_pairs(log) if pair[1] < ranks}
    if pairs:
        edges = tuple((a, b, 1.0) for a, b in sorted(pairs))
        name = nearest_pattern(ranks, edges).name if ranks <= MOST_COMPARED else None
        shapes.append(name or "all_to_all")
        confidence = "guess"
        count = f"{len(pairs)} pair{'s' if len(pairs) > 1 else ''}"
        reasons.append(f"Send and Recv between {count} of ranks ({shapes[-1]})")
    if not shapes:
        why = "no ring, tree or pair of ranks was connected"
        return Setup(ranks, UNKNOWN, None, "guess", (why,))
    return Setup(ranks, union(shapes), None, confidence, tuple(reasons))


def _guess_sizes(log: NcclLog) -> set[int]:
    """Return numbers of ranks from all but communicators; torn lines may make them too large."""
    sizes = {len(order) for order, _ in log.rings}
    sizes |= {1 + max(rank for edge in tree for rank in edge) for tree, _ in log.trees}
    return sizes | {1 + b for _, b in _sending_pairs(log)}


def _sending_pairs(log: NcclLog) -> set[tuple[int, int]]:
    """Return the pairs of ranks that Send and Recv joined, the lower rank first."""
    return {
        (min(one.a, one.b), max(one.a, one.b))
        for one in log.connections
        if one.by_send and one.a != one.b
    }


def _find_shapes(log: NcclLog) -> tuple[list[str], Confidence, list[str]]:
    """Return the shapes that NCCL set up, the confidence that they are used, and the reason."""
    version = _VERSION.match(log.version or "")
    if version and (int(version[1]), int(version[2])) >= CONNECTS_LATE:
        used = sorted(log.connected)
        why = [f"NCCL {log.version} connected its {' and '.join(f'{one}s' for one in used)}"]
        return used, "likely", why if used else []
    if not (log.rings or log.trees):
        return [], "guess", []
    # A long ring is cut off in the log, but NCCL has rings wherever it has trees.
    shapes = ["ring", "tree"] if log.trees else ["ring"]
    channels = sum(count for _, count in log.rings or log.trees)
    text = f"NCCL set up {' and '.join(f'{one}s' for one in shapes)}, channels: {channels}"
    return shapes, "guess", [text]
