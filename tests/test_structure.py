"""The house rules that a machine can check: layers, one door for each package, style, types."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gpulaunch"
FILES = sorted(PACKAGE.rglob("*.py"))

# what a file of each layer may import of ours
ALLOWED = {
    "errors": set(),
    "core": {"errors", "core"},
    "render": {"errors", "core", "render"},
    "host": {"errors", "core", "host"},
    "settings": {"errors", "core", "host"},
    "turn": {"errors", "core", "host"},
    "look": {"errors", "core", "host", "turn"},
    "acquire": {"errors", "core", "host", "turn", "look", "membership"},
    "watcher": {"errors", "core", "host", "look"},
    "membership": {"errors", "core", "host"},
    "launch": {"errors", "core", "host", "look", "acquire", "watcher", "membership"},
    "free": {"errors", "core", "host"},
    "sharing": {"errors", "core", "host", "settings"},
    "asking": {"errors", "core", "host", "settings"},
    "prepare": {"errors", "core", "host", "look", "settings", "sharing", "asking"},
    "job_file": {"errors", "core", "host", "settings"},
    "simulation": {"errors", "core", "host", "settings", "prepare", "job_file"},
    "tasks": {"errors", "core", "host", "settings", "prepare", "job_file"},
    "resume": {"errors", "core", "host", "tasks"},
    "batch": {"errors", "core", "host", "free", "tasks", "resume"},
    "papers": {"errors", "core", "host", "papers"},
    "container": {"errors", "core", "host", "look", "settings", "prepare"},
    "doctor": {"errors", "core", "host", "settings", "prepare", "container", "sharing"},
    "api": {"errors", "core", "host", "look", "acquire", "settings", "prepare"},
    "measure": {"errors", "core", "host", "prepare", "api"},
    "profiling": {"errors", "core", "host", "look", "acquire", "sharing", "profiling"},
    "cli": {"errors", "core", "host", "look", "acquire", "launch", "free", "settings", "prepare", "container", "doctor"}
    | {"measure", "profiling", "job_file", "simulation", "papers", "tasks", "batch"}
    | {"render", "cli", "__init__"},
    "__main__": {"cli"},
    "__init__": {"api", "errors"},
}
DOORS = {
    "argparse": {"cli/arguments.py"},
    "ctypes": {"process/libc.py", "machine/nvidia/roster.py", "measure/synthetic_load.py"},
    "filelock": {"files/slow_lock.py"},
    "matplotlib": {"show/report/canvas.py"},
    "networkx": {"machine/graph.py"},
    "numpy": {"measure/link_fit.py"},
    "psutil": {"process/ending.py"},
    "pynvml": {"machine/nvidia/nvml.py", "measure/nvml_counters.py"},
    "rich": {"show/terminal.py"},
    "tomlkit": {"files/write.py"},
    "torch": {"measure/torch_all_reduce.py"},
}
SEEDED = {"simulate/generate.py"}  # draws from a seed that is passed in
PURE = {"os", "time", "random", "subprocess", "socket", "signal", "fcntl", "sys", "datetime"}


def imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def layer(name: str) -> str:
    """Layer of one of our modules by its full name; a name of the package itself is its __init__."""
    part = name.split(".")[1]
    return part if part in ALLOWED else "__init__"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_downward_only(path: Path) -> None:
    """Layers: errors <- core <- host <- launch <- cli; render sees core only."""
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    ours = {name for name in imports(path) if name.startswith("gpulaunch.") or name == "gpulaunch"}
    assert {layer(name) for name in ours} - ALLOWED[own] == set()


def test_no_circles() -> None:
    """No two modules import each other, not even by way of others."""
    names = {path: ".".join(("gpulaunch", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in FILES}
    known = set(names.values())
    graph = {}
    for path, name in names.items():
        targets = imports(path)
        graph[name] = {
            other for other in known for target in targets if target == other or target.startswith(other + ".")
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
    """Each third-party package, argparse and ctypes are each imported by one file."""
    users: dict[str, set[str]] = {}
    for path in FILES:
        for name in imports(path):
            users.setdefault(name.partition(".")[0], set()).add(str(path.relative_to(PACKAGE)))
    third_party = {name: files for name, files in users.items() if name not in sys.stdlib_module_names | {"gpulaunch"}}
    assert third_party | {name: users[name] for name in ("argparse", "ctypes")} == DOORS


@pytest.mark.parametrize("path", [f for f in FILES if "core" in f.parts], ids=lambda path: path.name)
def test_deciding_is_pure(path: Path) -> None:
    """The core imports nothing that does input or output, reads a clock, the environment or unseeded randomness."""
    allowed = {"random"} if str(path.relative_to(PACKAGE)) in SEEDED else set()
    assert {name.partition(".")[0] for name in imports(path)} & PURE - allowed == set()


_DRAWN = (
    "gpulaunch.show.tables",
    "gpulaunch.show.terminal",
    "gpulaunch.show.plan_table",
    "gpulaunch.show.replay_table",
    "gpulaunch.show.report.page",
)


def test_launch_imports_what_costs_late() -> None:
    """The files of the launch path import rich, argparse and NVML inside functions, if at all."""
    for path in FILES:
        body = ast.parse(path.read_text()).body
        top = {a.name for node in body if isinstance(node, ast.Import) for a in node.names}
        top |= {node.module for node in body if isinstance(node, ast.ImportFrom)}
        drawing = "render" in path.parts
        if not drawing and str(path.relative_to(PACKAGE)) not in {file for files in DOORS.values() for file in files}:
            assert top & {"rich", "argparse", "pynvml", *_DRAWN} == set(), path


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("mypy",),
    ],
    ids=" ".join,
)
def test_style_and_types(command: tuple[str, ...]) -> None:
    """Ruff and mypy (strict) find nothing."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
