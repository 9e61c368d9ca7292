"""The stand-in for CUDA MPS says what driver 550's control daemon says, and obeys the test."""

import itertools
import os
import signal
import stat
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from conftest import until
from fake_mps import CLIENT, CONTROL, PIPE, SERVER, FakeMps, Mps, is_alive, kill, wait_for_end

pytest_plugins = ("fake_mps", "fake_nvml")

NOBODY = 65534
NO_DAEMON = "Cannot find MPS control daemon process\n"
SECOND = "An instance of this daemon is already running\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")


@pytest.fixture(params=["real_mps", "fake_mps"])
def mps(request: pytest.FixtureRequest) -> Mps:
    """Return the real control daemon or the stand-in, with a server as unready as the real one."""
    mps = request.getfixturevalue(request.param)
    if isinstance(mps, FakeMps):
        mps.tell(status="INITIALIZING")
    return mps


def said(mps: Mps, *commands: str, **options) -> str:
    """Return a daemon's answer, asking again while the real one is busy and refuses."""
    deadline = time.monotonic() + 20
    while (done := mps.ask(*commands, **options)).returncode or done.stderr:
        assert time.monotonic() < deadline, done
    return done.stdout


def with_server(mps: Mps, **options) -> int:
    """Start a daemon with a server; the server's pid."""
    mps.start(**options)
    said(mps, f"start_server -uid {os.geteuid()}")
    until(lambda: mps.pids(SERVER))
    return mps.pids(SERVER)[0]


# ---------------------------------------------------------------------------------- as the real one


def test_no_daemon(mps: Mps) -> None:
    """Without a daemon, or with a killed one, every command ends with 1 and says so on stderr."""
    for commands in (["get_server_list"], ["quit"], [""], []):
        done = mps.ask(*commands)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", NO_DAEMON)
    mps.start()
    kill(mps.pids(CONTROL)[0])
    assert mps.ask("get_server_list").stderr == NO_DAEMON


def test_second_daemon(mps: Mps) -> None:
    """A second daemon on a directory is refused, on stdout and with status 1; the first stays."""
    assert (mps.start().returncode, mps.start().stdout) == (0, SECOND)
    pids = mps.pids(CONTROL)
    done = mps.start()
    assert (done.returncode, done.stdout, done.stderr) == (1, SECOND, "")
    assert mps.pids(CONTROL) == pids


def test_what_a_daemon_looks_like(mps: Mps) -> None:
    """A daemon and its server are known by name and by the environment they were started with."""
    server = with_server(mps, CUDA_VISIBLE_DEVICES="GPU-a,GPU-b")
    (daemon,) = mps.pids(CONTROL)
    for pid, name in ((daemon, CONTROL), (server, SERVER)):
        assert Path(f"/proc/{pid}/comm").read_text() == f"{name[:15]}\n"
        assert (
            os.path.basename(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])
            == name.encode()
        )
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert f"{PIPE}={mps.pipe()}".encode() in environment
        assert b"CUDA_VISIBLE_DEVICES=GPU-a,GPU-b" in environment
    assert os.getsid(daemon) == os.getsid(server) == daemon


def test_files(mps: Mps) -> None:
    """The pipe directory has known files and modes, and known remains after quit and KILL."""
    umask = os.umask(0o022)
    pipe = mps.pipe()
    mps.start()
    os.umask(umask)
    modes = {name: stat.filemode((pipe / name).stat().st_mode) for name in os.listdir(pipe)}
    assert modes == {
        "control": "srw-rw-rw-",
        "control_privileged": "srwxr-xr-x",
        "control_lock": "-rw-rw-rw-",
        "log": "prwxrwxrwx",
        "logs": "drwxr-xr-x",
        "nvidia-cuda-mps-control.pid": "-rw-rw-rw-",
    }
    (daemon,) = mps.pids(CONTROL)
    assert (pipe / "nvidia-cuda-mps-control.pid").read_text() == str(daemon)
    kill(daemon)
    assert modes.keys() == set(os.listdir(pipe))
    mps.start()
    (daemon,) = mps.pids(CONTROL)
    said(mps, "quit")
    wait_for_end(daemon)
    assert set(os.listdir(pipe)) == {"control", "control_privileged", "control_lock", "logs"}


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("get_server_list", ""),
        ("help", 'Unknown command "help"\n'),
        ("bogus with words", 'Unknown command "bogus"\n'),
        ("", 'Unknown command ""\n'),
        ("get_server_status 1", "Server 1 not found\n"),
        ("get_server_status", "A server PID is required\n"),
        ("get_server_status abc", "A server PID is required\n"),
        ("get_client_list 1", "Server 1 not found\n"),
        ("get_client_list", "Server 0 not found\n"),
        ("terminate_client 1 2", "Server 1 not found\nServer 1 not found!\n1\n"),
        ("terminate_client", "Server 0 not found\nServer 0 not found!\n1\n"),
        ("start_server", "A user id (UID) is required to start a new server\n"),
        ("start_server -uid", "A user id (UID) is required to start a new server\n"),
        ("start_server -uid abc", "A user id (UID) is required to start a new server\n"),
        ("start_server 0", "A user id (UID) is required to start a new server\n"),
        (" get_default_active_thread_percentage ", "100.0\n"),
    ],
)
def test_answers_without_a_server(mps: Mps, command: str, answer: str) -> None:
    """Whatever a command comes to, the exit status is 0."""
    mps.start()
    assert said(mps, command) == answer


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("get_server_list", "{pid}\n"),
        ("get_server_status {pid}", "INITIALIZING\n"),
        (f"start_server -uid {os.geteuid()}", ""),
        ("get_client_list {pid}", ""),
        ("terminate_client {pid} 1", "Server {pid} not found!\n1\n"),
    ],
)
def test_answers_with_a_server_that_is_not_ready(mps: Mps, command: str, answer: str) -> None:
    """A server that starts is listed, and is hardly there for anything else."""
    pid = with_server(mps)
    assert said(mps, command.format(pid=pid)) == answer.format(pid=pid)
    assert said(mps, "get_server_list") == f"{pid}\n"


def test_several_commands(mps: Mps) -> None:
    """Commands may come on one stdin, and need no line end after the last."""
    mps.start()
    assert (
        said(mps, "get_default_active_thread_percentage", "bogus")
        == '100.0\nUnknown command "bogus"\n'
    )
    done = mps._run([], "bogus", mps.variables())
    assert (done.returncode, done.stdout) == (0, 'Unknown command "bogus"\n')


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_restart_over_what_is_left(mps: Mps, number: signal.Signals) -> None:
    """A daemon that ends by a signal leaves server and files; the next one starts without them."""
    server = with_server(mps)
    (daemon,) = mps.pids(CONTROL)
    os.kill(daemon, number)
    wait_for_end(daemon)
    assert is_alive(server)
    assert (mps.pipe() / "nvidia-cuda-mps-control.pid").exists()
    assert mps.start().returncode == 0
    assert said(mps, "get_server_list") == ""


def test_quit_waits_for_the_server(mps: Mps) -> None:
    """Until a server that is not ready has ended, quit does not return, and nobody else gets in."""
    server = with_server(mps)
    (daemon,) = mps.pids(CONTROL)
    log = mps.pipe() / "logs" / "control.log"
    quitter = None
    while "Cmd:quit\n" not in log.read_text():
        if (
            quitter is None or quitter.poll() is not None
        ):  # sent away: the last who asked is still being heard
            quitter = subprocess.Popen(
                [mps.bin / CONTROL], env=mps.variables(), stdin=subprocess.PIPE
            )
            quitter.stdin.write(b"quit\n")
            quitter.stdin.close()
    assert (
        mps.ask("get_server_list").stdout == ""
    )  # with status 1 and a complaint, or as well 0 and none
    assert mps.start().stdout == SECOND
    assert quitter.poll() is None
    os.kill(server, signal.SIGTERM)
    assert quitter.wait(20) == 0
    wait_for_end(daemon)


def test_server_that_fails(mps: Mps) -> None:
    """start_server says nothing of a server that does not start: only the log does."""
    (mps.bin / SERVER).write_text("#!/bin/sh\nexit 3\n")
    mps.start()
    assert said(mps, f"start_server -uid {os.geteuid()}") == ""
    log = mps.pipe() / "logs" / "control.log"
    until(lambda: " exited with status 3\n" in log.read_text())
    assert said(mps, "get_server_list") == ""
    assert " Starting new server " in log.read_text()
    assert f"] Starting control daemon using socket {mps.pipe()}/control\n" in log.read_text()


def test_log_directory_in_the_way_of_the_log(mps: Mps) -> None:
    """With a log directory called PIPE/log, where the daemon wants its FIFO, nothing is logged."""
    pipe = mps.pipe()
    (pipe / "log").mkdir()
    assert mps.start(CUDA_MPS_LOG_DIRECTORY=str(pipe / "log")).returncode == 0
    assert said(mps, "bogus")
    assert sorted(os.listdir(pipe / "log")) == ["control.log", "server.log"]
    assert (pipe / "log" / "control.log").read_text() == ""


def test_directories_that_are_not_there(mps: Mps) -> None:
    """A daemon makes its directories, but not what leads to them."""
    there, nowhere = mps.folder / "new", mps.folder / "none" / "none"
    assert mps.start(there, CUDA_MPS_LOG_DIRECTORY=str(mps.folder / "newlogs")).returncode == 0
    assert (mps.folder / "newlogs" / "control.log").exists()
    done = mps.start(**{PIPE: str(nowhere)})
    assert (done.returncode, done.stdout) == (1, f"Cannot access {PIPE}={nowhere}\n")
    done = mps.start(mps.pipe("other"), CUDA_MPS_LOG_DIRECTORY=str(nowhere))
    warning = (
        f"Warning: Failed writing log files to directory [{nowhere}]. No logs will be available.\n"
    )
    assert (done.returncode, done.stdout) == (0, warning)


def test_directory_that_is_too_long(mps: Mps) -> None:
    """A daemon whose socket's path is over 107 bytes does not start, and does not say why."""
    done = mps.start(mps.pipe("x" * 100))
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@needs_root
def test_other_users(mps: Mps) -> None:
    """Another user reads, but sets nothing, quits nothing, and starts servers only for himself."""
    mps.start()
    nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    insufficient = f"Insufficient privileges for UID {NOBODY}. "
    assert said(mps, "get_server_list", **nobody) == ""
    assert said(mps, "quit", **nobody) == "Not enough privilege to execute quit command\n"
    root_only = "Only the root user may start server for another user.\n"
    assert said(mps, "start_server -uid 0", **nobody) == insufficient + root_only
    assert said(mps, f"start_server -uid {NOBODY}", **nobody) == ""
    until(lambda: mps.pids(SERVER))
    assert os.stat(f"/proc/{mps.pids(SERVER)[0]}").st_uid == NOBODY
    said(mps, "start_server -uid 0")
    assert said(mps, "get_server_list") == f"{mps.pids(SERVER)[0]}\n"


@needs_root
def test_daemon_of_another_user(mps: Mps) -> None:
    """Any user may have a daemon, and root may quit it."""
    pipe = mps.pipe()
    for directory in (pipe, pipe / "logs"):
        os.chown(directory, NOBODY, NOBODY)
    done = mps._run(["-d"], None, mps.variables(), user=NOBODY, group=NOBODY, extra_groups=[])
    assert done.returncode == 0, done
    (daemon,) = mps.pids(CONTROL)
    said(mps, "quit")
    wait_for_end(daemon)


def test_535(old_mps: Mps) -> None:
    """Driver 535 knows no get_server_status, and writes no pid file."""
    pid = with_server(old_mps)
    assert said(old_mps, f"get_server_status {pid}") == 'Unknown command "get_server_status"\n'
    assert not (old_mps.pipe() / "nvidia-cuda-mps-control.pid").exists()


# --------------------------------------------------------------------------------- told by the test


class Client:
    """A running mps_client.

    Attributes:
        process: the client.
        how: "attached" or "without".
    """

    def __init__(self, mps: FakeMps, *options: str, wait: bool = True, **variables: str) -> None:
        environment = mps.variables(**variables)
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen(
            [mps.bin / CLIENT, *options], env=environment, text=True, **pipes
        )
        self.how = self.process.stdout.readline().partition(" ")[0] if wait else None

    def result(self) -> tuple[int, str]:
        """Return exit status and complaint, when it has ended."""
        _, problem = self.process.communicate(timeout=20)
        return self.process.returncode, problem


@pytest.fixture
def client(fake_mps: FakeMps):
    """Yield a function that starts clients."""
    made = []

    def start(*options: str, **variables) -> Client:
        made.append(Client(fake_mps, *options, **variables))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.result()


def test_client_starts_the_server(fake_mps: FakeMps, client) -> None:
    """A client makes the daemon start a server, is listed with its environment, and leaves."""
    fake_mps.start(CUDA_VISIBLE_DEVICES="GPU-a")
    pid = client(
        CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="40", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G"
    ).process.pid
    (server,) = fake_mps.pids(SERVER)
    (event,) = fake_mps.attached()
    assert (event.pid, event.said["server"]) == (pid, server)
    assert event.said["environment"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    assert event.said["environment"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1G"
    assert (
        said(fake_mps, f"get_client_list {server}", f"get_server_status {server}")
        == f"{pid}\nACTIVE\n"
    )
    fake_mps.end_client(pid)
    fake_mps.wait_for("left", pid=pid)
    assert fake_mps.attached() == []
    assert fake_mps.ended_safely(pid)
    assert said(fake_mps, "quit") == ""
    assert fake_mps.pids(SERVER) == []


def test_client_without_a_daemon(fake_mps: FakeMps, client) -> None:
    """Without a daemon a client runs without MPS, and only the events tell."""
    one = client()
    assert one.how == "without"
    assert fake_mps.events("without", pid=one.process.pid)
    assert one.process.communicate("\n")[1] == ""
    assert one.process.returncode == 0


def test_terminated_client(fake_mps: FakeMps, client) -> None:
    """terminate_client prints 0 and takes a client off its server; it can then be killed safely."""
    fake_mps.start()
    gives_up, stays = client(), client("--deaf", "--stays")
    (server,) = fake_mps.pids(SERVER)
    for one in (gives_up, stays):
        assert said(fake_mps, f"terminate_client {server} {one.process.pid}") == "0\n"
    assert (
        said(
            fake_mps, f"get_client_list {server}", f"terminate_client {server} {stays.process.pid}"
        )
        == "1\n"
    )
    assert gives_up.result() == (1, "CUDA_ERROR_MPS_CLIENT_TERMINATED\n")
    stays.process.terminate()
    kill(stays.process.pid)
    fake_mps.wait_for("left", 2)
    assert fake_mps.ended_safely(gives_up.process.pid)
    assert fake_mps.ended_safely(stays.process.pid)


def test_client_that_dies(fake_mps: FakeMps, client) -> None:
    """The death of an attached client is noticed, and a server at fault is of no use."""
    fake_mps.start()
    one, other = client(), client()
    one.process.kill()
    fake_mps.wait_for("died", pid=one.process.pid)
    assert not fake_mps.ended_safely(one.process.pid)
    fake_mps.tell(status="FAULT")
    (server,) = fake_mps.pids(SERVER)
    assert said(fake_mps, f"get_server_status {server}") == "FAULT\n"
    assert client(wait=False).result() == (1, "CUDA_ERROR_MPS_SERVER_NOT_READY\n")
    assert [event.pid for event in fake_mps.attached()] == [other.process.pid]


def test_server_that_takes_its_time(fake_mps: FakeMps, client) -> None:
    """Each server is INITIALIZING for so many looks; its clients wait as long."""
    fake_mps.tell(looks=2)
    server = with_server(fake_mps)
    one = client(wait=False)
    fake_mps.wait_for("asked")
    states = said(fake_mps, *[f"get_server_status {server}"] * 3).split()
    assert states == ["INITIALIZING", "INITIALIZING", "ACTIVE"]
    fake_mps.wait_for("attached", pid=one.process.pid)


def test_hangs_and_deaths(fake_mps: FakeMps) -> None:
    """A command may never be answered, while others are, or be the daemon's end."""
    fake_mps.tell(hangs=["terminate_client"], dies=["get_client_list"], answers={"quit": []})
    fake_mps.start()
    with pytest.raises(subprocess.TimeoutExpired):
        fake_mps.ask("terminate_client 1 2", timeout=0.3)
    assert said(fake_mps, "quit", "get_default_active_thread_percentage") == "100.0\n"
    (daemon,) = fake_mps.pids(CONTROL)
    done = fake_mps.ask("get_client_list")
    assert (done.returncode, done.stdout) == (1, "")
    wait_for_end(daemon)
    fake_mps.tell(dies=[])
    fake_mps.start()
    assert said(fake_mps, "get_client_list") == "Server 0 not found\n"
    assert fake_mps.commands() == [
        "terminate_client 1 2",
        "quit",
        "get_default_active_thread_percentage",
        "get_client_list",
        "get_client_list",
    ]
    times = [event.time_s for event in fake_mps.events()]
    assert all(a <= b for a, b in itertools.pairwise(times))


def test_refusals(fake_mps: FakeMps, client) -> None:
    """terminate_client may fail, a server may not start, a pid file may be missing."""
    fake_mps.tell(refuses=["terminate_client"], forgets_pid_file=True)
    server = with_server(fake_mps)
    assert not (fake_mps.pipe() / "nvidia-cuda-mps-control.pid").exists()
    pid = client().process.pid
    assert (
        said(fake_mps, f"terminate_client {server} {pid}", f"get_client_list {server}")
        == f"1\n{pid}\n"
    )
    fake_mps.tell(server_fails=True)
    pipe = fake_mps.pipe("other")
    fake_mps.start(pipe)
    start = f"start_server -uid {os.geteuid()}"
    assert said(fake_mps, start, "get_server_list", pipe=pipe) == ""
    assert " exited with status 1\n" in (pipe / "logs" / "control.log").read_text()
    assert client(wait=False, **{PIPE: str(pipe)}).result() == (
        1,
        "CUDA_ERROR_MPS_CONNECTION_FAILED\n",
    )


def test_quit_waits_for_clients(fake_mps: FakeMps, client) -> None:
    """A daemon that is to quit waits for the clients that are attached."""
    fake_mps.start()
    pid = client().process.pid
    with pytest.raises(subprocess.TimeoutExpired):
        fake_mps.ask("quit", timeout=0.3)
    (daemon,) = fake_mps.pids(CONTROL)
    assert client().how == "without"
    fake_mps.end_client(pid)
    wait_for_end(daemon)


def test_nvml_sees_them(fake_mps: FakeMps, hgx_h100, client) -> None:
    """The fake NVML shows servers and clients on their daemon's GPUs while they are there."""
    fake_mps.start(CUDA_VISIBLE_DEVICES=hgx_h100.uuids(3))
    pid = client().process.pid
    (server,) = fake_mps.pids(SERVER)
    fake_mps.tell_nvml(hgx_h100)
    lines = hgx_h100._file.read_text().splitlines()
    assert {f"mps 3 {pid} 300", f"process 3 {server} 30"} <= set(lines)
    fake_mps.end_client(pid)
    fake_mps.wait_for("left")
    fake_mps.tell_nvml(hgx_h100)
    assert f"mps 3 {pid} 300" not in hgx_h100._file.read_text()


def test_nothing_outlives_it() -> None:
    """close() ends daemons, servers and clients, however unwilling, and removes the folder."""
    with closing(FakeMps()) as mps:
        server = with_server(mps)
        deaf = Client(mps, "--deaf", "--stays")
        os.kill(mps.pids(CONTROL)[0], signal.SIGSTOP)
        everybody = [*mps.pids(CONTROL), server, deaf.process.pid]
    assert not any(is_alive(pid) for pid in everybody)
    assert not mps.folder.exists()
    deaf.result()


def test_stand_in_has_no_default_directory(fake_mps: FakeMps) -> None:
    """A daemon without a pipe directory of its own is refused: it would touch what is not ours."""
    environment = {name: value for name, value in fake_mps.variables().items() if name != PIPE}
    assert fake_mps._run(["-d"], None, environment).returncode == 2
