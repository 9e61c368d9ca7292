"""A launch through a container engine that gpulaunch knows only by its row in the registry."""

import subprocess
import sys
from pathlib import Path

import made_up_engine
from conftest import DGX, Launcher

PROGRAM = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from gpulaunch.containers import engines
from made_up_engine import BoxEngine
engines.ENGINES["boxer"] = BoxEngine
from gpulaunch.__main__ import main
main()
"""


def test_a_launch_goes_through_it(launcher: Launcher) -> None:
    """The launched program has the GPUs and the lease, and its status is the launch's."""
    program = launcher.state.parent / "boxer"
    program.write_text('#!/bin/sh\necho "$@"\nls "$GPULAUNCH_STATE_DIR" | grep -c lease\nexit 5\n')
    program.chmod(0o755)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PROGRAM,
            Path(made_up_engine.__file__).parent,
            *DGX,
            "--",
            program,
            "run",
            "image",
        ],
        env=launcher.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    line, leases = done.stdout.splitlines()
    words = line.split()
    assert (words[:3], words[-1]) == (["run", "--accelerators", "cdi:0"], "image")
    assert any(word.startswith("io.gpulaunch.lease=") for word in words)
    assert (leases, done.returncode, done.stderr) == ("1", 5, "")
    assert launcher.records() == []
