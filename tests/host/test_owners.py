"""Records, caches and directories that belong to other users."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SHOW, VGG, Launcher
from fake_nvml import FakeNvml
from test_forged import plant
from test_probe import cached, discovered, link, pair, warm  # noqa: F401  a fixture

pytest_plugins = ("fake_nvml",)


def test_root_of_little(launcher: Launcher) -> None:
    """Where root may not remove a user's dead record, as in a user namespace, launches go on."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a file away")
    os.close(plant(launcher, "gpulaunch.lease.ffffffffffff", b"dead"))
    os.chown(launcher.state / "gpulaunch.lease.ffffffffffff", 12345, 12345)
    os.chmod(launcher.state, 0o1777)
    os.chown(launcher.state, 12345, 12345)  # else its owner may remove what stands in it
    command = ["unshare", "--user", "--map-root-user", launcher.script, *VGG, *SHOW]
    done = subprocess.run(
        command, env=launcher.environment, capture_output=True, text=True, check=False
    )
    if "unshare failed" in done.stderr:
        pytest.skip("no user namespaces here")
    assert (done.returncode, done.stdout) == (0, "0,2,3\n"), done.stderr


def test_dead_ticket_with_another_users_id(launcher: Launcher) -> None:
    """A dead ticket is removed with its bell, but no bell of another user's, whose id it bears."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a file away")
    bells = {}
    for user_id in (12345, 12346):
        ticket_id = f"{user_id}" * 2
        os.close(plant(launcher, f"gpulaunch.ticket.00000001.{ticket_id}", b"dead"))
        os.chown(launcher.state / f"gpulaunch.ticket.00000001.{ticket_id}", 12345, 12345)
        bells[user_id] = launcher.state / f"gpulaunch.bell.{ticket_id}"
        os.mkfifo(bells[user_id])
        os.chown(bells[user_id], user_id, user_id)
    assert launcher.run(*VGG, *SHOW).returncode == 0
    assert [path.exists() for path in bells.values()] == [False, True]
    assert [name for name in launcher.records() if ".ticket." in name] == []


def test_cache_of_somebody_else(launcher: Launcher, warm: FakeNvml) -> None:  # noqa: ARG001, F811
    """A file of another user says nothing, nor does a symbolic link."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a file away")
    path = cached(launcher)
    os.chown(path, 65534, -1)
    assert link(launcher)["nvlink_count"] == 0
    path.rename(path.with_suffix(".real"))
    os.chown(path.with_suffix(".real"), 0, -1)
    path.symlink_to(path.with_suffix(".real"))
    assert link(launcher)["nvlink_count"] == 0


AS_ANOTHER_USER = """
import os, sys, time
import filelock
from gpulaunch.machine.topology import Topology
from gpulaunch.machine import topology_cache

os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
begin = time.monotonic()
with topology_cache.one_at_a_time():
    topology_cache.store("550", Topology("box", (), (), "a test"))
assert time.monotonic() - begin < topology_cache.LOCK_TIMEOUT_S / 2
print(topology_cache.load("nvidia", "550"))
"""


def test_directory_of_somebody_else(tmp_path: Path) -> None:
    """A directory that another user could change is not used, and his locks there block nothing."""
    if os.geteuid() != 0:
        pytest.skip("needs root to be another user")
    user = 4_000_000 + os.getpid()  # nobody's
    squatted = Path(f"/dev/shm/gpulaunch.{user}")
    squatted.mkdir()
    try:
        squatted.chmod(0o777)
        lock = squatted / "gpulaunch.topology.json.lock"
        lock.touch(0o666)
        lock.chmod(0o666)
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            environment = {
                key: value for key, value in os.environ.items() if key != "XDG_RUNTIME_DIR"
            }
            command = [sys.executable, "-c", AS_ANOTHER_USER, str(user)]
            done = subprocess.run(
                command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
            )
        assert (done.stdout, done.stderr) == ("None\n", "")
        assert [path.name for path in squatted.iterdir()] == [lock.name]
    finally:
        shutil.rmtree(squatted)


def test_runtime_directory_of_somebody_else(launcher: Launcher, nvml: FakeNvml) -> None:
    """Root keeps nothing in the runtime directory of the user from whom `sudo -E` has it."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a directory away")
    pair(nvml)
    own = Path("/dev/shm/gpulaunch.0")
    was_there = own.exists()
    os.chown(launcher.environment["XDG_RUNTIME_DIR"], 65534, -1)
    discovered(launcher)
    assert list(cached(launcher).parent.iterdir()) == []
    if not was_there:
        shutil.rmtree(own)
