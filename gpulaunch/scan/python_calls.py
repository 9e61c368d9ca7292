"""Calls in Python that make GPUs communicate, found in the syntax tree."""
# pure: decides on plain values

import ast
import re
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from gpulaunch.errors import printable
from gpulaunch.profiles.pattern_union import union
from gpulaunch.records import replace
from gpulaunch.scan.call import FileFindings, Use
from gpulaunch.scan.python_expressions import BY_ROOT, Expressions, Facts, Seen
from gpulaunch.scan.python_interfaces import QUIET, ROOTS
from gpulaunch.scan.python_names import NOTHING, Scope, Values
from gpulaunch.scan.python_use import last_name
from gpulaunch.scan.repeats import repeating

_MOST_PASSES = 5
_EACH_ITERATION = {"forward", "backward", "training_step", "train_step", "step"}
_ROOT = re.compile(
    r"(?:.*\b)?\w*(?:rank|pe|me|id)\w*(?:\(\))? == 0|0 == \w+|not \w*(?:rank|pe|me|id)\w*(?:\(\))?",
    re.IGNORECASE,
)
_PYTHON_2 = re.compile(
    r"^[ \t]*(?:print[ \t]+[\"'\w%]|exec[ \t]+[\"'\w]|raise[ \t]+\w+,"
    r"|except[ \t]+[\w.]+,[ \t]*\w+:)",
    re.MULTILINE,
)
_LEAVING = {"sys.exit()", "os._exit()", "os.abort()"}


def read_python(path: str, text: str, known: frozenset[str]) -> FileFindings:
    """Return the calls in one file of Python that make GPUs communicate.

    Args:
        path: path of the file, for warnings.
        text: any text.
        known: names of modules that are scanned, too.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the program's text are not ours
            tree = ast.parse(text.encode("utf-8", "replace").decode())
        return _read(tree, known)
    except SyntaxError as problem:
        return FileFindings(warnings=(_complaint(path, text, problem),))
    except (RecursionError, MemoryError):
        return FileFindings(warnings=(f"{path}: nested too deeply to be read",))
    except ValueError as problem:  # a null byte, a number of too many digits
        return FileFindings(warnings=(f"{path}: no Python: {printable(str(problem))}",))


def _complaint(path: str, text: str, problem: SyntaxError) -> str:
    where = f"{path}:{problem.lineno}" if problem.lineno else path
    if _PYTHON_2.search(text):
        return f"{where}: Python 2, of which nothing is known here"
    return f"{where}: no Python 3: {printable(problem.msg)}"


def _read(tree: ast.Module, known: frozenset[str]) -> FileFindings:
    """Read a module, and again while attributes, parameters or returned values get new values."""
    facts = Facts()
    for _ in range(_MOST_PASSES):
        facts.grown = False
        reader = _StatementReader(facts)
        reader.module(tree)
        if not facts.grown:
            break
    uses = {(use.line, use.name): use for use in map(reader.settled, reversed(reader.seen))}
    grid = union(reader.grids) if reader.grids else ""
    return FileFindings(
        tuple(sorted(uses.values(), key=lambda use: (use.line, use.name))),
        grid,
        tuple(reader.doubts),
        tuple(reader.unseen),
        modules=tuple(
            name
            for name in dict.fromkeys(reader.imported)
            if name not in QUIET and name not in known
        ),
    )


class _StatementReader(Expressions):
    """A reader of statements in the order in which they run, functions after the module."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.imported: list[str] = []
        self._later: deque[Callable[[], None]] = deque()
        self._functions: dict[str, str] = {}  # key -> name

    def module(self, tree: ast.Module) -> None:
        """Read a module and then its functions."""
        self._run(tree.body)
        while self._later:
            self._later.popleft()()

    def settled(self, seen: Seen) -> Use:
        """Return a use with whether it runs over and over, which is known at the end."""
        repeats = True if seen.looped else self._repeating().get(seen.function, False)
        return replace(seen.use, repeats=repeats)

    def _repeating(self) -> dict[str, bool | None]:
        if not hasattr(self, "_known"):
            often = [
                ("", key, True) for key, name in self._functions.items() if name in _EACH_ITERATION
            ]
            once = [key for key, name in self._functions.items() if name == "main"]
            self._known = repeating(self._functions, [*self.calls, *often], once)
        return self._known

    def _run(self, body: Sequence[ast.stmt]) -> bool:
        """Read statements up to one that leaves; return whether there was one."""
        for statement in body:
            read = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if read is None:
                for child in ast.iter_child_nodes(statement):
                    if isinstance(child, ast.expr):
                        self.value(child)
            elif read(statement):
                return True
        return False

    def _leave(self, node: ast.stmt) -> bool:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return True

    _raise = _break = _continue = _leave

    def _return(self, node: ast.Return) -> bool:
        values = self.value(node.value)
        if self.function:
            self.facts.add("returned", self.function, "", values)
        return True

    def _expr(self, node: ast.Expr) -> bool:
        values = self.value(node.value)
        leaves = isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
        if leaves and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            name = node.value.func.id
            return name in ("exit", "quit") and self.scope.lookup(name) is None
        return bool(values & _LEAVING)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            root = alias.name.partition(".")[0]
            self.imported.append(root)
            full = alias.name if alias.asname else root
            self.scope.bind(alias.asname or root, frozenset({full}) if root in ROOTS else NOTHING)

    def _importfrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        root = "" if node.level else module.partition(".")[0]
        self.imported += [root] if root else []
        for alias in node.names:
            if alias.name == "*":
                self.scope.wildcards += [module] if root in ROOTS else []
            else:
                values = frozenset({f"{module}.{alias.name}"}) if root in ROOTS else NOTHING
                self.scope.bind(alias.asname or alias.name, values)

    def _assign(self, node: ast.Assign) -> None:
        values = self.value(node.value)
        for target in node.targets:
            self.assign(target, values, node.value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        values = self.value(node.value) | self._annotated(node.annotation)
        if node.value is not None:
            self.assign(node.target, values, node.value)
        elif self.scope.kind == "class" and isinstance(node.target, ast.Name):
            # A declaration such as a field of a dataclass.
            self.facts.add("attribute", self.scope.key, node.target.id, values)

    def _augassign(self, node: ast.AugAssign) -> None:
        self.value(node.value)
        self.assign(node.target, NOTHING, None)

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self.assign(target, NOTHING, None)

    def _global(self, node: ast.Global) -> None:
        self.scope.module_names.update(node.names)

    def _if(self, node: ast.If) -> bool:
        bodies: list[Callable[[], bool]] = []
        truth: bool | None = None
        following: Sequence[ast.stmt] = [node]
        # `elif` is an `if` as the only statement of an `else`.
        while truth is not True and len(following) == 1 and isinstance(following[0], ast.If):
            node = following[0]
            self.value(node.test)
            truth, following = _constant(node.test), node.orelse
            bodies += [] if truth is False else [partial(self._rooted, node)]
        bodies += [] if truth else [partial(self._run, following)]
        return bodies[0]() if len(bodies) == 1 else self.scope.branches(bodies)

    def _rooted(self, node: ast.If) -> bool:
        only = bool(_ROOT.fullmatch(ast.unparse(node.test)[:200]))
        self.rooted += only
        ends = self._run(node.body)
        self.rooted -= only
        return ends

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        values = self.value(node.iter)
        elements = frozenset(one.removesuffix("[]") for one in values if one.endswith("[]"))

        def body() -> bool:
            self.assign(node.target, elements, None)
            return self._loop(node.body)

        self.scope.branches([body, lambda: False])
        self._run(node.orelse)

    _asyncfor = _for

    def _while(self, node: ast.While) -> bool:
        truth = _constant(node.test)
        if truth is False:
            return self._run(node.orelse)
        self.loops += 1
        self.value(node.test)
        self.loops -= 1
        self.scope.branches([partial(self._loop, node.body), lambda: False])
        self._run(node.orelse)
        inside = [child for statement in node.body for child in ast.walk(statement)]
        return truth is True and not any(isinstance(child, ast.Break) for child in inside)

    def _loop(self, body: Sequence[ast.stmt]) -> bool:
        """Read the body of a loop; return False, since what leaves it does not leave the rest."""
        self.loops += 1
        self._run(body)
        self.loops -= 1
        return False

    def _with(self, node: ast.With | ast.AsyncWith) -> bool:
        for item in node.items:
            values = self.value(item.context_expr)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, values, None)
        return self._run(node.body)

    _asyncwith = _with

    def _try(self, node: ast.Try) -> bool:
        bodies = [partial(self._run, [*node.body, *node.orelse])]
        bodies += [partial(self._handler, handler) for handler in node.handlers]
        ends = self.scope.branches(bodies)
        return self._run(node.finalbody) or ends

    _trystar = _try

    def _handler(self, node: ast.ExceptHandler) -> bool:
        self.value(node.type)
        if node.name:
            self.scope.bind(node.name, NOTHING)
        return self._run(node.body)

    def _match(self, node: ast.Match) -> bool:
        self.value(node.subject)
        cases = [partial(self._case, case) for case in node.cases]
        return self.scope.branches([*cases, lambda: False])

    def _case(self, case: ast.match_case) -> bool:
        for child in ast.walk(case.pattern):
            if isinstance(child, (ast.MatchAs, ast.MatchStar)) and child.name:
                self.scope.bind(child.name, NOTHING)
        self.value(case.guard)
        return self._run(case.body)

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._decorators(node)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            self.value(default)
        key = _key(node)
        self._functions[key] = node.name
        names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        owner = self.scope if self.scope.kind == "class" else None
        plain = any(
            isinstance(one, ast.Name) and one.id == "staticmethod" for one in node.decorator_list
        )
        if owner is not None:
            self.facts.add("attribute", owner.key, node.name, frozenset({key}))
            names = names if plain else names[1:]
        self.parameters[key] = names
        self.scope.bind(node.name, frozenset({key}))
        self._later.append(
            partial(self._body, node, key, self.scope, owner is not None and not plain)
        )

    _asyncfunctiondef = _functiondef

    def _decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            for path in self.value(decorator):
                if not isinstance(decorator, ast.Call):
                    self.note(path, decorator, None)

    def _body(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, key: str, around: Scope, method: bool
    ) -> None:
        """Read the body of a function, after all around it has been read."""
        self.scope, self.function = Scope("function", around, key), key
        self.loops, self.rooted = 0, int(self.facts.get("called", key, "") == BY_ROOT)
        everything = node.args
        listed = [*everything.posonlyargs, *everything.args, *everything.kwonlyargs]
        for argument in (*listed, everything.vararg, everything.kwarg):
            if argument is not None:
                values = self.facts.get("parameter", key, argument.arg) | self._annotated(
                    argument.annotation
                )
                self.scope.bind(argument.arg, values)
        if method and listed:
            self.scope.bind(listed[0].arg, frozenset({f"{around.key}()"}))
        self._run(node.body)

    def _annotated(self, annotation: ast.expr | None) -> Values:
        """Return an object of an annotated type."""
        if (
            isinstance(annotation, ast.Constant)
            and isinstance(annotation.value, str)
            and len(annotation.value) < 80
        ):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except (SyntaxError, ValueError):
                return NOTHING
        if not isinstance(annotation, (ast.Name, ast.Attribute)):
            return NOTHING
        return frozenset(
            f"{path}()" for path in self._quietly(annotation) if not path.endswith("()")
        )

    def _classdef(self, node: ast.ClassDef) -> None:
        self._decorators(node)
        key = _key(node)
        self.classes[key] = frozenset(found for base in node.bases for found in self.value(base))
        for keyword in node.keywords:
            self.value(keyword.value)
        outer, self.scope = self.scope, Scope("class", self.scope, key)
        self._run(node.body)
        for name, values in self.scope.names.items():
            self.facts.add("attribute", key, name, values)
        self.scope = outer
        self.scope.bind(node.name, frozenset({key}))


def _key(node: ast.stmt) -> str:
    return f"@{node.lineno}:{node.col_offset}"


def _constant(test: ast.expr) -> bool | None:
    """Return the value of a constant condition; None if it is not constant."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        truth = _constant(test.operand)
        return None if truth is None else not truth
    return False if last_name(test) == "TYPE_CHECKING" else None
