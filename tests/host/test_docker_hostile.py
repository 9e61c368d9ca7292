"""Containers among strangers: forged labels, records, images and engines, and docker's restarts.

Where an engine is real, it is the tests' own. Where it lies, it is a thread with a socket, and
docker's client is a script, so that only what gpulaunch makes of the lies is seen.
"""

import functools
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from conftest import DGX, Launcher, held, some_of, until
from engine import IMAGE
from test_docker import complaint
from test_docker_faults import (
    BUSY,
    FOREVER,
    FREE,
    RUN,
    Containers,
    host,
    kill_watcher,
    marked,
    watcher_of,
)

from gpulaunch.containers.held_leases import START_FOLLOWS_S
from gpulaunch.machine.find import find_machine
from gpulaunch.process.system import boot_id
from gpulaunch.records import as_list

__all__ = ["host"]

MACHINE = find_machine("dgx1-v100", print)
UUIDS = [gpu.uuid for gpu in MACHINE.topology.gpus]
LEASE_LABEL = "io.gpulaunch.lease"
GPUS_LABEL = "io.gpulaunch.gpus"
FORGED_ID = "ffffffffffff"
SECRET = "hunter2"
START = ("-q", "docker", "start", "job")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to forge others' records")


def end_all_of(launcher: Launcher) -> None:
    """End what a failed test, or a watcher of an engine that lied, has left running."""
    for pid in marked(launcher):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def forge(
    launcher: Launcher,
    engine: str,
    gpus: tuple[int, ...] = (0,),
    *,
    lease_id: str = FORGED_ID,
    user_id: int | None = None,
    **fields: str,
) -> Path:
    """Write a lease's record that no process holds, as any user can; return its path."""
    document = {
        "version": 1,
        "id": lease_id,
        "table": as_list(MACHINE.key),
        "uuids": [UUIDS[gpu] for gpu in gpus],
        "launcher": [1, 0],
        "job": [1, 0],
        "command": ["docker", "run"],
        "assumed": [],
        "ancestors": [],
        "started_at": "2026-01-01T00:00:00Z",
        "boot_id": boot_id(),
        "engine": engine,
        **fields,
    }
    path = launcher.state / f"gpulaunch.lease.{lease_id}"
    path.write_text(json.dumps(document))
    if user_id is not None:
        os.chown(path, user_id, user_id)
    return path


def engine_id(host: Containers) -> str:
    return host.engine.ask("GET", "/info")[1]["ID"]


# ------------------------------------------------------------------------------------------- labels


def test_label_names_no_file(host: Containers) -> None:
    """Whatever a container's label says, docker start makes an ordinary lease and no other file."""
    (host.launcher.state / "gpulaunch.lease.a").mkdir()
    host.environment["GPULAUNCH_HISTORY"] = "false"
    before = set(host.launcher.state.parent.iterdir())
    gpus = f"{GPUS_LABEL}={UUIDS[0]},{UUIDS[3]}"
    forged = ("--label", f"{LEASE_LABEL}=a/../../outside", "--label", gpus)
    host.do("create", "--name", "job", "--init", *forged, *FOREVER)
    done = host.run(*START)
    assert (done.returncode, done.stderr, host.state("job")) == (0, "", "running")
    lease = host.lease()
    assert (lease["gpus"], re.fullmatch("[0-9a-f]{12}", lease["id"]) is not None) == ([0, 3], True)
    assert set(host.launcher.state.parent.iterdir()) == before
    assert host.can_take_all() == (75, BUSY)
    host.engine.docker("rm", "--force", "job")
    until(lambda: host.launcher.records() == ["gpulaunch.lease.a"])


# ------------------------------------------------------------------------------------- docker start


def test_start_after_stop(host: Containers) -> None:
    """However soon after docker stop a container starts again, it has a lease while it runs."""
    run = ("docker", "run", "-d", "--gpus", "2", "--init", "--name")
    begins = {"at-once": ("start", 0), "late": ("restart", START_FOLLOWS_S - 0.1)}
    for name in begins:
        assert host.run(*run, name, *FOREVER).returncode == 0
    first = {lease["container_name"]: lease["uuids"] for lease in host.leases()}
    host.engine.docker("stop", *begins)
    for name, (word, delay_s) in begins.items():
        time.sleep(delay_s)  # the later one meets a watcher that is about to let go
        done = host.run("docker", word, name)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{name}\n")
    time.sleep(START_FOLLOWS_S)  # a watcher that had not noticed would let go by now
    leases = host.leases()
    assert {lease["container_state"] for lease in leases} == {"running"}
    assert {lease["container_name"]: lease["uuids"] for lease in leases} == first
    host.engine.docker("rm", "--force", *begins)
    host.await_free()


def test_two_starts_at_once(host: Containers) -> None:
    """Of two who start a container again at once, at least one does, and it has one lease."""
    host.detach()
    host.engine.docker("stop", "job")
    starts = [host.start(*START) for _ in range(2)]
    ends = [(start.communicate()[1], start.returncode) for start in starts]
    assert {0} <= {status for _, status in ends} <= {0, 75}, ends
    assert not any("Traceback" in text for text, _ in ends)
    assert (host.state("job"), len(host.lease()["gpus"])) == ("running", 2)
    assert host.can_take_all() == (75, BUSY)
    host.engine.docker("rm", "--force", "job")
    host.await_free()


def test_start_in_spite_of_a_forged_lease(host: Containers) -> None:
    """Another user's forged record under the id on a container's label is no lease for it."""
    lease = host.detach()
    host.engine.docker("kill", "job")
    host.await_free()
    host.engine.docker("run", "-d", "--name", "keeper", "--init", *FOREVER)
    at = engine_id(host)
    record = forge(host.launcher, at, (), lease_id=lease["id"], user_id=12345, container="keeper")
    done = host.run(*START)
    assert (done.returncode, host.state("job")) == (0, "running"), done.stderr
    record.unlink(missing_ok=True)  # as its owner may at any time
    assert host.lease()["uuids"] == lease["uuids"]
    assert host.can_take_all() == (75, BUSY)
    host.engine.docker("rm", "--force", "job")
    host.await_free()


def test_start_and_a_waiter_that_looked_before(host: Containers) -> None:
    """A waiter that saw a container end does not get its GPUs once it has been started again."""
    with held(host.launcher, *DGX) as other:
        assert host.run(*RUN, "-d", *FOREVER).returncode == 0
        kill_watcher(host, other.process.pid)
        host.engine.docker("kill", "job")
        waiter = host.start("-n", "all", "--wait", "--", "true")
        assert "waiting as number 1" in waiter.stderr.readline()
        waiter.send_signal(signal.SIGSTOP)  # so that it bars nobody
        until(lambda: status_of(waiter.pid) == "T")
        done = host.run(*START)
        assert (done.returncode, host.state("job")) == (0, "running"), done.stderr
        kill_watcher(host, other.process.pid)
        waiter.send_signal(signal.SIGCONT)
    time.sleep(1.5)
    assert (waiter.poll(), host.state("job")) == (None, "running")
    assert host.can_take_all()[0] == 75
    host.engine.docker("rm", "--force", "job")
    waiter.communicate()
    assert waiter.returncode == 0
    assert host.can_take_all() == FREE


def status_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# ------------------------------------------------------------------------------------ docker commit


@pytest.mark.parametrize("end", ["free", "rm", "rm, unwatched"])
def test_committed_image(host: Containers, end: str) -> None:
    """Containers of an image committed from a launched one hold no lease, and outlive its end.

    Nor do they keep its lease, watched or not.
    """
    lease = host.detach()
    host.do("commit", "job", "committed:1")
    host.do("run", "-d", "--name", "copy", "--init", "committed:1", "sleep", "1000")
    host.do("create", "--name", "made", "committed:1", "sleep", "1000")
    host.do("rmi", "--force", "committed:1")
    assert (host.lease()["id"], host.lease()["container_name"]) == (lease["id"], "job")
    assert "copy" not in host.run("status").stdout
    if end == "rm, unwatched":
        kill_watcher(host)
    if end == "free":
        assert host.run("free", lease["id"]).returncode == 0
        assert host.launcher.records() == []
    else:
        host.do("rm", "--force", "job")
    if end == "rm":
        host.await_free()
    assert (host.can_take_all(), host.state("copy"), host.state("made")) == (
        FREE,
        "running",
        "created",
    )
    done = host.run("docker", "start", "made")  # as docker alone would: it has no GPUs
    assert (done.returncode, host.launcher.records(), host.state("made")) == (0, [], "running")


# ------------------------------------------------------------------------------- secrets, and files

SPELLINGS = "-e A1=V -eA2=V -e=A3=V --env A4=V --env=A5=V -ie A6=V -ieA7=V -e V=V"


def test_variables_stay_secret(host: Containers) -> None:
    """The values of variables, however spelled, are in the container, not in record or status."""
    words = [word.replace("V", SECRET) for word in SPELLINGS.split()]
    host.detach(*words)
    (name,) = host.launcher.records()
    seen = [(host.launcher.state / name).read_text()]
    with host.start("-n", "all", "--wait", "docker", "run", *words, IMAGE, "true") as waiter:
        seen.append(waiter.stderr.readline())
        until(lambda: len(host.launcher.records()) == 2)
        seen += [(host.launcher.state / name).read_text() for name in host.launcher.records()]
        seen += [host.run("status", *json_or_not).stdout for json_or_not in ((), ("--json",))]
        waiter.terminate()
        seen += waiter.communicate()
    assert not any(f"={SECRET}" in text for text in seen), seen
    shown = SPELLINGS.replace("=V", "=...").replace("V", SECRET)
    assert shown in " ".join(host.lease()["command"])
    inside = host.engine.inspect("job")["Config"]["Env"]
    assert {f"A{number}={SECRET}" for number in range(1, 8)} < set(inside)


def test_relative_socket(host: Containers) -> None:
    """With a relative DOCKER_HOST the lease ends with the container, wherever its watcher works."""
    host.environment["DOCKER_HOST"] = "unix://docker.sock"
    run = ("-q", "docker", "run", "-d", "--gpus", "2", "--name", "job", "--init", *FOREVER)
    done = host.run(*run, cwd=host.engine.directory)
    assert (done.returncode, done.stderr) == (0, "")
    shown = host.run("status", "--json", cwd=host.engine.directory)
    (lease,) = json.loads(shown.stdout)["leases"]
    assert (lease["container_state"], lease["container_problem"]) == ("running", None)
    host.engine.docker("kill", "job")
    host.await_free()


NO_NAMES = (
    *(("run", image) for image in ("", "../containers/x", "%2e%2e/x", "x?y=z", "\udcff", "a\nb")),
    *(("start", name) for name in ("", "../x", "\udcff")),
    ("restart", "../x"),
    ("run", "--name", "../x", IMAGE, "true"),
)


def test_names_that_are_none(host: Containers) -> None:
    """What cannot be a name is docker's error, or one line of gpulaunch's own with 125."""
    for words in NO_NAMES:
        done = host.run("-q", "docker", *words)
        if done.stderr.startswith("gpulaunch: "):
            assert (done.returncode, complaint(done) != "") == (125, True), words
        else:
            bare = host.engine.docker(*words, errors="surrogateescape")
            assert (done.returncode, done.stderr) == (bare.returncode, bare.stderr), words
    assert host.launcher.records() == []


# -------------------------------------------------------------------------------- nested, and quiet


def test_container_of_a_nested_launch(host: Containers) -> None:
    """A container that a job has started keeps lease and watcher after the job, until it ends."""
    inner = "gpulaunch -q docker run -d --gpus 1 --init --name job " + " ".join(FOREVER)
    outer = ("-q", "-n", "2", "--only", "4,5")
    done = host.run(*outer, "--", "sh", "-c", inner)
    assert done.returncode == 0, done.stderr
    assert host.lease()["gpus"] == [4]
    os.kill(watcher_of(host), 0)
    assert host.can_take_all()[0] == 75
    assert host.run("-n", "7", "--", "true").returncode == 0
    host.engine.docker("rm", "--force", "job")
    host.await_free()


def test_record_names_a_container(host: Containers) -> None:
    """A forged record that names a real container stops no launch, and ends no other's process."""
    host.do("create", "--name", "job", *FOREVER)
    engine = engine_id(host)
    for container in ("\ud800", "../x", "x" * 5000, "\x1b[2J", "job"):
        forge(host.launcher, engine, user_id=12345, container=container)
        for words in (ONE, ("-n", "7", "--", "true"), COMMANDS["status"], COMMANDS["doctor"]):
            done = host.run(*words)
            assert (done.returncode, done.stderr, "\x1b" in done.stdout) == (0, "", False), words
        assert host.state("job") == "created"


# --------------------------------------------------------------------------------- engines that lie

OK = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"
FAKE = "fake-engine"
INFO = {"ID": FAKE, "ServerVersion": "1.0", "Runtimes": {"runc": {}}}
CONTAINER = {
    "Id": "c" * 64,
    "Name": "/somebody",
    "Image": "sha256:0",
    "State": {"Status": "running", "ExitCode": 0},
    "HostConfig": {},
    "Config": {"Labels": {LEASE_LABEL: FORGED_ID, GPUS_LABEL: UUIDS[0]}},
}
Talk = Callable[[socket.socket, threading.Event], None]
"""How an engine answers on a connection, given what is set once it is closed."""


class Liar:
    """What answers at a socket in an engine's place, until it is closed."""

    def __init__(self, path: Path, talk: Talk) -> None:
        self.path, self._talk = path, talk
        self._closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        path.chmod(0o666)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while not self._closed.is_set():
            with suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self._talk(connection, self._closed)

    def close(self) -> None:
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink()


def asked(connection: socket.socket) -> str:
    """Return the path in a request."""
    request = b""
    while b"\r\n\r\n" not in request:
        part = connection.recv(65536)
        if not part:
            raise ConnectionError
        request += part
    return request.split(b" ")[1].decode()


def says(content: bytes) -> Talk:
    def talk(connection: socket.socket, _: threading.Event) -> None:
        asked(connection)
        connection.sendall(content)

    return talk


def silent(connection: socket.socket, closed: threading.Event, head: bytes = b"") -> None:
    asked(connection)
    connection.sendall(head)
    closed.wait()


def slow_bytes(connection: socket.socket, closed: threading.Event) -> None:
    asked(connection)
    for byte in OK + b" " * 1000:
        connection.sendall(bytes([byte]))
        if closed.wait(1):
            return


def endless(connection: socket.socket, closed: threading.Event, head: bytes = b"") -> None:
    asked(connection)
    connection.sendall(head)
    while not closed.is_set():
        connection.sendall(b"x" * 65536)


def lies(**answers: object) -> Talk:
    """Return an engine with its own info, image, list and container; None makes one missing."""
    honest = {"info": INFO, "list": [{"Id": CONTAINER["Id"]}], "container": CONTAINER}
    kinds = {
        "/info": "info",
        "/images/": "image",
        "/containers/json": "list",
        "/containers/": "container",
    }

    def talk(connection: socket.socket, _: threading.Event) -> None:
        path = asked(connection)
        kind = next((kind for start, kind in kinds.items() if path.startswith(start)), "other")
        answer = {**honest, **answers}.get(kind)
        answer = answer(path) if callable(answer) else answer
        found = OK + json.dumps(answer).encode()
        connection.sendall(found if answer is not None else b"HTTP/1.0 404 No\r\n\r\n{}")

    return talk


def container(**parts: object) -> dict:
    return {**CONTAINER, **parts}


def labels(found: object) -> dict:
    return {"Config": {"Labels": found}}


SLOW = {"nothing": silent, "a byte every second": slow_bytes}
NO_ENGINE = {
    "bytes without end": endless,
    "a body without end": functools.partial(endless, head=OK),
    "half a status line": says(b"HTTP/1.0 "),
    "no body": says(OK),
    "a deep list": says(OK + b"[" * 100_000),
    "half a document": says(OK + b'{"ID": "fa'),
    "wrong types": says(OK + b'{"ID": 5, "ServerVersion": 5, "Runtimes": 5, "CDISpecDirs": 5}'),
    "a failure": says(b'HTTP/1.0 500 Failure\r\n\r\n{"message": "it is \\u001b[2J broken"}'),
    "elsewhere": says(b"HTTP/1.0 301 Moved\r\nLocation: /elsewhere\r\n\r\n{}"),
    "podman": says(b"HTTP/1.0 200 OK\r\nServer: Libpod/5.0.0 (linux)\r\n\r\n{}"),
    "goodbye": lambda _, __: None,
    "an id that is a list": lies(info=INFO | {"ID": ["x"]}),
}
ODD = {
    "devices that are numbers": lies(info=INFO | {"DiscoveredDevices": [{"ID": 5}]}),
    "a directory that is no path": lies(info=INFO | {"CDISpecDirs": [0, "\0", "\ud800"]}),
    "an image's labels that are a list": lies(image=labels([5])),
    "an id that moves the cursor": lies(info=INFO | {"ID": "\x1b[2J\ud800"}),
}
CONTAINERS = {
    "container ids that are numbers": lies(list=[{"Id": 5}]),
    "containers that it does not know": lies(list=None),
    "a container of nothing": lies(container={}),
    "a state that is a list": lies(container=container(State={"Status": []})),
    "labels that are numbers": lies(container=container(**labels({LEASE_LABEL: 5, GPUS_LABEL: 5}))),
    "a policy that is a table": lies(
        container=container(HostConfig={"RestartPolicy": {"Name": {}}})
    ),
    "names that move the cursor": lies(
        container=container(Name="/\x1b]0;evil\x07\x1b[2J", State={"Status": "paused\x1b[2J"})
    ),
    "a version that moves the cursor": lies(info=INFO | {"ServerVersion": "\x1b[2J"}),
}


def ended(stream: Talk) -> Talk:
    """Return an engine whose container has ended, with an event stream of its own."""
    lease: list[str] = []

    def listed(path: str) -> list[dict]:
        asked = re.findall(r"lease(?:=|%3D)([0-9a-f]{12})", path)
        lease[:] = asked or lease
        return [{"Id": CONTAINER["Id"]}] if asked else []  # none that runs

    def inspected(_: str) -> dict:
        return container(
            State={"Status": "exited", "ExitCode": 0}, **labels({LEASE_LABEL: lease[0]})
        )

    rest = lies(list=listed, container=inspected)

    def talk(connection: socket.socket, closed: threading.Event) -> None:
        events = connection.recv(4096, socket.MSG_PEEK).startswith(b"GET /events")
        (stream if events else rest)(connection, closed)

    return talk


EVENTS = {
    "events that say nothing": ended(functools.partial(silent, head=OK)),
    "events without end": ended(functools.partial(endless, head=OK)),
}
CLEAR = "labels that are numbers"
"""A lie that may be taken to say that there is no container of this lease."""

LIES = {**SLOW, **NO_ENGINE, **ODD, **CONTAINERS}
MOST_MEMORY_KIB = 400_000  # of addresses; Python alone takes 60,000
ONE = (*DGX, "--", "true")
COMMANDS = {
    "one": ONE,
    "all": (*DGX, "-n", "all", "--", "true"),
    "status": ("status", *DGX),
    "doctor": ("doctor", *DGX),
    "docker run": (*DGX, "-q", "docker", "run", IMAGE, "true"),
    "docker start": (*DGX, "-q", "docker", "start", "x"),
}
HARMFUL = ("Traceback", "\x1b", "\x07", "out of memory")
UNKNOWN = "GPUs of containers count only where they are seen in use"
Outcome = subprocess.CompletedProcess[str]


def carry_out(launcher: Launcher, words: tuple[str, ...]) -> Outcome:
    """Run gpulaunch in little memory; it must print nothing harmful."""
    limited = f'ulimit -v {MOST_MEMORY_KIB}; exec "$0" "$@"'
    done = subprocess.run(
        ["sh", "-c", limited, launcher.script, *words],
        env=launcher.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )
    assert not any(harm in f"{done.stdout}{done.stderr}" for harm in HARMFUL), done
    return done


def confronted(stack: ExitStack, talk: Talk, user_id: int | None) -> Launcher:
    """Return a launcher with an unheld lease and a lying engine, the user's own or a stranger's."""
    home = Path(tempfile.mkdtemp(prefix="gph-", dir="/tmp"))  # a socket's path must be short
    stack.callback(shutil.rmtree, home)
    launcher = Launcher(home)
    stack.callback(end_all_of, launcher)
    client = home / "bin" / "docker"
    client.parent.mkdir()
    client.write_text("#!/bin/sh\necho docker was run\nexit 3\n")
    client.chmod(0o755)
    launcher.environment["PATH"] = f"{client.parent}:{launcher.environment['PATH']}"
    place = home
    if user_id is not None:
        place = Path(f"/run/user/{user_id}")
        if not place.parent.exists():
            place.parent.mkdir()
            stack.callback(place.parent.rmdir)
        place.mkdir()
        stack.callback(place.rmdir)
    stack.callback(Liar(place / "docker.sock", talk).close)
    launcher.environment["DOCKER_HOST"] = f"unix://{home}/docker.sock"
    forge(launcher, FAKE, user_id=user_id)
    return launcher


Told = Mapping[tuple[str, str, str], Outcome]
OWN, STRANGE = "the user's own", "a stranger's"
FIFTH = 5
"""Every fifth lie meets all commands, by the user's engine and by a stranger's; others meet two.

All lies meet all of them in tests/slow/test_long_forms.py.
"""


@contextmanager
def told_by(every: int) -> Iterator[Told]:
    """Yield what commands make of lies: of the slow ones all at once, of others a few at a time.

    Args:
        every: every so manieth lie meets all commands, also as a stranger's.
    """
    found: dict[tuple[str, str, str], Future[Outcome]] = {}
    with ExitStack() as stack:
        waiting = stack.enter_context(ThreadPoolExecutor(24))
        working = stack.enter_context(ThreadPoolExecutor(2 * (os.cpu_count() or 1)))
        ids = itertools.count(1_900_000_000 + 100 * os.getpid())  # users that do not exist
        some = set(some_of(list(LIES), every, SLOW))
        for lie, talk in {**LIES, **EVENTS}.items():
            for whose in (OWN, STRANGE) if lie in some else (OWN,):
                launcher = confronted(stack, talk, None if whose == OWN else next(ids))
                pool = waiting if lie in SLOW or lie in EVENTS else working
                for name in asked_of(lie, whose, every_command=lie in some):
                    found[lie, whose, name] = pool.submit(carry_out, launcher, COMMANDS[name])
        yield {key: future.result() for key, future in found.items()}


def asked_of(lie: str, whose: str, *, every_command: bool) -> list[str]:
    """Return the commands that meet a lie; a stranger's engine is not asked for containers."""
    if lie in EVENTS:
        return ["docker run"]
    if whose == STRANGE:
        return ["one", "all", "status"]
    started = "docker start" if lie in CONTAINERS else "docker run"
    return ["one", "all", "status", "doctor", started] if every_command else ["all", started]


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    """Yield what every command makes of every fifth lie, and two commands of each."""
    with told_by(FIFTH) as found:
        yield found


@pytest.mark.parametrize(
    ("lie", "whose"),
    [*((lie, OWN) for lie in LIES), *((lie, STRANGE) for lie in some_of(list(LIES), FIFTH, SLOW))],
)
def test_launch_beside_a_lie(told: Told, lie: str, whose: str) -> None:
    """Whatever answers for a lease's engine, other launches start, and the lease stays."""
    everything = told[lie, whose, "all"]
    assert everything.returncode == 75 or (lie, everything.returncode) == (CLEAR, 0), everything
    if (lie, whose, "status") not in told:  # only some lies were told to all commands
        return
    assert told[lie, whose, "status"].returncode == 0
    one = told[lie, whose, "one"]
    # All GPUs are free by the other lie, and the other launch has them.
    if (lie, one.returncode) != (CLEAR, 75):
        assert one.returncode == 0, one
        assert all(UNKNOWN in line for line in one.stderr.splitlines()), one
    if whose == OWN and lie in SLOW:  # 2 s, less what looking for engines took
        assert re.search(rf"no answer in (2|1\.\d) s: {UNKNOWN}", one.stderr), one


@pytest.mark.parametrize("lie", LIES)
def test_docker_with_a_lie(told: Told, lie: str) -> None:
    """Whatever answers at DOCKER_HOST, gpulaunch tells in one line, or leaves it to docker."""
    outcomes = {name: told.get((lie, OWN, name)) for name in ("docker run", "docker start")}
    for name, outcome in outcomes.items():
        if outcome and "docker was run" in outcome.stdout:
            assert (lie in NO_ENGINE, outcome.returncode, outcome.stderr) == (False, 3, ""), outcome
        elif outcome:
            assert (outcome.returncode, complaint(outcome) != "") in (
                (125, True),
                (2, lie not in NO_ENGINE),
                (75, name == "docker start" and lie not in NO_ENGINE),
            ), outcome
    doctor = told.get((lie, OWN, "doctor"))
    assert doctor is None or doctor.returncode in (0, 1), doctor


@pytest.mark.parametrize("lie", EVENTS)
def test_events_without_end(told: Told, lie: str) -> None:
    """An engine whose events never come or end does not cost a launch docker's status."""
    outcome = told[lie, OWN, "docker run"]
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (3, "docker was run\n", "")


def test_cdi_directory_with_a_pipe(tmp_path: Path) -> None:
    """What stands in a directory that an engine names, and is no file, is not waited for."""
    os.mkfifo(tmp_path / "nvidia.yaml")
    with ExitStack() as stack:
        engine = lies(info=INFO | {"CDISpecDirs": [str(tmp_path)]}, list=[])
        outcome = carry_out(confronted(stack, engine, None), COMMANDS["docker run"])
        assert (outcome.returncode, outcome.stdout, outcome.stderr) == (3, "docker was run\n", "")


@pytest.mark.parametrize("lie", CONTAINERS)
def test_free_with_a_lie(lie: str) -> None:
    """Whatever an engine tells of a lease's container, free ends the lease or says why not."""
    with ExitStack() as stack:
        launcher = confronted(stack, CONTAINERS[lie], None)
        outcome = carry_out(launcher, ("free", FORGED_ID))
        assert outcome.returncode == 0 or (outcome.returncode == 125 and complaint(outcome))


NAMED = "d" * 64
HARMLESS = (("top", *DGX), ("wait", FORGED_ID), COMMANDS["doctor"], ONE, COMMANDS["all"])


@pytest.mark.parametrize("label", [None, "abcdefabcdef"], ids=["no label", "another lease's"])
def test_container_in_another_users_record(label: str | None) -> None:
    """No command acts on a container that another user's record names without its lease's label.

    Root's free least of all; without any label of ours it is not even asked about.
    """
    requests: list[str] = []
    made = labels({LEASE_LABEL: label, GPUS_LABEL: UUIDS[0]} if label else {})
    found = container(Id=NAMED, Name="/alice-db", **made)
    engine = lies(container=found, list=[{"Id": NAMED}] if label else [])

    def overhear(connection: socket.socket, closed: threading.Event) -> None:
        requests.append(connection.recv(65536, socket.MSG_PEEK).split(b" HTTP")[0].decode())
        engine(connection, closed)

    with ExitStack() as stack:
        launcher = confronted(stack, overhear, None)
        record = forge(launcher, FAKE, user_id=12345, container=NAMED)
        freed = carry_out(launcher, ("free", FORGED_ID))
        for words in HARMLESS:
            carry_out(launcher, words)
        assert {request.partition(" ")[0] for request in requests} == {"GET"}
        if label:
            assert (freed.returncode, record.exists()) == (125, True)
            assert "container alice-db is still there" in freed.stderr
            assert f"else rm {record}" in freed.stderr.splitlines()[1]
        else:
            assert (freed.returncode, record.exists()) == (0, False), freed
            assert not any(NAMED in request for request in requests)
