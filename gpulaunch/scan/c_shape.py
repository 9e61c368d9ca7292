"""The shape of a C file: its functions, loops and conditions, as ranges of tokens."""
# pure: decides on plain values

import re
from collections.abc import Sequence
from itertools import accumulate

from gpulaunch.records import Record
from gpulaunch.scan.c_macros import pairs
from gpulaunch.scan.c_tokens import Token

_LONGEST = 2000  # tokens of a statement without brackets
_HEADER = 60  # tokens before a brace
_SPECIFIERS = {"const", "noexcept", "override", "final", "volatile", "try"}
_ROOT = re.compile(
    r"(?:.* )?\w*(?:rank|id|pe|me|self)\w*(?: \( \))? = = 0|0 = = \w+|! \w*(?:rank|id|pe|me)\w*",
    re.IGNORECASE,
)

CONTROL = {"if", "for", "while", "switch", "catch"}


class Function(Record):
    """A function with a body.

    Attributes:
        name: its name without qualifiers.
        opening: position of the body's opening brace.
        closing: position of the body's closing brace.
    """

    name: str
    opening: int
    closing: int


class Shape(Record):
    """A file's tokens and how they are nested.

    Attributes:
        tokens: all tokens.
        brackets: position of each opening bracket with that of its closing bracket.
        functions: functions in the order of their bodies.
        owner: for each token, the number of the innermost function around it; -1: none.
        brace: for each token, the position of the innermost brace around it; -1: none.
        loops: for each token, the number of loops around it.
        dead: for each token, the number of branches around it that are never taken.
        rooted: for each token, the number of branches around it that only rank 0 takes.
    """

    tokens: Sequence[Token]
    brackets: dict[int, int]
    functions: tuple[Function, ...]
    owner: list[int]
    brace: list[int]
    loops: list[int]
    dead: list[int]
    rooted: list[int]


def shape_of(tokens: Sequence[Token]) -> Shape:
    """Find functions, loops and conditions, in linear time."""
    brackets = pairs(tokens)
    opening = {closing: start for start, closing in brackets.items()}
    functions = tuple(_find_functions(tokens, brackets, opening))
    loops, dead, rooted = _count_statements(tokens, brackets)
    braces = [(start, closing) for start, closing in brackets.items() if tokens[start].text == "{"]
    bodies = [(function.opening, function.closing) for function in functions]
    numbers = _innermost(len(tokens), bodies)
    starts = {function.opening: number for number, function in enumerate(functions)}
    owner = [starts.get(start, -1) for start in numbers]
    return Shape(
        tokens, brackets, functions, owner, _innermost(len(tokens), braces), loops, dead, rooted
    )


def words(tokens: Sequence[Token], start: int, end: int) -> list[str]:
    """Return the texts of a range of tokens."""
    return [token.text for token in tokens[start:end]]


def head_of(shape: Shape, brace: int) -> list[str]:
    """Return the words before a brace, back to the statement before."""
    start = brace
    while start > max(0, brace - _HEADER) and shape.tokens[start - 1].text not in (";", "{", "}"):
        start -= 1
    return words(shape.tokens, start, brace)


def _find_functions(
    tokens: Sequence[Token], brackets: dict[int, int], opening: dict[int, int]
) -> list[Function]:
    found = []
    for start in sorted(brackets):
        if tokens[start].text == "{":
            at = start - 1
            while at > 0 and tokens[at].text in _SPECIFIERS:
                at -= 1
            name = opening.get(at, 0) - 1 if tokens[at].text == ")" else -1
            if name >= 0 and tokens[name].kind == "name" and tokens[name].text not in CONTROL:
                found.append(Function(tokens[name].text, start, brackets[start]))
    return found


def _innermost(length: int, ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Return, for each position, the start of the innermost range around it; -1: none."""
    closing, stack, found = dict(ranges), list[int](), []
    for at in range(length):
        while stack and closing[stack[-1]] <= at:
            stack.pop()
        found.append(stack[-1] if stack else -1)
        if at in closing:
            stack.append(at)
    return found


def _count_statements(
    tokens: Sequence[Token], brackets: dict[int, int]
) -> tuple[list[int], list[int], list[int]]:
    """Count loops, dead branches and branches of rank 0 around each token."""
    loops, dead, rooted = ([0] * (len(tokens) + 2) for _ in range(3))
    ends: dict[int, int] = {}
    for at in range(len(tokens) - 1, -1, -1):
        text = tokens[at].text
        after = at + 1
        if text in ("for", "while", "if"):
            closing = brackets.get(at + 2 if _text(tokens, at + 1) == "constexpr" else at + 1)
            if closing is None:
                continue
            ends[at] = end = _end_of_statement(tokens, brackets, ends, closing + 1)
            condition = " ".join(words(tokens, at + 2, min(closing, at + 60)))
            if text != "if":
                _mark(loops, at, end)
            if text != "for" and condition in ("0", "false"):
                _mark(dead, closing, end)
            if text == "if" and _ROOT.fullmatch(condition):
                _mark(rooted, closing, end)
        elif text == "do" and _text(tokens, after) == "{" and after in brackets:
            closing = brackets[after]
            if words(tokens, closing + 1, closing + 4) not in (
                ["while", "(", "0"],
                ["while", "(", "false"],
            ):
                _mark(loops, after, closing)
    return list(accumulate(loops)), list(accumulate(dead)), list(accumulate(rooted))


def _mark(counts: list[int], start: int, end: int) -> None:
    counts[start] += 1
    counts[end + 1] -= 1


def _text(tokens: Sequence[Token], at: int) -> str:
    return tokens[at].text if 0 <= at < len(tokens) else ""


def _end_of_statement(
    tokens: Sequence[Token], brackets: dict[int, int], ends: dict[int, int], start: int
) -> int:
    """Return the position of the last token of the statement that begins at a position."""
    if start in ends:
        return ends[start]
    at = start
    while at < min(len(tokens), start + _LONGEST):
        text = tokens[at].text
        if text == ";" or (text == "{" and at == start):
            return brackets.get(at, at)
        if text == "}":
            return at - 1
        at = max(at, brackets.get(at, at)) + 1
    return min(at, len(tokens)) - 1
