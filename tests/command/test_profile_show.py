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
    """To a pipe it prints without a control code, and breaks no line."""
    done = launcher.run("profile", "show", full)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[1].split()) == (0, "", ["file", full])
    assert [line for line in lines if not line.isprintable()] == []
    assert max(map(len, lines)) > 80


def test_pipe_without_unicode(launcher: Launcher, full: str) -> None:
    """Where stdout takes ASCII only, everything is drawn in ASCII."""
    launcher.environment["PYTHONIOENCODING"] = "ascii"
    done = launcher.run("profile", "show", full)
    assert (done.returncode, done.stdout.isascii(), "\\u" in done.stdout) == (0, True, False)
    assert "####" in done.stdout


def test_show_at_a_terminal(launcher: Launcher, full: str) -> None:
    """At 40 columns all lines fit, but for the path of the file, which is not broken."""
    child = pexpect.spawn(
        str(SCRIPT),
        ["profile", "show", full],
        env=launcher.environment | {"NO_COLOR": "1"},
        dimensions=(50, 40),
        timeout=60,
    )
    shown = re.sub(r"\x1b\[[0-9;]*m", "", child.read().decode()).splitlines()
    child.close()
    assert [line.split()[-1] for line in shown if len(line) > 40] == [full]


@pytest.mark.parametrize("no_colour", [False, True])
def test_colours(launcher: Launcher, full: str, no_colour: bool) -> None:
    """A terminal gets colours, unless NO_COLOR is set."""
    environment = (
        launcher.environment | {"TERM": "xterm-256color"} | ({"NO_COLOR": "1"} if no_colour else {})
    )
    child = pexpect.spawn(
        str(SCRIPT), ["profile", "show", full], env=environment, dimensions=(50, 80), timeout=60
    )
    shown = child.read().decode()
    child.close()
    assert child.exitstatus == 0
    assert bool(re.search(r"\x1b\[(\d+;)*3\d", shown)) is not no_colour
    assert "SM utilization" in shown
