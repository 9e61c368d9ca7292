"""`gpulaunch profile list` and `profile show NAME` at a terminal and to a pipe."""

import re
from pathlib import Path

import pexpect
import pytest
from conftest import SCRIPT, Launcher
from test_profile_view import FULL

from gpulaunch.files.write import document_text
from gpulaunch.profiles.catalog import load_profile, profile_names


def test_list_at_a_terminal(launcher: Launcher) -> None:
    """At 80 columns no line is longer or ends in a blank, and descriptions are there in full."""
    child = pexpect.spawn(
        str(SCRIPT), ["profile", "list"], env=launcher.environment, dimensions=(50, 80), timeout=60
    )
    shown = re.sub(r"\x1b\[[0-9;]*m", "", child.read().decode()).splitlines()
    child.close()
    assert [line for line in shown if len(line) > 80 or line != line.rstrip()] == []
    words = " ".join(" ".join(shown).split())
    assert [name for name in profile_names() if load_profile(name).description not in words] == []


@pytest.fixture
def full(tmp_path: Path) -> str:
    path = tmp_path / "full.toml"
    path.write_text(document_text(FULL))
    return str(path)


def test_show_to_a_pipe(launcher: Launcher, full: str) -> None:
    """To a pipe it prints without a control code, and breaks no line; to an ASCII one in ASCII."""
    launcher.environment["PYTHONIOENCODING"] = "ascii"
    done = launcher.run("profile", "show", full)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[1]) == (0, "", f"file: {full}")
    assert [line for line in lines if not line.isprintable() or not line.isascii()] == []
    assert ("\\u" in done.stdout, max(map(len, lines)) > 80) == (False, True)


@pytest.mark.parametrize("is_dumb", [False, True])
def test_bold(launcher: Launcher, full: str, is_dumb: bool) -> None:
    """A terminal gets bold headings, unless TERM is dumb."""
    environment = launcher.environment | {"TERM": "dumb" if is_dumb else "xterm-256color"}
    child = pexpect.spawn(
        str(SCRIPT), ["profile", "show", full], env=environment, dimensions=(50, 80), timeout=60
    )
    shown = child.read().decode()
    child.close()
    assert child.exitstatus == 0
    assert ("\x1b[1m" in shown) is not is_dumb
    assert "SM utilization" in shown
