"""What other users write into the sticky directory by hand, and what root does about it."""

import json
import os
import signal
import subprocess
from pathlib import Path

from conftest import DGX, SHOW, VGG, Launcher, held
from test_table import put

ALL_GPUS = (*DGX, "-n", "8")
LEASE = "gpulaunch.lease.ffffffffffff"


def document(launcher: Launcher, prefix: str) -> dict:
    """Return what the only record with this prefix holds."""
    (name,) = (name for name in launcher.records() if name.startswith(prefix))
    return json.loads((launcher.state / name).read_bytes())


def test_free_follows_no_link(launcher: Launcher, tmp_path: Path) -> None:
    """A job that swaps its record for a symbolic link while being freed ends only itself."""
    log = tmp_path / "log"
    swap = f'trap "ln -sf {log} $GPULAUNCH_STATE_DIR/gpulaunch.lease.$GPULAUNCH_LEASE; exit 3" TERM'
    swap += "; echo up; read line"
    writer = ["sh", "-c", f"exec 9>{log}; echo open; read line"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(writer, **pipes) as bystander:
        assert bystander.stdout.readline() == "open\n"
        with launcher.start(*VGG, "--", "sh", "-c", swap, stdin=subprocess.PIPE) as process:
            assert process.stdout.readline() == "up\n"
            (name,) = launcher.records()
            assert launcher.run("free", name.rpartition(".")[2]).returncode == 0
            process.communicate()
        assert bystander.poll() is None
        bystander.communicate("\n")
        assert bystander.returncode == 0
    assert launcher.records() == []  # the launcher's release has removed the link


def test_a_ticket_beyond_all_reason(launcher: Launcher) -> None:
    """After a forged ticket with one of the highest numbers others still queue in their order."""
    wait = (*VGG, "--wait", "--", "true")
    with held(launcher, *ALL_GPUS), launcher.start(*wait) as waiter:
        waiter.stderr.readline()
        forged = document(launcher, "gpulaunch.ticket.") | {"id": "f" * 12, "number": 1 << 30}
        name = f"gpulaunch.ticket.{1 << 30}.{'f' * 12}"
        descriptor = put(launcher, name, json.dumps(forged).encode(), live=True)
        with launcher.start(*wait) as second:
            line = second.stderr.readline()
            assert line.startswith("gpulaunch: info: waiting as number 3 in the queue"), line
            queue = json.loads(launcher.run("status", *DGX, "--json").stdout)["queue"]
            assert [queue[0]["pid"], queue[2]["pid"]] == [waiter.pid, second.pid]
            second.kill()
        waiter.kill()
        os.close(descriptor)


def test_a_lease_of_no_command(launcher: Launcher) -> None:
    """A forged lease without a command keeps no launch from waiting."""
    with held(launcher, *ALL_GPUS):
        forged = document(launcher, "gpulaunch.lease.") | {"id": LEASE[-12:], "command": []}
    descriptor = put(launcher, LEASE, json.dumps(forged).encode(), live=True)
    done = launcher.run(*VGG, "--wait-timeout", "0.2s", "--", "true")
    assert (done.returncode, "Traceback" in done.stderr) == (124, False), done.stderr
    os.close(descriptor)


def test_a_damaged_record_can_be_freed(launcher: Launcher) -> None:
    """A launch that an unreadable record stops is told how to end it, and that works."""

    def keep() -> int:
        put(launcher, LEASE, b"{", live=True)
        print("there", flush=True)
        return signal.pause() or 0

    with launcher.call(keep) as keeper:
        assert keeper.stdout.readline() == "there\n"
        done = launcher.run(*VGG, *SHOW)
        assert done.returncode == 125
        assert done.stderr.splitlines()[1].endswith("root can end it: gpulaunch free ffffffffffff")
        assert launcher.run("free", LEASE[-12:]).returncode == 0
    assert keeper.returncode == -signal.SIGTERM
    assert launcher.run(*VGG, *SHOW).stdout == "0,2,3\n"


def test_a_damaged_record_keeps_no_stragglers(launcher: Launcher) -> None:
    """An unreadable record, of any user, keeps none of a job's stragglers from being ended."""
    launcher.environment |= {"GPULAUNCH_GRACE": "0.3s", "GPULAUNCH_LEFTOVERS": "end"}
    with launcher.start(
        *VGG, "--", "sh", "-c", "sleep 600 & echo $!; read line", stdin=subprocess.PIPE
    ) as process:
        straggler = int(process.stdout.readline())
        descriptor = put(launcher, LEASE, b"{", live=True)
        process.communicate("\n")
        status = Path(f"/proc/{straggler}/stat")
        assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"
    os.close(descriptor)


def test_what_a_share_may_say(launcher: Launcher) -> None:
    """A live record with numbers that are none is a problem; one with a wrong share is shown."""
    light = ("--share", "-o", "utilization=10,5", "--memory", "1GiB")
    with held(launcher, *DGX, *light):
        good = document(launcher, "gpulaunch.lease.")
    good["id"] = LEASE[-12:]
    counters = good["share"]["demand"] | {"counters": [1, 0.5, float("inf")]}
    for bad, problem in (
        ({"demand": counters}, "Infinity is no number"),
        ({"pipe_directory": "/tmp/a\0b"}, None),
        ({"pipe_directory": f"/{'x' * 100}"}, None),
    ):
        content = json.dumps(good | {"share": good["share"] | bad}).encode()
        descriptor = put(launcher, LEASE, content, live=True)
        done = launcher.run("status", *DGX, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        status = json.loads(done.stdout)
        assert len(status["leases"]) == (0 if problem else 1)
        assert [problem in said for said in status["problems"]] == ([True] if problem else [])
        os.close(descriptor)
        (launcher.state / LEASE).unlink()
