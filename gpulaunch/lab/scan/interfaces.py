"""The names that make GPUs communicate, from the data file beside this one, and their uses.

And patterns by expressions that name peers, such as `(rank + 1) % size`, in the notation of C or of
Python: variables are not followed to their values.
"""

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, Literal

from gpulaunch.files.document import read_document
from gpulaunch.profiles.pattern import union
from gpulaunch.records import Record, replace

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


Traffic = Literal["gradients", "data", "setup", "small"]
TRAFFICS: tuple[Traffic, ...] = ("gradients", "data", "setup", "small")

_NONBLOCKING = re.compile(r"(MPI_)?I([a-z]\w+?)(_init)?")


class Interface(Record):
    """A function, class or method that makes GPUs communicate.

    Attributes:
        pattern: name of a built-in pattern; "" if it follows from the arguments that name peers.
        traffic: "gradients": much, in each iteration; "data": what the caller passes; "setup":
            once, before the work begins; "small": too little for links to matter.
        peers: positions of the arguments that name peers.
        elements: position of the number of elements; -1: there is none, or it is an array.
        pair: whether the peers are the two ends of a copy.
        fallback: whether it is left out of the pattern where the program has another wrapper.
    """

    pattern: str
    traffic: Traffic = "data"
    peers: tuple[int, ...] = ()
    elements: int = -1
    pair: bool = False
    fallback: bool = False


class Use(Record):
    """A place in a file where an interface is used.

    Attributes:
        api: name of the interface, such as "ncclAllReduce" or "torch.distributed.all_reduce".
        pattern: pattern by its peers or of the interface; "" if neither is known.
        repeats: whether it runs over and over; None if unknown.
        amount: how much it moves, as far as the arguments show.
    """

    file: str
    line: int
    api: str
    pattern: str
    interface: Interface
    repeats: bool | None
    amount: Amount


class Findings:
    """What the files of a program show; the readers add to it.

    Attributes:
        doubts: reasons why the pattern of calls that were found may be another.
        unseen: reasons why there may be calls that were not found.
        named: names of calls that stand in a macro or text, or are called on an unknown object.
        unknown: imported modules and included headers of which nothing is known.
        warnings: what could not be read, one line each, with path and line.
    """

    def __init__(self) -> None:
        self.uses: dict[tuple[str, int, str], Use] = {}
        self.doubts: dict[str, None] = {}
        self.unseen: dict[str, None] = {}
        self.named: dict[str, None] = {}
        self.unknown: dict[str, None] = {}
        self.warnings: list[str] = []

    def add(self, use: Use, function: str, *, looped: bool) -> None:
        """Add a use in a function, or in "?", of which it is not known how often it runs.

        At most one use of a name in a line counts.
        """
        if looped or function in listed("each_iteration"):
            use = replace(use, repeats=True)
        elif function in ("", "main"):
            use = replace(use, repeats=False)
        if use.pattern != "none":
            self.uses.setdefault((use.file, use.line, use.api), use)

    def mind(self, name: str) -> None:
        """Note a call because of which others may be wrong or not be found."""
        if name.rpartition(".")[2] in listed("subgroups"):
            self.doubts[f"{name}: a call may join only some ranks"] = None
        if name in listed("starters"):
            self.unseen[f"{name}: what it starts, loads or opens is not scanned"] = None


@cache
def _data() -> Mapping[str, Any]:
    return read_document(os.path.join(os.path.dirname(__file__), "interfaces.toml")).data


@cache
def listed(key: str) -> frozenset[str]:
    """Return a list of names of the data file, such as `subgroups`."""
    return frozenset(_data()[key].split())


@cache
def python_packages() -> Sequence[tuple[str, tuple[str, ...], Mapping[str, Interface]]]:
    """Return the Python packages: prefix under which calls are shown, modules, and their names."""
    found = []
    for part in _data()["python"]:
        lists = {key: text for key, text in part.items() if key not in ("shown", "within")}
        found.append((part["shown"], tuple(part["within"]), _read_lists(lists)))
    return found


@cache
def python_interface(path: str) -> tuple[str, Interface] | None:
    """Return the name under which a function or class is shown, and what is known of it.

    Args:
        path: full name; "?" stands for an unknown module.

    Example:
        >>> python_interface("torch.distributed.distributed_c10d.all_reduce")[0]
        'torch.distributed.all_reduce'
    """
    module, _, name = path.rpartition(".")
    for shown, within, names in python_packages():
        found = names.get(name) or (names.get(_blocking(name)) if "mpi4py" in shown else None)
        if found and any(f"{module}.".startswith(f"{one}.") for one in (*within, "?")):
            return f"{'?' if module == '?' else shown}.{name}", found
    return None


@cache
def c_interface(name: str) -> Interface | None:
    """Return what is known of a function of C by its name; None if it moves nothing."""
    known = _c_functions()
    return known.get(name) or (known.get(_blocking(name)) if name.startswith("MPI_") else None)


@cache
def _c_functions() -> Mapping[str, Interface]:
    return _read_lists(_data()["c"])


def _blocking(name: str) -> str:
    """Return the blocking function of MPI that a non-blocking or persistent one is like."""
    found = _NONBLOCKING.fullmatch(name)
    return f"{found[1] or ''}{found[2].capitalize()}" if found else name.removesuffix("_init")


def _read_lists(lists: Mapping[str, str]) -> dict[str, Interface]:
    return {name: _interface(key) for key, text in lists.items() for name in text.split()}


def _interface(key: str) -> Interface:
    """Return what the words of a key say, such as "peer 3 count 1"."""
    pattern, *words = key.split()
    elements = int(words.pop(words.index("count") + 1)) if "count" in words else -1
    return Interface(
        pattern="" if pattern in ("peer", "pair") else pattern,
        traffic=next((one for one in TRAFFICS if one in words), "data"),
        peers=tuple(int(word) for word in words if word.isdigit()),
        elements=elements,
        pair=pattern == "pair",
        fallback="fallback" in words,
    )
