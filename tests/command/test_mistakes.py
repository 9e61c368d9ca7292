"""Mistakes of new users beyond what tests/corpus/mistakes.txt holds to the byte."""

import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import DGX, Launcher


def typed(launcher: Launcher, line: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a line as a shell does in which it was typed."""
    return subprocess.run(
        ["/bin/sh", "-c", line],
        env=launcher.environment,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    "line",
    [
        "gpulaunch -- ls",
        "gpulaunch -n2 -- python3 -c 'import os;print(1)'",
        "gpulaunch -n2 -- sh -c 'echo $1' -- me",
        "gpulaunch -- sh -c 'echo hello'",
    ],
)
def test_hints_can_be_pasted(line: str, launcher: Launcher, tmp_path: Path) -> None:
    """The line of a hint runs what was meant to run."""
    launcher.environment["GPULAUNCH_TOPOLOGY"] = "dgx1-v100"
    done = typed(launcher, line, tmp_path)
    alone = typed(launcher, shlex.join(shlex.split(line.partition(" -- ")[2])), tmp_path)
    assert (done.returncode, done.stdout) == (0, alone.stdout)


def test_a_relative_home(launcher: Launcher, tmp_path: Path) -> None:
    """A HOME that is no absolute path stops no launch."""
    launcher.environment["HOME"] = "home"
    done = launcher.run(*DGX, "-n", "1", "--", "true", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
