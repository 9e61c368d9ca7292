"""Style and types of the whole repository."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_structure import ROOT


@pytest.mark.parametrize(
    "command", [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)], ids=" ".join
)
def test_style_and_types(command: tuple[str, ...]) -> None:
    """Ruff and mypy (strict) find nothing."""
    words = [sys.executable, "-m", *command]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


MISTAKES = """
from gpulaunch.records import Record, replace

class Point(Record):
    x: int
    y: int = 0

point = Point(1, y=2)
Point()
Point("1")
point.x = 3
replace(point, y="3")
a, b = point
"""


def test_a_type_checker_knows_records(tmp_path: Path) -> None:
    """Mypy sees wrong arguments, assignments, replacements and unpackings of a record."""
    file = tmp_path / "mistakes.py"
    file.write_text(MISTAKES)
    words = [sys.executable, "-m", "mypy", "--strict", file]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = MISTAKES.splitlines()
    found = re.findall(r":(\d+): error: .*\[(.*)\]", done.stdout)
    assert [(lines[int(line) - 1], code) for line, code in found] == [
        ("Point()", "call-arg"),
        ('Point("1")', "arg-type"),
        ("point.x = 3", "misc"),
        ('replace(point, y="3")', "arg-type"),
        ("a, b = point", "misc"),
    ]
