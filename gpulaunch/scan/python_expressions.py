"""Expressions of a Python program: their possible values, and the calls in them that matter."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from gpulaunch.scan.call import Amount, Doubt, Interface, Use
from gpulaunch.scan.interfaces import listed, loose_objects, python_interface
from gpulaunch.scan.python_arguments import (
    amount_of,
    grid_pattern,
    is_alone,
    peers_pattern,
)
from gpulaunch.scan.python_values import NOTHING, Facts, Values, elements, limited

_ASKERS = {"isinstance", "issubclass", "hasattr", "getattr", "setattr", "callable", "print", "type"}
_SHARDINGS = {"in_shardings", "out_shardings", "in_axis_resources", "out_axis_resources"}
_LEAVES = (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop, str, type(None))
_BY_COMPILER = Interface("all_to_all", "each", "guess")
BY_ROOT, BY_ANY = frozenset({"root"}), frozenset({"any"})
"""The callers of a function: rank 0 in a branch of its own, or any rank."""


@cache
def method_name(kind: str) -> str:
    """Return the name of the method that reads nodes of a kind."""
    return f"_{kind.lower()}"


class Expressions:
    """A reader of expressions; it reads each once, so that each call in it is seen once."""

    def __init__(self, facts: Facts, tree: ast.Module, *, asks_rank: bool) -> None:
        self.facts = facts
        self.asks_rank = asks_rank  # whether the file asks an object as a communicator of mpi4py
        self.scope = facts.scope(tree, None)
        self.function = ""  # key of the function that is being read
        self.loops = self.rooted = 0
        self.seen: list[tuple[Use, str, bool]] = []  # with the function, and whether in a loop
        self.grids: list[str] = []
        self.doubts: dict[Doubt, None] = {}
        self.unseen: dict[Doubt, None] = {}
        self.imported: list[str] = []
        self.calls: list[tuple[str, str, bool]] = []  # caller, callee, whether in a loop
        self.bases: dict[str, Values] = {}  # base classes by key
        self.parameters: dict[str, Sequence[str]] = {}

    def run(self, body: Iterable[ast.AST]) -> None:
        """Read parts of an expression."""
        for node in body:
            if isinstance(node, ast.expr):
                self.value(node)
            else:
                self._children(node)

    def _children(self, node: ast.AST) -> None:
        for _, part in ast.iter_fields(node):
            if isinstance(part, list):
                self.run(one for one in part if not isinstance(one, _LEAVES))
            elif isinstance(part, ast.AST) and not isinstance(part, _LEAVES):
                self.run((part,))

    def _bind(self, name: str, values: Values) -> None:
        self.facts.bind(self.scope, name, values)

    def _target(self, target: ast.expr, values: Values, source: ast.expr | None) -> None:
        """Bind the left side of an assignment; the source is None where there is none."""
        if isinstance(target, ast.Name):
            self._bind(target.id, values)
            self.scope.set_to.setdefault(target.id, {})[id(target)] = source
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = source.elts if isinstance(source, (ast.Tuple, ast.List)) else []
            for at, one in enumerate(target.elts):
                part = parts[at] if len(parts) == len(target.elts) else None
                self._target(one, self._quietly(part), part)
        elif isinstance(target, ast.Attribute):
            self.facts.set_to.setdefault(target.attr, {})[id(target)] = source
            for owner in self.value(target.value):
                if owner.startswith("@"):
                    self.facts.add("attribute", owner.removesuffix("()"), target.attr, values)
        else:
            self._children(target)

    def _annotated(self, node: ast.expr | None) -> Values:
        """Return an object of an annotated type."""
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return NOTHING
        return frozenset(f"{path}()" for path in self.value(node) if not path.endswith("()"))

    def value(self, node: ast.expr | None) -> Values:
        """Return the possible values of an expression, and note the calls in it."""
        if node is None or isinstance(node, ast.Constant):
            return NOTHING
        read = getattr(self, method_name(type(node).__name__), None)
        if read:
            found: Values = read(node)
            return found
        self._children(node)
        return NOTHING

    def _quietly(self, node: ast.expr | None) -> Values:
        """Return the value of an expression that was read before, without noting calls again."""
        seen, calls, grids = len(self.seen), len(self.calls), len(self.grids)
        found = self.value(node)
        del self.seen[seen:], self.calls[calls:], self.grids[grids:]
        return found

    def _name(self, node: ast.Name) -> Values:
        found = self.facts.lookup(self.scope, node.id)
        if found is None:
            found = limited(f"{one}.{node.id}" for one in self.facts.get("wildcard", ""))
        return found

    def _attribute(self, node: ast.Attribute) -> Values:
        owners = self.value(node.value)
        found = limited(one for owner in owners for one in self._member(owner, node.attr))
        return found if owners else self._of_unknown(node.attr)

    def _of_unknown(self, name: str) -> Values:
        """Return what a method of an object of which nothing is known may be."""
        particular, doubted = listed("loose.names"), listed("loose.doubted")
        found = NOTHING
        if name in particular or (self.asks_rank and name in doubted):
            imported = [*self.imported, *(["mpi4py"] if self.asks_rank else [])]
            found = limited(f"{one}.{name}" for one in loose_objects(imported))
        if name in particular | doubted and not found:
            self.unseen["likely", f"{name}: of what object is not known"] = None
        return found

    def _member(self, owner: str, name: str) -> Iterator[str]:
        if not owner.startswith("@"):
            yield f"{owner}.{name}"
            return
        key = owner.removesuffix("()")
        yield from self.facts.get("attribute", key, name)
        for base in self.bases.get(key, NOTHING) - {key}:
            if base.startswith("@"):
                yield from self.facts.get("attribute", base, name)
            else:
                yield f"{base}.{name}"

    def _ifexp(self, node: ast.IfExp) -> Values:
        self.value(node.test)
        return limited(self.value(node.body) | self.value(node.orelse))

    def _boolop(self, node: ast.BoolOp) -> Values:
        return limited(found for one in node.values for found in self.value(one))

    def _namedexpr(self, node: ast.NamedExpr) -> Values:
        values = self.value(node.value)
        self._target(node.target, values, node.value)
        return values

    def _await(self, node: ast.Await) -> Values:
        return self.value(node.value)

    def _subscript(self, node: ast.Subscript) -> Values:
        self.value(node.slice)
        return elements(self.value(node.value))

    def _list(self, node: ast.List | ast.Tuple | ast.Set) -> Values:
        return limited(f"{found}[]" for one in node.elts for found in self.value(one))

    _tuple = _set = _list

    def _dict(self, node: ast.Dict) -> Values:
        for key in node.keys:
            self.value(key)
        return limited(f"{found}[]" for one in node.values for found in self.value(one))

    def _lambda(self, node: ast.Lambda) -> Values:
        outer, self.scope = self.scope, self.facts.scope(node, self.scope)
        for one in ast.walk(node.args):
            if isinstance(one, ast.arg):
                self._bind(one.arg, NOTHING)
        self.value(node.body)
        self.scope = outer
        return NOTHING

    def _listcomp(
        self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
    ) -> Values:
        outer, self.scope = self.scope, self.facts.scope(node, self.scope)
        self.loops += 1
        for generator in node.generators:
            self._target(generator.target, elements(self.value(generator.iter)), None)
            for test in generator.ifs:
                self.value(test)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        values = limited(f"{found}[]" for one in parts for found in self.value(one))
        self.loops -= 1
        self.scope = outer
        return values

    _setcomp = _generatorexp = _dictcomp = _listcomp

    def _call(self, node: ast.Call) -> Values:
        asker = node.func.id if isinstance(node.func, ast.Name) else ""
        asker = asker if asker and self.facts.lookup(self.scope, asker) is None else ""
        functions = self.value(node.func)
        given = [self.value(one) for one in node.args]
        named = [(one.arg or "", self.value(one.value)) for one in node.keywords]
        word = node.args[-1] if node.args else None
        text = word.value if isinstance(word, ast.Constant) else None
        if isinstance(text, str) and asker == "getattr" and len(given) == 2:
            return limited(one for owner in given[0] for one in self._member(owner, text))
        if asker not in _ASKERS and (any(given) or any(values for _, values in named)):
            self._note_passed(node, functions, given, named)
        results: list[str] = []
        for path in functions:
            if path.startswith("@"):
                results += self._enter(path, node, given, named)
                continue
            if path != "jax.device_put" or "jax.sharding." in str(given[1:]):
                self._note(path, node.func, node)
            inner = [one for one in given[0] if one[0] == "@"] if given else []
            wraps = path.startswith(tuple(listed("wrappers"))) and not path.startswith("jax.lax.")
            results += (inner if wraps else []) or [f"{path}()"]
        return limited(results)

    def _note_passed(
        self,
        node: ast.Call,
        functions: Values,
        given: Sequence[Values],
        named: Sequence[tuple[str, Values]],
    ) -> None:
        """Note functions that are passed to another function, which will call them."""
        first = "functools.partial" in functions or any(one.endswith(".P2POp") for one in functions)
        often = any(path in listed("looping") for path in functions)
        for at, (one, values) in enumerate(zip(node.args, given, strict=True)):
            for path in values:
                if path.startswith("@") and not path.endswith("()"):
                    self.calls.append((self.function, path, often or self.loops > 0))
                    self.facts.add("called", path, "", BY_ANY)
                else:
                    self._note(path, one, node if first and at == 0 else None, 1)
        for keyword, (_, values) in zip(node.keywords, named, strict=True):
            for path in values:
                self._note(path, keyword.value, None)

    def _enter(
        self, key: str, node: ast.Call, given: Sequence[Values], named: Sequence[tuple[str, Values]]
    ) -> Iterator[str]:
        """Note a call of a function, a class or an object of this file; yield the results."""
        yield from self.facts.get("returned", key)
        called: Iterable[str] = (key,)
        if key in self.bases:
            yield f"{key}()"
            called = [*self._member(key, "__init__")]
            for base in self.bases[key]:
                if not base.startswith("@"):
                    self._note(base, node.func, node)
        for function in called:
            self.calls.append((self.function, function, self.loops > 0))
            self.facts.add("called", function, "", BY_ROOT if self.rooted else BY_ANY)
            by_place = zip(self.parameters.get(function, ()), given, strict=False)
            for name, values in [*by_place, *named]:
                self.facts.add("parameter", function, name, values)

    def _note(self, path: str, node: ast.expr, call: ast.Call | None, first: int = 0) -> None:
        """Note the use of a name, if it is one that matters.

        Args:
            path: its full name.
            node: the node of the name.
            call: its call, or the call that it is passed to with its arguments; None if neither.
            first: position of its first argument in that call.
        """
        last = path.rpartition(".")[2]
        if last in listed("subgroups"):
            self.doubts["likely", f"{last}: a call may join only some ranks"] = None
        if path in listed("starters"):
            self.unseen["likely", f"{path}: what it starts or loads is not scanned"] = None
        found = python_interface(path)
        if path == "jax.device_put" or (
            path == "jax.jit" and call and _SHARDINGS & {one.arg for one in call.keywords}
        ):
            found = path, _BY_COMPILER
        if not found or (call and is_alone(found[0], call)):
            return
        name, interface = found
        pattern, amount = (
            self._judge(name, interface, call, first) if call else (interface.pattern, "unknown")
        )
        if pattern != "none":
            pattern = pattern or ("star" if self.rooted else "")
            line = node.end_lineno or 1
            use = Use(line, name, interface, pattern, None, amount)
            self.seen.append((use, self.function, self.loops > 0))

    def _judge(
        self, name: str, interface: Interface, call: ast.Call, first: int
    ) -> tuple[str, Amount]:
        """Return the pattern and the amount by the arguments."""
        amount = amount_of(call, self._settings)
        if name.endswith(".Create_cart"):
            self.grids.append(grid_pattern(call, self._settings))
            return self.grids[-1], amount
        return interface.pattern or peers_pattern(call, interface, self._settings, first), amount

    def _settings(self, node: ast.expr) -> Sequence[ast.expr | None]:
        """Return the expressions that a name or an attribute of an object is set to."""
        if isinstance(node, ast.Name):
            return self.scope.settings(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return list(self.facts.set_to.get(node.attr, {}).values())
        return []
