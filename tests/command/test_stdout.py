"""What becomes of a command whose output cannot be written."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint

ROOT = Path(__file__).parents[2]
MAP = ("cluster", "map", "--cluster", "magc-a", "--policy", "default", "--ranks", "4")
PRINTING = [
    ("--help",),
    ("--version",),
    (*DGX, "--when", "--", "x"),
    (*DGX, "--dry-run", "--explain", "--", "x"),
    (*DGX, "--dry-run", "--json", "--", "x"),
    ("status", "--help"),
    ("status", *DGX),
    ("status", "--json", *DGX),
    ("history",),
    ("topo", "--svg", "-", *DGX),
    ("profile", "list"),
    ("profile", "scan", str(ROOT / "tests" / "scan_set" / "ddp.py")),
    ("free", "--mine", *DGX),
    ("reserve", "-n", "1", "--for", "1h", "--keep", *DGX),
    ("plan", str(ROOT / "examples" / "queue.toml"), "--json"),
    ("simulate", *DGX, "--jobs", str(ROOT / "examples" / "jobs.toml")),
    MAP,
    ("doctor", "--health", *DGX),
    ("completion", "bash"),
    ("help", "settings"),
]


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_output_that_cannot_be_written(launcher: Launcher, arguments: tuple[str, ...]) -> None:
    """A full disk is one line and status 125, a reader that has gone ends a command by SIGPIPE.

    With stdout closed it ends, too, and no message names a source file.
    """
    with open("/dev/full", "w") as full:
        written = run_into(launcher, full.fileno(), arguments)
    error = complaint("cannot write to stdout: no space left on device")
    assert (written.returncode, written.stderr.splitlines()[:1]) == (125, error.splitlines())

    read_end, write_end = os.pipe()
    os.close(read_end)
    piped = run_into(launcher, write_end, arguments)
    os.close(write_end)
    assert (piped.returncode, piped.stderr) == (-signal.SIGPIPE, "")

    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", launcher.script, *arguments],
        env=launcher.environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert closed.returncode in (0, 125)
    said = (written.stderr + closed.stderr).splitlines()
    assert [line for line in said if line.startswith("gpulaunch:") and ".py" in line] == []


def run_into(
    launcher: Launcher, stdout: int, arguments: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """Run a command whose stdout is this descriptor."""
    return launcher.run(
        *arguments, capture_output=False, stdout=stdout, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("limit", range(5, 12))
def test_too_few_descriptors(launcher: Launcher, limit: int) -> None:
    """Where a system call fails, the message has its reason and names no source file."""
    for arguments in (("reserve", "-n", "1", "--for", "1h", "--keep"), ("-d", "-n", "1")):
        done = subprocess.run(
            ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", launcher.script, *arguments, *DGX]
            + (["--", "true"] if arguments[0] == "-d" else []),
            env=launcher.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stderr.splitlines()
        assert [line for line in said if line.startswith("gpulaunch:") and ".py" in line] == []
        assert done.returncode in (0, 1, 125)  # 1: Python itself did not start
    launcher.run("free", "--mine", *DGX)
