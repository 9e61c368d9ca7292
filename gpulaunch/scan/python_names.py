"""Values of names while a Python program is read: scopes, branches and shadowing."""
# pure: decides on plain values

from collections.abc import Callable, Iterable

from gpulaunch.typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import ast

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
    kept = [value for value in dict.fromkeys(values) if len(value) <= _LONGEST]
    return frozenset(sorted(kept)[:_MOST_VALUES])


class Scope:
    """The names of a module, class or function.

    Args:
        kind: kind of the scope.
        parent: the scope around it; None for a module.
        key: key of the function or class, such as `@12:4`; "" for others.
    """

    def __init__(
        self,
        kind: Literal["module", "class", "function"],
        parent: "Scope | None" = None,
        key: str = "",
    ) -> None:
        self.kind = kind
        self.parent = parent
        self.key = key
        self.names: dict[str, Values] = {}
        self.set_to: dict[str, list[ast.expr | None]] = {}
        self.module_names: set[str] = set()
        self.wildcards: list[str] = []
        self._journals: list[dict[str, Values | None]] = []

    def bind(self, name: str, values: Values) -> None:
        """Set the values of a name."""
        if name in self.module_names:
            scope = self._module()
            scope.names[name] = scope.names.get(name, NOTHING) | values
            return
        for journal in self._journals[-1:]:
            journal.setdefault(name, self.names.get(name))
        self.names[name] = values

    def lookup(self, name: str) -> Values | None:
        """Return the values of a name as seen from this scope; None if it was never bound."""
        scope: Scope | None = self
        while scope is not None:
            if (
                name in scope.names
                and (scope is self or scope.kind != "class")
                and name not in scope.module_names
            ):
                return scope.names[name]
            scope = scope.parent
        module = self._module()
        return frozenset(f"{wildcard}.{name}" for wildcard in module.wildcards) or None

    def branches(self, bodies: Iterable[Callable[[], bool]]) -> bool:
        """Read branches of which one will run, and join the values of names after each.

        Args:
            bodies: functions that read a branch and return whether it leaves before its end.

        Returns:
            Whether all branches leave before their ends.
        """
        outcomes: list[dict[str, Values | None]] = []
        for body in bodies:
            self._journals.append({})
            ends = body()
            before = self._journals.pop()
            after = {name: self.names.get(name) for name in before}
            for name, values in before.items():
                self._restore(name, values)
            if not ends:
                outcomes.append(after)
        possible: dict[str, list[Values | None]] = {}
        for outcome in outcomes:
            for name, values in outcome.items():
                possible.setdefault(name, []).append(values)
        for name, choices in possible.items():
            if len(choices) < len(outcomes):
                choices.append(self.names.get(name))
            self.bind(name, limited(value for values in choices for value in values or ()))
        return not outcomes

    def _restore(self, name: str, values: Values | None) -> None:
        if values is None:
            self.names.pop(name, None)
        else:
            self.names[name] = values

    def _module(self) -> "Scope":
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope
