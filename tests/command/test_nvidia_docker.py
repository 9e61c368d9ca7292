"""The program nvidia-docker: a link to gpulaunch, made by setup."""

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


def test_made_and_used(installed: Launcher) -> None:
    """The link is made once, and passes on what makes no container."""
    link = f"{Path(installed.script).parent}/nvidia-docker"
    made = f"{link} is gpulaunch now: 'nvidia-docker run' leases the GPUs of its container\n"
    assert setup(installed, "--nvidia-docker") == (0, made, "")
    assert setup(installed, "--nvidia-docker") == (0, made, "")
    assert os.readlink(link) == "gpulaunch"
    installed.script = link
    for words in (("--version",), ("ps", "-a"), ("run", "--help"), ("-D", "images"), ("status",)):
        done = installed.run(*words)
        assert (done.returncode, done.stdout) == (0, f"docker {' '.join(words)}\n"), done.stderr


def test_another_program_stays(installed: Launcher) -> None:
    """NVIDIA's own nvidia-docker is not replaced."""
    other = Path(installed.script).parent / "nvidia-docker"
    other.symlink_to("/bin/true")
    hint = "remove it, or have an earlier directory of PATH with gpulaunch in it"
    kept = complaint(f"{other} is there already, and is not gpulaunch's", hint)
    assert setup(installed, "--nvidia-docker") == (125, "", kept)
    assert other.exists()


def test_a_path_that_finds_another_one(installed: Launcher, tmp_path: Path) -> None:
    """A program of that name earlier in PATH is named."""
    (tmp_path / "nvidia-docker").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-docker").chmod(0o755)
    installed.environment["PATH"] = f"{tmp_path}{os.pathsep}{installed.environment['PATH']}"
    link = f"{Path(installed.script).parent}/nvidia-docker"
    _, _, said = setup(installed, "--nvidia-docker")
    assert said == f"gpulaunch: warning: PATH finds {tmp_path}/nvidia-docker, not {link}\n"
