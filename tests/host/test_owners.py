"""Records, caches and directories that belong to other users."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DGX, SHOW, VGG, Launcher
from fake_nvml import FakeNvml

pytest_plugins = ("fake_nvml",)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be other users")


def test_root_of_little(launcher: Launcher) -> None:
    """Where root may not remove a user's dead record, as in a user namespace, launches go on."""
    (launcher.state / "gpulaunch.lease.ffffffffffff").write_bytes(b"dead")
    os.chmod(launcher.state, 0o1777)
    for path in (*launcher.state.iterdir(), launcher.state):  # root may remove what is root's
        os.chown(path, 12345, 12345)
    command = ["unshare", "--user", "--map-root-user", launcher.script, *VGG, *SHOW]
    done = subprocess.run(
        command, env=launcher.environment, capture_output=True, text=True, check=False
    )
    if "unshare failed" in done.stderr:
        pytest.skip("no user namespaces here")
    assert (done.returncode, done.stdout) == (0, "0,2,3\n"), done.stderr


def test_dead_ticket_with_another_users_id(launcher: Launcher) -> None:
    """A dead ticket is removed with its bell, but no bell of another user's, whose id it bears."""
    bells = {}
    for user_id in (12345, 12346):
        ticket_id = f"{user_id}" * 2
        ticket = launcher.state / f"gpulaunch.ticket.00000001.{ticket_id}"
        ticket.write_bytes(b"dead")
        os.chown(ticket, 12345, 12345)
        bells[user_id] = launcher.state / f"gpulaunch.bell.{ticket_id}"
        os.mkfifo(bells[user_id])
        os.chown(bells[user_id], user_id, user_id)
    assert launcher.run(*VGG, *SHOW).returncode == 0
    assert [path.exists() for path in bells.values()] == [False, True]
    assert [name for name in launcher.records() if ".ticket." in name] == []


def test_cache_of_somebody_else(launcher: Launcher, dgx1_v100: FakeNvml) -> None:
    """A file of another user says nothing, nor does a symbolic link, nor is one made for root."""

    def nvlinks() -> int:
        done = launcher.run("topo", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)["links"][0]["nvlink_count"]

    directory = Path(launcher.environment["XDG_RUNTIME_DIR"])
    path = directory / "gpulaunch.topology.json"
    known = nvlinks()
    dgx1_v100.drop("nvlink ")
    assert (nvlinks(), known > 0) == (known, True)  # remembered
    os.chown(path, 65534, -1)
    assert nvlinks() == 0
    path.rename(path.with_suffix(".real"))
    os.chown(path.with_suffix(".real"), 0, -1)
    path.symlink_to(path.with_suffix(".real"))
    assert nvlinks() == 0
    path.unlink()
    own = Path("/dev/shm/gpulaunch.0")
    was_there = own.exists()
    os.chown(directory, 65534, -1)  # as `sudo -E` has it
    nvlinks()
    assert not path.exists()
    if not was_there:
        shutil.rmtree(own)


@pytest.mark.parametrize("kept", ["HOME", "XDG"])
def test_home_of_somebody_else(tmp_path: Path, kept: str) -> None:
    """Root with another user's HOME or XDG_*, as under sudo -E, makes nothing there: it has a home.

    A user cannot write where root has made the first directory.
    """
    strange, own = tmp_path / "strange", tmp_path / "own"
    for home in (strange, own):
        home.mkdir()
    os.chown(strange, 12345, 12345)
    (etc := tmp_path / "etc").mkdir()  # whole, since useradd in another test replaces /etc/passwd
    (etc / "passwd").write_text(
        re.sub("^root:.*", f"root:x:0:0:root:{own}:/bin/sh", Path("/etc/passwd").read_text())
    )
    bases = {"STATE_HOME": ".local/state", "CONFIG_HOME": ".config", "CACHE_HOME": ".cache"}
    launcher = Launcher(tmp_path)
    del launcher.environment["XDG_CONFIG_HOME"]
    launcher.environment["HOME"] = str(strange if kept == "HOME" else own)
    if kept == "XDG":
        variables = {f"XDG_{name}": str(strange / path) for name, path in bases.items()}
        launcher.environment |= variables | {"XDG_RUNTIME_DIR": str(strange / "run")}
    (tmp_path / "jobs").write_text('{"command": ["true"]}\n')
    (tmp_path / "job.py").write_text("import torch\n")
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    (mpirun := tmp_path / "bin/mpirun").parent.mkdir()
    mpirun.write_text('#!/bin/sh\nuntil [ -e $1 -a -x $1 ]; do shift; done; exec "$@"\n')
    mpirun.chmod(0o755)
    launcher.environment["PATH"] = f"{mpirun.parent}:{launcher.environment['PATH']}"
    commands = (
        (*DGX, "--", "true"),
        (*DGX, "-d", "--name", "one", "--", "true"),
        ("wait", "one"),
        ("batch", *DGX, "--results", f"{tmp_path}/results", str(tmp_path / "jobs")),
        ("profile", "scan", str(tmp_path / "job.py"), "--name", "mine"),
        ("cluster", "run", *DGX, "--hostfile", str(tmp_path / "hosts"), "--dry-run", "--", "true"),
        ("history", "--json"),
    )
    for words in commands:
        script = f'mount --bind {etc} /etc && exec "$0" "$@"'
        command = ["unshare", "--mount", "sh", "-c", script, launcher.script, *words]
        done = subprocess.run(
            command, env=launcher.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (words, done.stderr)
    assert list(strange.rglob("*")) == []
    assert {path.name for path in own.glob(".*")} == {".local", ".config", ".cache"}


def test_directories_without_a_umask(launcher: Launcher, tmp_path: Path) -> None:
    """Whatever the umask, no other user can write to what gpulaunch makes in the home."""
    (home := tmp_path / "home").mkdir(mode=0o755)
    launcher.environment["HOME"] = str(home)
    del launcher.environment["XDG_CONFIG_HOME"]
    (tmp_path / "job.py").write_text("import torch\n")
    for words in (
        (*DGX, "--", "true"),
        (*DGX, "-d", "--name", "one", "--", "true"),
        ("wait", "one"),
        ("profile", "scan", str(tmp_path / "job.py"), "--name", "mine"),
    ):
        assert launcher.run(*words, umask=0).returncode == 0
    made = [path for path in home.rglob("*") if path.is_dir()]
    assert {path.name for path in made} >= {".local", "history", "logs", ".config", "profiles"}
    assert [path for path in made if path.stat().st_mode & 0o022] == []


def test_logs_of_a_batch_that_somebody_else_made(launcher: Launcher, tmp_path: Path) -> None:
    """A batch writes into no log that another user has made, and through no link to a file."""
    (logs := tmp_path / "logs").mkdir()
    (precious := tmp_path / "precious").write_text("precious")
    link, hard_link, pipe, theirs, fresh = (logs / f"{number}.log" for number in range(5))
    link.symlink_to(precious)
    hard_link.hardlink_to(precious)
    os.mkfifo(pipe)
    theirs.write_text("theirs")
    for log in (link, pipe, theirs):
        os.chown(log, 12345, 12345, follow_symlinks=False)
    (tmp_path / "jobs").write_text('{"command": ["echo", "it"]}\n' * 5)
    words = ("batch", *DGX, "--logs", str(logs), "--results", f"{tmp_path}/results")
    done = launcher.run(*words, str(tmp_path / "jobs"), cwd=tmp_path)
    told = [done.stderr.count(f"{log}: ") for log in (link, hard_link, pipe, theirs, fresh)]
    assert (done.returncode, told) == (1, [1, 1, 1, 1, 0])
    texts = [path.read_text() for path in (precious, theirs, fresh)]
    assert texts == ["precious", "theirs", "it\n"]


def test_results_of_somebody_else(launcher: Launcher, tmp_path: Path) -> None:
    """A batch writes into no results file of another user, who could change what is in it."""
    (tmp_path / "jobs").write_text('{"command": ["true"]}\n{"command": ["false"]}\n')
    begun, empty = tmp_path / "begun", tmp_path / "empty"
    words = ("batch", *DGX, str(tmp_path / "jobs"), "--results")
    assert launcher.run(*words, str(begun)).returncode == 1
    empty.touch()
    for results, more in ((begun, ["--resume"]), (empty, [])):
        results.chmod(0o666)
        os.chown(results, 12345, 12345)
        before = results.read_bytes()
        done = launcher.run(*words, str(results), *more)
        assert (done.returncode, results.read_bytes()) == (2, before)
        assert f"{results}: is no regular file of your own" in done.stderr


AS_ANOTHER_USER = """
import os, sys
import filelock
from gpulaunch.files import own_cache
from gpulaunch.machine import find
from gpulaunch.machine.topology import Topology

os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
find.LOCK_TIMEOUT_S = 1e9
with find.one_at_a_time():
    find.store_cached("550", Topology("box", (), (), "a test"))
print(find.load_cached("nvidia", "550"))
"""


def test_directory_of_somebody_else(tmp_path: Path) -> None:
    """A directory that another user could change is not used, and his locks there block nothing."""
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
            environment = dict(os.environ)
            environment.pop("XDG_RUNTIME_DIR", None)
            command = [sys.executable, "-c", AS_ANOTHER_USER, str(user)]
            options = {"env": environment, "cwd": tmp_path, "capture_output": True, "text": True}
            done = subprocess.run(command, check=False, **options)
        assert (done.stdout, done.stderr) == ("None\n", "")
        assert [path.name for path in squatted.iterdir()] == [lock.name]
    finally:
        shutil.rmtree(squatted)
