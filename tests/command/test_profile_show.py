"""`gpulaunch profiles` and `profiles show NAME` at a terminal, to a pipe and with `--svg FILE`."""

import re
from pathlib import Path

import pexpect
import pytest
from conftest import SCRIPT, Launcher
from test_profile_view import FULL, texts

from gpulaunch.files.write import document_text
from gpulaunch.profiles.catalog import load_profile, profile_names


def test_list_at_a_terminal(launcher: Launcher) -> None:
    """At 80 columns no line is longer or ends in a blank, and descriptions are there in full."""
    child = pexpect.spawn(
        str(SCRIPT), ["profiles"], env=launcher.environment, dimensions=(50, 80), timeout=60
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
    done = launcher.run("profiles", "show", full)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[1].split()) == (0, "", ["file", full])
    assert [line for line in lines if not line.isprintable()] == []
    assert max(map(len, lines)) > 80


def test_pipe_without_unicode(launcher: Launcher, full: str) -> None:
    """Where stdout takes ASCII only, everything is drawn in ASCII."""
    launcher.environment["PYTHONIOENCODING"] = "ascii"
    done = launcher.run("profiles", "show", full)
    assert (done.returncode, done.stdout.isascii(), "\\u" in done.stdout) == (0, True, False)
    assert "####" in done.stdout


def test_show_at_a_terminal(launcher: Launcher, full: str) -> None:
    """At 40 columns all lines fit, but for the path of the file, which is not broken."""
    child = pexpect.spawn(
        str(SCRIPT),
        ["profiles", "show", full],
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
        str(SCRIPT), ["profiles", "show", full], env=environment, dimensions=(50, 80), timeout=60
    )
    shown = child.read().decode()
    child.close()
    assert child.exitstatus == 0
    assert bool(re.search(r"\x1b\[(\d+;)*3\d", shown)) is not no_colour
    assert "SM utilization" in shown


def test_picture_of_a_profile(launcher: Launcher, full: str, tmp_path: Path) -> None:
    """`--svg FILE` writes the picture and prints nothing, with a described machine's memory."""
    done = launcher.run("profiles", "show", full, "--svg", str(tmp_path / "out.svg"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "13.79 GiB of 15.78 GiB" in texts((tmp_path / "out.svg").read_text())


def test_picture_without_matplotlib(launcher: Launcher, full: str, tmp_path: Path) -> None:
    """Without matplotlib --svg says what to install and writes nothing; the terminal needs none."""
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "matplotlib.py").write_text(
        'raise ModuleNotFoundError("No module named \'matplotlib\'", name="matplotlib")\n'
    )
    launcher.environment["PYTHONPATH"] = str(tmp_path / "block")
    done = launcher.run("profiles", "show", full, "--svg", str(tmp_path / "out.svg"))
    assert (done.returncode, done.stdout) == (125, "")
    assert re.fullmatch(
        "gpulaunch: error: a picture needs matplotlib: No module named 'matplotlib'\n"
        r"gpulaunch: hint: /.*/python[\d.]* -m pip install 'matplotlib>=3\.10'\n",
        done.stderr,
    )
    assert not (tmp_path / "out.svg").exists()
    assert launcher.run("profiles", "show", full).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--svg", "x.svg"), "--svg goes with 'gpulaunch profiles show', without --json"),
        (
            ("show", "vgg16", "--json", "--svg", "x.svg"),
            "--svg goes with 'gpulaunch profiles show', without --json",
        ),
        (("show", "vgg16", "--svg", ""), "--svg has an empty value"),
    ],
)
def test_where_svg_belongs(launcher: Launcher, arguments: tuple[str, ...], message: str) -> None:
    """--svg asks for a picture of one profile."""
    done = launcher.run("profiles", *arguments)
    assert (done.returncode, done.stderr) == (2, f"gpulaunch: error: {message}\n")
