"""`gpulaunch podman ...` with a real Podman, root's and a user's: podman alone, but with GPUs.

What a container got is looked at from inside: a CDI specification knows the GPUs of the described
machine that gpulaunch chooses from. No GPU is needed.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import command_lines
import pytest
from command_lines import CommandLine
from conftest import DGX, Launcher, children, complaint, until, wait_for_end
from engine import BUSYBOX, IMAGE
from podman import CDI, Store, describe_gpus, made_with, why_not
from test_containers_in_use import forget_leases
from test_docker import TOLD_BY_NVML
from test_users import Accounts, User, accounts, alice, bob, root  # noqa: F401  fixtures

from gpulaunch.containers.command import read_command
from gpulaunch.containers.podman.flags import PODMAN
from gpulaunch.leases.holders import holders
from gpulaunch.leases.record_file import opened
from gpulaunch.process.companion import is_companion
from gpulaunch.process.system import program_of

pytest_plugins = ("fake_nvml",)

UUIDS = tuple(f"GPU-dgx1-v100-{index}" for index in range(8))
SHOW = ("sh", "-c", "env | grep FAKE_GPU | sort; ls /dev | grep nvidia")
LONG = (IMAGE, "sleep", "1000")
READY = (IMAGE, "sh", "-c", "echo ready; exec sleep 1000")
SHARED = ("--share", "-o", "utilization=30,20", "--memory", "2G")
PATIENCE_S = 15


class Host:
    """A user with GPUs, a store of podman that knows them, and gpulaunch.

    Attributes:
        launcher: gpulaunch, as this user runs it.
        store: the user's store.
        do: function that runs podman without gpulaunch, and returns what it prints.
        options: what gpulaunch is always given.
    """

    def __init__(self, launcher: Launcher, store: Store, options: Sequence[str] = DGX) -> None:
        self.launcher, self.store, self.do = launcher, store, store.do
        self.options = options
        launcher.environment |= store.environment
        launcher.environment["PATH"] += ":/usr/sbin"  # of runc

    def run(self, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
        """Run gpulaunch to its end."""
        return self.launcher.run(*self.options, *arguments, **options)

    def detached(self, *arguments: str) -> str:
        """Make a container by gpulaunch that outlives it; its id."""
        done = self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip()

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run a container in the foreground, named x, for the length of the block."""
        with self.launcher.start(*DGX, "podman", "run", "--name", "x", *arguments) as process:
            assert process.stdout.readline() == "ready\n"
            yield process

    def leases(self) -> list[dict]:
        """Return the live leases, as status tells of them once podman answers in its time."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            done = self.launcher.run("status", *self.options, "--json")
            assert (done.returncode, done.stderr) == (0, "")
            leases = json.loads(done.stdout)["leases"]
            # status waits two seconds in all; podman on a busy machine needs longer at times.
            late = [one for one in leases if "no answer" in (one["container_problem"] or "")]
            if not late or time.monotonic() > deadline:
                return leases

    def lease(self) -> dict:
        """Return the only lease."""
        (lease,) = self.leases()
        return lease

    def await_free(self) -> None:
        """Return when no record is left, without asking podman here."""
        until(lambda: self.launcher.records() == [])

    def companion(self) -> int:
        """Return the pid of the only companion of this table."""
        (path,) = self.launcher.state.glob("gpulaunch.lease.*")
        # Another is a child of it for a moment, on its way to become podman.
        return min(filter(is_companion, holders_of(str(path))))


def holders_of(path: str) -> set[int]:
    """Return the processes that hold the record at a path; none if it is gone."""
    with opened(path) as fd:
        return set() if fd is None else holders(fd)


def kill(pid: int) -> None:
    """Kill a process, and wait until it has ended."""
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)


def client_of(launcher: int) -> int:
    """Return the child of a launcher that is podman's client; its conmon is another."""
    (pid,) = (pid for pid in children(launcher) if program_of(pid) == "podman")
    return pid


@pytest.fixture(scope="module")
def gpus() -> Iterator[None]:
    """Describe the GPUs of the described machine to podman."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    describe_gpus(UUIDS)
    yield
    CDI.unlink()


@pytest.fixture(scope="module")
def root_store(gpus: None) -> Iterator[Store]:  # noqa: ARG001  it must be there
    """Make a store of root's."""
    store = Store({})
    yield store
    store.close()


@pytest.fixture(scope="module")
def alice_store(gpus: None, accounts: Accounts) -> Iterator[Store]:  # noqa: ARG001,F811
    """Make a store of alice's, whose podman is rootless."""
    import pwd

    entry = pwd.getpwnam(accounts.names[0])
    store = Store({"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "umask": 0o022})
    yield store
    store.close()


def remove_all(store: Store, launcher: Launcher) -> None:
    """Remove all containers, and return when no companion follows one any more."""
    store.remove_all()
    for path in launcher.state.glob("gpulaunch.lease.*"):
        if path.stat().st_uid != store.identity.get("user", 0):
            continue
        until(
            lambda path=path: not path.exists() or not any(map(is_companion, holders_of(str(path))))
        )


@pytest.fixture
def rootful(root: Launcher, root_store: Store) -> Iterator[Host]:  # noqa: F811
    """Yield root's podman."""
    yield Host(root, root_store)
    root_store.configure(events="file")
    remove_all(root_store, root)


@pytest.fixture
def rootless(alice: User, alice_store: Store) -> Iterator[Host]:  # noqa: F811
    """Yield alice's podman."""
    yield Host(alice, alice_store)
    remove_all(alice_store, alice)


@pytest.fixture
def real_host(launcher: Launcher, root_store: Store, dgx1_v100) -> Iterator[Host]:  # noqa: ARG001
    """Yield root's podman on a machine that NVML tells of."""
    describe_gpus(TOLD_BY_NVML)
    yield Host(launcher, root_store, ())
    remove_all(root_store, launcher)
    describe_gpus(UUIDS)


@pytest.fixture(params=["rootful", "rootless"])
def host(request: pytest.FixtureRequest) -> Host:
    """Yield root's podman, then a user's."""
    return request.getfixturevalue(request.param)


# ------------------------------------------------------------------------------------ like podman


FLAGS = (
    *("-e", "A=1", "--env", "B", "-v", "/tmp:/host:ro", "--label", "a=b", "--network=none", "-it"),
    *("--workdir", "/tmp", "--entrypoint", "sh", "--restart", "on-failure:3", "--device=/dev/null"),
    *("--tmpfs", "/scratch", "--shm-size", "8m", "--hostname", "h", "--cap-drop", "all"),
)


def differences(left: object, right: object, path: str = "") -> dict[str, tuple[object, object]]:
    """Return what differs in two JSON documents, by its path."""
    if isinstance(left, dict) and isinstance(right, dict):
        found = {}
        for key in left.keys() | right.keys():
            found |= differences(left.get(key), right.get(key), f"{path}.{key}")
        return found
    return {} if left == right else {path: (left, right)}


def test_only_gpus_labels_and_lease_are_added(host: Host) -> None:
    """What podman makes of a command line differs by GPUs, our labels and our variables alone."""
    host.do("create", "--name", "x1", *FLAGS, IMAGE, "-c", "true")
    done = host.run("-n", "2", "podman", "create", "--name", "x2", *FLAGS, IMAGE, "-c", "true")
    assert (done.returncode, done.stderr) == (0, "")
    plain, ours = host.store.inspect("x1"), host.store.inspect("x2")
    for document in (plain, ours):  # names of files have the container's id
        for key in ("Id", "Name", "Created", "StaticDir", "ConmonPidFile", "PidFile"):
            document.pop(key)
        document["HostConfig"]["LogConfig"].pop("Path")
    lease = host.lease()
    uuids = ",".join(UUIDS[index] for index in lease["gpus"])
    added = ["NVIDIA_VISIBLE_DEVICES=void", f"GPULAUNCH_LEASE={lease['id']}"]
    added.append("GPULAUNCH_GPU_COUNT=2")
    command = plain["Config"].pop("CreateCommand")
    expected = [command[0], "create", "--name", "x2", *FLAGS]
    for uuid in uuids.split(","):
        expected += ["--device", f"nvidia.com/gpu={uuid}"]
    expected += ["-e", added[0], "--label", f"io.gpulaunch.gpus={uuids}"]
    expected += ["--label", f"io.gpulaunch.lease={lease['id']}", "-e", added[1], "-e", added[2]]
    assert ours["Config"].pop("CreateCommand") == [*expected, IMAGE, "-c", "true"]
    assert set(ours["Config"].pop("Env")) - set(plain["Config"].pop("Env")) == set(added)
    assert differences(plain, ours) == {
        ".Config.Labels.io.gpulaunch.gpus": (None, uuids),
        ".Config.Labels.io.gpulaunch.lease": (None, lease["id"]),
    }


def test_the_container_sees_its_gpus_alone(host: Host) -> None:
    """Its GPUs are in the container, and no others; they are free when it has ended."""
    done = host.run("-n", "2", "podman", "run", "--rm", IMAGE, *SHOW)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [
        *("FAKE_GPU_0=GPU-dgx1-v100-0", "FAKE_GPU_3=GPU-dgx1-v100-3", "nvidia0", "nvidia3")
    ]
    assert host.launcher.records() == []


def test_gpus_by_index(rootful: Host) -> None:
    """--gpus names GPUs, as podman's does, and --gpus 2 is the GPU with that index."""
    done = rootful.run("podman", "run", "--rm", "--gpus", "2,5", IMAGE, *SHOW)
    assert done.stdout.split()[-2:] == ["nvidia2", "nvidia5"]
    done = rootful.run("podman", "run", "--rm", "--gpus=2", IMAGE, *SHOW)
    assert done.stdout.split() == ["FAKE_GPU_2=GPU-dgx1-v100-2", "nvidia2"]


def test_a_root_file_system_instead_of_an_image(rootful: Host, tmp_path: Path) -> None:
    """--rootfs takes a directory where an image would stand."""
    (tmp_path / "bin").mkdir()
    shutil.copy(BUSYBOX, tmp_path / "bin" / "ls")
    done = rootful.run("podman", "run", "--rm", "--rootfs", str(tmp_path), "/bin/ls", "/dev")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nvidia0" in done.stdout.split()


# --------------------------------------------------------------------- as long as the container


def test_a_container_in_the_background_keeps_its_lease(host: Host) -> None:
    """After -d the lease is the container's, and podman stop ends both."""
    container = host.detached("podman", "run", "-d", *LONG)
    lease = host.lease()
    assert (lease["container"], lease["container_state"]) == (container, "running")
    host.do("stop", "--time", "0", container)
    host.await_free()


@pytest.mark.parametrize("ended_by", ["rm --force --time 0", "kill", "rm at its own end"])
def test_however_a_container_ends(rootful: Host, ended_by: str) -> None:
    """A container's end frees its GPUs, whoever brings it about."""
    container = rootful.detached("podman", "run", "-d", "--rm", *LONG)
    if ended_by == "rm at its own end":
        os.kill(rootful.store.pids(container)[0], signal.SIGKILL)
    else:
        rootful.do(*ended_by.split(), container)
    rootful.await_free()


def test_a_killed_launcher_takes_no_lease_along(host: Host) -> None:
    """The container and its lease go on without launcher and client, and end with each other."""
    with host.running(*READY) as process:
        client = client_of(process.pid)
        kill(process.pid)
        kill(client)
        process.wait()
    lease = host.lease()
    assert (lease["container_name"], lease["container_state"]) == ("x", "running")
    host.do("stop", "--time", "0", "x")
    host.await_free()


def test_a_killed_client_takes_no_lease_along(host: Host) -> None:
    """The launcher ends with the client, and leaves the container its lease."""
    with host.running(*READY) as process:
        kill(client_of(process.pid))
        assert process.wait(PATIENCE_S) == 137
    assert host.lease()["container_state"] == "running"
    host.do("rm", "--force", "--time", "0", "x")
    host.await_free()


def test_a_killed_conmon_takes_no_lease_along(host: Host) -> None:
    """Without its monitor a container goes on, and its lease ends with its processes."""
    container = host.detached("podman", "run", "-d", *LONG)
    pid, conmon = host.store.pids(container)
    kill(conmon)
    assert host.lease()["container"] == container
    companion = host.companion()
    kill(pid)
    wait_for_end(companion)
    assert host.launcher.records() == []


def test_who_looks_asks_podman_if_the_companion_was_killed(host: Host) -> None:
    """A lease that nobody watches any more stays as long as podman says, and no longer."""
    container = host.detached("podman", "create", *LONG)
    kill(host.companion())
    lease = host.lease()
    assert (lease["container"], lease["container_state"]) == (container, "created")
    host.do("start", container)
    assert host.lease()["container_state"] == "running"
    host.do("stop", "--time", "0", container)
    assert host.leases() == []


def test_conmon_shows_everybody_that_a_container_runs(rootful: Host, rootless: Host) -> None:
    """Without companion a container's lease is alive for users who may not ask, until it ends."""
    container = rootless.detached("podman", "run", "-d", *LONG)
    kill(rootless.companion())
    seen = rootful.lease()
    assert (seen["gpus"], seen["container_problem"]) == (rootless.lease()["gpus"], None)
    rootless.do("kill", container)
    assert rootless.leases() == []


def test_podman_stop_ends_the_lease_whatever_the_policy(host: Host) -> None:
    """A restart policy does not act after podman stop, so it keeps no GPUs."""
    container = host.detached("podman", "run", "-d", "--restart", "always", *LONG)
    host.do("stop", "--time", "0", container)
    host.await_free()
    assert host.store.inspect(container)["State"]["Status"] == "exited"


def test_a_failing_start_keeps_no_gpus(host: Host) -> None:
    """A container that podman run could not start frees its GPUs, although it is there."""
    done = host.run("podman", "run", "--name", "x", IMAGE, "/no-such-program")
    assert done.returncode == 127
    assert host.store.inspect("x")["State"]["Status"] == "created"
    assert host.launcher.records() == []


@pytest.mark.parametrize("events", ["file", "none"])
def test_podman_restart_keeps_the_lease(rootful: Host, events: str) -> None:
    """Podman restart keeps the lease, with gpulaunch or without, even where no events are kept."""
    rootful.store.configure(events=events)
    container = rootful.detached("podman", "run", "-d", *LONG)
    lease = rootful.lease()
    companion = rootful.companion()
    for _ in range(3):
        rootful.do("restart", "--time", "0", container)
    done = rootful.run("podman", "restart", "-t0", container)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{container}\n", "")
    assert (rootful.lease(), rootful.companion()) == (lease, companion)
    rootful.do("stop", "--time", "0", container)
    rootful.await_free()


_DELAYED = """\
#!/bin/sh
here={directory}
case "$1" in
    events)
        if [ -e $here/looked ]; then : >$here/asked_again; fi
        : >$here/read ;;
    ps)
        if [ -e $here/read ] && [ ! -e $here/looked ]; then
            : >$here/looked
            read -r _ <$here/go
        fi ;;
esac
exec {podman} "$@"
"""
"""A podman that tells what it is asked, and waits before its first answer about containers after
events."""


def test_a_restart_between_two_questions_keeps_the_lease(rootful: Host, tmp_path: Path) -> None:
    """A lease stays if podman restart stops its container after a look at the events."""
    podman = shutil.which("podman")
    os.mkfifo(tmp_path / "go")
    (tmp_path / "podman").write_text(_DELAYED.format(directory=tmp_path, podman=podman))
    (tmp_path / "podman").chmod(0o755)
    rootful.launcher.environment["PATH"] = f"{tmp_path}:{rootful.launcher.environment['PATH']}"
    container = rootful.detached("podman", "run", "-d", *LONG)
    (record,) = rootful.launcher.records()
    companion = rootful.companion()
    until((tmp_path / "looked").exists)
    environment = {"PATH": os.environ["PATH"], **rootful.store.environment}
    restart = subprocess.Popen(  # sleep, as a first process, ignores its TERM
        [podman, "restart", "--time", "1000", container], env=environment, stdout=subprocess.PIPE
    )
    until(lambda: rootful.store.inspect(container)["State"]["Status"] == "stopping")
    restart.send_signal(signal.SIGSTOP)
    kill(rootful.store.pids(container)[0])
    until(lambda: rootful.store.inspect(container)["State"]["Status"] == "exited")
    (tmp_path / "go").write_text("\n")
    until(
        lambda: (tmp_path / "asked_again").exists() or not rootful.launcher.records(),
    )
    restart.send_signal(signal.SIGCONT)
    assert restart.wait(PATIENCE_S) == 0
    assert rootful.store.inspect(container)["State"]["Running"]
    assert (rootful.launcher.records(), rootful.companion()) == ([record], companion)
    rootful.do("stop", "--time", "0", container)
    rootful.await_free()


def test_a_restart_policy_keeps_the_lease(host: Host) -> None:
    """A container that its policy starts again keeps its GPUs until it has ended for good."""
    container = host.detached(
        *("podman", "run", "-d", "--restart", "on-failure:2", IMAGE),
        *("sh", "-c", "echo >>/runs; test $(wc -l </runs) = 3 && exec sleep 1000; exit 3"),
    )
    until(lambda: host.store.inspect(container)["RestartCount"] == 2)
    until(lambda: host.lease()["container_state"] == "running")  # it is counted before it starts
    host.do("kill", container)
    host.await_free()
    assert host.store.inspect(container)["State"]["ExitCode"] == 137


@pytest.mark.parametrize("flags", [(), ("--restart", "always")], ids=["once", "always"])
def test_free_ends_a_container(host: Host, flags: tuple[str, ...]) -> None:
    """`gpulaunch free` ends a container so that no policy starts it again."""
    container = host.detached("podman", "run", "-d", *flags, *LONG)
    done = host.launcher.run("free", host.lease()["id"])
    assert (done.returncode, done.stderr) == (0, "")
    assert host.launcher.records() == []
    assert host.store.inspect(container)["State"]["Status"] == "exited"


def test_free_waits_longer_than_status_for_podman(rootful: Host, tmp_path: Path) -> None:
    """On a busy machine `gpulaunch free` ends a container whose end podman tells late."""
    rootful.detached("podman", "run", "-d", *LONG)
    lease = rootful.lease()["id"]
    slow = tmp_path / "podman"
    slow.write_text(f'#!/bin/sh\n[ "$1" != ps ] || sleep 2.2\nexec {shutil.which("podman")} "$@"\n')
    slow.chmod(0o755)
    rootful.launcher.environment["PATH"] = f"{tmp_path}:{rootful.launcher.environment['PATH']}"
    done = rootful.launcher.run("free", lease)
    assert (done.returncode, done.stderr, rootful.launcher.records()) == (0, "", [])


def test_free_removes_a_container_that_never_ran(host: Host) -> None:
    """`gpulaunch free` removes a container that was only made."""
    host.detached("podman", "create", "--name", "x", *LONG)
    done = host.launcher.run("free", host.lease()["id"])
    assert (done.returncode, done.stderr) == (0, "")
    assert host.do("ps", "--all", "--quiet") == ""
    assert host.launcher.records() == []


def test_start_again(host: Host) -> None:
    """A container that has ended starts again on its GPUs, under a new lease."""
    script = "test -e /again && exec sleep 1000; touch /again"
    assert (
        host.run(
            "--only", "6", "podman", "run", "--name", "x", IMAGE, "sh", "-c", script
        ).returncode
        == 0
    )
    assert host.launcher.records() == []
    done = host.run("podman", "start", "x")
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "")
    lease = host.lease()
    assert (lease["gpus"], lease["container_name"], lease["container_state"]) == (
        [6],
        "x",
        "running",
    )
    host.do("kill", "x")
    host.await_free()


def test_the_time_limit_ends_a_container(rootful: Host) -> None:
    """--time-limit ends a container in the background, too."""
    container = rootful.detached("--time-limit", "1s", "podman", "run", "-d", *LONG)
    rootful.await_free()
    assert rootful.store.inspect(container)["State"]["Status"] == "exited"


# ------------------------------------------------------------------------------ containers in use


@pytest.mark.parametrize("how", ["a policy at boot", "podman start", "podman run"])
def test_gpus_of_a_running_container_are_not_granted(host: Host, how: str) -> None:
    """The GPUs of a running container of the user's count as in use, whoever started it."""
    made = ("-n", "2", "--only", "0,3", "podman", "run", "-d", "--name", "server")
    if how == "podman run":
        named = [f"--device=nvidia.com/gpu={UUIDS[gpu]}" for gpu in (0, 3)]
        host.do("run", "-d", "--name", "server", *named, *LONG)
    else:
        host.detached(*made, *(("--restart", "always") if how == "a policy at boot" else ()), *LONG)
    if how == "podman start":
        host.do("stop", "--time", "0", "server")
        host.await_free()
        host.do("start", "server")
    if how == "a policy at boot":
        forget_leases(host.launcher)
    done = host.run("-n", "all", "--", "true")
    text = "8 GPUs requested: 6 of 8 are free, 2 are in use outside gpulaunch"
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        75,
        f"gpulaunch: error: {text} (container server (podman))",
    )
    assert host.run("-n", "6", "--", "true").returncode == 0
    host.do("rm", "--force", "--time", "0", "server")
    assert host.run("-n", "all", "--", "true").returncode == 0


def test_which_containers_use_gpus(real_host: Host) -> None:
    """A paused container uses the GPU that it was given by number, and one with all GPUs none."""
    real_host.do("run", "-d", "--device", "nvidia.com/gpu=all", *LONG)
    real_host.do("run", "-d", "--name", "server", "--device", "nvidia.com/gpu=2", *LONG)
    real_host.do("pause", "server")
    done = real_host.run("-n", "all", "--", "true")
    text = "8 GPUs requested: 7 of 8 are free, 1 is in use outside gpulaunch"
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        75,
        f"gpulaunch: error: {text} (container server (podman))",
    )


@pytest.mark.parametrize("containers", [0, 1])
def test_only_a_store_with_containers_is_asked(
    rootful: Host, tmp_path: Path, containers: int
) -> None:
    """A launch runs podman only if the user's store has containers; if it hangs, a line says so."""
    rootful.do("create", *LONG)
    if not containers:
        rootful.store.remove_all()
    hangs = tmp_path / "podman"
    hangs.write_text("#!/bin/sh\nexec sleep 1000\n")
    hangs.chmod(0o755)
    rootful.launcher.environment["PATH"] = f"{tmp_path}:{rootful.launcher.environment['PATH']}"
    done = rootful.run("--", "true")
    late = "no answer from podman in 2 s: GPUs of containers count only where they are seen in use"
    said = f"gpulaunch: warning: {late}\n" if containers else ""
    assert (done.returncode, done.stderr) == (0, said)


# ------------------------------------------------------------------------------- users and engines


def test_only_its_owner_can_ask_about_a_container(rootful: Host, rootless: Host) -> None:
    """Root sees that a user's lease stays, and why; the user ends it."""
    rootless.detached("podman", "create", "--name", "x", *LONG)
    lease = rootless.lease()
    kill(rootless.companion())
    seen = rootful.lease()
    name = rootless.launcher.name
    assert seen["id"] == lease["id"]
    assert seen["container_problem"] == f"only {name} can ask Podman about containers of {name}"
    done = rootful.launcher.run("free", lease["id"])
    assert done.returncode == 125
    rootless.do("rm", "x")
    assert rootless.leases() == []


def test_doctor_shows_podman_and_its_way(rootful: Host) -> None:
    """`gpulaunch doctor` names podman, and how GPUs get into its containers."""
    done = rootful.launcher.run("doctor", *DGX)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    version = rootful.do("version", "--format", "{{.Version}}")
    at = lines.index(f"ok Podman {version} at podman")
    assert lines[at + 1] == "ok GPUs in containers by CDI devices nvidia.com/gpu=UUID"


def test_sharing_is_refused(rootful: Host) -> None:
    """--share is refused in one line; sharing by a setting is ignored."""
    done = rootful.run(*SHARED, "podman", "run", *LONG)
    assert (done.returncode, done.stderr) == (
        2,
        complaint("podman's containers do not share GPUs yet", "launch it without --share"),
    )
    rootful.launcher.environment["GPULAUNCH_SHARE"] = "true"
    assert rootful.run("podman", "run", "--rm", IMAGE, "true").returncode == 0


# --------------------------------------------------------------------- public command lines


_FOLDERS = ("/home/user/data/DALOS", "/home/user", "/opt/lorax/data", "tom/container/")
_DEVICES = "kfd dri/card0 input/event19 tty2 nvidiactl nvidia-modeset nvidia0"
_WITH_DEVICES = f"""
    set -e
    mount -t tmpfs none /mnt
    mkdir /mnt/dri /mnt/input /mnt/pts /mnt/shm
    for name in null zero full random urandom tty ptmx; do cp -a /dev/$name /mnt; done
    for name in {_DEVICES}; do mknod /mnt/$name c 1 3; done
    mount --bind /mnt /dev
    exec "$@"
"""
"""A script that runs a command where the devices are that lines name; /dev is its own."""


def without_gpus_flag(words: Sequence[str]) -> list[str]:
    """Return a line without --gpus, which not every version of podman knows."""
    return [word for word in words if not word.startswith("--gpus=")]


def as_create(line: CommandLine) -> list[str]:
    """Return a line that makes the container and does not start it, from the tests' image.

    podman create reads the same flags as podman run, and leaves a container to look at.
    """
    command = read_command(line.words, PODMAN)
    flags, operands = line.words[: command.flags_end], line.words[command.flags_end + 1 :]
    flags[flags.index("run")] = "create"
    for folder in _FOLDERS:
        flags = [word.replace(folder, "/tmp") for word in flags]
    return [
        *(word for word in flags if word not in ("-d", "--detach")),
        *(f"localhost/{IMAGE}", *operands),
    ]


def run_line(host: Host, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of podman's or gpulaunch's to its end."""
    if not host.store.identity:
        words = ["unshare", "--mount", "sh", "-c", _WITH_DEVICES, "sh", *words]
    return subprocess.run(
        words,
        **host.store.identity,
        cwd="/tmp",
        env=host.launcher.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("line", command_lines.for_clients("podman"), ids=lambda line: line.source)
def test_public_line(line: CommandLine, request: pytest.FixtureRequest) -> None:
    """A line with gpulaunch before it makes the same container, with the GPUs that it asks for."""
    host = request.getfixturevalue("rootless" if "--userns=keep-id" in line.words else "rootful")
    words = as_create(line)
    alone = run_line(host, without_gpus_flag(words))
    plain = made_with(host.store, alone.stdout.strip()) if alone.returncode == 0 else None
    host.store.remove_all()
    prefix = [host.launcher.script, *getattr(host.launcher, "first", ()), *DGX]
    done = run_line(host, [*prefix, *words])
    leases = len(host.launcher.records())
    if plain is None:  # a flag of another version
        assert "unknown flag" in done.stderr
        assert (done.returncode, done.stderr, leases) == (alone.returncode, alone.stderr, 0)
        return
    if line.gpus == ["0", "1:0"]:  # a part of a GPU, which the described machine has not
        assert (done.returncode, leases) == (2, 0)
        return
    ours = made_with(host.store, done.stdout.strip())
    assert differences(plain.rest, ours.rest) == {}
    if line.gpus == "other maker":
        assert (ours.gpus, ours.visible, leases) == ([], None, 0)
        return
    got: object = [UUIDS.index(uuid) for uuid in ours.gpus]
    want: object = list(range(8)) if line.gpus == "all" else line.gpus
    if isinstance(want, int):
        got = len(ours.gpus)
    assert (got, ours.visible, leases) == (want, "void", 1)
