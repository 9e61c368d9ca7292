"""Tokens of C, C++ and CUDA, without comments and without preprocessor branches that are dead.

The tokenizer is one regular expression of our own: Pygments' lexer returns each macro definition as
one piece of text, but a scan must find calls in macros; libclang and tree-sitter are binaries, and
libclang needs headers that are not here.
"""
# pure: decides on plain values

import re
from bisect import bisect_right
from collections.abc import Iterator

from gpulaunch.records import Record
from gpulaunch.typing import Literal

Kind = Literal["name", "number", "text", "mark"]


class Token(Record):
    """A name, number, string or character literal, or one mark; `::` and `->` are one mark each.

    Attributes:
        kind: kind of the token.
        text: its text as written, with continued lines joined.
        line: line where it begins, 1 or more.
        start: position of its first character in the text with continued lines joined.
    """

    kind: Kind
    text: str
    line: int
    start: int = -1


class Macro(Record):
    """A `#define`.

    Attributes:
        name: name of the macro.
        parameters: names of its parameters; None if it takes no brackets.
        body: tokens that replace it.
    """

    name: str
    parameters: tuple[str, ...] | None
    body: tuple[Token, ...]


class Unit(Record):
    """A file as tokens.

    Attributes:
        tokens: tokens outside of directives.
        macros: macros in the order of their definitions.
        includes: names in `#include`, without brackets or quotes.
    """

    tokens: tuple[Token, ...]
    macros: tuple[Macro, ...]
    includes: tuple[str, ...]


_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_SCAN = re.compile(
    r"""(?P<newline>\n)
    |(?P<blank>[ \t\r\f\v]+)
    |(?P<line_comment>//[^\n]*)
    |(?P<comment>/\*)
    |(?:u8|[uUL])?R"(?P<raw>[^\s()\\"]{0,16})\(
    |(?P<text>(?:u8|[uUL])?"(?:[^"\\\n]|\\[^\n])*"?|(?:u8|[uUL])?'(?:[^'\\\n]|\\[^\n])*'?)
    |(?P<number>\.?[0-9](?:[eEpP][+-]|'(?=\w)|[\w.])*)
    |(?P<name>[^\W\d]\w*)
    |(?P<mark>::|->|.)""",
    re.VERBOSE | re.DOTALL,
)
_KINDS: dict[str | None, Kind] = {
    "text": "text",
    "number": "number",
    "name": "name",
    "mark": "mark",
    "newline": "mark",
}
_OPENING = {"if", "ifdef", "ifndef"}
_NEVER = {"0", "false", "( 0 )"}
_ALWAYS = {"1", "true", "( 1 )"}


def read_unit(text: str) -> Unit:
    """Return the tokens, macros and includes of a file.

    The dead branch of `#if 0` and `#if 1` is left out; of any other condition all branches are
    kept, since the definitions at compile time are unknown.

    Args:
        text: any text.
    """
    unit = _Lines()
    statement: list[Token] | None = None
    fresh = True  # only blanks since the beginning of the line
    for token in _split_tokens(text):
        if token.text == "\n":
            if statement is not None:
                unit.directive(statement)
            statement, fresh = None, True
        elif statement is not None:
            statement.append(token)
        elif fresh and token.text == "#":
            statement = []
        else:
            fresh = False
            if unit.live:
                unit.tokens.append(token)
    if statement is not None:
        unit.directive(statement)
    return Unit(tuple(unit.tokens), tuple(unit.macros), tuple(unit.includes))


def _split_tokens(text: str) -> Iterator[Token]:
    """Yield all tokens, with ends of lines and without comments."""
    text, splices = _join_lines(text)
    at, line, end = 0, 1, len(text)
    while at < end:
        match = _SCAN.match(text, at)
        if match is None:  # cannot happen: the last alternative matches anything
            return
        kind, start = match.lastgroup, at
        at = match.end()
        if kind == "comment":
            at = _position_after(text, "*/", at)
        elif kind == "raw":
            at = _position_after(text, f'){match["raw"]}"', at)
            yield Token("text", '""', line + bisect_right(splices, start), start)
        elif kind in _KINDS:
            yield Token(_KINDS[kind], match[0], line + bisect_right(splices, start), start)
        line += text.count("\n", start, at)


def _join_lines(text: str) -> tuple[str, list[int]]:
    """Return the text with continued lines joined, and the positions of the joints."""
    parts, joints, at, length = [], [], 0, 0
    for match in _SPLICE.finditer(text):
        parts.append(text[at : match.start()])
        length += match.start() - at
        joints.append(length)
        at = match.end()
    parts.append(text[at:])
    return "".join(parts), joints


def _position_after(text: str, what: str, at: int) -> int:
    """Return the position after the next occurrence, or the end of the text."""
    found = text.find(what, at)
    return len(text) if found < 0 else found + len(what)


class _Lines:
    """A reader of directives, which tracks the preprocessor branches."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.macros: list[Macro] = []
        self.includes: list[str] = []
        # For each open #if: whether this branch can be compiled, and whether a later one can.
        self._branches: list[tuple[bool, bool]] = []
        self._dead = 0

    @property
    def live(self) -> bool:
        """Whether the current branch can be compiled."""
        return self._dead == 0

    def directive(self, words: list[Token]) -> None:
        """Read one directive, the tokens after its `#`."""
        name = words[0].text if words else ""
        condition = " ".join(word.text for word in words[1:])
        if name in _OPENING:
            never, always = (
                (condition in _NEVER, condition in _ALWAYS) if name == "if" else (False, False)
            )
            self._enter(not never, not always)
        elif name.startswith("el") and self._branches:
            can_be = self._leave()[1]
            self._enter(can_be and not (name == "elif" and condition in _NEVER), can_be)
        elif name == "endif" and self._branches:
            self._leave()
        elif self.live and name == "define":
            self._define(words[1:])
        elif self.live and name in ("include", "import", "include_next"):
            self.includes.append("".join(word.text for word in words[1:]).strip('<>"'))

    def _enter(self, can_be: bool, later: bool) -> None:
        self._branches.append((can_be, later))
        self._dead += not can_be

    def _leave(self) -> tuple[bool, bool]:
        branch = self._branches.pop()
        self._dead -= not branch[0]
        return branch

    def _define(self, words: list[Token]) -> None:
        if not words or words[0].kind != "name":
            return
        name, rest = words[0].text, words[1:]
        parameters = None
        if rest and rest[0].text == "(" and rest[0].start == words[0].start + len(name):
            end = next((at for at, word in enumerate(rest) if word.text == ")"), len(rest))
            listed = tuple(word.text for word in rest[1:end] if word.kind == "name")
            dots = any(word.text == "." for word in rest[1:end])
            parameters = (*listed, "__VA_ARGS__") if dots else listed
            rest = rest[end + 1 :]
        self.macros.append(Macro(name, parameters, tuple(rest)))
