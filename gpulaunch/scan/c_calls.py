"""Calls in C, C++ and CUDA that make GPUs communicate."""
# pure: decides on plain values

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from math import prod

from gpulaunch.profiles.pattern_union import union
from gpulaunch.scan.c_interfaces import (
    CALLERS,
    GRID,
    HINTS,
    QUIET_HEADERS,
    SUBGROUPS,
    c_interface,
)
from gpulaunch.scan.c_macros import Macros, arguments, by_name, expand
from gpulaunch.scan.c_shape import Shape, head_of, shape_of, words
from gpulaunch.scan.c_tokens import Macro, Unit
from gpulaunch.scan.call import Amount, Doubt, FileFindings, Interface, Use
from gpulaunch.scan.peers import pattern_of_choices, pattern_of_peers
from gpulaunch.scan.repeats import repeating

SMALL_BYTES = 100_000
"""Calls that move less than this gain nothing from fast links (mapa-sc21 2.3, Figure 2a)."""

_WIDEST_BYTES = 8  # of one element
_BEFORE_CALL = {
    "return",
    "else",
    "do",
    "case",
    "co_return",
    "co_await",
    "co_yield",
    "throw",
    "and",
    "or",
    "not",
    "goto",
}
_GRADIENTS = re.compile(r"(?<!requires_)grad|diff(?!er)", re.IGNORECASE)
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+)[uUlLzZ]*")
_MOST_SETTINGS = 16  # of one variable
_GROUP = "ncclGroupStart", "ncclGroupEnd"
_EXPECTING = {"EXPECT_CALL", "ON_CALL"}  # GoogleMock: the second argument is an expected call
_MOST_OF_OBJECT = 16  # tokens
_GRIDS = {1: "ring", 2: "stencil_2d", 3: "stencil_3d"}


def read_c(unit: Unit, shared: Sequence[Macro], known: frozenset[str]) -> FileFindings:
    """Return the calls in one file of C, C++ or CUDA that make GPUs communicate.

    Args:
        unit: the file.
        shared: macros of the headers that it includes.
        known: names of headers that are scanned, too.
    """
    macros = by_name((*shared, *unit.macros))
    file = _File(shape_of(expand(unit.tokens, macros, _is_wanted)), macros)
    return FileFindings(
        tuple(file.uses()), file.grid(), *file.doubts(), headers=_unknown_headers(unit, known)
    )


def _is_wanted(name: str) -> bool:
    return name in SUBGROUPS or name in HINTS or name in CALLERS or c_interface(name) is not None


def _unknown_headers(unit: Unit, known: frozenset[str]) -> tuple[str, ...]:
    stems = {name.rpartition(".")[0] or name: name for name in unit.includes}
    unknown = (item for item in stems.items() if item[0] not in QUIET_HEADERS)
    return tuple(full for _, full in unknown if full.split("/")[-1] not in known)


class _File:
    """A file while it is read."""

    def __init__(self, shape: Shape, macros: Macros) -> None:
        self._shape = shape
        self._tokens = shape.tokens
        self._macros = macros
        self._hidden = self._find_own_names()

    def uses(self) -> list[Use]:
        """Return the calls in order, one per name and line."""
        found: dict[tuple[int, str], Use] = {}
        for at, name in self._called:
            interface = c_interface(name)
            if interface is not None:
                use = self._make_use(at, name, interface)
                found.setdefault((use.line, name), use)
        return sorted(found.values(), key=lambda use: (use.line, use.name))

    def grid(self) -> str:
        """Return the pattern of the process grid that is set up here; "" if there is none."""
        found = [self._grid_at(at) for at, name in self._called if name == GRID]
        return union(found) if found else ""

    def doubts(self) -> tuple[tuple[Doubt, ...], tuple[Doubt, ...]]:
        """Return the doubts about the pattern, and the reasons why calls may have been missed."""
        called = {name: None for _, name in self._called}
        unseen: list[Doubt] = [
            ("guess", f"{name}: {HINTS[name]}") for name in called if name in HINTS
        ]
        unseen += [
            ("likely", f"{name}: what it starts or loads is not scanned")
            for name in called
            if name in CALLERS
        ]
        found: list[Doubt] = [
            ("likely", f"{name}: a call may join only some ranks")
            for name in called
            if name in SUBGROUPS
        ]
        return tuple(found), tuple(unseen)

    @cached_property
    def _called(self) -> list[tuple[int, str]]:
        """Position and name of each call of a wanted function."""
        found = []
        for at, token in enumerate(self._tokens):
            if token.kind == "name" and self._next(at) == "(":
                name = self._aliases.get(token.text, token.text)
                if _is_wanted(name) and self._is_call(at) and not self._is_own(at):
                    found.append((at, name))
        return found

    @cached_property
    def _aliases(self) -> dict[str, str]:
        """The wanted function by each alias of it, such as `f` of `auto f = ncclSend;`."""
        found = {}
        for at, token in enumerate(self._tokens):
            if token.kind == "name" and self._next(at) == ";" and _is_wanted(token.text):
                back = at - 2 if self._text(at - 1) == "&" else at - 1
                if self._text(back) == "=" and self._tokens[back - 1].kind == "name":
                    found[self._text(back - 1)] = token.text
        return found

    def _is_call(self, at: int) -> bool:
        """Return whether a name before a bracket is called, and not declared or a member."""
        if self._shape.dead[at]:
            return False
        before = self._tokens[at - 1] if at else None
        if before is None:
            return False
        if before.text in (".", "->") or (before.text == "," and self._is_expected(at - 1)):
            return False
        if before.text == "::":
            owner = self._tokens[at - 2] if at > 1 else None
            return (
                owner is None
                or owner.text in _BEFORE_CALL
                or (owner.kind != "name" and owner.text != ">")
            )
        return before.kind != "name" or before.text in _BEFORE_CALL

    def _is_expected(self, comma: int) -> bool:
        """Return whether a comma is that of `EXPECT_CALL(object, method(...))` in a test."""
        for at in range(comma - 1, max(0, comma - _MOST_OF_OBJECT), -1):
            if self._text(at) in _EXPECTING:
                return self._next(at) == "("
            if self._text(at) in (",", ";", "{", "}"):
                return False
        return False

    def _find_own_names(self) -> dict[str, list[tuple[int, int]]]:
        """Return the ranges in which the file's own declarations hide wanted names, by name."""
        found: dict[str, list[tuple[int, int]]] = {}
        for at, token in enumerate(self._tokens):
            if token.kind == "name" and _is_wanted(token.text) and self._is_declared(at):
                found.setdefault(token.text, []).append(self._find_scope(at))
        return {name: _drop_nested(ranges) for name, ranges in found.items()}

    def _is_declared(self, at: int) -> bool:
        """Return whether a name is that of a function, method or variable declared here."""
        before = self._tokens[at - 1] if at else None
        if (
            before is None
            or before.text in _BEFORE_CALL
            or not (before.kind == "name" or before.text in ("*", "&"))
        ):
            return False
        following = self._next(at)
        if following != "(":
            return (
                before.kind == "name"
                and following in ("=", ";")
                and before.text not in ("typename", "using")
            )
        closing = self._shape.brackets.get(at + 1, at + 1)
        after = closing + 1
        while self._text(after) in ("const", "noexcept", "override"):
            after += 1
        return self._text(after) == "{" or (before.kind == "name" and self._is_in_class(at))

    def _is_in_class(self, at: int) -> bool:
        brace = self._shape.brace[at]
        return brace >= 0 and bool({"class", "struct", "union"} & set(head_of(self._shape, brace)))

    def _find_scope(self, at: int) -> tuple[int, int]:
        """Return the range in which a declaration holds; `extern "C" {` does not bound it."""
        brace = self._shape.brace[at]
        while brace >= 0 and head_of(self._shape, brace)[:1] == ["extern"]:
            brace = self._shape.brace[brace]
        if brace < 0 or head_of(self._shape, brace) == ["namespace"]:
            return 0, len(self._tokens)
        return brace, self._shape.brackets[brace]

    def _is_own(self, at: int) -> bool:
        ranges = self._hidden.get(self._text(at), [])
        before = bisect_right(ranges, (at, len(self._tokens))) - 1
        return before >= 0 and at <= ranges[before][1]

    def _make_use(self, at: int, name: str, interface: Interface) -> Use:
        given = self._arguments(at)
        pattern = interface.pattern or (
            self._grid_at(at) if name == GRID else self._find_peers(at, name, interface, given)
        )
        repeats = (
            self._shape.loops[self._group_start(at)] > 0 or self._repeating[self._shape.owner[at]]
        )
        return Use(
            self._tokens[at].line,
            name,
            interface,
            pattern,
            repeats,
            self._find_amount(at, interface, given),
        )

    def _group_start(self, at: int) -> int:
        """Return the start of the NCCL group around a call, or the call itself if there is none.

        Loops within a group go over GPUs, not over time, so they do not count as repetition.
        """
        before = bisect_right(self._groups, at) - 1
        start = self._groups[before] if before >= 0 else at
        same = self._shape.owner[start] == self._shape.owner[at]
        return start if same and self._text(start) == _GROUP[0] else at

    @cached_property
    def _groups(self) -> list[int]:
        """Positions where groups of NCCL calls begin and end."""
        return [
            at
            for at, token in enumerate(self._tokens)
            if token.text in _GROUP and self._next(at) == "("
        ]

    def _arguments(self, at: int) -> list[tuple[int, int]]:
        closing = self._shape.brackets.get(at + 1, at + 1)
        return arguments(self._tokens, at + 1, closing, self._shape.brackets)

    def _grid_at(self, at: int) -> str:
        given = self._arguments(at)
        axes = self._constant_value(words(self._tokens, *given[1]), at) if len(given) > 1 else None
        return _GRIDS.get(axes or 0, "all_to_all")

    def _find_peers(
        self, at: int, name: str, interface: Interface, given: Sequence[tuple[int, int]]
    ) -> str:
        count = len(given)
        places = [place for place in interface.peers if -count <= place < count]
        if not places:
            return ""
        expressions = [words(self._tokens, *given[place]) for place in places]
        pair = "Memcpy" in name
        found = pattern_of_peers(expressions, pair=pair)
        if not found:
            settled = [self._values_of(one, at) or [one] for one in expressions]
            if pair:  # if one end is computed from the other, the other stays a name
                both = zip(expressions, settled, settled[::-1], strict=True)
                settled = [
                    [one] if set(one) & set(other[0]) else choices for one, choices, other in both
                ]
            found = pattern_of_choices(settled, pair=pair)
        rooted = self._shape.rooted[at] or self._shape.owner[at] in self._of_root
        return found or ("star" if rooted and not pair else "")

    def _values_of(self, expression: Sequence[str], at: int) -> list[list[str]]:
        """Return all values of a variable in the function around a call; [] if some are unknown."""
        if len(expression) != 1 or not expression[0].isidentifier():
            return []
        places = self._assignments.get((self._shape.owner[at], expression[0]), [])
        # After a bracket it is set by a loop, or in a condition.
        if len(places) > _MOST_SETTINGS or any(
            "(" in words(self._tokens, place - 2, place) for place in places
        ):
            return []
        return [self._right_side(place) for place in places]

    @cached_property
    def _assignments(self) -> dict[tuple[int, str], list[int]]:
        """Positions where a variable is set, by its function and name."""
        found: dict[tuple[int, str], list[int]] = {}
        for at, token in enumerate(self._tokens):
            if token.kind == "name" and self._next(at) == "=" and self._text(at + 2) != "=":
                found.setdefault((self._shape.owner[at], token.text), []).append(at)
        return found

    def _right_side(self, at: int) -> list[str]:
        end = start = at + 2
        while end < min(len(self._tokens), start + 60) and self._text(end) not in (";", ",", "}"):
            end = max(end, self._shape.brackets.get(end, end)) + 1
        return words(self._tokens, start, end)

    def _constant_value(self, expression: Sequence[str], at: int) -> int | None:
        """Return the value of a product of numbers, or of a name with one such value; else None."""
        if len(expression) == 1 and expression[0].isidentifier():
            macros = self._macros.get(expression[0], [])
            bodies = [words(macro.body, 0, len(macro.body)) for macro in macros]
            for owner in {-1, self._shape.owner[at]}:
                places = self._assignments.get((owner, expression[0]), [])
                bodies += [self._right_side(place) for place in places[:2]]
            return _product(bodies[0]) if len(bodies) == 1 else None
        return _product(expression)

    def _find_amount(
        self, at: int, interface: Interface, given: Sequence[tuple[int, int]]
    ) -> Amount:
        count = interface.elements
        if 0 <= count < len(given):
            number = self._constant_value(words(self._tokens, *given[count]), at)
            if number is not None:
                return "small" if number * _WIDEST_BYTES < SMALL_BYTES else "large"
        if given and _GRADIENTS.search(" ".join(words(self._tokens, *given[0]))):
            return "large"
        return "unknown"

    @cached_property
    def _repeating(self) -> dict[int, bool | None]:
        """Whether each function runs over and over; None if unknown."""
        calls = [
            (self._shape.owner[at], callee, self._shape.loops[at] > 0)
            for at, callee in self._entered
        ]
        once = {
            number
            for number, function in enumerate(self._shape.functions)
            if function.name == "main"
        }
        return {-1: False} | repeating(range(len(self._shape.functions)), calls, once)

    @cached_property
    def _of_root(self) -> set[int]:
        """Numbers of the functions that only rank 0 calls."""
        others = {callee for at, callee in self._entered if not self._shape.rooted[at]}
        return {callee for _, callee in self._entered} - others

    @cached_property
    def _entered(self) -> list[tuple[int, int]]:
        """Position of each call of one of the file's functions, with the function's number."""
        numbers: dict[str, list[int]] = {}
        for number, function in enumerate(self._shape.functions):
            numbers.setdefault(function.name, []).append(number)
        found = []
        for at, token in enumerate(self._tokens):
            if (
                token.text in numbers
                and token.kind == "name"
                and self._next(at) == "("
                and not self._is_declaration(at)
            ):
                found += [(at, callee) for callee in numbers[token.text]]
        return found

    def _is_declaration(self, at: int) -> bool:
        """Return whether a name begins a function's definition or declaration."""
        before = self._tokens[at - 1] if at else None
        return before is None or (before.kind == "name" and before.text not in _BEFORE_CALL)

    def _next(self, at: int) -> str:
        return self._text(at + 1)

    def _text(self, at: int) -> str:
        return self._tokens[at].text if 0 <= at < len(self._tokens) else ""


def _drop_nested(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order without those inside others; scopes never overlap otherwise."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if not found or end > found[-1][1]:
            found.append((start, end))
    return found


def _product(expression: Sequence[str]) -> int | None:
    """Return the value of `2`, `(4)`, `32 * 1024 * 1024` or `1 << 20`; None for anything else."""
    text = " ".join(word for word in expression if word not in ("(", ")")).replace("< <", "<<")
    if re.fullmatch(r"\w+ << \w+", text):
        base, shift = map(_integer, text.split(" << "))
        return None if base is None or shift is None or shift > 63 else base << shift
    found = [_integer(part) for part in text.split(" * ")]
    return None if None in found else prod(number for number in found if number is not None)


def _integer(text: str) -> int | None:
    match = _NUMBER.fullmatch(text)
    return int(match[1][:20], 16 if match[1][:2] in ("0x", "0X") else 10) if match else None
