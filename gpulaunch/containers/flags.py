"""Flags of docker's and podman's command lines, which Go's pflag reads in both."""
# pure: decides on plain values

import re
from collections.abc import Callable, Sequence

from gpulaunch.records import Record

_YES = frozenset({"1", "t", "T", "TRUE", "true", "True"})


class Flag(Record):
    """One flag as it was given.

    Attributes:
        name: name with its dashes, such as --gpus or -e.
        value: value of the flag; None without one.
        begin: index of the flag's word.
    """

    name: str
    value: str | None
    begin: int
    end: int

    @property
    def is_on(self) -> bool:
        """True if a switch is set; its value is read as by Go's strconv.ParseBool."""
        return self.value is None or self.value in _YES


def read_flags(
    words: Sequence[str], at: int, takes_value: Callable[[str], bool]
) -> tuple[tuple[Flag, ...], int]:
    """Return the flags up to the first other word, and the index of that; -itv is three flags.

    Args:
        takes_value: tells by its name whether a flag always has a value, joined or as next word.
    """
    flags: list[Flag] = []
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        found, end = _in_word(words[at], takes_value), at + 1
        name, value = found[-1]
        if value is None and takes_value(name) and end < len(words):
            found[-1], end = (name, words[end]), end + 1
        flags += (Flag(name, value, at, end) for name, value in found)
        at = end
    return tuple(flags), at


def _in_word(word: str, takes_value: Callable[[str], bool]) -> list[tuple[str, str | None]]:
    """Return the flags in a word, each with the value that is joined to it."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return [(name, value if equals else None)]
    found: list[tuple[str, str | None]] = []
    for at, letter in enumerate(word[1:], 2):
        name, rest = f"-{letter}", word[at:]
        if rest.startswith("=") and len(rest) > 1:
            return [*found, (name, rest[1:])]
        found.append((name, (rest or None) if takes_value(name) else None))
        if takes_value(name):
            break
    return found


def without_secrets(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without the values of variables, for others to see."""
    shown = []
    before = ""
    for word in argv:
        found = re.match(r"(--env=|-[a-zA-Z]*?e=?)?(\w+)=", word)
        is_value = found and (found[1] or re.fullmatch("--env|-[a-zA-Z]*e", before))
        shown.append(f"{found[0]}..." if found and is_value else word)
        before = word
    return tuple(shown)
