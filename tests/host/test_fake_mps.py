"""The stand-in for CUDA MPS says what driver 550's control daemon says."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import until, wait_for_end
from fake_mps import CONTROL, PIPE, SERVER, FakeMps, Mps, is_alive, kill

pytest_plugins = ("fake_mps", "fake_nvml")

NO_DAEMON = "Cannot find MPS control daemon process\n"


@pytest.fixture(params=["real_mps", "fake_mps"])
def mps(request: pytest.FixtureRequest) -> Mps:
    """Return the real control daemon or the stand-in, with a server as unready as the real one."""
    mps = request.getfixturevalue(request.param)
    if isinstance(mps, FakeMps):
        mps.tell(status="INITIALIZING")
    return mps


def said(mps: Mps, *commands: str) -> str:
    """Return a daemon's answer, asking again while the real one is busy and refuses."""
    while (done := mps.ask(*commands)).returncode or done.stderr:
        time.sleep(0.002)
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
    (pid,) = mps.pids(CONTROL)
    kill(pid)
    assert mps.ask("get_server_list").stderr == NO_DAEMON


def test_what_a_daemon_looks_like(mps: Mps) -> None:
    """A daemon and its server are known by name and by the environment they were started with."""
    server = with_server(mps, CUDA_VISIBLE_DEVICES="GPU-a,GPU-b")
    (daemon,) = mps.pids(CONTROL)
    for pid, name in ((daemon, CONTROL), (server, SERVER)):
        assert Path(f"/proc/{pid}/comm").read_text() == f"{name[:15]}\n"
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        assert os.path.basename(words[0]) == name
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert f"{PIPE}={mps.pipe()}".encode() in environment
        assert b"CUDA_VISIBLE_DEVICES=GPU-a,GPU-b" in environment
    assert os.getsid(daemon) == os.getsid(server) == daemon
    # One that is killed leaves server and files; the next one starts without them.
    kill(daemon)
    assert is_alive(server)
    assert mps.start().returncode == 0
    assert said(mps, "get_server_list") == ""


WITHOUT_A_SERVER = {
    "get_server_list": "",
    "bogus with words": 'Unknown command "bogus"\n',
    "": 'Unknown command ""\n',
    "get_server_status 1": "Server 1 not found\n",
    "get_client_list 1": "Server 1 not found\n",
    "terminate_client 1 2": "Server 1 not found\nServer 1 not found!\n1\n",
    "get_default_active_thread_percentage": "100.0\n",
}
WITH_AN_UNREADY_SERVER = {
    "get_server_list": "{pid}\n",
    "get_server_status {pid}": "INITIALIZING\n",
    f"start_server -uid {os.geteuid()}": "",
    "get_client_list {pid}": "",
    "terminate_client {pid} 1": "Server {pid} not found!\n1\n",
}


def test_answers(mps: Mps) -> None:
    """Whatever a command comes to, the exit status is 0; several may come on one stdin."""
    mps.start()
    assert said(mps, *WITHOUT_A_SERVER) == "".join(WITHOUT_A_SERVER.values())
    pid = with_server(mps)
    for command, answer in WITH_AN_UNREADY_SERVER.items():
        assert said(mps, command.format(pid=pid)) == answer.format(pid=pid)


def test_quit_waits_for_the_server(mps: Mps) -> None:
    """Until a server that is not ready has ended, quit does not return, and nobody else gets in."""
    server = with_server(mps)
    (daemon,) = mps.pids(CONTROL)
    log = mps.pipe() / "logs" / "control.log"
    quitter = None
    while "Cmd:quit\n" not in log.read_text():
        # It is sent away while the last who asked is still being heard.
        if quitter is None or quitter.poll() is not None:
            quitter = subprocess.Popen(
                [mps.bin / CONTROL], env=mps.variables(), stdin=subprocess.PIPE
            )
            with suppress(BrokenPipeError):
                quitter.stdin.write(b"quit\n")
                quitter.stdin.close()
    # With status 1 and a complaint, or as well 0 and none.
    assert mps.ask("get_server_list").stdout == ""
    assert quitter.poll() is None
    os.kill(server, signal.SIGTERM)
    assert quitter.wait() == 0
    wait_for_end(daemon)


def test_server_that_fails(mps: Mps) -> None:
    """start_server says nothing of a server that does not start: only the log does."""
    (mps.bin / SERVER).write_text("#!/bin/sh\nexit 3\n")
    mps.start()
    assert said(mps, f"start_server -uid {os.geteuid()}") == ""
    log = mps.pipe() / "logs" / "control.log"
    until(lambda: " exited with status 3\n" in log.read_text())
    assert said(mps, "get_server_list") == ""
