"""`gpulaunch podman ...` with a real Podman, root's and a user's: podman alone, but with GPUs.

What a container got is looked at from inside: a CDI specification knows the GPUs of the described
machine that gpulaunch chooses from. No GPU is needed.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Launcher, children, until, wait_for_end
from engine import BUSYBOX, IMAGE
from podman import CDI, Store, describe_gpus, why_not
from test_users import Accounts, User, accounts, alice, bob, root  # noqa: F401  fixtures

from gpulaunch.leases.holders import holders
from gpulaunch.leases.record_file import opened
from gpulaunch.process.ending import is_companion
from gpulaunch.process.system import program_of

NAME = f"box-{os.getpid()}"  # a machine that no other test names, for all see its CDI devices
MACHINE = Path(tempfile.gettempdir()) / f"{NAME}.toml"
BOX = ("--topology", str(MACHINE))
UUIDS = tuple(f"GPU-{NAME}-{index}" for index in range(8))
SHOW = ("sh", "-c", "env | grep FAKE_GPU | sort; ls /dev | grep nvidia")
LONG = (IMAGE, "sleep", "1000")
READY = (IMAGE, "sh", "-c", "echo ready; exec sleep 1000")


class Host:
    """A user with GPUs, a store of podman that knows them, and gpulaunch.

    Attributes:
        launcher: gpulaunch, as this user runs it.
        store: the user's store.
        do: function that runs podman without gpulaunch, and returns what it prints.
    """

    def __init__(self, launcher: Launcher, store: Store) -> None:
        self.launcher, self.store, self.do = launcher, store, store.do
        launcher.environment |= store.environment
        launcher.environment["PATH"] += ":/usr/sbin"  # of runc
        launcher.environment["GPULAUNCH_GRACE"] = "0.1s"

    def run(self, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
        """Run gpulaunch to its end."""
        return self.launcher.run(*BOX, *arguments, **options)

    def detached(self, *arguments: str) -> str:
        """Make a container by gpulaunch that outlives it; its id."""
        done = self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip()

    def leases(self) -> list[dict]:
        """Return the live leases, as status tells of them once podman answers in its time."""
        while True:
            done = self.launcher.run("status", *BOX, "--json")
            assert (done.returncode, done.stderr) == (0, "")
            leases = json.loads(done.stdout)["leases"]
            # status waits two seconds in all; podman on a busy machine needs longer at times.
            if not any("no answer" in (one["container_problem"] or "") for one in leases):
                return leases

    def lease(self) -> dict:
        """Return the only lease."""
        (lease,) = self.leases()
        return lease

    def state(self, container: str) -> str:
        """Return a container's state, as podman tells it."""
        return self.store.inspect(container)["State"]["Status"]

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


def stand_in(host: Host, directory: Path, script: str) -> None:
    """Put a script before podman in the launcher's PATH."""
    (directory / "podman").write_text(script)
    (directory / "podman").chmod(0o755)
    host.launcher.environment["PATH"] = f"{directory}:{host.launcher.environment['PATH']}"


@pytest.fixture(scope="module")
def gpus() -> Iterator[None]:
    """Describe the GPUs of the described machine to podman."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    described = Path(__file__).parents[2] / "profiles" / "machines" / "dgx1-v100.toml"
    MACHINE.write_text(described.read_text().replace('"dgx1-v100"', f'"{NAME}"', 1))
    describe_gpus(UUIDS)
    yield
    CDI.unlink()
    MACHINE.unlink()


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


# ------------------------------------------------------------------------------------ like podman


FLAGS = (
    *("-e", "A=1", "--env", "B", "-v", "/tmp:/host:ro", "--label", "a=b", "--network=none", "-it"),
    *("--workdir", "/tmp", "--entrypoint", "sh", "--restart", "on-failure:3", "--device=/dev/null"),
    *("--tmpfs", "/scratch", "--shm-size", "8m", "--hostname", "h", "--cap-drop", "all"),
)


def test_only_gpus_labels_and_lease_are_added(rootless: Host) -> None:
    """What podman makes of a command line differs by GPUs, our labels and our variables alone."""
    words = ("podman", "create", "--name", "x", *FLAGS, IMAGE, "-c", "true")
    rootless.detached("-n", "2", *words)
    lease = rootless.lease()
    uuids = [UUIDS[index] for index in lease["gpus"]]
    devices = [word for uuid in uuids for word in ("--device", f"nvidia.com/gpu={uuid}")]
    labels = [f"io.gpulaunch.gpus={','.join(uuids)}", f"io.gpulaunch.lease={lease['id']}"]
    labels.append("io.gpulaunch.later=true")
    named, count = f"GPULAUNCH_LEASE={lease['id']}", "GPULAUNCH_GPU_COUNT=2"
    assert rootless.store.inspect("x")["Config"]["CreateCommand"] == [
        *words[: -len((IMAGE, "-c", "true"))],
        *(*devices, "-e", "NVIDIA_VISIBLE_DEVICES=void", "-e", named, "-e", count),
        *(word for label in labels for word in ("--label", label)),
        *(IMAGE, "-c", "true"),
    ]


def test_the_container_sees_its_gpus_alone(rootless: Host) -> None:
    """Its GPUs are in the container, and no others; they are free when it has ended."""
    done = rootless.run("-n", "2", "podman", "run", "--rm", IMAGE, *SHOW)
    assert (done.returncode, done.stderr) == (0, "")
    want = [f"FAKE_GPU_0={UUIDS[0]}", f"FAKE_GPU_3={UUIDS[3]}", "nvidia0", "nvidia3"]
    assert done.stdout.split() == want
    assert rootless.launcher.records() == []


def test_gpus_by_index(rootful: Host, tmp_path: Path) -> None:
    """--gpus names GPUs by index, as podman's does, for a root file system, too.

    That sharing is the default in the settings does not matter.
    """
    rootful.launcher.environment["GPULAUNCH_SHARE"] = "true"
    done = rootful.run("podman", "run", "--rm", "--gpus", "2,5", IMAGE, *SHOW)
    assert done.stdout.split()[-2:] == ["nvidia2", "nvidia5"]
    (tmp_path / "bin").mkdir()
    shutil.copy(BUSYBOX, tmp_path / "bin" / "ls")
    words = ("--gpus=2", "--rootfs", str(tmp_path), "/bin/ls", "/dev")
    done = rootful.run("podman", "run", "--rm", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert [word for word in done.stdout.split() if "nvidia" in word] == ["nvidia2"]


# --------------------------------------------------------------------- as long as the container


def test_podman_restart_keeps_the_lease_and_stop_ends_it(rootful: Host) -> None:
    """The lease is the container's, even where no events are kept; no policy acts after a stop."""
    host = rootful
    host.store.configure(events="none")
    container = host.detached("podman", "run", "-d", "--restart", "always", *LONG)
    lease, companion = host.lease(), host.companion()
    assert (lease["container"], lease["container_state"]) == (container, "running")
    host.do("restart", "--time", "0", container)
    done = host.run("podman", "restart", "-t0", container)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{container}\n", "")
    assert (host.lease(), host.companion()) == (lease, companion)
    host.do("stop", "--time", "0", container)
    host.await_free()
    assert host.state(container) == "exited"


_DELAYED = """\
#!/bin/sh
here={directory}
case "$1" in
    events)
        if [ ! -e $here/looked ]; then
            : >$here/looked
            read -r _ <$here/go
        fi ;;
    ps)
        if [ -e $here/looked ]; then : >$here/asked_again; fi ;;
esac
exec {podman} "$@"
"""
"""A podman that tells what it is asked, and waits before its first answer about events."""


def test_a_restart_between_two_questions_keeps_the_lease(rootful: Host, tmp_path: Path) -> None:
    """A lease stays while podman restart has ended its container and not yet started it."""
    podman = shutil.which("podman")
    os.mkfifo(tmp_path / "go")
    stand_in(rootful, tmp_path, _DELAYED.format(directory=tmp_path, podman=podman))
    container = rootful.detached("podman", "run", "-d", *LONG)
    (record,) = rootful.launcher.records()
    companion = rootful.companion()
    environment = {"PATH": os.environ["PATH"], **rootful.store.environment}
    restart = subprocess.Popen(  # sleep, as a first process, ignores its TERM
        [podman, "restart", "--time", "1000", container], env=environment, stdout=subprocess.PIPE
    )
    until(lambda: rootful.store.inspect(container)["State"]["Status"] == "stopping")
    restart.send_signal(signal.SIGSTOP)
    kill(rootful.store.pids(container)[0])
    until((tmp_path / "looked").exists)
    (tmp_path / "go").write_text("\n")
    restart.send_signal(signal.SIGCONT)
    assert restart.wait() == 0
    assert rootful.store.inspect(container)["State"]["Running"]
    until(lambda: (tmp_path / "asked_again").exists() or not rootful.launcher.records())
    assert (rootful.launcher.records(), rootful.companion()) == ([record], companion)
    rootful.do("stop", "--time", "0", container)
    rootful.await_free()


@pytest.mark.parametrize("host", ["rootful", "rootless"])
@pytest.mark.parametrize("tries", [2, pytest.param(100, marks=pytest.mark.long)])
def test_restarts_soon_after_a_start(request: pytest.FixtureRequest, host: str, tries: int) -> None:
    """However soon podman restart comes, and again, nobody else is given the GPUs."""
    box: Host = request.getfixturevalue(host)
    for number in range(tries):
        container = box.detached("-n", "2", "podman", "run", "-d", *LONG)
        for _ in range(1 + number % 2):
            box.do("restart", "--time", "0", container)
        assert box.run("-n", "all", "--", "true").returncode == 75
        assert box.lease()["container"] == container
        box.do("rm", "--force", "--time", "0", container)
        box.await_free()


def test_a_restart_policy_keeps_the_lease(rootless: Host) -> None:
    """A container that its policy starts again keeps its GPUs until it has ended for good."""
    container = rootless.detached(
        *("podman", "run", "-d", "--restart", "on-failure:2", IMAGE),
        *("sh", "-c", "echo >>/runs; test $(wc -l </runs) = 3 && exec sleep 1000; exit 3"),
    )
    until(lambda: rootless.store.inspect(container)["RestartCount"] == 2)
    until(lambda: rootless.lease()["container_state"] == "running")  # counted before it starts
    rootless.do("kill", container)
    rootless.await_free()
    assert rootless.store.inspect(container)["State"]["ExitCode"] == 137


def test_a_killed_launcher_takes_no_lease_along(rootless: Host) -> None:
    """The container and its lease go on without launcher and client, and end with each other."""
    run = (*BOX, "podman", "run", "--name", "x", *READY)
    with rootless.launcher.start(*run) as process:
        assert process.stdout.readline() == "ready\n"
        (client,) = (pid for pid in children(process.pid) if program_of(pid) == "podman")
        kill(process.pid)
        kill(client)
        process.wait()
    lease = rootless.lease()
    assert (lease["container_name"], lease["container_state"]) == ("x", "running")
    rootless.do("kill", "x")
    rootless.await_free()


def test_a_killed_conmon_takes_no_lease_along(rootful: Host) -> None:
    """Without its monitor a container goes on, and its lease ends with its processes."""
    container = rootful.detached("podman", "run", "-d", *LONG)
    pid, conmon = rootful.store.pids(container)
    kill(conmon)
    assert rootful.lease()["container"] == container
    companion = rootful.companion()
    kill(pid)
    wait_for_end(companion)
    assert rootful.launcher.records() == []


def test_who_knows_about_a_container(rootful: Host, rootless: Host) -> None:
    """A lease that nobody watches stays as long as podman says, which its owner alone may ask.

    The conmon of a container that gpulaunch has started shows everybody that it runs.
    """
    container = rootless.detached("podman", "create", *LONG)
    kill(rootless.companion())
    lease = rootless.lease()
    assert (lease["container"], lease["container_state"]) == (container, "created")
    seen = rootful.lease()
    name = rootless.launcher.name
    assert seen["id"] == lease["id"]
    assert seen["container_problem"] == f"only {name} can ask Podman about containers of {name}"
    assert rootful.launcher.run("free", lease["id"]).returncode == 125
    rootless.do("start", container)
    assert rootless.lease()["container_state"] == "running"
    rootless.do("rm", "--force", "--time", "0", container)
    assert rootless.leases() == []
    container = rootless.detached("podman", "run", "-d", *LONG)
    kill(rootless.companion())
    seen = rootful.lease()
    assert (seen["gpus"], seen["container_problem"]) == (rootless.lease()["gpus"], None)
    rootless.do("kill", container)
    assert rootless.leases() == []


def test_a_failing_start_keeps_no_gpus(rootless: Host) -> None:
    """A container that podman run could not start frees its GPUs, although it is there."""
    done = rootless.run("podman", "run", "--name", "x", IMAGE, "/no-such-program")
    assert done.returncode == 127
    assert rootless.state("x") == "created"
    assert rootless.launcher.records() == []


def test_free(rootful: Host) -> None:
    """`gpulaunch free` ends a container so that no policy starts it again.

    One that was only made is removed.
    """
    run = rootful.detached("podman", "run", "-d", "--restart", "always", *LONG)
    free_only_lease(rootful)
    assert rootful.state(run) == "exited"
    rootful.detached("podman", "create", *LONG)
    free_only_lease(rootful)
    assert rootful.do("ps", "--all", "--quiet", "--no-trunc") == run


def free_only_lease(host: Host) -> None:
    done = host.launcher.run("free", host.lease()["id"])
    assert (done.returncode, done.stderr, host.launcher.records()) == (0, "", [])


def test_start_again(rootful: Host) -> None:
    """A container that has ended starts again on its GPUs, under a new lease."""
    script = "test -e /again && exec sleep 1000; touch /again"
    made = ("--only", "6", "podman", "run", "--name", "x", IMAGE, "sh", "-c", script)
    assert rootful.run(*made).returncode == 0
    assert rootful.launcher.records() == []
    assert rootful.detached("podman", "start", "x") == "x"
    lease = rootful.lease()
    got = (lease["gpus"], lease["container_name"], lease["container_state"])
    assert got == ([6], "x", "running")
    rootful.do("kill", "x")
    rootful.await_free()


def test_the_time_limit_ends_a_container(rootful: Host) -> None:
    """--time-limit ends a container in the background, too."""
    container = rootful.detached("--time-limit", "1s", "podman", "run", "-d", *LONG)
    rootful.await_free()
    assert rootful.state(container) == "exited"


# ------------------------------------------------------------------------------ containers in use

IN_USE = "in use outside gpulaunch (container server (podman))\n"


def test_gpus_of_a_running_container_are_not_granted(rootless: Host) -> None:
    """The GPUs of a running container of the user's count as in use, whoever started it."""
    made = ("-n", "2", "--only", "0,3", "podman", "run", "-d", "--name", "server")
    rootless.detached(*made, *LONG)
    rootless.do("kill", "server")
    rootless.await_free()
    rootless.do("start", "server")
    done = rootless.run("-n", "all", "--", "true")
    assert f"8 GPUs requested: 6 of 8 are free, 2 are {IN_USE}" in done.stderr
    assert rootless.run("-n", "6", "--", "true").returncode == 0
    rootless.do("rm", "--force", "--time", "0", "server")
    assert rootless.run("-n", "all", "--", "true").returncode == 0


def test_only_a_store_with_containers_is_asked(rootful: Host, tmp_path: Path) -> None:
    """A launch runs podman only if the user's store has containers; if it hangs, a line says so."""
    stand_in(rootful, tmp_path, "#!/bin/sh\nexec sleep 1000\n")
    done = rootful.run("--", "true")
    assert (done.returncode, done.stderr) == (0, "")
    rootful.do("create", *LONG)
    done = rootful.run("--", "true")
    late = r"no answer from podman in (2|1\.\d) s: GPUs of containers count only where they are"
    assert done.returncode == 0
    assert re.fullmatch(f"gpulaunch: warning: {late} seen in use\n", done.stderr), done
