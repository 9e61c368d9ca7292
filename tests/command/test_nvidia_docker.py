"""The program nvidia-docker: a link to gpulaunch."""

import os
from pathlib import Path

from conftest import Launcher


def test_what_makes_no_container(launcher: Launcher, tmp_path: Path) -> None:
    """The link passes on what makes no container, also words that are commands of gpulaunch."""
    docker, link = tmp_path / "docker", tmp_path / "nvidia-docker"
    docker.write_text('#!/bin/sh\necho "docker $*"\n')
    docker.chmod(0o755)
    link.symlink_to(launcher.script)
    launcher.script = str(link)
    launcher.environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for words in (("--version",), ("ps", "-a"), ("run", "--help"), ("-D", "images"), ("status",)):
        done = launcher.run(*words)
        assert (done.returncode, done.stdout) == (0, f"docker {' '.join(words)}\n"), done.stderr
