"""The stand-in for CUDA MPS says what driver 550's control daemon says."""

import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
from conftest import until
from fake_mps import CONTROL, PIPE, SERVER, FakeMps, Mps, is_alive, kill, wait_for_end

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
