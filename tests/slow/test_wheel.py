"""What a wheel installs for shells and man, and that it is the same each time."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Launcher
from shells import BASH_COMPLETION, Shell

ROOT = Path(__file__).parents[2]


def build(directory: Path) -> Path:
    """Build the wheel by what pyproject.toml asks for, and nothing else."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", directory, ROOT]
    subprocess.run(command, check=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel once."""
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def prefix(wheel: Path, launcher: Launcher, tmp_path: Path) -> Path:
    """Install the wheel under a prefix that the shells know."""
    prefix = tmp_path / "prefix"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
    # Without --ignore-installed pip would uninstall the gpulaunch under test.
    subprocess.run([*pip, "--ignore-installed", "--prefix", prefix, wheel], check=True)
    launcher.environment["XDG_DATA_DIRS"] = f"{prefix}/share:/usr/local/share:/usr/share"
    return prefix


LOAD = {
    "bash": f"source {BASH_COMPLETION}",
    "zsh": "fpath=({prefix}/share/zsh/site-functions $fpath); compinit -u -D",
    "fish": "true",
}
"""What each shell does at its start to find completions, with the folders of the prefix."""


@pytest.mark.parametrize("name", LOAD)
def test_shells_find_the_completion(launcher: Launcher, prefix: Path, name: str) -> None:
    """bash, zsh and fish load the script of an installed wheel by themselves."""
    shell = Shell(name, launcher, LOAD[name].format(prefix=prefix))
    for _ in range(2):  # at the first Tab the script is loaded
        assert shell.tab("gpulaunch --topology dgx1-v").rstrip() == (
            "gpulaunch --topology dgx1-v100"
        )
    shell.close()


def test_man_finds_the_pages(prefix: Path) -> None:
    """Man finds the page of a command beside the directory of the program."""
    done = subprocess.run(
        ["man", "--path"],
        env={"PATH": f"{prefix}/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{prefix}/share/man" in done.stdout.split(":")
    assert (prefix / "share" / "man" / "man1" / "gpulaunch-status.1").exists()


def test_a_wheel_is_the_same_each_time(wheel: Path, tmp_path: Path) -> None:
    """Building twice makes the same bytes."""
    again = build(tmp_path)
    assert (
        hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(wheel.read_bytes()).digest()
    )
