"""Lists of host names: as Slurm writes them, such as "n[1-4,7],m0[01-12]", and hostfiles."""
# pure: decides on plain values

import re
from itertools import product

MOST_HOSTS = 1 << 16
"""Largest number of names in a list: a typing mistake must not fill the memory."""

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_ITEM = re.compile(r"(?:\[[^\[\]]*\]|[^\[\],\s])+")


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Return the names in a list, in its order.

    A number with leading zeros gives its length to the whole range; several brackets in one name
    are combined, the last one fastest.

    Args:
        text: names separated by commas, each with any number of ranges in brackets.

    Raises:
        ValueError: the text is no such list, a name stands twice, or there are more than MOST_HOSTS
            names; its message is fit for the user.

    Source: the section "hostlist expressions" of Slurm's man pages.

    Example:
        >>> expand_hostlist("n[1-2,7],m0[01-02]-ib")
        ('n1', 'n2', 'n7', 'm001-ib', 'm002-ib')
    """
    names: list[str] = []
    at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if not item:
            raise ValueError(f"{text!r} is no list of hosts such as 'n[1-4,7],m0[01-12]'")
        names += _expand_item(item[0], MOST_HOSTS - len(names))
        at = item.end()
        if at < len(text):
            if text[at] != "," or at + 1 == len(text):
                raise ValueError(f"{text!r} is no list of hosts such as 'n[1-4,7],m0[01-12]'")
            at += 1
    if not names:
        raise ValueError("the list of hosts is empty")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"{twice!r} stands twice in {text!r}")
    return tuple(names)


def _expand_item(item: str, most: int) -> list[str]:
    """Return the names of one item: text and brackets in turn."""
    parts = [
        [text] if text else _expand_ranges(ranges, item) for ranges, text in _PIECE.findall(item)
    ]
    count = 1
    for part in parts:
        count *= len(part)
    if count > most:
        raise ValueError(f"{item!r} gives more than {MOST_HOSTS} names")
    return ["".join(name) for name in product(*parts)]


def _expand_ranges(ranges: str, item: str) -> list[str]:
    numbers: list[str] = []
    for one in ranges.split(","):
        found = _RANGE.fullmatch(one)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not found or low > high:
            raise ValueError(f"{item!r}: {one!r} is no range such as 1-4")
        if high - low >= MOST_HOSTS:
            raise ValueError(f"{item!r} gives more than {MOST_HOSTS} names")
        numbers += [str(number).zfill(len(found[1])) for number in range(low, high + 1)]
    return numbers


HERE = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine that every machine has."""


def hosts_of(hostfile: str, own_name: str) -> tuple[str, ...]:
    """Return the hosts that a hostfile of Open MPI names, each once, in their order.

    Args:
        hostfile: its text.
        own_name: name of this machine, by which mpirun knows it where it is called localhost.
    """
    rows = [line.partition("#")[0].split() for line in hostfile.splitlines()]
    names = [words[0] for words in rows if words]
    return tuple(dict.fromkeys(own_name if name in HERE else name for name in names))
