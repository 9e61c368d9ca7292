"""Lists of host names: as Slurm writes them, such as "n[1-4,7],m0[01-12]", and hostfiles."""
# pure: decides on plain values

import re

MOST_HOSTS = 1 << 16
"""Largest number of names in a list: a typing mistake must not fill the memory."""

_MOST_BRACKETS = 8
_ITEM = re.compile(r"(?:\[[^\[\]]*\]|[^\[\],\s])+")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


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
    items = _ITEM.findall(text)
    if not items or ",".join(items) != text:
        raise ValueError(f"{text!r} is no list of hosts such as 'n[1-4,7],m0[01-12]'")
    names: list[str] = []
    for item in items:
        names += _expand_item(item)
        if len(names) > MOST_HOSTS:
            raise ValueError(f"{text!r} gives more than {MOST_HOSTS} names")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"{twice!r} stands twice in {text!r}")
    return tuple(names)


def _expand_item(item: str) -> list[str]:
    """Return the names of one item, which may have several brackets."""
    before, bracket, rest = item.partition("[")
    if not bracket:
        return [item]
    if item.count("[") > _MOST_BRACKETS:
        raise ValueError(f"{item!r} has more than {_MOST_BRACKETS} brackets")
    ranges, _, after = rest.partition("]")
    numbers: list[str] = []
    for one in ranges.split(","):
        found = _RANGE.fullmatch(one)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not found or low > high:
            raise ValueError(f"{item!r}: {one!r} is no range such as 1-4")
        if high - low >= MOST_HOSTS:
            raise ValueError(f"{item!r} gives more than {MOST_HOSTS} names")
        numbers += [str(number).zfill(len(found[1])) for number in range(low, high + 1)]
    tails = _expand_item(after)
    if len(numbers) * len(tails) > MOST_HOSTS:
        raise ValueError(f"{item!r} gives more than {MOST_HOSTS} names")
    return [before + number + tail for number in numbers for tail in tails]


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
