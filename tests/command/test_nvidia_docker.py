"""The program nvidia-docker: a link to gpulaunch, made and removed by setup."""

import os
import shutil
from pathlib import Path

import pytest
from conftest import SCRIPT, Launcher, complaint


@pytest.fixture
def installed(launcher: Launcher, tmp_path: Path) -> Launcher:
    """Return a launcher whose program is alone in its directory, beside a docker that echoes."""
    directory = tmp_path / "bin"
    directory.mkdir()
    shutil.copy(SCRIPT, directory / "gpulaunch")
    docker = directory / "docker"
    docker.write_text('#!/bin/sh\necho "docker $*"\n')
    docker.chmod(0o755)
    launcher.script = str(directory / "gpulaunch")
    launcher.environment["PATH"] = f"{directory}{os.pathsep}{os.environ['PATH']}"
    return launcher


def setup(launcher: Launcher, option: str) -> tuple[int, str, str]:
    """Run setup with an option."""
    done = launcher.run("setup", option)
    return done.returncode, done.stdout, done.stderr


def test_made_used_and_removed(installed: Launcher) -> None:
    """The link is made once, passes on what makes no container, and goes again."""
    link = f"{Path(installed.script).parent}/nvidia-docker"
    made = f"{link} is gpulaunch now: 'nvidia-docker run' leases the GPUs of its container\n"
    assert setup(installed, "--nvidia-docker") == (0, made, "")
    assert setup(installed, "--nvidia-docker") == (0, made, "")
    assert os.readlink(link) == "gpulaunch"
    installed.script = link
    for words in (("--version",), ("ps", "-a"), ("run", "--help"), ("-D", "images"), ("status",)):
        done = installed.run(*words)
        assert (done.returncode, done.stdout) == (0, f"docker {' '.join(words)}\n"), done.stderr
    installed.script = f"{Path(link).parent}/gpulaunch"
    assert setup(installed, "--no-nvidia-docker") == (0, f"{link} is removed\n", "")
    assert setup(installed, "--no-nvidia-docker") == (0, f"{link} is not there\n", "")


@pytest.mark.parametrize("kind", ["file", "link"])
def test_another_program_stays(installed: Launcher, kind: str) -> None:
    """NVIDIA's own nvidia-docker is neither replaced nor removed."""
    other = Path(installed.script).parent / "nvidia-docker"
    if kind == "file":
        other.write_text("#!/bin/sh\n")
    else:
        other.symlink_to("/bin/true")
    hint = "remove it, or have an earlier directory of PATH with gpulaunch in it"
    kept = complaint(f"{other} is there already, and is not gpulaunch's", hint)
    assert setup(installed, "--nvidia-docker") == (125, "", kept)
    kept = complaint(f"{other} is not gpulaunch's, and stays")
    assert setup(installed, "--no-nvidia-docker") == (125, "", kept)
    assert other.exists()


def test_a_path_that_finds_another_one(installed: Launcher, tmp_path: Path) -> None:
    """A program of that name earlier in PATH is named."""
    (tmp_path / "nvidia-docker").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-docker").chmod(0o755)
    installed.environment["PATH"] = f"{tmp_path}{os.pathsep}{installed.environment['PATH']}"
    link = f"{Path(installed.script).parent}/nvidia-docker"
    _, _, said = setup(installed, "--nvidia-docker")
    assert said == f"gpulaunch: warning: PATH finds {tmp_path}/nvidia-docker, not {link}\n"
