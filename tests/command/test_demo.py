"""examples/demo.sh plays the README's scene, and leaves nothing behind."""

import html
import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pexpect
import pytest
from conftest import Launcher, until

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs"))

import picture  # noqa: E402

pytest_plugins = ("fake_nvml",)


class Place:
    """What looks like a clone, and other directories in which the demo might leave something.

    Attributes:
        clone: the clone, with a blank in its path.
        variables: the environment, whose HOME cannot be made.
    """

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.clone, temporary = directory / "a clone", directory / "temporary files"
        self.clone.mkdir()
        temporary.mkdir()
        self.variables = {
            **{name: value for name, value in environment.items() if not name.startswith("XDG_")},
            "HOME": "/proc/none",
            "TMPDIR": str(temporary),
        }
        picture.lay_out(self.clone)
        self._places = (directory, self.clone, temporary, Path("/run/lock"))
        self._before = self._files()

    def start(self) -> pexpect.spawn:
        """Start the demo in a terminal."""
        return picture.start(self.clone, **self.variables)

    def play(self) -> tuple[int, str]:
        """Play the demo to its end; return its exit status and what it printed."""
        return picture.finish(self.start())

    def left(self) -> set[str]:
        """Return the files that were not there before, once the last process has ended."""
        until(lambda: not self._running())
        return self._files() - self._before

    def _files(self) -> set[str]:
        return {name for place in self._places for name in os.listdir(place)}

    def _running(self) -> bool:
        sign = f"TMPDIR={self.variables['TMPDIR']}\0".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it may end meanwhile, or be another user's
                if sign in path.read_bytes():
                    return True
        return False


@pytest.fixture
def place(launcher: Launcher, tmp_path: Path) -> Place:
    """Return a place for the demo, on a machine without GPUs."""
    return Place(tmp_path, launcher.environment)


@pytest.mark.usefixtures("dgx1_v100")
def test_scene(place: Place) -> None:
    """The demo prints what the page shows, whatever its caller has set, also beside GPUs."""
    place.variables |= {"GPULAUNCH_GPUS": "2", "CUDA_VISIBLE_DEVICES": "7"}
    status, printed = place.play()
    assert picture.lasting(printed) == picture.lasting(picture.shown())
    assert (status, place.left()) == (0, set())


def test_interrupted(place: Place) -> None:
    """Ctrl-C ends the demo and its jobs at once, and nothing is left behind."""
    terminal = place.start()
    terminal.expect_exact("--name big")
    terminal.sendintr()
    assert picture.finish(terminal)[0] == 130
    assert place.left() == set()


def test_a_job_that_fails(place: Place) -> None:
    """The demo fails where a job of it does, and shows what the job says."""
    (place.clone / "examples").unlink()
    shutil.copytree(ROOT / "examples", place.clone / "examples")
    (place.clone / "examples" / "train.py").write_text("raise SystemExit('no data')")
    status, printed = place.play()
    assert printed.splitlines()[-2:] == ["no data", "demo: the training did not start"]
    assert (status, place.left()) == (1, set())


def test_python(place: Place, tmp_path: Path) -> None:
    """Without a Python that can install gpulaunch, one line says what to do."""
    (place.clone / ".venv").unlink()
    python = tmp_path / "python"
    place.variables["PYTHON"] = str(python)
    for script, want in {
        "exit 127": f"{python} cannot be run: install Python 3.10 or newer",
        'case "$*" in *version_info*) exit 1 ;; --version) echo Python 3.9.2 ;; esac': (
            f"Python 3.10 or newer is needed, {python} is Python 3.9.2: name another, as in "
        ),
        'case "$*" in *ensurepip*) exit 1 ;; esac': f"{python} has no module venv: ",
    }.items():
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        status, printed = place.play()
        assert (status, printed.startswith(f"demo: {want}")) == (1, True)


def test_picture() -> None:
    """docs/picture.svg has the words of the scene."""
    drawn = re.sub(r"<style>.*?</style>|<[^>]+>", " ", picture.PICTURE.read_text(), flags=re.DOTALL)
    assert html.unescape(drawn).split() == f"{picture.COMMAND} {picture.shown()}".split()
