"""Possible values of names in a Python program, whatever the order of its statements."""
# pure: decides on plain values

import ast
from collections.abc import Iterable, Iterator

Values = frozenset[str]
"""Possible values of an expression, as full names; empty if unknown, or of no interest here.

`torch.distributed.all_reduce` is that function, `mpi4py.MPI.COMM_WORLD.Dup()` the result of a call,
`x[]` a container that holds x, `@12:4` the function or class that begins at line 12, column 4, and
`@12:4()` an object of that class.
"""

NOTHING: Values = frozenset()

_MOST_VALUES = 8
_LONGEST = 200  # characters


def limited(values: Iterable[str]) -> Values:
    """Return the values, without those too long or too many to be worth following."""
    kept = {value for value in values if len(value) <= _LONGEST}
    if len(kept) <= _MOST_VALUES:
        return frozenset(kept)
    return frozenset(sorted(kept)[:_MOST_VALUES])


def elements(values: Values) -> Values:
    """Return the elements of containers."""
    return frozenset(one.removesuffix("[]") for one in values if one.endswith("[]"))


class Scope:
    """The names of a module, class or function.

    Args:
        parent: the scope around it; None for a module.
        key: key of the function or class, such as `@12:4`; "" for a module or comprehension.
        is_class: whether it is a class, whose names its methods do not see.
    """

    def __init__(self, parent: "Scope | None", key: str = "", *, is_class: bool = False) -> None:
        self.parent = parent
        self.key = key
        self.is_class = is_class
        self.names: dict[str, Values] = {}
        self.set_to: dict[str, dict[int, ast.expr | None]] = {}
        self.globals: set[str] = set()

    def around(self) -> "Iterator[Scope]":
        """Yield the scopes that a name is looked up in: this one, then those around it."""
        scope: Scope | None = self
        while scope:
            if scope is self or not scope.is_class:
                yield scope
            scope = scope.parent

    def module(self) -> "Scope":
        """Return the outermost scope."""
        return list(self.around())[-1]

    def lookup(self, name: str) -> Values | None:
        """Return the values of a name; None if it was never bound."""
        scope: Scope | None = self
        while scope:  # as around(), without its cost for each name of a program
            if name in scope.names and (scope is self or not scope.is_class):
                return scope.names[name]
            scope = scope.parent
        return None

    def settings(self, name: str) -> list[ast.expr | None]:
        """Return the expressions that a name is set to; None is a value that does not show."""
        for scope in self.around():
            if name in scope.names:
                return list(scope.set_to.get(name, {}).values())
        return []


class Facts:
    """Facts about a whole file; they only grow from one reading to the next.

    Attributes:
        grown: whether something was added that had been asked for before, since start().
    """

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, str], Values] = {}
        self._scopes: dict[ast.AST, Scope] = {}
        self._texts: dict[ast.AST, str] = {}
        self.set_to: dict[str, dict[int, ast.expr | None]] = {}  # attributes of objects
        self._asked: set[object] = set()
        self.grown = False

    def start(self) -> None:
        """Begin another reading of the file."""
        self._asked.clear()
        self.grown = False

    def lookup(self, scope: Scope, name: str) -> Values | None:
        """Return the values of a name as seen from a scope; None if it was never bound."""
        self._asked.add(name)
        return scope.lookup(name)

    def scope(
        self, node: ast.AST, parent: Scope | None, key: str = "", *, is_class: bool = False
    ) -> Scope:
        """Return the scope of a module, class, function or comprehension."""
        if node not in self._scopes:
            self._scopes[node] = Scope(parent, key, is_class=is_class)
        return self._scopes[node]

    def text(self, node: ast.AST) -> str:
        """Return an expression as text, from the second time on without making it again."""
        if node not in self._texts:
            self._texts[node] = ast.unparse(node)
        return self._texts[node]

    def bind(self, scope: Scope, name: str, values: Values) -> None:
        """Add possible values of a name."""
        if name in scope.globals:
            scope = scope.module()
        known = scope.names.get(name)
        together = limited(values | (known or NOTHING))
        if known is None or together != known:
            scope.names[name] = together
            self.grown |= name in self._asked

    def add(self, kind: str, key: str, name: str, values: Values) -> None:
        """Add possible values of an attribute, a parameter or a result."""
        known = self._values.get((kind, key, name), NOTHING)
        together = limited(known | values)
        if together != known:
            self._values[kind, key, name] = together
            self.grown |= (kind, key, name) in self._asked

    def get(self, kind: str, key: str, name: str = "") -> Values:
        """Return all possible values of an attribute, a parameter or a result."""
        self._asked.add((kind, key, name))
        return self._values.get((kind, key, name), NOTHING)
