"""The verdict on all files of a program: one pattern, its sensitivity and the confidence."""
# pure: decides on plain values

from collections.abc import Iterable, Iterator, Sequence

from gpulaunch.profiles.confidence import Confidence, weakest
from gpulaunch.profiles.pattern_union import union
from gpulaunch.scan.call import Call, Doubt, FileFindings, Scan, Use
from gpulaunch.scan.peers import NEIGHBOUR

_ASSUMED = "all_to_all"  # pattern of a job of which nothing is known (mapa-sc21 3.1)
_MOST_SHOWN = 3
_MOST_NAMED = 5  # modules or headers
_HINT = 3  # words of a kind
_SETTERS = ("Create_cart", "Cart_create")

Found = tuple[str, Use, str]
"""Path, use and pattern of a call."""


def verdict(readings: Sequence[tuple[str, FileFindings]], unread: Sequence[str]) -> Scan:
    """Combine the findings in all files of a program.

    Args:
        readings: path and findings of each file.
        unread: warnings about files that could not be read.
    """
    grids = [reading.grid for _, reading in readings if reading.grid]
    grid = union(grids) if grids else ""
    found = [
        (path, use, _pattern_of(use, reading, grid))
        for path, reading in readings
        for use in reading.uses
    ]
    counted = _keep_what_counts(found)
    warnings = (*unread, *(warning for _, reading in readings for warning in reading.warnings))
    understood = sum(not reading.warnings for _, reading in readings)
    patterns = [pattern for _, _, pattern in counted]
    uses = [use for _, use, _ in found]
    sensitive, why = _judge_sensitivity(uses)
    confidence, doubtful = _judge_confidence(counted, grid, readings, len(warnings), understood)
    if len(counted) < len(found) and confidence == "certain":
        confidence = "likely"
    if not found and confidence != "certain":
        sensitive = None
    return Scan(
        tuple(Call(path, use.line, use.name, pattern) for path, use, pattern in found),
        union(patterns),
        sensitive,
        confidence,
        tuple(dict.fromkeys([*_explain_union(counted, found), why, *doubtful])),
        warnings,
        understood,
    )


def _pattern_of(use: Use, reading: FileFindings, grid: str) -> str:
    """Return the pattern of one call: its own, a grid's, what words hint at, or all-to-all."""
    pipelines, rings = reading.words
    if use.pattern == NEIGHBOUR:
        return "ring" if rings > pipelines else "chain"
    if use.pattern:
        return use.pattern
    if use.name.endswith("batch_isend_irecv"):
        queued = [
            _pattern_of(other, reading, grid)
            for other in reading.uses
            if other.name.endswith((".isend", ".irecv"))
        ]
        return union(queued) if queued else _ASSUMED
    opens = use.interface.sure == "guess"  # access to a memory, for whatever copies
    if grid or opens or max(pipelines, rings) < _HINT:
        return grid or _ASSUMED
    return "chain" if pipelines > rings else "ring"


def _keep_what_counts(found: Sequence[Found]) -> Sequence[Found]:
    """Return the calls that make the pattern, or all if none remained.

    What moves little, or once at the start, is left out beside calls that move more, and so is a
    wrapper for the case that another one does not apply.
    """
    wrapped = any(
        use.interface.traffic == "gradients" and not use.interface.fallback for _, use, _ in found
    )
    kept = [one for one in found if not (wrapped and one[1].interface.fallback)]
    working = [one for one in kept if not (_is_small(one[1]) or _is_start(one[1]))]
    often = [one for one in working if _is_often(one[1])]
    if often:
        working = [one for one in working if _is_often(one[1]) or one[1].repeats is None]
    return working or kept


def _is_start(use: Use) -> bool:
    """Return whether a call hands out data once, at the start."""
    broadcast = "bcast" in use.name.lower() or "broadcast" in use.name.lower()
    return use.interface.traffic == "setup" or (use.repeats is False and broadcast)


def _is_often(use: Use) -> bool:
    return bool(use.repeats) or use.interface.traffic in ("gradients", "each")


def _explain_union(counted: Sequence[Found], found: Sequence[Found]) -> list[str]:
    patterns = {pattern: None for _, _, pattern in counted}
    reasons = []
    if len(patterns) > 1:
        names, together = _join(patterns, _MOST_NAMED), union(list(patterns))
        reasons.append(f"{names} together: {together} is the smallest pattern that has all edges")
    left = [use.name for _, use, pattern in found if pattern not in patterns]
    if left:
        reasons.append(
            f"little, at the start, or in a rare branch, so left out: {_join(left, _MOST_SHOWN)}"
        )
    return reasons


def _join(names: Iterable[str], most: int) -> str:
    """Join the first few different names and count the rest: "a, b and c", "a, b and 3 more"."""
    shown = list(dict.fromkeys(names))
    if len(shown) > most:
        shown[most:] = [f"{len(shown) - most} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def _is_small(use: Use) -> bool:
    if use.interface.traffic in ("gradients", "each"):
        return False
    return use.amount == "small" or (use.interface.traffic == "small" and use.amount != "large")


def _judge_sensitivity(uses: Sequence[Use]) -> tuple[bool | None, str]:
    """Return whether links matter, and why: they do if much data is moved, and often.

    Source: mapa-sc21 2.3, Figures 2a and 5: transfers under about 10^5 bytes do not gain from fast
        links, and neither do too few of them.
    """
    if not uses:
        return False, "no call moves data between GPUs"
    judged = [(use, _matters(use)) for use in uses]
    heavy = [use.name for use, matters in judged if matters]
    if heavy:
        return True, f"much data in each iteration: {_join(heavy, _MOST_SHOWN)}"
    unknown = [use.name for use, matters in judged if matters is None]
    if unknown:
        return (
            None,
            f"how much, or how often, does not show in the source: {_join(unknown, _MOST_SHOWN)}",
        )
    return (
        False,
        f"little data, or not in each iteration: {_join([use.name for use in uses], _MOST_SHOWN)}",
    )


def _matters(use: Use) -> bool | None:
    """Return whether a use moves much data, and often; None if that is unknown."""
    if use.interface.traffic == "gradients":
        return True
    if use.interface.traffic == "each":
        return None
    if use.interface.traffic == "setup" or _is_small(use):
        return False
    if use.repeats is False:
        return None if use.amount == "large" else False
    spans_all = use.pattern in ("ring", "tree", "all_to_all") and _is_collective(use)
    return True if use.amount == "large" or (use.repeats and spans_all) else None


def _is_collective(use: Use) -> bool:
    """Return whether the name alone tells the pattern, unlike that of a send to one peer."""
    return bool(use.interface.pattern) and use.interface.sure == "certain"


def _judge_confidence(
    found: Sequence[Found],
    grid: str,
    readings: Sequence[tuple[str, FileFindings]],
    warnings: int,
    understood: int,
) -> tuple[Confidence, list[str]]:
    reasons: list[Doubt] = [doubt for _, use, _ in found for doubt in _doubts_of(use, grid)]
    if warnings:
        many = f"{warnings} files are" if warnings > 1 else "1 file is"
        reasons.append(("likely" if found else "guess", f"{many} not understood"))
    if not understood:
        reasons.append(("guess", "no file was understood"))
    for _, reading in readings:
        reasons += reading.doubts if found else reading.unseen
    reasons += _doubt_unknown([reading for _, reading in readings])
    return weakest(sure for sure, _ in reasons), list(
        dict.fromkeys(reason for _, reason in reasons)
    )


def _doubt_unknown(readings: Sequence[FileFindings]) -> Iterator[Doubt]:
    """Yield doubts about unknown modules and headers, those of all files together."""
    modules = list(dict.fromkeys(name for reading in readings for name in reading.modules))
    headers = list(dict.fromkeys(name for reading in readings for name in reading.headers))
    if modules:
        verb = "do" if len(modules) > 1 else "does"
        yield "likely", f"what {_join(modules, _MOST_NAMED)} {verb} is not known"
    if headers:
        verb = "bring" if len(headers) > 1 else "brings"
        yield "likely", f"what {_join(headers, _MOST_NAMED)} {verb} in is not scanned"


def _doubts_of(use: Use, grid: str) -> list[Doubt]:
    if use.interface.pattern:
        if use.interface.sure == "certain":
            return []
        return [(use.interface.sure, f"{use.name}: depends on how it is set up")]
    if use.name.endswith(_SETTERS):
        return []
    if use.pattern and use.pattern != NEIGHBOUR:
        sure = weakest([use.interface.sure, "likely"])
        return [(sure, f"{use.name}: pattern by the peer that it names")]
    if grid:
        return [("likely", f"{use.name}: pattern by the process grid")]
    return [("guess", f"{use.name}: its peers are not known")]
