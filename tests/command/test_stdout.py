"""What becomes of a command whose output cannot be written."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint

ROOT = Path(__file__).parents[2]
MAP = ("cluster", "map", "--cluster", "magc-a", "--policy", "default", "--ranks", "4")
KEEP = ("reserve", "-n", "1", "--for", "1h", "--keep", *DGX)
PRINTING = [
    ("--help",),
    (*DGX, "--dry-run", "--json", "--", "x"),
    ("status", *DGX),
    ("topo", "-o", "-", *DGX),
    ("free", "--mine", *DGX),
    KEEP,
    ("simulate", *DGX, "--jobs", str(ROOT / "examples" / "jobs.toml")),
    MAP,
    ("completion", "bash"),
]


@pytest.mark.parametrize("arguments", PRINTING, ids=lambda words: " ".join(words[:2]))
def test_output_that_cannot_be_written(launcher: Launcher, arguments: tuple[str, ...]) -> None:
    """A full disk is one line and status 125, a reader that has gone ends a command by SIGPIPE.

    With stdout closed it ends, too, and no message names a source file.
    """
    options = {"capture_output": False, "stderr": subprocess.PIPE, "text": True}
    with open("/dev/full", "w") as full:
        written = launcher.run(*arguments, stdout=full, **options)
    error = complaint("cannot write to stdout: no space left on device")
    assert (written.returncode, written.stderr.splitlines()[:1]) == (125, error.splitlines())

    read_end, write_end = os.pipe()
    os.close(read_end)
    piped = launcher.run(*arguments, stdout=write_end, **options)
    os.close(write_end)
    assert (piped.returncode, piped.stderr) == (-signal.SIGPIPE, "")

    closed = in_shell(launcher, 'exec "$@" >&-', *arguments)
    assert closed.returncode in (0, 125)
    assert names_no_source(written.stderr + closed.stderr)


def in_shell(launcher: Launcher, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script for sh, whose arguments are a command line of gpulaunch."""
    words = ["sh", "-c", script, "sh", launcher.script, *arguments]
    return subprocess.run(
        words, env=launcher.environment, capture_output=True, text=True, check=False
    )


def names_no_source(said: str) -> bool:
    """Return whether no message has the name of a file of Python."""
    lines = said.splitlines()
    return not [line for line in lines if line.startswith("gpulaunch:") and ".py" in line]
