"""The house rules that a machine can check: rooms, one door for each package."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

from gpulaunch.launch.options import SETTINGS
from gpulaunch.placement.policies import POLICIES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gpulaunch"

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
TABLE_OF_ROOMS = ARCHITECTURE[ARCHITECTURE.index("| room |") : ARCHITECTURE.index("Three rules")]
# from the floor up: a file imports from its own room and from those before it
ROOMS = re.findall(r"^\| `(\w+)` \|", TABLE_OF_ROOMS, re.MULTILINE)
PURE_MARK = "# pure: decides on plain values\n"
DOORS = {
    "_pytest": {"pytest_plugin/leases.py"},
    "argparse": {"cli/arguments.py"},
    "ctypes": {
        "lab/measure/synthetic_load.py",
        "process/libc.py",
    },
    "docker": {"api/docker_sdk.py"},
    "filelock": {"files/own_cache.py"},
    "mcp": {"api/mcp_tools.py"},
    "networkx": {"machine/topology.py"},
    "psutil": {"process/system.py"},
    "pydantic": {"api/mcp_tools.py"},
    "pynvml": {
        "machine/nvidia/health.py",
        "machine/nvidia/nvml.py",
        "lab/measure/sampler.py",
    },
    "pytest": {"pytest_plugin/__init__.py", "pytest_plugin/leases.py"},
    "rich": {"cli/screen.py"},
    "shtab": {"cli/completion.py"},
    "tomlkit": {"files/write.py"},
    "tomli": {"files/document.py"},
    "tomllib": {"files/document.py"},
    "tree_sitter": {"lab/scan/c_reader.py"},
    "tree_sitter_cuda": {"lab/scan/c_reader.py"},
    "typing_extensions": {"records.py"},  # for type checkers only
}
DRAWS = {"random"}  # from a seed that is passed in
ALLOWED = {
    "history/forecast.py": DRAWS,
    "lab/simulate/generate.py": DRAWS,
}
IMPURE = {"os", "time", "random", "subprocess", "socket", "signal", "fcntl", "sys", "datetime"}


class Source:
    """What the rules ask of a file.

    Attributes:
        place: its path below the package.
        name: its module's full name.
        room: the room that it is in, or the name of a face of the package.
        imports: full names of all modules that it imports, also inside functions.
        at_the_top: those that it imports at its top.
        ours: those of `imports` that are ours.
        classes: the names of its classes.
        texts: its text constants.
        is_pure: whether it carries the mark, below its docstring.
    """

    def __init__(self, path: Path) -> None:
        text = path.read_text()
        tree = ast.parse(text)
        below = path.relative_to(PACKAGE)
        self.place = str(below)
        self.name = ".".join(("gpulaunch", *below.with_suffix("").parts))
        self.room = below.parts[0].removesuffix(".py")
        self.imports: set[str] = set()
        self.at_the_top: set[str] = set()
        self.classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        self.texts: set[str] = set()
        self.is_pure = PURE_MARK in text
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self.imports.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                self.imports.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self.texts.add(node.value)
        for node in tree.body:
            if isinstance(node, ast.Import):
                self.at_the_top.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                self.at_the_top.add(str(node.module))
        self.ours = {name for name in self.imports if name.split(".")[0] == "gpulaunch"}

    def takes(self, name: str) -> bool:
        """Return whether it imports this module, or something of it."""
        return name in self.ours or any(one.startswith(f"{name}.") for one in self.ours)


@cache
def files() -> list[Source]:
    """Return the package's files."""
    return [Source(path) for path in sorted(PACKAGE.rglob("*.py"))]


def test_imports_run_downward_only() -> None:
    """A file imports from its own room and from those before it in ARCHITECTURE.md's table.

    Beside the rooms of the table there are the two faces of the package, and nothing else.
    """
    assert {file.room for file in files()} == {*ROOMS, "__init__", "__main__"}
    for file in files():
        if file.room in ROOMS:
            above = ROOMS[ROOMS.index(file.room) + 1 :]
            upward = [name for name in file.ours if "." in name and name.split(".")[1] in above]
            assert upward == [], file.place


def test_architecture_names_what_is_there() -> None:
    """Every file that ARCHITECTURE.md names exists."""
    named = re.findall(r"`([a-z_]+/[\w/]*(?:\.py)?)`", ARCHITECTURE)
    assert [
        path for path in named if not any((top / path).exists() for top in (PACKAGE, ROOT))
    ] == []


def test_no_circles() -> None:
    """No two modules import each other, not even by way of others."""
    graph = {}
    for file in files():
        graph[file.name] = {other.name for other in files() if file.takes(other.name)}
    finished: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"circle: {' -> '.join((*above, name))}"
        if name not in finished:
            for other in graph[name] - {name}:
                visit(other, (*above, name))
            finished.add(name)

    for name in graph:
        visit(name, ())


def test_each_package_has_one_door() -> None:
    """Each third-party package, and some of the standard library, is imported by one file."""
    users: dict[str, set[str]] = {}
    for file in files():
        for name in file.imports:
            users.setdefault(name.partition(".")[0], set()).add(file.place)
    other = sys.stdlib_module_names - {"argparse", "ctypes", "tomllib"} | {"gpulaunch"}
    assert {name: files for name, files in users.items() if name not in other} == DOORS


def test_a_launch_does_without_the_lab() -> None:
    """What it imports at the top of its files leads to nothing of lab/, nor to what costs it."""
    by_name = {file.name: file for file in files()}
    found, todo = set(), ["gpulaunch.cli.launch", "gpulaunch.cli.docker_launch"]
    while todo:
        name = todo.pop()
        if name in by_name and name not in found:
            found.add(name)
            todo += by_name[name].at_the_top
    assert [name for name in sorted(found) if name.startswith("gpulaunch.lab")] == []
    assert "gpulaunch.cli.screen" not in found  # with rich, 25 ms
    assert "gpulaunch.decide.decide" in found
    taken = {name for file in found for name in by_name[file].at_the_top}
    assert taken & {"hashlib", "shutil", "subprocess", "urllib.parse"} == set()  # 2 to 10 ms each


def test_deciding_is_pure() -> None:
    """A marked file and what it imports use no I/O, clock, environment or unseeded randomness.

    Every file of the room that decides carries the mark, but for its __init__.py.
    """
    for file in files():
        if file.is_pure:
            used = {name.partition(".")[0] for name in file.imports}
            assert used & IMPURE - ALLOWED.get(file.place, set()) == set(), file.place
            impure = [other for other in files() if file.takes(other.name) and not other.is_pure]
            assert {Path(other.place).name for other in impure} <= {"errors.py", "__init__.py"}
        elif file.room in ("decide", "placement"):
            assert Path(file.place).name == "__init__.py"


def test_no_class_name_stands_twice() -> None:
    """A class name means one thing in the whole package."""
    names = [name for file in files() for name in file.classes]
    assert [name for name in names if names.count(name) > 1] == []


def test_policies_are_known_by_one_file() -> None:
    """Only policies.py has the name of a policy as a value."""
    names = {shown for name in POLICIES for shown in (name, name.replace("_", "-"))}
    assert {Path(file.place).name for file in files() if file.texts & names} == {"policies.py"}


def test_launch_imports_what_costs_late() -> None:
    """rich, argparse and NVML are imported inside functions, but by their doors."""
    doors = DOORS["rich"] | DOORS["argparse"] | DOORS["pynvml"]
    for file in files():
        packages = {name.partition(".")[0] for name in file.at_the_top}
        assert file.place in doors or not packages & {"rich", "argparse", "pynvml"}, file.place


def test_settings_are_few() -> None:
    """A setting that users would not miss is a constant with a reason."""
    assert len(SETTINGS) <= 45
