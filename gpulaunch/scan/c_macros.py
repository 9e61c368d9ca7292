"""Expansion of the macros that lead to names that a scan looks for."""
# pure: decides on plain values

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from gpulaunch.records import replace
from gpulaunch.scan.c_tokens import Macro, Token

Macros = dict[str, list[Macro]]
"""Macros by name; several of one name if branches of the preprocessor define it differently."""

_MOST_VERSIONS = 8  # of one macro
_DEEPEST = 16  # macros within macros
_LEAST_BUDGET = 20_000  # tokens
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def by_name(macros: Iterable[Macro]) -> Macros:
    """Return macros by name, for expand."""
    found: Macros = {}
    for macro in macros:
        versions = found.setdefault(macro.name, [])
        if len(versions) < _MOST_VERSIONS:
            versions.append(macro)
    return found


def pairs(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the position of each opening bracket with that of its closing bracket.

    Unmatched brackets are left out; a closing brace skips over them.
    """
    found, open_ones = {}, list[tuple[str, int]]()
    for at, token in enumerate(tokens):
        text = token.text
        if text in _CLOSING:
            open_ones.append((_CLOSING[text], at))
        elif text == "}" and any(closing == "}" for closing, _ in open_ones[-_DEEPEST:]):
            while open_ones[-1][0] != "}":
                open_ones.pop()
            found[open_ones.pop()[1]] = at
        elif open_ones and open_ones[-1][0] == text:
            found[open_ones.pop()[1]] = at
    return found


def arguments(
    tokens: Sequence[Token], opening: int, closing: int, brackets: dict[int, int]
) -> list[tuple[int, int]]:
    """Return the start and end of each argument between two brackets."""
    found, start, at = [], opening + 1, opening + 1
    while at < closing:
        if tokens[at].text == ",":
            found.append((start, at))
            start = at + 1
        at = max(at, brackets.get(at, at)) + 1
    return [*found, (start, closing)] if closing > opening + 1 else []


def expand(tokens: Sequence[Token], macros: Macros, wanted: Callable[[str], bool]) -> list[Token]:
    """Return the tokens with macros expanded; of several definitions all are inserted in turn.

    Tokens from a macro's body get the line of its use; those from its arguments keep their own.
    Macros that neither have a wanted name in their body nor get one as an argument are not
    expanded.

    Args:
        tokens: from read_unit.
        macros: all macros that may be used.
        wanted: whether a name is looked for.

    Cost: at most ten times the number of tokens, or 20,000; further macros are not expanded.
    """
    return _Expansion(macros, wanted, max(_LEAST_BUDGET, 10 * len(tokens))).of(tokens, frozenset())


class _Expansion:
    """An expansion of macros with a budget of tokens."""

    def __init__(self, macros: Macros, wanted: Callable[[str], bool], budget: int) -> None:
        self._macros = macros
        self._wanted = wanted
        self._budget = budget
        self._relevant = self._find_relevant()

    def _find_relevant(self) -> set[str]:
        """Return the macros whose bodies lead to a wanted name, or that glue names together."""
        users: dict[str, set[str]] = {}
        found = {name for name in self._macros if self._wanted(name)}
        for name, versions in self._macros.items():
            for body in (version.body for version in versions):
                if any(self._wanted(token.text) for token in body) or _has_paste(body):
                    found.add(name)
                for token in body:
                    if token.text in self._macros:
                        users.setdefault(token.text, set()).add(name)
        left = list(found)
        while left:
            fresh = users.get(left.pop(), set()) - found
            found |= fresh
            left += fresh
        return found

    def of(self, tokens: Sequence[Token], hidden: frozenset[str]) -> list[Token]:
        """Expand the tokens; hidden macros, those being expanded around them, stay."""
        found: list[Token] = []
        brackets = pairs(tokens)
        before = [0]  # number of tokens that matter before each position
        for token in tokens:
            matters = token.kind == "name" and (
                self._wanted(token.text) or token.text in self._relevant
            )
            before.append(before[-1] + matters)
        at = 0
        while at < len(tokens):
            token = tokens[at]
            versions: list[Macro] = []
            if token.kind == "name" and token.text not in hidden:
                versions = self._macros.get(token.text, [])
            closing = at
            if at + 1 < len(tokens) and tokens[at + 1].text == "(":
                closing = brackets.get(at + 1, at)
            matters = token.text in self._relevant or before[closing + 1] > before[at + 1]
            usable = [version for version in versions if version.parameters is None or closing > at]
            if not (usable and matters and self._budget > 0 and len(hidden) < _DEEPEST):
                found.append(token)
                at += 1
                continue
            given: list[Sequence[Token]] = []
            if closing > at:
                places = arguments(tokens, at + 1, closing, brackets)
                given = [tokens[start:end] for start, end in places]
            for version in usable:
                body = _insert_arguments(version, given, token.line)
                self._budget -= len(body) + 1
                found += self.of(body, hidden | {token.text})
            at = (closing if any(version.parameters is not None for version in usable) else at) + 1
        return found


def _has_paste(body: Sequence[Token]) -> bool:
    return any(one.text == other.text == "#" for one, other in pairwise(body))


def _insert_arguments(macro: Macro, given: Sequence[Sequence[Token]], line: int) -> list[Token]:
    """Return a macro's body with its arguments inserted."""
    values = _bind_arguments(macro, given)
    found: list[Token] = []
    glue, at, body = False, 0, macro.body
    while at < len(body):
        token = body[at]
        following = body[at + 1].text if at + 1 < len(body) else ""
        if token.text == "#" and following == "#":
            glue, at = True, at + 2
            continue
        if token.text == "#" and following in values:
            part: list[Token] = [Token("text", '""', line)]
            at += 1
        else:
            part = list(values.get(token.text, [replace(token, line=line)]))
        if glue and found and part:
            found[-1] = replace(found[-1], text=found[-1].text + part.pop(0).text)
        found += part
        glue, at = False, at + 1
    return found


def _bind_arguments(macro: Macro, given: Sequence[Sequence[Token]]) -> dict[str, Sequence[Token]]:
    names = macro.parameters or ()
    values: dict[str, Sequence[Token]] = dict(zip(names, given, strict=False))
    values |= dict.fromkeys(names[len(given) :], ())
    if names[-1:] == ("__VA_ARGS__",):
        rest: list[Token] = []
        for part in given[len(names) - 1 :]:
            rest += [Token("mark", ",", rest[-1].line), *part] if rest else part
        values["__VA_ARGS__"] = rest
    return values
