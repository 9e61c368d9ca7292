"""Mistakes of new users beyond what tests/corpus/mistakes.txt holds to the byte."""

import shlex
from pathlib import Path

from conftest import DGX, Launcher


def test_hints_can_be_pasted(launcher: Launcher) -> None:
    """The line of a hint runs what was meant to run."""
    meant = ["sh", "-c", "echo $1", "--", "me"]
    hint = launcher.run(*DGX, "-n2", *meant).stderr.splitlines()[-1]
    words = shlex.split(hint)
    done = launcher.run(*words[words.index("gpulaunch") + 1 :])
    assert (done.returncode, done.stdout) == (0, "me\n"), hint


def test_a_relative_home(launcher: Launcher, tmp_path: Path) -> None:
    """A HOME that is no absolute path stops no launch."""
    launcher.environment["HOME"] = "home"
    done = launcher.run(*DGX, "-n", "1", "--", "true", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
