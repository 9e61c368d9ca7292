"""Macros of C: where one stands for a call that matters."""

import re
from collections.abc import Iterable, Mapping, Sequence

from gpulaunch.records import Record
from gpulaunch.scan.c_parser import text_of
from gpulaunch.scan.interfaces import c_interface, listed
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.scan.c_parser import Node

_WORD = re.compile(r"[A-Za-z_]\w*")
_DEFINITION = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\([^)]*\))?((?:[^\n\\]|\\\r?\n|\\.)*)", re.MULTILINE
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)', re.MULTILINE)


class Macro(Record):
    """A definition of a macro.

    Attributes:
        parameters: names of its parameters; None if it takes none.
        body: what it stands for.
    """

    parameters: tuple[str, ...] | None
    body: str

    def words(self) -> set[str]:
        """Return the words of the body."""
        return set(_WORD.findall(self.body))

    def calls_parameter(self) -> bool:
        """Return whether a parameter is the name of a function that is called."""
        return any(
            re.search(rf"\b{re.escape(one)}\s*\(", self.body) for one in self.parameters or ()
        )

    def drops_all(self) -> bool:
        """Return whether no argument comes into the body."""
        used = {*(self.parameters or ()), "__VA_ARGS__"} & self.words()
        return self.parameters is not None and not used


class Unit(Record):
    """A file before it is parsed.

    Attributes:
        text: its text.
        includes: names of the headers that it includes.
        macros: its macros, whatever they stand for; several where it has several definitions.
        words: words of its text.
    """

    text: str
    includes: tuple[str, ...]
    macros: Mapping[str, tuple[Macro, ...]]
    words: frozenset[str]


def read_unit(text: str) -> Unit:
    """Return what can be said of a file without parsing it."""
    macros: dict[str, tuple[Macro, ...]] = {}
    for name, parameters, body in _DEFINITION.findall(text):
        listed = tuple(one.strip() for one in parameters[1:-1].split(",")) if parameters else None
        macro = Macro(listed, re.sub(r"\\\r?\n", " ", body))
        macros[name] = (*macros.get(name, ()), macro)
    return Unit(text, tuple(_INCLUDE.findall(text)), macros, frozenset(_WORD.findall(text)))


def wanted_macros(macros: Mapping[str, Sequence[Macro]]) -> set[str]:
    """Return the names of macros that stand for something that matters, or for what is passed."""
    words = {
        name: {word for one in found for word in one.words()} for name, found in macros.items()
    }
    wanted = {name for name, found in words.items() if any(map(is_wanted, found))}
    wanted |= {
        name
        for name, found in macros.items()
        if is_wanted(name) or any(one.calls_parameter() for one in found)
    }
    users: dict[str, list[str]] = {}
    for name, found in words.items():
        for word in found & words.keys():
            users.setdefault(word, []).append(name)
    left = list(wanted)
    while left:
        new = [name for name in users.get(left.pop(), ()) if name not in wanted]
        wanted.update(new)
        left += new
    return wanted


def is_wanted(name: str) -> bool:
    """Return whether a function of this name matters to the scan."""
    started = name in listed("c_starters") or name in listed("subgroups")
    return started or c_interface(name) is not None


def expanded(macro: Macro, given: Sequence[str]) -> str:
    """Return the text of a use of a macro, as a statement."""
    body = macro.body
    if macro.parameters is None:
        body += f"({', '.join(given)})" if given else ""
    else:
        by_name = dict(zip(macro.parameters, given, strict=False))
        if macro.parameters[-1:] == ("...",):
            by_name["__VA_ARGS__"] = ", ".join(given[len(macro.parameters) - 1 :])
        body = re.sub(r"#?\b[A-Za-z_]\w*\b", lambda found: by_name.get(found[0], found[0]), body)
    return re.sub(r"\s*##\s*", "", body)


def included_macros(
    unit: Unit, headers: Mapping[str, Sequence[Unit]]
) -> dict[str, tuple[Macro, ...]]:
    """Return a file's macros and those of the scanned headers that it includes, directly or not.

    Args:
        unit: the file.
        headers: all scanned files by their names without folders, by which they are included.
    """
    found: dict[str, dict[Macro, None]] = {}  # sets that keep their order
    seen: set[str] = set()
    left = list(unit.includes)
    while left:
        name = left.pop().rpartition("/")[2]
        if name in seen:
            continue
        seen.add(name)
        for header in headers.get(name, ()):
            for macro, bodies in header.macros.items():
                found.setdefault(macro, {}).update(dict.fromkeys(bodies))
            left += header.includes
    return {**{name: tuple(bodies) for name, bodies in found.items()}, **unit.macros}


def arguments(call: "Node") -> list[str]:
    """Return the texts of a call's arguments."""
    listed: Iterable[Node] = (call.child_by_field_name("arguments") or call).named_children
    return [text_of(one) for one in listed if one.type != "comment"]
