"""Calls in Python that make GPUs communicate, found in the syntax tree.

Names are followed through imports, not through variables, parameters, classes or results.
"""

import ast
import re
import sys
import warnings

from gpulaunch.errors import printable
from gpulaunch.lab.scan.interfaces import (
    Amount,
    Findings,
    Use,
    listed,
    names_gradients,
    pattern_of_peers,
    python_interface,
    python_packages,
)

_ASKERS = {"isinstance", "issubclass", "hasattr", "getattr", "setattr", "callable", "print", "type"}
_KEYWORDS = ("dst", "src", "dest", "source", "peer", "group_dst", "group_src")
_COMMUNICATOR = re.compile(r"comm|cart", re.IGNORECASE)
_METHODS = {"mpi4py": "mpi4py.MPI.Comm", "cupy": "cupy.cuda.nccl.NcclCommunicator"}
_SMALL = re.compile(
    r".*\.item\(\)|-?[\d.]+|(?:.*\.)?\w*(?:loss|acc|accuracy|correct|metric|count|total|num_\w+|flag"
    r"|norm|seed)(?:_\w+)?(?:\.(?:clone|detach|cuda|to|float|double)\(\w*\))*",
    re.IGNORECASE,
)
_LONGEST = 400  # characters of an argument
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


def read_python(path: str, text: str, scanned: set[str], found: Findings) -> None:
    """Add the calls in one file of Python that make GPUs communicate.

    Args:
        scanned: names of the modules that are scanned.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the program's text are not ours
            tree = ast.parse(text.encode("utf-8", "replace").decode())
        file = _PythonFile(path, tree, found)
        file.read(tree.body, "", 0, _defined(tree))
    except SyntaxError as problem:
        where = f"{path}:{problem.lineno}" if problem.lineno else path
        found.warnings.append(f"{where}: no Python 3: {printable(problem.msg)}")
    except (RecursionError, MemoryError):
        found.warnings.append(f"{path}: nested too deeply to be read")
    except ValueError as problem:  # a null byte, a number of too many digits
        found.warnings.append(f"{path}: no Python: {printable(str(problem))}")
    else:
        quiet = listed("quiet_modules") | sys.stdlib_module_names | scanned
        found.unknown.update(dict.fromkeys(x for x in file.imported if x not in quiet))


class _PythonFile:
    def __init__(self, path: str, tree: ast.Module, found: Findings) -> None:
        self.imported: list[str] = []
        self._path = path
        self._found = found
        self._names: dict[str, str] = {}  # full names by what they are imported as
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.partition(".")[0]
                    self.imported.append(root)
                    self._names[alias.asname or root] = alias.name if alias.asname else root
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        # Of a relative import nothing is known, either, if what it names is not scanned.
        root = module or node.names[0].name if node.level else module.partition(".")[0]
        self.imported.append(root)
        for alias in node.names:
            full = f"{module}.{alias.name}"
            if alias.name == "*":
                for _, within, names in python_packages():
                    if module in within:
                        self._names |= {name: f"{module}.{name}" for name in names}
            elif alias.name in listed("telling") and not python_interface(full):
                full = f"?.{alias.name}"
            self._names[alias.asname or alias.name] = full

    def read(self, nodes: list[ast.stmt], function: str, loops: int, hidden: set[str]) -> None:
        """Read statements and all below them; names that are hidden have another meaning."""
        left: list[tuple[ast.AST, int]] = [(node, loops) for node in reversed(nodes)]
        while left:
            node, loops = left.pop()
            inner = list(ast.iter_child_nodes(node))
            if isinstance(node, _FUNCTIONS):
                parameters = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
                self.read(node.body, node.name, 0, hidden | parameters | _stored(*node.body))
                inner = [*node.decorator_list, *node.args.defaults]
            elif isinstance(node, (ast.Name, ast.Attribute)):
                full = self._resolve(node, hidden)
                self._note(full, node, None, function, loops)
                inner = [] if full else inner
            elif isinstance(node, ast.Call):
                inner = self._call(node, function, loops, hidden)
            elif isinstance(node, ast.Compare):  # what is only compared is not used
                inner = [one for one in inner if isinstance(one, ast.Call)]
            elif isinstance(node, (ast.If, ast.While)) and isinstance(node.test, ast.Constant):
                inner = [*(node.body if node.test.value else node.orelse)]
            elif isinstance(node, ast.AnnAssign):
                inner = [node.value] if node.value else []
            loops += isinstance(node, _LOOPS)
            left += [(one, loops) for one in reversed(inner)]

    def _call(self, node: ast.Call, function: str, loops: int, hidden: set[str]) -> list[ast.AST]:
        """Note a call; return what is to be read in it."""
        called, full = node.func, self._resolve(node.func, hidden)
        inner: list[ast.AST] = [*node.args, *(keyword.value for keyword in node.keywords)]
        # Who asks for a class calls nothing, and P2POp's operation is noted as P2POp itself.
        asks = isinstance(called, ast.Name) and called.id in _ASKERS
        if asks or full.endswith(".P2POp"):
            inner = [one for one in inner if isinstance(one, ast.Call)]
        if not full and isinstance(called, ast.Attribute):
            full = self._method(called)
            inner.append(called.value)
        elif not full and not isinstance(called, ast.Name):
            inner.append(called)
        self._note(full, called, node, function, loops)
        return inner

    def _resolve(self, node: ast.expr, hidden: set[str]) -> str:
        """Return the full name of an imported thing; "" for anything else."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        root = self._names.get(node.id, "") if isinstance(node, ast.Name) else ""
        known = root and isinstance(node, ast.Name) and node.id not in hidden
        return ".".join([root, *reversed(parts)]) if known else ""

    def _method(self, called: ast.Attribute) -> str:
        """Return the full name of a method of a communicator, as far as names tell; else ""."""
        name, particular = called.attr, called.attr in listed("particular")
        for package, owner in _METHODS.items():
            if not python_interface(f"{owner}.{name}"):
                continue
            if particular or _COMMUNICATOR.search(ast.unparse(called.value)[-_LONGEST:]):
                if package in self.imported:
                    return f"{owner}.{name}"
                particular = True
        if particular or name in listed("telling"):
            self._found.named[name] = None
        return ""

    def _note(
        self, full: str, node: ast.expr, call: ast.Call | None, function: str, loops: int
    ) -> None:
        """Note the use of a name, if it is one that matters, with its call."""
        self._found.mind(full)
        known = python_interface(full)
        if not known:
            return
        api, interface = known
        pattern, given = interface.pattern, call.args if call else []
        if call and not pattern:
            named = [one.value for one in call.keywords if one.arg in _KEYWORDS]
            peers = [given[at] for at in interface.peers if at < len(given)]
            pattern = pattern_of_peers([ast.unparse(x) for x in (*peers, *named)], pair=False)
        text = ast.unparse(given[0])[:_LONGEST] if given else ""
        amount: Amount = "small" if _SMALL.fullmatch(text) else "unknown"
        amount = "large" if names_gradients(text) else amount
        use = Use(self._path, node.end_lineno or 1, api, pattern, interface, None, amount)
        # What is handed on is called elsewhere, nobody knows how often.
        self._found.add(use, function if call else "?", looped=loops > 0)


def _defined(tree: ast.Module) -> set[str]:
    """Return the names to which a module itself gives a meaning, whatever it imports."""
    own = [x for x in tree.body if isinstance(x, (*_FUNCTIONS, ast.ClassDef))]
    return {x.name for x in own} | _stored(*(x for x in tree.body if isinstance(x, ast.Assign)))


def _stored(*nodes: ast.AST) -> set[str]:
    """Return the names that are bound somewhere in these nodes, but for imports."""
    inside = [one for node in nodes for one in ast.walk(node)]
    names = {x.id for x in inside if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    imports = [x for x in inside if isinstance(x, _IMPORTS)]
    return names - {one.asname or one.name for node in imports for one in node.names}
