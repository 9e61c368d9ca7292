"""Ctrl-C while gpulaunch is still being loaded."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DGX, Launcher

SCRIPT = Path(__file__).parents[2] / "bin" / "gpulaunch"
INTERRUPTED = """\
import os, signal, sys
seen = 0
def note(event, arguments):
    global seen
    if event == "import":
        seen += 1
        if seen == at:
            os.kill(os.getpid(), 2)
signal.signal(2, {handler})
at, script, *sys.argv = int(sys.argv[1]), *sys.argv[2:]
text = compile(open(script).read(), script, "exec")
del sys.modules["signal"]  # Python's start may have loaded it, and the script has to do without
sys.addaudithook(note)
exec(text)
"""


def interrupted(
    launcher: Launcher, at: int, handler: str = "signal.default_int_handler"
) -> subprocess.CompletedProcess[str]:
    """Run the script with an INT at the import with this number, counted from its first line."""
    program = INTERRUPTED.format(handler=handler)
    arguments = [sys.executable, "-c", program, str(at), str(SCRIPT), "gpulaunch"]
    return subprocess.run(
        [*arguments, *DGX, "-n", "1", "--", "echo", "ran"],
        env=launcher.environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("at", [1, 3, 8, 34, 80])
def test_ctrl_c_while_loading(launcher: Launcher, at: int) -> None:
    """Whichever import Ctrl-C meets, the command dies of it without a word."""
    done = interrupted(launcher, at)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ignored_ctrl_c_while_loading(launcher: Launcher) -> None:
    """Where INT is ignored, as behind nohup, it still is while gpulaunch is being loaded."""
    done = interrupted(launcher, 3, "signal.SIG_IGN")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
