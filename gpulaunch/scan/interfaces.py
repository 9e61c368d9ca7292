"""The names that make GPUs communicate, from the data file beside this one."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from gpulaunch.files.toml_parser import tomllib
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


@cache
def _data() -> Mapping[str, Any]:
    with open(os.path.join(os.path.dirname(__file__), "interfaces.toml"), "rb") as file:
        return tomllib.load(file)


@cache
def listed(key: str) -> frozenset[str]:
    """Return a list of names of the data file, such as `subgroups` or `loose.names`."""
    data: Any = _data()
    for part in key.split("."):
        data = data[part]
    return frozenset(data.split())


@cache
def families() -> tuple[PythonPackage, ...]:
    """Return the Python packages that are known."""
    return tuple(_family(part) for part in _data()["python"])


@cache
def roots() -> frozenset[str]:
    """Return the Python packages whose names are followed."""
    followed = {prefix.partition(".")[0] for family in families() for prefix in family.within}
    starters = {name.partition(".")[0] for name in listed("starters")}
    return frozenset(followed | starters | {"functools", "sys", "typing"})


@cache
def quiet_modules() -> frozenset[str]:
    """Return the Python packages that move nothing between GPUs, or only by known names."""
    return listed("quiet_modules") | (roots() - listed("unknown_modules"))


@cache
def telling_names() -> frozenset[str]:
    """Return the names that tell by themselves, from whatever module they are imported."""
    return frozenset(name for family in families() if family.shown == "?" for name in family.names)


@cache
def python_words() -> frozenset[str]:
    """Return the names without one of which a file of Python has no call."""
    return frozenset(name for family in families() for name in family.names) | (
        listed("loose.names") | {"jit"}
    )


def loose_objects(imported: Iterable[str]) -> Iterator[str]:
    """Yield the objects that an unknown receiver of a particular method is taken for."""
    yield from (_data()["loose"][name] for name in ("mpi4py", "cupy") if name in imported)


@cache
def _functions() -> Mapping[str, Interface]:
    return _interfaces({key: text for key, text in _data()["c"].items() if key != "like"}, ())


@cache
def _like() -> Sequence[tuple[re.Pattern[str], Interface]]:
    """Return regular expressions of further functions of C."""
    return [(re.compile(text), _interface(key, ())) for key, text in _data()["c"]["like"].items()]


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
    for family in families():
        interface = family.names.get(name) or family.names.get(known)
        if interface and any(f"{module}.".startswith(f"{one}.") for one in family.within):
            parts = plain.split(".")
            shown = {"horovod": ".".join(parts[:2])}.get(family.shown, family.shown)
            shown = parts[0] if shown in ("trainer", "lightning", "") else shown
            return f"{shown}.{name}", interface
    return None


def c_interface(name: str) -> Interface | None:
    """Return what is known of a function of C by its name; None if it moves nothing."""
    known = _functions()
    if name.startswith("MPI_"):
        short = name.removesuffix("_init")
        nonblocking = _NONBLOCKING.fullmatch(short)
        full = f"MPI_{nonblocking[2].capitalize()}" if nonblocking else short
        return known.get(name) or known.get(full)
    found = known.get(name)
    if found or not _LIKE.search(name):
        return found
    return next((one for pattern, one in _like() if pattern.fullmatch(name)), None)


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
