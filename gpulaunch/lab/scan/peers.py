"""Patterns by expressions that name peers, such as `(rank + 1) % size`, and amounts by their words.

Expressions are text in the notation of C or of Python; variables are not followed to their values.
"""
# pure: decides on plain values

import re
from collections.abc import Sequence
from math import prod
from typing import Literal

from gpulaunch.profiles.pattern import union

Amount = Literal["large", "small", "unknown"]

SMALL_BYTES = 100_000
"""Calls that move less than this gain nothing from fast links (mapa-sc21 2.3, Figure 2a)."""

_WIDEST_BYTES = 8  # of one element
_LONGEST = 400  # characters of an expression
_TOKEN = re.compile(r"\w+|[^\s\w]")
_STEP = re.compile(r"[\w. ()]+ [+-] 1|1 \+ [\w. ()]+|[\w. ()]+ \^ 1")
_LAST = re.compile(
    r"(?!.*(?:rank(?!s)|\bme\b|id\b))"
    r".*(?:size|procs|nproc|world|count|total|num|gpus|ranks|\bn|\bnp)\w*(?: \( \))? - 1",
    re.IGNORECASE,
)
_STEP_AROUND = re.compile(r"[+-] 1\b|\b1 \+")
_NO_PEER = re.compile(r"(.* )?(MPI_)?PROC_NULL|- 1|None|(self \. )?_?(my_?)?(world_?)?rank|mype")
_GRADIENTS = re.compile(r"(?<!requires_)grad(?!_?scaler)|_diff\b", re.IGNORECASE)


def pattern_of_peers(expressions: Sequence[str], *, pair: bool) -> str:
    """Return the pattern of one call by all its arguments that name peers.

    Args:
        pair: whether they are the two ends of one copy, instead of peers of the calling rank.

    Returns:
        The name of a pattern; "" if the arguments do not show it.

    Example:
        >>> pattern_of_peers(["i + 1", "i"], pair=True)
        'chain'
    """
    found = [pattern_of_peer(one) for one in expressions]
    if pair:
        known = {pattern for pattern in found if pattern}
        plain = [one for one, pattern in zip(expressions, found, strict=True) if not pattern]
        return known.pop() if len(known) == 1 and all(map(str.isidentifier, plain)) else ""
    return "" if "" in found or not found else union(found)


def pattern_of_peer(expression: str) -> str:
    """Return the pattern of ranks that exchange data with the rank that an expression names.

    Returns:
        "ring" for a neighbour modulo the number of ranks, "chain" for one without, "star" for a
        fixed rank, "none" for MPI_PROC_NULL; "" if it is anything else.

    Example:
        >>> pattern_of_peer("(rank + 1) % size")
        'ring'
    """
    words = _TOKEN.findall(expression) if len(expression) <= _LONGEST else []
    text = " ".join(words)
    if _NO_PEER.fullmatch(text):
        return "none"
    if text.isdecimal() or _LAST.fullmatch(text):
        return "star"
    if "%" in words:
        return "ring" if _STEP_AROUND.search(text) else ""
    bare = text[2:-2] if text.startswith("( ") and text.endswith(" )") else text
    return "chain" if _STEP.fullmatch(bare) else ""


def amount_of_count(buffer: str, count: str, *, of_bytes: bool) -> Amount:
    """Return how much a call in C moves, by its buffer's name and its number of elements or bytes.

    Example:
        >>> amount_of_count("loss", "1", of_bytes=False), amount_of_count("x", "n", of_bytes=True)
        ('small', 'unknown')
    """
    factors = [one.strip(" ()") for one in count.split("*")]
    if all(one.isdecimal() and len(one) < 20 for one in factors):
        number = prod(map(int, factors)) * (1 if of_bytes else _WIDEST_BYTES)
        return "small" if number < SMALL_BYTES else "large"
    return "large" if names_gradients(buffer) else "unknown"


def names_gradients(expression: str) -> bool:
    """Return whether a buffer is called gradients."""
    return bool(_GRADIENTS.search(expression[:_LONGEST]))
