"""MPS and several Unix users: each has daemons of his own, and users never share a GPU."""

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Launcher, wait_for_end
from fake_mps import CONTROL, SERVER, FakeMps, is_alive
from fake_nvml import FakeNvml
from test_mps import DEAF, LIGHT, V100, client, ended_safely
from test_users import Accounts, User, accounts, root  # noqa: F401  fixtures

pytest_plugins = ("fake_mps", "fake_nvml")


@pytest.fixture
def mps(root: Launcher) -> Iterator[FakeMps]:  # noqa: F811
    """Yield the stand-in, where all users find it."""
    found = FakeMps()
    try:
        root.environment |= {
            "PATH": f"{found.bin}:{root.environment['PATH']}",
            "GPULAUNCH_MPS_DIRECTORY": f"{found.folder}/g0",
        }
        yield found
    finally:
        found.close()


@pytest.fixture(autouse=True)
def _machine(root: Launcher, mps: FakeMps, packages: None, fake_nvml_library: Path) -> None:  # noqa: ARG001, F811
    """Describe two V100, which every user's NVML tells of."""
    shutil.copy(fake_nvml_library / "libnvidia-ml.so.1", mps.folder)
    nvml = FakeNvml(mps.folder, mps.folder / "nvml.txt")
    nvml.describe(V100, ["driver 550.54.15"])
    root.environment |= nvml.environment


@pytest.fixture
def packages(accounts: Accounts) -> None:  # noqa: F811
    """Copy what gpulaunch needs for this beside the copy of it that the users run."""
    for name in ("filelock", "psutil", "pynvml"):
        found = Path(importlib.util.find_spec(name).origin)
        if found.name == "__init__.py":
            shutil.copytree(found.parent, accounts.package / name, dirs_exist_ok=True)
        else:
            shutil.copy(found, accounts.package)


def user(accounts: Accounts, root: Launcher, mps: FakeMps, place: int) -> User:  # noqa: F811
    """Return one of the two, with MPS, NVML and a directory of his own for daemons."""
    found = User(accounts.names[place], accounts.python, accounts.package, root)
    found.environment |= {
        "PATH": f"{mps.bin}:/usr/bin:/bin",
        "GPULAUNCH_MPS_DIRECTORY": f"{mps.folder}/g{found.uid}",
        "XDG_RUNTIME_DIR": "/nonexistent",
    }
    return found


@pytest.fixture
def alice(accounts: Accounts, root: Launcher, mps: FakeMps) -> User:  # noqa: F811
    """Return one of the two users."""
    return user(accounts, root, mps, 0)


@pytest.fixture
def bob(accounts: Accounts, root: Launcher, mps: FakeMps) -> User:  # noqa: F811
    """Return the other user."""
    return user(accounts, root, mps, 1)


def states(launcher: Launcher) -> list[tuple[str, list[str]]]:
    """Return the state of each GPU, and who has it."""
    document = json.loads(launcher.run("status", "--json").stdout)
    users = {lease["id"]: lease["user"] for lease in document["leases"]}
    return [(gpu["state"], [users[lease] for lease in gpu["leases"]]) for gpu in document["gpus"]]


def test_users_share_with_themselves(alice: User, bob: User, mps: FakeMps) -> None:
    """Each of two users has two jobs on one GPU, with a daemon and a server of that user."""
    with client(alice, *LIGHT), client(bob, *LIGHT), client(alice, *LIGHT), client(bob, *LIGHT):
        assert states(bob) == [("shared", [alice.name] * 2), ("shared", [bob.name] * 2)]
        assert sorted(event.said["uid"] for event in mps.events("server")) == sorted(
            [alice.uid, bob.uid]
        )
        assert len({event.pipe for event in mps.events("started")}) == 2
        refused = bob.run(*LIGHT, "--only", "0", "--", "true")
        assert refused.returncode == 75
        assert "1 GPU requested: 0 of 1 admitted are free, 1 is leased" in refused.stderr
        assert "to share" not in refused.stderr
    for pid in (*mps.pids(CONTROL), *mps.pids(SERVER)):
        wait_for_end(pid)
    assert states(alice) == [("free", []), ("free", [])]


def test_the_other_ones_server_is_not_waited_for(alice: User, mps: FakeMps) -> None:
    """A daemon whose server is another user's would block: the job gets its own GPU instead."""
    with client(alice, *LIGHT) as first:
        (daemon,), (server,) = mps.events("started"), mps.events("server")
        mps.tell(answers={"get_server_list": [str(os.getpid())]})
        with client(alice, *LIGHT) as second:
            assert second.how == "without"
            _, said = second.end()
        want = f"its server (pid {os.getpid()}) is root's: others have to wait until that is done"
        assert want in said
        mps.tell(answers={})
        assert (is_alive(daemon.pid), is_alive(server.pid)) == (True, True)
        assert first.end() == (0, "")


def test_a_place_that_somebody_else_made(alice: User, bob: User, mps: FakeMps) -> None:
    """Where another user has made one's own directory, nothing is shared, and nothing waits."""
    place = Path(alice.environment["GPULAUNCH_MPS_DIRECTORY"])
    subprocess.run(["mkdir", "-m", "777", place], user=bob.uid, check=True)
    with client(alice, *LIGHT) as job:
        assert job.how == "without"
        assert job.end() == (
            0,
            f"gpulaunch: warning: not shared: {place} is not this user's alone\n",
        )
    assert mps.events("started") == []


def test_root_frees_a_users_client_safely(alice: User, root: Launcher, mps: FakeMps) -> None:  # noqa: F811
    """Root's `free` takes a user's client off MPS as that user, and the user's daemon ends."""
    with client(alice, *LIGHT, words=DEAF) as job:
        done = root.run("free", job.lease())
        assert (done.returncode, done.stderr) == (0, "")
        assert ended_safely(mps, job.pid)
    commands = [event.said for event in mps.events("command")]
    asked = [said["uid"] for said in commands if said["command"].startswith("terminate_client")]
    assert asked == [alice.uid]
    for pid in mps.pids(CONTROL):
        wait_for_end(pid)
