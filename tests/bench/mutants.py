"""What the tests notice: one operator or constant of the package is changed, and the tests run.

A mutant is one comparison, operator, `not`, number or truth value inside a function of the rooms
that decide, lease and launch. Which ones are drawn depends on the seed and on each place's own
text, so that two checkouts whose package is the same have the same mutants. First the whole suite
runs once over a copy of the checkout that writes down which test comes by which place. Then each
mutant is tried on the tests that come by, quick ones first, until two of them fail.

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
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("decide", "leases", "launch", "sharing", "containers", "process")  # decide/ has placement/
KILLERS = 2
AT_ONCE = 2
FIRST = 100  # tests tried before all that come by
HANGS_S = 45  # three times the slowest test; one that takes longer hangs: the mutant is killed
SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in", "and": "or", "or": "and",
    "+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "|": "&", "&": "|",
}  # fmt: skip
TOKEN = re.compile(rb"is\s+not\b|not\s+in\b|\b(?:is|in|and|or)\b|//|<=|>=|==|!=|[-<>+*/%|&]")

PLUGIN = """
import os, subprocess, time
import pytest

try:
    from gpulaunch import reached
except ImportError:  # it is there while the suite is recorded
    reached = None

log = open(os.environ["MUTANTS_LOG"], "a", buffering=1)
started = subprocess.Popen.__init__

def start(self, *args, **named):  # most tests give what they start an environment of its own
    if named.get("env") is not None:
        named["env"] = {**named["env"], "MUTANTS_TEST": os.environ.get("MUTANTS_TEST", "")}
    started(self, *args, **named)

subprocess.Popen.__init__ = start

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    os.environ["MUTANTS_TEST"] = item.nodeid
    if reached:
        reached.current = item.nodeid  # for forks, whose environment is another one
    print("started", 0, item.nodeid, sep="\\t", file=log)

def pytest_runtest_logreport(report):
    if os.environ.get("PYTEST_XDIST_WORKER") is None and hasattr(report, "node"):
        return  # the worker has written it
    outcome = "failed" if report.failed else "done" if report.when == "call" else None
    if outcome:
        print(outcome, f"{report.duration:.3f}", report.nodeid, sep="\\t", file=log)

def pytest_collectreport(report):  # the module of the tests calls what was changed
    if report.failed:
        print("failed", 0, report.nodeid, sep="\\t", file=log)

def pytest_sessionfinish():
    print("finished", 0, "", sep="\\t", file=log)
"""
REACHED = '''
"""Writes down which test comes by which place."""
import os

current = ""
_seen = set()

def hit(place):
    test = os.environ.get("MUTANTS_TEST") or current
    if (place, test) not in _seen:
        _seen.add((place, test))
        try:
            descriptor = os.open({path!r}, os.O_WRONLY | os.O_APPEND)
            os.write(descriptor, f"{{place}}\\t{{test}}\\n".encode())
            os.close(descriptor)
        except OSError:
            pass
'''


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
    """Draw the mutants, see which tests come by, try each, and print the table."""
    given = _read_arguments()
    work = given.work or Path(tempfile.mkdtemp(prefix="mutants-"))
    mutants = drawn(given.checkout, given.only, given.seed, given.count)
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(AT_ONCE):  # before the suite runs: the checkout may change meanwhile
        copies.put(_copied(given.checkout, work / f"copy-{number}"))
    reached, times = _come_by(given.checkout, mutants, work, given.tests)
    results = work / f"results-{given.limit}.json"
    found = json.loads(results.read_text()) if results.exists() else {}

    def attempt(mutant: Mutant) -> None:
        if mutant.name in found:
            return
        copy = copies.get()
        try:
            found[mutant.name] = _tried(mutant, copy, reached[mutant.name], times, given.limit)
        finally:
            copies.put(copy)
        results.write_text(json.dumps(found, indent=1))
        print(_row(mutant.name, found[mutant.name], reached), flush=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(attempt, mutants))
    killed = [mutant.name for mutant in mutants if found[mutant.name]["killers"]]
    print(f"\n{len(killed)} of {len(mutants)} killed. Alive:")
    for mutant in mutants:
        if mutant.name not in killed:
            print(_row(mutant.name, found[mutant.name], reached))


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


def _row(name: str, result: dict, reached: dict[str, list[str]]) -> str:
    killers = ", ".join(result["killers"]) or "ALIVE" + (" at the limit" * result["cut_off"])
    return f"{name:80} {len(reached[name]):5} tests {result['took_s']:6.1f} s  {killers}"


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
    (copy / "mutants_plugin.py").write_text(PLUGIN)
    return copy


def _pytest(copy: Path, log: Path, *arguments: str, limit: float | None = None) -> bool:
    """Run pytest in a copy; whether it was cut off."""
    environment = {**os.environ, "MUTANTS_LOG": str(log), "PYTHONPATH": str(copy)}
    environment["PATH"] = f"{copy}/.venv/bin:{environment['PATH']}"
    command = [f"{copy}/.venv/bin/python", "-m", "pytest", "-q", "-p", "mutants_plugin", *arguments]
    with (log.parent / f"{log.stem}.out").open("w") as out:
        process = subprocess.Popen(
            command, cwd=copy, env=environment, stdin=subprocess.DEVNULL,
            stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return True
    if process.returncode == pytest.ExitCode.USAGE_ERROR and "failed" not in log.read_text():
        sys.exit(f"pytest did not start:\n{Path(out.name).read_text()}")
    return False


def _come_by(  # noqa: C901
    checkout: Path, mutants: list[Mutant], work: Path, tests: list[str]
) -> tuple[dict[str, list[str]], dict[str, float]]:
    """Run all tests once; the tests that come by each mutant's place, and how long each takes."""
    hits, log = work / "hits.tsv", work / "times.tsv"
    if not hits.exists():
        copy = _copied(checkout, work / "recording")
        work.chmod(0o755)
        hits.touch()
        hits.chmod(0o666)
        (copy / "gpulaunch" / "reached.py").write_text(REACHED.format(path=str(hits)))
        by_file = defaultdict(list)
        for number, mutant in enumerate(mutants):
            by_file[mutant.path].append((mutant.whole, number))
        for path, places in by_file.items():
            insertions = []
            for (start, end), number in places:
                call = b'(__import__("gpulaunch.reached").reached.hit(%d) or (' % number
                insertions += [(start, 1, -end, call), (end, 0, -start, b"))")]
            source = (checkout / path).read_bytes()
            for at, _, _, text in sorted(insertions, reverse=True):
                source = source[:at] + text + source[at:]
            compile(source, path, "exec")
            (copy / path).write_bytes(source)
        begun = time.monotonic()
        _pytest(copy, log, "-n", "3", "--dist", "loadfile", *tests)
        print(f"the suite took {time.monotonic() - begun:.0f} s", file=sys.stderr)
    times, failed = {}, set()
    for line in log.read_text().splitlines():
        outcome, took, test = line.split("\t", 2)
        if outcome == "failed":
            failed.add(test)
        elif outcome == "done":
            times[test] = float(took)
    reached: dict[str, list[str]] = {mutant.name: [] for mutant in mutants}
    for line in sorted(set(hits.read_text().splitlines())):
        number, _, test = line.partition("\t")
        if test in times and test not in failed:
            reached[mutants[int(number)].name].append(test)
    return reached, times


def _tried(
    mutant: Mutant, copy: Path, tests: list[str], times: dict[str, float], limit: float
) -> dict:
    """Run the tests that come by on a mutant, until two have failed or the time is over."""
    rank: dict[str, int] = defaultdict(int)
    order = []
    for test in sorted(tests, key=lambda test: times[test]):
        file = test.partition("::")[0]
        rank[file] += 1
        order.append((test.startswith("tests/host"), rank[file], times[test], test))
    ordered = [test for *_, test in sorted(order)]
    path = copy / mutant.path
    source = path.read_bytes()
    path.write_bytes(source[: mutant.start] + mutant.text + source[mutant.end :])
    begun = time.monotonic()
    killers: list[str] = []
    cut_off = False
    for batch in (ordered[:FIRST], ordered[FIRST:]):
        log = copy.parent / f"{copy.name}.log"
        log.unlink(missing_ok=True)
        left = limit - (time.monotonic() - begun) if limit else None
        if not batch or len(killers) >= KILLERS or (left is not None and left <= 0):
            break
        (copy / "tests.txt").write_text("\n".join(batch))
        cut_off = _pytest(
            copy, log, f"--maxfail={KILLERS - len(killers)}", "-p", "no:cacheprovider",
            "-o", f"faulthandler_timeout={HANGS_S}", "@tests.txt", limit=left,
        )  # fmt: skip
        lines = (
            [line.split("\t", 2) for line in log.read_text().splitlines()] if log.exists() else []
        )
        for outcome, _, test in lines:
            if outcome == "failed" and test not in killers:
                killers.append(test)
        if not cut_off and (not lines or lines[-1][0] != "finished"):
            killers.append(f"{lines[-1][2] if lines else 'import'} (hung or crashed)")
            break
        if cut_off:
            break
    path.write_bytes(source)
    return {
        "killers": killers,
        "cut_off": cut_off,
        "took_s": time.monotonic() - begun,
        "ran": len(tests),
    }


if __name__ == "__main__":
    main()
