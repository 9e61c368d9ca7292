"""What the tests notice: one operator or constant of the package is changed, and the tests run.

A mutant is one comparison, operator, `not`, number or truth value inside a function of the rooms
that decide, lease and launch. Which ones are drawn depends on the seed and on each place's own
text, so that two checkouts whose package is the same have the same mutants. Each is tried, in a
copy of the checkout, on the tests that are named, or on all, until one of them fails.

Run: python tests/bench/mutants.py [CHECKOUT] [--count N] [--seed N] [--limit SECONDS] [--work DIR]

The checkout has its `.venv`. --work keeps the copies and what was found: a run that was interrupted
goes on there. --only FILE... mutates these files alone, --tests FILE... runs these tests alone.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("decide", "placement", "leases", "launch", "sharing", "containers", "process")
AT_ONCE = 2
ALIVE = "ALIVE"
HANGS_S = 45  # three times the slowest test
SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in", "and": "or", "or": "and",
    "+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "|": "&", "&": "|",
}  # fmt: skip
TOKEN = re.compile(rb"is\s+not\b|not\s+in\b|\b(?:is|in|and|or)\b|//|<=|>=|==|!=|[-<>+*/%|&]")


class Mutant(NamedTuple):
    """One change of one file: the bytes from start to end become text.

    Attributes:
        name: file:line, and what becomes of what.
        whole: first and last byte of the expression around the change.
    """

    name: str
    path: str
    start: int
    end: int
    text: bytes
    whole: tuple[int, int]


def main() -> None:
    """Draw the mutants, try each, and print the table."""
    given = _read_arguments()
    work = given.work or Path(tempfile.mkdtemp(prefix="mutants-"))
    mutants = drawn(given.checkout, given.only, given.seed, given.count)
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(AT_ONCE):  # before the first test runs: the checkout may change meanwhile
        copies.put(_copied(given.checkout, work / f"copy-{number}"))
    results = work / f"results-{given.limit}.json"
    found = json.loads(results.read_text()) if results.exists() else {}

    def attempt(mutant: Mutant) -> None:
        if mutant.name in found:
            return
        copy = copies.get()
        try:
            found[mutant.name] = _killer(mutant, copy, given.tests, given.limit or None)
        finally:
            copies.put(copy)
        results.write_text(json.dumps(found, indent=1))
        print(f"{mutant.name:80} {found[mutant.name]}", flush=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(attempt, mutants))
    alive = [mutant.name for mutant in mutants if found[mutant.name].startswith(ALIVE)]
    print(f"\n{len(mutants) - len(alive)} of {len(mutants)} killed. Alive:", *alive, sep="\n")


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--limit", type=int, default=60, help="seconds a mutant; 0: none")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--only", nargs="+", default=[f"gpulaunch/{room}" for room in ROOMS])
    parser.add_argument("--tests", nargs="+", default=[])
    return parser.parse_args()


def drawn(checkout: Path, only: list[str], seed: str, count: int) -> list[Mutant]:
    """Return the mutants with the lowest hashes of seed and place, in the order of these."""
    found = []
    for path in only:
        files = sorted((checkout / path).rglob("*.py")) or [checkout / path]
        for file in files:
            found += _mutants_of(str(file.relative_to(checkout)), file.read_bytes())
    return sorted(found, key=lambda m: hashlib.sha256(f"{seed} {m.name}".encode()).digest())[:count]


def _mutants_of(path: str, source: bytes) -> Iterator[Mutant]:  # noqa: C901
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def span(node: ast.AST) -> tuple[int, int]:
        return (
            lines[node.lineno - 1] + node.col_offset,
            lines[node.end_lineno - 1] + node.end_col_offset,
        )

    def change(node: ast.AST, start: int, end: int, text: bytes) -> Mutant:
        line = source[:start].count(b"\n")
        shown = source[lines[line] : lines[line + 1]].strip().decode()
        old, at = source[start:end].decode(), start - lines[line]
        name = f"{path}:{line + 1}:{at} {old} -> {text.decode().strip() or 'gone'}: {shown}"
        return Mutant(name, path, start, end, text, span(node))

    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            for node in _expressions(function.body):
                if isinstance(node, ast.Compare | ast.BoolOp | ast.BinOp):
                    parts = (
                        [node.left, *node.comparators] if isinstance(node, ast.Compare)
                        else node.values if isinstance(node, ast.BoolOp)
                        else [node.left, node.right]
                    )  # fmt: skip
                    for left, right in pairwise(parts):
                        gap = span(left)[1]
                        token = TOKEN.search(source, gap, span(right)[0])
                        old = b" ".join(token[0].split()).decode() if token else ""
                        if old in SWAPS:
                            yield change(node, *token.span(), SWAPS[old].encode())
                elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                    start = span(node)[0]
                    yield change(node, start, start + 3, b"   ")
                elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
                    other = not node.value if isinstance(node.value, bool) else node.value + 1
                    yield change(node, *span(node), str(other).encode())


def _expressions(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Walk what a function evaluates itself: neither annotations nor patterns, nor functions."""
    left: list[ast.AST] = list(body)
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.JoinedStr | ast.pattern):
            continue
        yield node
        skipped = node.annotation if isinstance(node, ast.AnnAssign) else None
        left += [child for child in ast.iter_child_nodes(node) if child is not skipped]


def _copied(checkout: Path, copy: Path) -> Path:
    """Copy a checkout with its virtual environment, which then runs the copy."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=checkout, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    files = [name for name in tracked if (checkout / name).exists()]
    pack = subprocess.Popen(["tar", "c", *files, ".venv"], cwd=checkout, stdout=subprocess.PIPE)
    subprocess.run(["tar", "x", "-C", str(copy)], stdin=pack.stdout, check=True)
    old, new = os.fsencode(checkout.resolve()), os.fsencode(copy.resolve())
    environment = copy / ".venv"
    for file in [*environment.glob("bin/*"), *environment.glob("lib/*/site-packages/*.pth")]:
        if file.is_file() and not file.is_symlink():
            file.write_bytes(re.sub(re.escape(old) + rb"\b", new, file.read_bytes()))
    if (checkout / "build").exists():  # engines and daemons that the tests use
        (copy / "build").symlink_to((checkout / "build").resolve())
    subprocess.run("git init -q && git add -A && git -c user.name=m -c user.email=m@x commit -qm m",
                   shell=True, cwd=copy, check=True)  # fmt: skip
    return copy


def _killer(mutant: Mutant, copy: Path, tests: list[str], limit_s: float | None) -> str:
    """Run tests on a mutant; return the first that fails, or that it is alive."""
    path = copy / mutant.path
    source = path.read_bytes()
    path.write_bytes(source[: mutant.start] + mutant.text + source[mutant.end :])
    process = subprocess.Popen(
        [
            f"{copy}/.venv/bin/python", "-m", "pytest", "-qx", "-p", "no:cacheprovider",
            "-o", f"faulthandler_timeout={HANGS_S}", "-n", "2", *tests,
        ],
        cwd=copy,
        env={**os.environ, "PATH": f"{copy}/.venv/bin:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return f"{ALIVE} at the limit"
    finally:
        path.write_bytes(source)
    if process.returncode == pytest.ExitCode.OK:
        return ALIVE
    return next(iter(re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)), said[-200:])


if __name__ == "__main__":
    main()
