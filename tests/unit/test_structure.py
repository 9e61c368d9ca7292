"""The house rules that a machine can check: rooms, one door for each package."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

from gpulaunch.decide.placement.policies import POLICIES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gpulaunch"
FILES = sorted(PACKAGE.rglob("*.py"))

ROOMS = [  # from the floor up: a file imports from its own room and from those before it
    "records",
    "errors",
    "files",
    "process",
    "machine",
    "profiles",
    "leases",
    "history",
    "forecast",
    "sharing",
    "decide",
    "cluster",
    "containers",
    "launch",
    "api",
    "pytest_plugin",
    "scan",
    "measure",
    "batch",
    "simulate",
    "show",
    "cli",
]
LARGEST_SHARE = 0.2
"""No room holds more of the package's lines."""

PURE_MARK = "# pure: decides on plain values\n"
DOORS = {
    "_pytest": {"pytest_plugin/forked.py"},
    "argparse": {"cli/arguments.py"},
    "ctypes": {
        "measure/synthetic_load.py",
        "process/libc.py",
    },
    "docker": {"api/docker_sdk.py"},
    "filelock": {"files/slow_lock.py"},
    "matplotlib": {"show/report.py"},
    "mcp": {"cli/mcp_tools.py"},
    "networkx": {"machine/graph.py"},
    "numpy": {"measure/link_fit.py"},
    "psutil": {"process/ending.py", "process/system.py"},
    "pydantic": {"cli/mcp_tools.py"},
    "pynvml": {
        "machine/nvidia/faults.py",
        "machine/nvidia/health.py",
        "machine/nvidia/nvml.py",
        "machine/nvidia/nvml_links.py",
        "measure/sampler.py",
    },
    "pytest": {"pytest_plugin/forked.py", "pytest_plugin/plugin.py"},
    "rich": {"show/terminal.py"},
    "shtab": {"cli/completion.py"},
    "tomlkit": {"files/write.py"},
    "tomli": {"files/toml.py"},
    "tomllib": {"files/toml.py"},
    "tree_sitter": {"scan/c_reader.py"},
    "tree_sitter_cuda": {"scan/c_reader.py"},
    "typing_extensions": {"records.py"},  # for type checkers only
}
DRAWS = {"random"}  # from a seed that is passed in
ALLOWED = {
    "forecast/durations.py": DRAWS,
    "simulate/generate.py": DRAWS,
}
IMPURE = {"os", "time", "random", "subprocess", "socket", "signal", "fcntl", "sys", "datetime"}


NAMES = {
    path: ".".join(("gpulaunch", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in FILES
}


@cache
def parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the full names of all modules that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def room(name: str) -> str:
    """Return the room of one of our modules by its full name; empty for the package itself."""
    part = name.split(".")[1] if "." in name else ""
    return part if part in ROOMS else ""


def ours(path: Path) -> set[str]:
    """Return the full names of what a file imports of ours."""
    return {name for name in imports(path) if name.split(".")[0] == "gpulaunch"}


def place(path: Path) -> str:
    """Return a file's path below the package."""
    return str(path.relative_to(PACKAGE))


def test_imports_run_downward_only() -> None:
    """A file imports from its own room and from rooms below it in ROOMS."""
    upward = {}
    for path in FILES:
        own = place(path).partition("/")[0].removesuffix(".py")
        if own not in (
            "__init__",
            "__main__",
        ):
            above = ROOMS[ROOMS.index(own) + 1 :]
            upward[place(path)] = {name for name in ours(path) if room(name) in above}
    assert {path: names for path, names in upward.items() if names} == {}


def test_every_file_is_in_a_room() -> None:
    """Beside the rooms there are the two faces of the package, and nothing else."""
    found = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert found == {*ROOMS, "__init__", "__main__"}


def test_architecture_names_the_rooms_and_what_is_there() -> None:
    """ARCHITECTURE.md has the rooms in their order, and every file that it names exists."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text[text.index("| room |") : text.index("Three rules")]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == ROOMS
    named = re.findall(r"`([a-z_]+/[\w/]*(?:\.py)?)`", text)
    assert [
        path for path in named if not any((top / path).exists() for top in (PACKAGE, ROOT))
    ] == []


def test_no_room_is_a_drawer() -> None:
    """No room holds more than a fifth of the package."""
    lines: dict[str, int] = {}
    for path in FILES:
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        lines[own] = lines.get(own, 0) + path.read_text().count("\n")
    total = sum(lines.values())
    assert {name: count for name, count in lines.items() if count > LARGEST_SHARE * total} == {}


def test_no_circles() -> None:
    """No two modules import each other, not even by way of others."""
    known = set(NAMES.values())
    graph = {}
    for path, name in NAMES.items():
        targets = imports(path)
        graph[name] = {
            other
            for other in known
            for target in targets
            if target == other or target.startswith(other + ".")
        }
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
    for path in FILES:
        for name in imports(path):
            users.setdefault(name.partition(".")[0], set()).add(place(path))
    other = sys.stdlib_module_names - {"argparse", "ctypes", "tomllib"} | {"gpulaunch"}
    assert {name: files for name, files in users.items() if name not in other} == DOORS


@cache
def is_pure(path: Path) -> bool:
    """Return whether a file carries the mark, below its docstring."""
    return PURE_MARK in path.read_text()


def test_deciding_is_pure() -> None:
    """A marked file and what it imports use no I/O, clock, environment or unseeded randomness."""
    for path in filter(is_pure, FILES):
        allowed = ALLOWED.get(place(path), set())
        used = {name.partition(".")[0] for name in imports(path)}
        assert used & IMPURE - allowed == set(), path
        wanted = ours(path)
        for file, name in NAMES.items():
            if name in wanted or any(one.startswith(name + ".") for one in wanted):
                assert is_pure(file) or file.name in ("errors.py", "__init__.py"), (path, name)


def test_decide_is_marked() -> None:
    """Every file of the room that decides carries the mark, but for its __init__.py."""
    deciding = [path for path in FILES if place(path).startswith("decide/")]
    assert {path.name for path in deciding if not is_pure(path)} == {"__init__.py"}


def test_no_class_name_stands_twice() -> None:
    """A class name means one thing in the whole package."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(place(path))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_policies_are_known_by_one_file() -> None:
    """Only policies.py has the name of a policy as a value."""
    names = {shown for name in POLICIES for shown in (name, name.replace("_", "-"))}
    found = set()
    for path in FILES:
        if path.name == "policies.py":
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and node.value in names:
                found.add((place(path), node.value))
    assert found == set()


def test_launch_imports_what_costs_late() -> None:
    """The files of the launch path import rich, argparse and NVML inside functions, if at all."""
    doors = {file for files in DOORS.values() for file in files}
    drawing = {path for path in FILES if "show" in path.parts}
    costly = {"rich", "argparse", "pynvml", "gpulaunch.show.terminal"}
    costly |= {_module(path) for path in drawing if _imported(path) & costly}
    for path in FILES:
        if path not in drawing and place(path) not in doors:
            assert _imported(path) & costly == set(), path


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _imported(path: Path) -> set[str | None]:
    """Return the modules that a file imports at its top."""
    body = parsed(path).body
    top = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    return top | {node.module for node in body if isinstance(node, ast.ImportFrom)}
