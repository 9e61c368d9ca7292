"""Dev Containers: their real command line makes the container, by docker's client."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import SCRIPT, until
from engine import IMAGE
from test_docker import Host, host

__all__ = ["host"]

PROGRAM = os.environ.get("GPULAUNCH_TEST_DEVCONTAINER", "")
pytestmark = pytest.mark.skipif(
    not PROGRAM, reason="needs GPULAUNCH_TEST_DEVCONTAINER, its program"
)
SEEN = ("sh", "-c", "ls /dev | grep nvidia | tr '\\n' ' '")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder whose container asks for two GPUs."""
    wanted = {"image": IMAGE, "runArgs": ["--gpus", "2", "--network", "none"]}
    plain = {"updateRemoteUserUID": False, "userEnvProbe": "none"}  # else it builds an image first
    place = {"workspaceMount": "", "workspaceFolder": "/"}
    file = tmp_path / "work" / ".devcontainer" / "devcontainer.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({**wanted, **plain, **place}))
    return file.parents[1]


def test_through_gpulaunch(host: Host, folder: Path, tmp_path: Path) -> None:
    """With `gpulaunch docker` as its docker the container has a lease, until it is removed."""
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\nexec {SCRIPT} docker "$@"\n')
    docker.chmod(0o755)
    environment = host.environment | {"GPULAUNCH_TOPOLOGY": "dgx1-v100"}

    def call(word: str, *words: str) -> str:
        given = ("--workspace-folder", str(folder), "--docker-path", str(docker))
        done = subprocess.run(
            [PROGRAM, word, *given, *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    container = json.loads(call("up"))["containerId"]
    (lease,) = host.leases()
    assert (lease["gpus"], lease["container"]) == ([0, 3], container)
    assert call("exec", *SEEN) == "nvidia0 nvidia3 "
    host.do("rm", "--force", container)
    until(lambda: host.leases() == [])


def test_in_a_lease(host: Host, folder: Path) -> None:
    """Without any wrapper it gets GPUs of the lease that it runs in."""
    of_folder = f"--workspace-folder {folder}"
    seen = '\'ls /dev | grep nvidia | tr "\\n" " "\''
    lines = (
        f"{PROGRAM} up {of_folder} >&2",
        f"{PROGRAM} exec {of_folder} sh -c {seen}",
        "docker rm --force $(docker ps --quiet) >&2",
    )
    command = ("-n", "2", "-o", "docker=lease", "--", "sh", "-ec", "; ".join(lines))
    done = host.run(*command)
    assert (done.returncode, done.stdout) == (0, "nvidia0 nvidia3 "), done.stderr
