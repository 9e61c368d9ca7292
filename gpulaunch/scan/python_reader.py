"""Calls in Python that make GPUs communicate, found in the syntax tree."""

import ast
import re
import warnings
from collections.abc import Iterable, Sequence

from gpulaunch.errors import printable
from gpulaunch.profiles.pattern_union import union
from gpulaunch.records import replace
from gpulaunch.scan.call import FileFindings, Use
from gpulaunch.scan.interfaces import (
    listed,
    python_words,
    quiet_modules,
    roots,
    telling_names,
)
from gpulaunch.scan.peers import count_words, grid_of_names, is_root_test
from gpulaunch.scan.python_expressions import BY_ROOT, Expressions, method_name
from gpulaunch.scan.python_values import NOTHING, Facts, elements
from gpulaunch.scan.repeats import repeating

_MOST_PASSES = 6
_WORD = re.compile(r"[A-Za-z_]\w*")
_PYTHON_2 = re.compile(
    r"^[ \t]*(?:print[ \t]+[\"'\w%]|exec[ \t]+[\"'\w]|raise[ \t]+\w+,"
    r"|except[ \t]+[\w.]+,[ \t]*\w+:)",
    re.MULTILINE,
)
_ASKED = re.compile(r"\.Get_(?:rank|size)\(\)")  # of communicators of mpi4py


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
        return _read(tree, text, known)
    except SyntaxError as problem:
        where = f"{path}:{problem.lineno}" if problem.lineno else path
        if _PYTHON_2.search(text):
            complaint = f"{where}: Python 2, of which nothing is known here"
        else:
            complaint = f"{where}: no Python 3: {printable(problem.msg)}"
    except (RecursionError, MemoryError):
        complaint = f"{path}: nested too deeply to be read"
    except ValueError as problem:  # a null byte, a number of too many digits
        complaint = f"{path}: no Python: {printable(str(problem))}"
    return FileFindings(warnings=(complaint,))


def _read(tree: ast.Module, text: str, known: frozenset[str]) -> FileFindings:
    """Read a module, and again while names, parameters or results get new values."""
    facts = Facts()
    # Without a word that matters there is nothing to follow through names.
    passes = 1 if python_words().isdisjoint(_WORD.findall(text)) else _MOST_PASSES
    for _ in range(passes):
        facts.start()
        reader = _Reader(facts, tree, asks_rank=bool(_ASKED.search(text)))
        reader.run(tree.body)
        if not facts.grown:
            break
    quiet = quiet_modules() | known
    return FileFindings(
        reader.settled(),
        union(reader.grids) if reader.grids else grid_of_names(text) if reader.seen else "",
        count_words(text) if reader.seen else (0, 0),
        tuple(reader.doubts),
        tuple(reader.unseen),
        modules=tuple(name for name in dict.fromkeys(reader.imported) if name not in quiet),
    )


class _Reader(Expressions):
    """A reader of statements; what it found is complete at the end."""

    def __init__(self, facts: Facts, tree: ast.Module, *, asks_rank: bool) -> None:
        super().__init__(facts, tree, asks_rank=asks_rank)
        self.rebound = _rebound(tree.body)
        self.functions: dict[str, str] = {}  # name by key

    def settled(self) -> tuple[Use, ...]:
        """Return the uses, each with whether it runs over and over, which is known at the end."""
        often = [
            ("", key, True)
            for key, name in self.functions.items()
            if name in listed("each_iteration")
        ]
        once = [key for key, name in self.functions.items() if name == "main"]
        known = repeating(self.functions, [*self.calls, *often], once)
        found: dict[tuple[int, str], Use] = {}
        for use, function, looped in self.seen:
            repeats = True if looped else known.get(function, False)
            found.setdefault((use.line, use.name), replace(use, repeats=repeats))
        return tuple(sorted(found.values(), key=lambda use: (use.line, use.name)))

    def run(self, body: Iterable[ast.AST]) -> None:
        """Read statements up to one that leaves."""
        for node in body:
            self.read(node)
            if isinstance(node, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
                return

    def read(self, node: ast.AST) -> None:
        """Read a statement, a part of one, or an expression."""
        read = getattr(self, method_name(type(node).__name__), None)
        if isinstance(node, ast.expr):
            self.value(node)
        elif read:
            read(node)
        else:
            self._children(node)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            root = alias.name.partition(".")[0]
            self.imported.append(root)
            full = alias.name if alias.asname else root
            self._bind_import(node, alias.asname or root, full if root in roots() else "")

    def _importfrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        root = "" if node.level else module.partition(".")[0]
        # Of a relative import nothing is known, either, if what it names is not scanned.
        self.imported += [root] if root else [module or one.name for one in node.names[:1]]
        for alias in node.names:
            known = root in roots()
            told = f"?.{alias.name}" if alias.name in telling_names() else ""
            full = f"{module}.{alias.name}" if known else told
            self._bind_import(node, alias.asname or alias.name, full)
            if known and alias.name == "*":
                self.facts.add("wildcard", "", "", frozenset({module}))

    def _bind_import(self, node: ast.stmt, name: str, full: str) -> None:
        hidden = self.scope.parent is None and self.rebound.get(name, 0) > node.lineno
        self._bind(name, frozenset({full} if full and not hidden else ()))

    def _assign(self, node: ast.Assign) -> None:
        values = self.value(node.value)
        for target in node.targets:
            self._target(target, values, node.value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        values = self.value(node.value) | self._annotated(node.annotation)
        if self.scope.is_class and isinstance(node.target, ast.Name):
            self.facts.add("attribute", self.scope.key, node.target.id, values)
        elif node.value is not None:
            self._target(node.target, values, node.value)

    def _augassign(self, node: ast.AugAssign) -> None:
        self.value(node.value)
        self._target(node.target, NOTHING, None)

    def _return(self, node: ast.Return) -> None:
        self.facts.add("returned", self.function, "", self.value(node.value))

    def _global(self, node: ast.Global) -> None:
        self.scope.globals.update(node.names)

    def _if(self, node: ast.If) -> None:
        self.value(node.test)
        truth = _constant(node.test)
        if truth is not False:
            rooted = is_root_test(self.facts.text(node.test))
            self.rooted += rooted
            self.run(node.body)
            self.rooted -= rooted
        if truth is not True:
            self.run(node.orelse)

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        self._target(node.target, elements(self.value(node.iter)), None)
        self._loop(node)

    _asyncfor = _for

    def _while(self, node: ast.While) -> None:
        if _constant(node.test) is False:
            node.body = []
        self.value(node.test)
        self._loop(node)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        self.loops += 1
        self.run(node.body)
        self.loops -= 1
        self.run(node.orelse)

    def _withitem(self, node: ast.withitem) -> None:
        values = self.value(node.context_expr)
        if node.optional_vars:
            self._target(node.optional_vars, values, None)

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        key, around = f"@{node.lineno}:{node.col_offset}", self.scope
        plain = self._decorators(node) or not around.is_class
        given = node.args
        parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        for default in (*given.defaults, *given.kw_defaults):
            self.value(default)
        self.functions[key] = node.name
        self.parameters[key] = [one.arg for one in (parameters if plain else parameters[1:])]
        self._bind(node.name, frozenset({key}))
        if around.is_class:
            self.facts.add("attribute", around.key, node.name, frozenset({key}))
        outer = self.scope, self.function, self.loops, self.rooted
        self.scope, self.function = self.facts.scope(node, around, key), key
        self.loops, self.rooted = 0, int(self.facts.get("called", key) == BY_ROOT)
        for one in filter(None, (*parameters, given.vararg, given.kwarg)):
            known = self.facts.get("parameter", key, one.arg)
            self._bind(one.arg, known | self._annotated(one.annotation))
        if not plain and parameters:
            self._bind(parameters[0].arg, frozenset({f"{around.key}()"}))
        self.run(node.body)
        self.scope, self.function, self.loops, self.rooted = outer

    _asyncfunctiondef = _functiondef

    def _decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
        """Read the decorators; return whether one makes a static method."""
        for one in node.decorator_list:
            for path in self.value(one):
                if not isinstance(one, ast.Call):
                    self._note(path, one, None)
        return any(
            isinstance(one, ast.Name) and one.id == "staticmethod" for one in node.decorator_list
        )

    def _classdef(self, node: ast.ClassDef) -> None:
        self._decorators(node)
        key = f"@{node.lineno}:{node.col_offset}"
        bases = [(path, base) for base in node.bases for path in self.value(base)]
        self.bases[key] = frozenset(path for path, _ in bases)
        for path, base in bases:
            self._note(path, base, None)
        self._bind(node.name, frozenset({key}))
        outer, self.scope = self.scope, self.facts.scope(node, self.scope, key, is_class=True)
        self.run(node.body)
        for name, values in self.scope.names.items():
            self.facts.add("attribute", key, name, values)
        self.scope = outer


def _rebound(body: Sequence[ast.stmt]) -> dict[str, int]:
    """Return the line of the last statement of a module that surely gives a name another value."""
    found: dict[str, int] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node.lineno
        targets = node.targets if isinstance(node, ast.Assign) else []
        items = node.items if isinstance(node, ast.With) else []
        targets = [*targets, *(one.optional_vars for one in items if one.optional_vars)]
        read = isinstance(node, ast.Assign) and {
            one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)
        }
        for one in (part for target in targets for part in ast.walk(target)):
            if isinstance(one, ast.Name) and one.id not in (read or ()):
                found[one.id] = node.lineno
    return found


def _constant(test: ast.expr) -> bool | None:
    """Return the value of a constant condition; None if it is not constant."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        truth = _constant(test.operand)
        return None if truth is None else not truth
    return False if ast.unparse(test).endswith("TYPE_CHECKING") else None
