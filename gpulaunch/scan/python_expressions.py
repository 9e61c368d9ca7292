"""Expressions of a Python program: their values, and the calls in them that matter."""
# pure: decides on plain values

import ast
from collections.abc import Iterable, Iterator, Sequence

from gpulaunch.records import Record
from gpulaunch.scan.call import Amount, Doubt, Interface, Use
from gpulaunch.scan.python_interfaces import STARTERS, SUBGROUPS, find_interface
from gpulaunch.scan.python_names import NOTHING, Scope, Values, limited
from gpulaunch.scan.python_use import amount_of, grid_pattern, peers_pattern

_ASKERS = {
    "isinstance",
    "issubclass",
    "hasattr",
    "getattr",
    "setattr",
    "type",
    "callable",
    "print",
    "len",
    "super",
    "id",
    "repr",
    "str",
    "hash",
    "vars",
    "dir",
    "help",
    "delattr",
}
_SHARDINGS = {"in_shardings", "out_shardings", "in_axis_resources", "out_axis_resources"}
_THROUGH = (
    "functools.partial",
    "functools.wraps",
    "jax.",
    "torch.compile",
    "torch.jit.script",
    "tensorflow.function",
)
_CALL_OVER_AND_OVER = ("jax.lax.scan", "jax.lax.fori_loop", "jax.lax.while_loop", "jax.lax.map")
_LIGHTNING = (
    "lightning.Trainer",
    "pytorch_lightning.Trainer",
    "lightning.Fabric",
    "pytorch_lightning.Fabric",
)
_MOST_SETTINGS = 16  # of one variable
BY_ROOT, BY_ANY = frozenset({"root"}), frozenset({"any"})
"""The callers of a function: rank 0 in a branch of its own, or any rank."""

_BY_COMPILER = Interface("all_to_all", "each", "guess")


class Seen(Record):
    """A use of an interface before it is known which functions run over and over.

    Attributes:
        use: the use as far as it is known.
        function: key of the function that contains it; "" for the module.
        looped: whether it is in a loop of that function.
    """

    use: Use
    function: str
    looped: bool


class Facts:
    """Values that hold in a whole file; they only grow.

    Attributes:
        values: values of attributes, parameters and results, and the callers of functions.
        grown: whether a value was added since this was last set to False.
    """

    def __init__(self) -> None:
        self.values: dict[tuple[str, str, str], Values] = {}
        self.grown = False

    def add(self, kind: str, key: str, name: str, values: Values) -> None:
        """Add possible values of an attribute, a parameter or a result."""
        known = self.values.get((kind, key, name), NOTHING)
        together = limited(known | values)
        if together != known:
            self.values[kind, key, name] = together
            self.grown = True

    def get(self, kind: str, key: str, name: str) -> Values:
        """Return all possible values of an attribute, a parameter or a result."""
        return self.values.get((kind, key, name), NOTHING)


class Expressions:
    """A reader of expressions; it reads each once, so that each call in it is seen once."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.scope = Scope("module")
        self.function = ""  # key of the function that is being read
        self.loops = 0
        self.rooted = 0
        self.seen: list[Seen] = []
        self.grids: list[str] = []
        self.doubts: dict[Doubt, None] = {}
        self.unseen: dict[Doubt, None] = {}
        self.calls: list[tuple[str, str, bool]] = []
        self.classes: dict[str, Values] = {}  # base classes by key
        self.parameters: dict[str, Sequence[str]] = {}

    def value(self, node: ast.expr | None) -> Values:
        """Return the possible values of an expression, and note the calls in it."""
        if node is None:
            return NOTHING
        read = getattr(self, f"_{type(node).__name__.lower()}", None)
        if read is not None:
            found: Values = read(node)
            return found
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return NOTHING

    def assign(self, target: ast.expr, values: Values, source: ast.expr | None) -> None:
        """Bind the left side of an assignment.

        Args:
            target: a name, an attribute, or several of them.
            values: the values assigned.
            source: the expression assigned; None if there is none, such as in a loop.
        """
        if isinstance(target, ast.Name):
            self.scope.bind(target.id, values)
            self.scope.set_to.setdefault(target.id, []).append(source)
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = source.elts if isinstance(source, (ast.Tuple, ast.List)) else []
            same = len(parts) == len(target.elts) and not any(
                isinstance(one, ast.Starred) for one in target.elts
            )
            for at, one in enumerate(target.elts):
                self.assign(
                    one, self._quietly(parts[at]) if same else NOTHING, parts[at] if same else None
                )
        elif isinstance(target, ast.Starred):
            self.assign(target.value, NOTHING, None)
        elif isinstance(target, ast.Attribute):
            for owner in self.value(target.value):
                if owner.startswith("@"):
                    self.facts.add("attribute", owner.removesuffix("()"), target.attr, values)
        else:
            self.value(target)

    def note(self, path: str, node: ast.AST, call: ast.Call | None, first: int = 0) -> None:
        """Note the use of a name, if it is one that matters.

        Args:
            path: its full name.
            node: the node of the name.
            call: its call, or the call that it is passed to with its arguments; None if there is
                neither.
            first: position of its first argument in that call.
        """
        if SUBGROUPS.fullmatch(path.replace("()", "")):
            self.doubts["likely", f"{path.rpartition('.')[2]}: a call may join only some ranks"] = (
                None
            )
        if STARTERS.fullmatch(path):
            self.unseen["likely", f"{path}: what it starts or loads is not scanned"] = None
        found = find_interface(path) or _find_sharded(path, call)
        if found is None or (call is not None and _is_alone(found[0], call)):
            return
        name, interface = found
        pattern, amount = interface.pattern, "unknown"
        if call is not None:
            pattern, amount = self._judge_arguments(name, interface, call, first)
        if not pattern and self.rooted:
            pattern = "star"
        use = Use(getattr(node, "end_lineno", None) or 1, name, interface, pattern, None, amount)  # type: ignore[arg-type]
        self.seen.append(Seen(use, self.function, self.loops > 0))

    def _judge_arguments(
        self, name: str, interface: Interface, call: ast.Call, first: int
    ) -> tuple[str, Amount]:
        """Return the pattern and the amount by the arguments."""
        amount = amount_of(call, self._settings)
        if name.endswith(".Create_cart"):
            self.grids.append(grid_pattern(call, self._settings))
            return self.grids[-1], amount
        if name in _LIGHTNING:
            strategy = next((one.value for one in call.keywords if one.arg == "strategy"), None)
            return (
                "star" if isinstance(strategy, ast.Constant) and strategy.value == "dp" else "ring"
            ), amount
        return interface.pattern or peers_pattern(call, interface, self._settings, first), amount

    def _settings(self, name: str) -> Sequence[ast.expr | None]:
        scope: Scope | None = self.scope
        while scope is not None:
            if name in scope.set_to:
                settings = scope.set_to[name]
                return settings if len(settings) <= _MOST_SETTINGS else [None]
            if scope.kind == "function" and name in scope.names:
                return []
            scope = scope.parent
        return []

    def _quietly(self, node: ast.expr) -> Values:
        """Return the value of an expression that was read before, without noting calls again."""
        seen, calls = len(self.seen), len(self.calls)
        grids, found = len(self.grids), self.value(node)
        del self.seen[seen:], self.calls[calls:], self.grids[grids:]
        return found

    def _name(self, node: ast.Name) -> Values:
        return self.scope.lookup(node.id) or NOTHING

    def _attribute(self, node: ast.Attribute) -> Values:
        return limited(
            found for owner in self.value(node.value) for found in self._member(owner, node.attr)
        )

    def _member(self, owner: str, name: str) -> Iterator[str]:
        if not owner.startswith("@"):
            yield f"{owner}.{name}"
            return
        key = owner.removesuffix("()")
        yield from self.facts.get("attribute", key, name)
        for base in self.classes.get(key, ()):
            if base == key:
                continue
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
        self.assign(node.target, values, node.value)
        return values

    def _await(self, node: ast.Await) -> Values:
        return self.value(node.value)

    def _starred(self, node: ast.Starred) -> Values:
        self.value(node.value)
        return NOTHING

    def _subscript(self, node: ast.Subscript) -> Values:
        self.value(node.slice)
        return frozenset(
            one.removesuffix("[]") for one in self.value(node.value) if one.endswith("[]")
        )

    def _list(self, node: ast.List | ast.Tuple | ast.Set) -> Values:
        return limited(f"{found}[]" for one in node.elts for found in self.value(one))

    _tuple = _set = _list

    def _dict(self, node: ast.Dict) -> Values:
        for key in node.keys:
            self.value(key)
        return limited(f"{found}[]" for one in node.values for found in self.value(one))

    def _lambda(self, node: ast.Lambda) -> Values:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            self.value(default)
        with_names = [
            argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)
        ]
        self._read_in_scope(with_names, [node.body])
        return NOTHING

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> Values:
        outer, self.scope = self.scope, Scope("function", self.scope)
        self.loops += 1
        for generator in node.generators:
            self.assign(generator.target, _elements(self.value(generator.iter)), None)
            for test in generator.ifs:
                self.value(test)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        values = limited(f"{found}[]" for one in parts for found in self.value(one))
        self.loops -= 1
        self.scope = outer
        return values

    _listcomp = _setcomp = _generatorexp = _dictcomp = _comprehension

    def _read_in_scope(self, names: Sequence[str], bodies: Sequence[ast.expr]) -> None:
        outer, self.scope = self.scope, Scope("function", self.scope)
        for name in names:
            self.scope.bind(name, NOTHING)
        for body in bodies:
            self.value(body)
        self.scope = outer

    def _call(self, node: ast.Call) -> Values:
        asker = ""
        if isinstance(node.func, ast.Name) and self.scope.lookup(node.func.id) is None:
            asker = node.func.id
        functions = self.value(node.func)
        given = [self.value(argument) for argument in node.args]
        named = [(keyword.arg or "", self.value(keyword.value)) for keyword in node.keywords]
        special = self._builtin(asker, node, given, functions)
        if special is not None:
            return special
        if asker not in _ASKERS:
            self._note_passed_functions(node, functions, given, named)
        results: list[str] = []
        for path in functions:
            if path.startswith("@"):
                results += self._enter(path, node, given, named)
            elif path != "jax.device_put" or any(
                one.startswith("jax.sharding.") for values in given[1:] for one in values
            ):
                self.note(path, node.func, node)
                results += _result(path, given)
        return limited(results)

    def _builtin(
        self, name: str, node: ast.Call, given: Sequence[Values], functions: Values
    ) -> Values | None:
        """Return the result of getattr, __import__ and import_module with a constant name."""
        word = node.args[-1] if node.args else None
        text = (
            word.value if isinstance(word, ast.Constant) and isinstance(word.value, str) else None
        )
        if name == "getattr" and len(node.args) >= 2 and isinstance(node.args[1], ast.Constant):
            return limited(
                found
                for owner in given[0]
                for found in self._member(owner, str(node.args[1].value))
            )
        if text and (functions == {"importlib.import_module"} or name == "__import__"):
            return frozenset({text if name == "" else text.partition(".")[0]})
        return None

    def _note_passed_functions(
        self,
        node: ast.Call,
        functions: Values,
        given: Sequence[Values],
        named: Sequence[tuple[str, Values]],
    ) -> None:
        """Note functions that are passed to another function, which will call them."""
        partial = "functools.partial" in functions
        operation = any(path.endswith(".P2POp") for path in functions)
        often = any(path in _CALL_OVER_AND_OVER for path in functions)
        for at, (argument, values) in enumerate(zip(node.args, given, strict=True)):
            for path in values:
                if path.startswith("@") and not path.endswith("()"):
                    self.calls.append((self.function, path, often or self.loops > 0))
                    self.facts.add("called", path, "", BY_ANY)
                elif (partial or operation) and at == 0:
                    self.note(path, argument, node, 1)
                else:
                    self.note(path, argument, None)
        for keyword, (_, values) in zip(node.keywords, named, strict=True):
            for path in values:
                self.note(path, keyword.value, None)

    def _enter(
        self, key: str, node: ast.Call, given: Sequence[Values], named: Sequence[tuple[str, Values]]
    ) -> Iterator[str]:
        """Note a call of a function, a class or an object of this file; yield the results."""
        if key.endswith("()"):
            for name in ("__call__", "forward"):
                self.calls += [
                    (self.function, method, self.loops > 0) for method in self._member(key, name)
                ]
            return
        yield from self.facts.get("returned", key, "")
        functions: Iterable[str] = (key,)
        if key in self.classes:
            yield f"{key}()"
            functions = self._member(key, "__init__")
            for base in self.classes[key]:
                if not base.startswith("@"):
                    self.note(base, node.func, node)
        for function in functions:
            self.calls.append((self.function, function, self.loops > 0))
            self.facts.add("called", function, "", BY_ROOT if self.rooted else BY_ANY)
            for name, values in [
                *zip(self.parameters.get(function, ()), given, strict=False),
                *named,
            ]:
                self.facts.add("parameter", function, name, values)


def _result(path: str, given: Sequence[Values]) -> list[str]:
    """Return the result of a package's function; of a wrapper, the function that it wraps."""
    if path.startswith(_THROUGH) and given and not path.startswith("jax.lax."):
        return [value for value in given[0] if value.startswith("@")] or [f"{path}()"]
    return [f"{path}()"]


def _elements(values: Values) -> Values:
    """Return the elements of containers."""
    return frozenset(one.removesuffix("[]") for one in values if one.endswith("[]"))


def _find_sharded(path: str, call: ast.Call | None) -> tuple[str, Interface] | None:
    """Return the interface of JAX's sharded arrays and functions, whose traffic XLA decides."""
    if path == "jax.device_put" or (
        path == "jax.jit"
        and call is not None
        and any(one.arg in _SHARDINGS for one in call.keywords)
    ):
        return path, _BY_COMPILER
    return None


def _is_alone(name: str, call: ast.Call) -> bool:
    """Return whether a trainer or server is set to use one GPU, or none."""
    if name == "vllm.LLM":
        return _number_argument(call, "tensor_parallel_size") in (None, 1)
    if name in _LIGHTNING:
        accelerator = next((one.value for one in call.keywords if one.arg == "accelerator"), None)
        if isinstance(accelerator, ast.Constant) and accelerator.value == "cpu":
            return True
        return 1 in (
            _number_argument(call, "devices"),
            _number_argument(call, "gpus"),
        ) and _number_argument(call, "num_nodes") in (None, 1)
    return False


def _number_argument(call: ast.Call, name: str) -> int | None:
    """Return a keyword argument that is a number; -1 if it is no number, None if it is missing."""
    given = next((one.value for one in call.keywords if one.arg == name), None)
    if given is None:
        return None
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, int) else -1
