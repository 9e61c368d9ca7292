"""What other users write into the sticky directory by hand, and what root does about it."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from conftest import DGX, SHOW, VGG, Launcher, held
from test_table import put

from gpulaunch.leases import record_file as records

ALL_GPUS = (*DGX, "-n", "8")


def document(launcher: Launcher, prefix: str) -> dict:
    """Return what the only record with this prefix holds."""
    (name,) = (name for name in launcher.records() if name.startswith(prefix))
    return json.loads((launcher.state / name).read_bytes())


def test_free_follows_no_link(launcher: Launcher, tmp_path: Path) -> None:
    """A job that swaps its record for a symbolic link while being freed ends only itself."""
    log = tmp_path / "log"
    swap = (
        f'trap "ln -sf {log} $GPULAUNCH_STATE_DIR/gpulaunch.lease.$GPULAUNCH_LEASE; exit 3" TERM; '
        "echo up; read line"
    )
    writer = [
        sys.executable,
        "-c",
        f"import sys; f = open({str(log)!r}, 'w'); print('open', flush=True); input()",
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(writer, **pipes) as bystander:
        assert bystander.stdout.readline() == "open\n"
        with launcher.start(*VGG, "--", "sh", "-c", swap, stdin=subprocess.PIPE) as process:
            assert process.stdout.readline() == "up\n"
            (name,) = launcher.records()
            done = launcher.run("free", records.id_in(name))
            assert done.returncode == 0, done.stderr
            process.communicate()
        assert bystander.poll() is None
        bystander.communicate("\n")
        assert bystander.returncode == 0
    assert launcher.records() == []  # the launcher's release has removed the link


def test_a_ticket_beyond_all_reason(launcher: Launcher) -> None:
    """After a forged ticket with one of the highest numbers others still queue in their order."""
    with held(launcher, *ALL_GPUS):
        with launcher.start(*VGG, "--wait", "--", "true") as waiter:
            waiter.stderr.readline()
            forged = document(launcher, "gpulaunch.ticket.") | {
                "id": "ffffffffffff",
                "number": 1 << 30,
            }
            waiter.kill()
            waiter.communicate()
        descriptor = put(
            launcher,
            f"gpulaunch.ticket.{1 << 30}.ffffffffffff",
            json.dumps(forged).encode(),
            live=True,
        )
        with launcher.start(*VGG, "--wait", "--", "true") as waiter:
            line = waiter.stderr.readline()
            assert line.startswith("gpulaunch: info: waiting as number 2 in the queue"), line
            with launcher.start(*VGG, "--wait", "--", "true") as second:
                line = second.stderr.readline()
                assert line.startswith("gpulaunch: info: waiting as number 3 in the queue"), line
                queue = json.loads(launcher.run("status", *DGX, "--json").stdout)["queue"]
                assert [ticket["pid"] for ticket in queue[1:]] == [waiter.pid, second.pid]
                second.kill()
            waiter.kill()
            waiter.communicate()
        os.close(descriptor)


def test_a_lease_of_no_command(launcher: Launcher) -> None:
    """A forged lease without a command keeps no launch from waiting."""
    with held(launcher, *ALL_GPUS):
        forged = document(launcher, "gpulaunch.lease.") | {"id": "ffffffffffff", "command": []}
    descriptor = put(
        launcher, "gpulaunch.lease.ffffffffffff", json.dumps(forged).encode(), live=True
    )
    done = launcher.run(*VGG, "--wait-timeout", "0.2s", "--", "true")
    assert (done.returncode, "Traceback" in done.stderr) == (124, False), done.stderr
    os.close(descriptor)


def test_a_damaged_record_can_be_freed(launcher: Launcher) -> None:
    """A launch that an unreadable record stops is told how to end it, and that works."""
    keep = (
        "import fcntl, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)\n"
        "os.write(fd, b'{')\n"
        "fcntl.fcntl(fd, fcntl.F_OFD_SETLK, bytes.fromhex(sys.argv[2]))\n"
        "print('there', flush=True)\n"
        "input()"
    )
    lock = records.struct.pack(records._FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0).hex()
    path = str(launcher.state / "gpulaunch.lease.ffffffffffff")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", keep, path, lock], **pipes) as keeper:
        assert keeper.stdout.readline() == b"there\n"
        done = launcher.run(*VGG, *SHOW)
        assert done.returncode == 125
        assert done.stderr.splitlines()[1].endswith("root can end it: gpulaunch free ffffffffffff")
        assert launcher.run("free", "ffffffffffff").returncode == 0
        keeper.communicate()
        assert keeper.returncode == -signal.SIGTERM
    assert launcher.run(*VGG, *SHOW).stdout == "0,2,3\n"


def test_a_damaged_record_keeps_no_stragglers(launcher: Launcher) -> None:
    """An unreadable record, of any user, keeps none of a job's stragglers from being ended."""
    launcher.environment |= {"GPULAUNCH_GRACE": "0.3s", "GPULAUNCH_LEFTOVERS": "end"}
    with launcher.start(
        *VGG, "--", "sh", "-c", "sleep 600 & echo $!; read line", stdin=subprocess.PIPE
    ) as process:
        straggler = int(process.stdout.readline())
        descriptor = put(launcher, "gpulaunch.lease.ffffffffffff", b"{", live=True)
        process.communicate("\n")
        status = Path(f"/proc/{straggler}/stat")
        assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"
    os.close(descriptor)


def test_what_a_share_may_say(launcher: Launcher) -> None:
    """A live record with numbers that are none is a problem; one with a wrong share is shown."""
    light = ("--share", "-o", "utilization=10,5", "--memory", "1GiB")
    with held(launcher, *DGX, *light):
        good = document(launcher, "gpulaunch.lease.")
    good["id"] = "b" * 12
    demand = good["share"]["demand"]
    for bad, what in (
        ({"demand": demand | {"counters": [1, 0.5, float("inf")]}}, "Infinity is no number"),
        ({"demand": demand | {"curve": [[float("nan"), 1]]}}, "NaN is no number"),
        ({"pipe_directory": "/tmp/a\0b"}, None),
        ({"pipe_directory": "/tmp/\ud800"}, None),
        ({"pipe_directory": "tmp"}, None),
        ({"pipe_directory": f"/{'x' * 100}"}, None),
    ):
        content = json.dumps(good | {"share": good["share"] | bad}).encode()
        descriptor = put(launcher, f"gpulaunch.lease.{good['id']}", content, live=True)
        done = launcher.run("status", *DGX, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        status = json.loads(done.stdout)
        if what is None:
            assert (status["problems"], len(status["leases"])) == ([], 1)
        else:
            assert status["leases"] == []
            assert "cannot be understood: " in status["problems"][0]
            assert what in status["problems"][0]
        os.close(descriptor)
        (launcher.state / f"gpulaunch.lease.{good['id']}").unlink()
