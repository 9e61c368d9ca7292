"""The names that make GPUs communicate, from the data file beside this one."""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache

from gpulaunch.profiles.confidence import CONFIDENCES
from gpulaunch.records import Record
from gpulaunch.scan.call import TRAFFICS, Interface
from gpulaunch.typing import Any, TypeVar

T = TypeVar("T")

_PEER_KEYWORDS = ("dst", "src", "dest", "source", "perm", "peer", "group_dst", "group_src")
_LIKE = re.compile(r"shmem|nccl|reduce|gather|scatter", re.IGNORECASE)
_NONBLOCKING = re.compile(r"(MPI_)?I([a-z]\w+)")


class PythonPackage(Record):
    """Functions and classes of one Python package.

    Attributes:
        shown: prefix under which calls are shown; "" for the name of the package.
        within: modules or objects that contain the names, at any depth.
        names: what is known of each name.
    """

    shown: str
    within: tuple[str, ...]
    names: Mapping[str, Interface]


class KnownNames(Record):
    """All names that are known.

    Attributes:
        families: Python packages.
        words: the names in them, without which a file of Python has no call.
        functions: functions of C.
        like: regular expressions of further functions of C.
        roots: Python packages whose names are followed.
        loose: object that an unknown receiver of a particular method is taken for, by package.
        methods: those methods.
        doubted: methods that are taken for calls only where an object is asked as a communicator
            is, and else leave a doubt.
        telling: names that tell by themselves, from whatever module they are imported.
        quiet_modules: Python packages that move nothing between GPUs, or only by known names.
        quiet_headers: headers, without their endings, of which the same holds.
        subgroups: functions after which a collective may join only some ranks.
        starters: functions that run code that the scan does not see.
        wrappers: beginnings of the names of functions that return the function they are given.
        looping: functions that call a function over and over.
        each_iteration: names of methods that run in each iteration.
    """

    families: tuple[PythonPackage, ...]
    words: frozenset[str]
    functions: Mapping[str, Interface]
    like: tuple[tuple[re.Pattern[str], Interface], ...]
    roots: frozenset[str]
    loose: Mapping[str, str]
    methods: frozenset[str]
    doubted: frozenset[str]
    telling: frozenset[str]
    quiet_modules: frozenset[str]
    quiet_headers: frozenset[str]
    subgroups: frozenset[str]
    starters: frozenset[str]
    wrappers: tuple[str, ...]
    looping: frozenset[str]
    each_iteration: frozenset[str]


@cache
def names() -> KnownNames:
    """Return the names of the data file."""
    with open(os.path.join(os.path.dirname(__file__), "interfaces.toml"), "rb") as file:
        data = tomllib.load(file)
    families = tuple(_family(part) for part in data["python"])
    functions = {key: text for key, text in data["c"].items() if key != "like"}
    loose = {key: text for key, text in data["loose"].items() if key not in ("names", "doubted")}
    methods = frozenset(data["loose"]["names"].split())
    followed = {prefix.partition(".")[0] for family in families for prefix in family.within}
    starters = frozenset((data["starters"] + " " + data["c_starters"]).split())
    roots = followed | {"functools", "sys", "typing", *(name.split(".")[0] for name in starters)}
    unknown = {*data["unknown_modules"].split()}
    return KnownNames(
        families,
        frozenset(name for family in families for name in family.names) | methods | {"jit"},
        _interfaces(functions, ()),
        tuple((re.compile(text), _interface(key, ())) for key, text in data["c"]["like"].items()),
        frozenset(roots),
        loose,
        methods,
        frozenset(data["loose"]["doubted"].split()),
        frozenset(name for one in families if one.shown == "?" for name in one.names),
        frozenset(data["quiet_modules"].split()) | (roots - unknown),
        frozenset(data["quiet_headers"].split()),
        frozenset(data["subgroups"].split()),
        starters,
        tuple(data["wrappers"].split()),
        frozenset(data["looping"].split()),
        frozenset(data["each_iteration"].split()),
    )


@cache
def python_interface(path: str) -> tuple[str, Interface] | None:
    """Return the name under which a function or class is shown, and what is known of it.

    Args:
        path: full name; "()" in it means the result of a call.

    Example:
        >>> python_interface("torch.distributed.distributed_c10d.all_reduce")[0]
        'torch.distributed.all_reduce'
    """
    if path.endswith(("()", "[]")):
        return None
    plain = path.replace("()", "").replace("[]", "")
    module, _, name = plain.rpartition(".")
    nonblocking = _NONBLOCKING.fullmatch(name) if module.startswith("mpi4py") else None
    known = nonblocking[2].capitalize() if nonblocking and not name.startswith("Is_") else name
    for family in names().families:
        interface = family.names.get(name) or family.names.get(known)
        if interface and any(f"{module}.".startswith(f"{one}.") for one in family.within):
            parts = plain.split(".")
            shown = {"horovod": ".".join(parts[:2])}.get(family.shown, family.shown)
            shown = parts[0] if shown in ("trainer", "lightning", "") else shown
            return f"{shown}.{name}", interface
    return None


def c_interface(name: str) -> Interface | None:
    """Return what is known of a function of C by its name; None if it moves nothing."""
    known = names()
    if name.startswith("MPI_"):
        short = name.removesuffix("_init")
        nonblocking = _NONBLOCKING.fullmatch(short)
        full = f"MPI_{nonblocking[2].capitalize()}" if nonblocking else short
        return known.functions.get(name) or known.functions.get(full)
    found = known.functions.get(name)
    if found or not _LIKE.search(name):
        return found
    return next((one for pattern, one in known.like if pattern.fullmatch(name)), None)


def _family(part: Mapping[str, Any]) -> PythonPackage:
    lists = {key: text for key, text in part.items() if key not in ("shown", "within")}
    return PythonPackage(part["shown"], tuple(part["within"]), _interfaces(lists, _PEER_KEYWORDS))


def _interfaces(lists: Mapping[str, str], keywords: tuple[str, ...]) -> dict[str, Interface]:
    return {name: _interface(key, keywords) for key, text in lists.items() for name in text.split()}


def _interface(key: str, keywords: tuple[str, ...]) -> Interface:
    """Return what the words of a key say, such as "peer 3 count 1"."""
    pattern, *words = key.split()
    elements = int(words.pop(words.index("count") + 1)) if "count" in words else -1
    by_peer = pattern in ("peer", "pair")
    return Interface(
        pattern="" if by_peer else pattern,
        traffic=_one_of(words, TRAFFICS) or "data",
        sure=_one_of(words, CONFIDENCES) or "certain",
        peers=tuple(int(word) for word in words if word.lstrip("-").isdigit()),
        keywords=keywords if by_peer else (),
        elements=elements,
        pair=pattern == "pair",
        fallback="fallback" in words,
        kernel="kernel" in words,
    )


def _one_of(words: Sequence[str], known: Sequence[T]) -> T | None:
    return next((one for one in known if one in words), None)
