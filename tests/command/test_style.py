"""Style and types of the whole repository."""

import subprocess
import sys

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
