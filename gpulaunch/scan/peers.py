"""Patterns by expressions that name peers, such as `(rank + 1) % size`, in C or in Python."""
# pure: decides on plain values

import re
from collections.abc import Sequence

from gpulaunch.profiles.pattern_union import union

Words = Sequence[str]
"""An expression as tokens, in the notation of C or of Python."""

NEIGHBOUR = "neighbour"
"""Pattern of peers of which the name alone tells: `next_rank`; a chain, or a ring."""

_LONGEST = 100  # words
_LONGEST_TEST = 200  # characters
_STEP = re.compile(r"[\w. ()]+ [+-] 1|1 \+ [\w. ()]+|[\w. ()]+ \^ 1")
_LAST = re.compile(
    r"(?!.*(?:rank(?!s)|\bme\b|id\b))"
    r".*(?:size|procs|nproc|world|count|total|num|gpus|ranks|\bn|\bnp)\w*(?: \( \))? - 1",
    re.IGNORECASE,
)
_STEP_AROUND = re.compile(r"[+-] 1\b|\b1 \+")
_NO_PEER = re.compile(
    r"(.* )?(MPI_)?PROC_NULL|- 1|None|(self \. )?_?(my_?)?(world_?)?rank|mype|.*[gG]et_rank \( .*\)"
)
_NEIGHBOUR = re.compile(
    r"(self \. )?\w*(next|prev)(?![a-z])\w*( \( .* \))?|.* \. \w*(next|prev)\w*( \( .* \))?"
)
_OWN = (  # an expression such as `rank`, `comm->my_pe` or `dist.get_rank(group)`
    r"(?:[\w\[\]()*]*(?:\.|->|::))*\(?\*?"
    r"(?:\w*rank(?:_?id)?_?|(?:\w*_)?(?:pe|mype|me|tid|(?:my|proc|task|node|device)?_?id))"
    r"(?:\([^()]*\)?)?"
)
_ROOT = re.compile(rf"(?:!|not\b) *{_OWN}|{_OWN} *== *0|0 *== *{_OWN}", re.IGNORECASE)
_EITHER = re.compile(r"\([^()]*(?:\|\||\bor\b)[^()]*\)")
_OR, _AND = re.compile(r"\|\||\bor\b"), re.compile(r"&&|\band\b")
_AXIS = re.compile(r"\b_?(?:n_?)?(?:procs?|ranks?)_?([xyz])\b", re.IGNORECASE)
_PIPELINE = re.compile(r"pipeline|[a-z_]stage|stage_", re.IGNORECASE)
_RING_WORD = re.compile(r"\bring|_ring|[a-z]Ring|Ring[A-Z]")


def pattern_of_peers(expressions: Sequence[Words], *, pair: bool) -> str:
    """Return the pattern of one call by all its arguments that name peers.

    Args:
        expressions: those arguments.
        pair: whether they are the two ends of one copy, instead of peers of the calling rank.

    Returns:
        The name of a pattern; "" if the arguments do not show it.

    Example:
        >>> pattern_of_peers([["i", "+", "1"], ["i"]], pair=True)
        'chain'
    """
    found = [pattern_of_peer(words) for words in expressions]
    if not found:
        return ""
    if not pair:
        return "" if "" in found else union(found)
    known = {pattern for pattern in found if pattern}
    plain = [words for words, pattern in zip(expressions, found, strict=True) if not pattern]
    if len(known) == 1 and all(len(_strip_brackets(words)) == 1 for words in plain):
        return known.pop()
    return ""


def pattern_of_choices(expressions: Sequence[Sequence[Words]], *, pair: bool) -> str:
    """Return the pattern of one call whose arguments may each be one of several expressions.

    Example:
        >>> pattern_of_choices([[["rank", "+", "1"], ["0"]]], pair=False)
        'ring'
    """
    if pair:
        return pattern_of_peers([choices[0] for choices in expressions], pair=True)
    if expressions and all(
        _NEIGHBOUR.fullmatch(" ".join(words)) for choices in expressions for words in choices
    ):
        return NEIGHBOUR
    found = [
        _union_of_choice([pattern_of_peer(words) for words in choices]) for choices in expressions
    ]
    return "" if "" in found or not found else union(found)


def pattern_of_peer(words: Words) -> str:
    """Return the pattern of ranks that exchange data with the rank that an expression names.

    Returns:
        "ring" for a neighbour modulo the number of ranks, "chain" for one without, "star" for a
        fixed rank, "none" for MPI_PROC_NULL; "" if it is anything else.

    Example:
        >>> pattern_of_peer(["(", "rank", "+", "1", ")", "%", "size"])
        'ring'
    """
    if len(words) > _LONGEST:
        return ""
    words = _strip_brackets(words)
    branches = _split_branches(words)
    if branches:
        return _union_of_choice([pattern_of_peer(branch) for branch in branches])
    text = " ".join(words)
    if _NO_PEER.fullmatch(text):
        return "none"
    if text.isdecimal() or _LAST.fullmatch(text):
        return "star"
    if "%" in words:
        return "ring" if _STEP_AROUND.search(text) else ""
    return "chain" if _STEP.fullmatch(text) else ""


def is_root_test(test: str) -> bool:
    """Return whether a condition, in the notation of C or of Python, holds on rank 0 only.

    Example:
        >>> is_root_test("(comm->rank == 0 && verbose)"), is_root_test("(10 == width)")
        (True, False)
    """
    if len(test) > _LONGEST_TEST:
        return False
    test = _EITHER.sub("", test)
    return not _OR.search(test) and any(
        _ROOT.fullmatch(part.strip("() ")) for part in _AND.split(test)
    )


def pattern_of_grid(axes: int | None) -> str:
    """Return the pattern of a process grid by its number of axes; of None, the one with most edges.

    Example:
        >>> pattern_of_grid(1), pattern_of_grid(None), pattern_of_grid(4)
        ('ring', 'stencil_3d', 'all_to_all')
    """
    return {1: "ring", 2: "stencil_2d", 3: "stencil_3d", None: "stencil_3d"}.get(axes, "all_to_all")


def grid_of_names(text: str) -> str:
    """Return the pattern of a grid that variables such as `nproc_x` tell of; "" if none do."""
    axes = {found[1].lower() for found in _AXIS.finditer(text)}
    return {"xy": "stencil_2d", "xyz": "stencil_3d"}.get("".join(sorted(axes)), "")


def count_words(text: str) -> tuple[int, int]:
    """Return how many words of a program tell of pipelines, and of rings."""
    return len(_PIPELINE.findall(text)), len(_RING_WORD.findall(text))


def _union_of_choice(found: Sequence[str]) -> str:
    """Return the union of the patterns; a neighbour or, at the end, a fixed rank is a ring."""
    if "" in found:
        return ""
    return "ring" if set(found) == {"chain", "star"} else union(found)


def _strip_brackets(words: Words) -> Words:
    """Return an expression without brackets around the whole."""
    while len(words) > 2 and words[0] == "(" and words[-1] == ")" and len(_top_level(words)) == 2:
        words = words[1:-1]
    return words


def _top_level(words: Words) -> list[int]:
    """Return the positions outside of all brackets; outermost brackets count as outside."""
    depth, found = 0, []
    for at, word in enumerate(words):
        depth -= word in (")", "]", "}")
        if depth == 0:
            found.append(at)
        depth += word in ("(", "[", "{")
    return found


def _split_branches(words: Words) -> list[Words]:
    """Return a and b of `c ? a : b` or `a if c else b`; [] if it is neither."""
    top = _top_level(words)
    places = {words[at]: at for at in reversed(top)}
    if "?" in places and ":" in places:
        return [words[places["?"] + 1 : places[":"]], words[places[":"] + 1 :]]
    if "if" in places and "else" in places:
        return [words[: places["if"]], words[places["else"] + 1 :]]
    return []
