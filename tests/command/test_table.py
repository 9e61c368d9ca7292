"""The allocation table: locked means alive, nothing is free without proof, trouble is one line.

Records are also written by hand, as other versions and other users may.
"""

import fcntl
import json
import os
import pwd
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import DGX, SHOW, VGG, Launcher, complaint, held, until
from values import cases

from gpulaunch.launch.surroundings import open_table
from gpulaunch.leases.directory import lock_in_time, preferred_directory, state_directory
from gpulaunch.process.system import boot_id


def put(launcher: Launcher, name: str, content: bytes, *, live: bool) -> int:
    """Make a record by hand, locked if live; return the descriptor that keeps it so."""
    made = launcher.state.parent / "made"
    descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(descriptor, content)
    if live:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock(fcntl.F_WRLCK))
    made.rename(launcher.state / name)  # only now: others remove a record that nobody has locked
    return descriptor


def lock(kind: int) -> bytes:
    """Return the struct flock of a whole file."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)


def record(launcher: Launcher, *options: str) -> dict:
    """Return the document of a real lease."""
    with held(launcher, *(options or VGG)):
        return json.loads((launcher.state / launcher.records()[0]).read_bytes())


def test_where_the_table_is() -> None:
    """A table is where all launchers look, unless that is a container's own file system."""
    common = preferred_directory(None)
    kind = subprocess.check_output(["stat", "--file-system", "--format=%T", common], text=True)
    want = "/dev/shm" if kind == "overlayfs\n" else common
    assert state_directory(None, private=True) == want


def test_leases_stand_in_the_order_in_which_they_began(launcher: Launcher) -> None:
    """Leases that began in the same second stand in the clock's order, whatever their ids."""
    good = record(launcher)
    clocks = {"bb": 7.25, "cc": 7.5, "aa": 7.75}
    held_open = []
    for place, (name, clock_s) in enumerate(clocks.items()):
        one = good | {"id": name, "clock_s": clock_s, "uuids": [f"GPU-dgx1-v100-{place}"]}
        held_open.append(
            put(launcher, f"gpulaunch.lease.{name}", json.dumps(one).encode(), live=True)
        )
    status = json.loads(launcher.run("status", "--topology", "dgx1-v100", "--json").stdout)
    assert [lease["id"] for lease in status["leases"]] == list(clocks)
    for descriptor in held_open:
        os.close(descriptor)


LEASE, TICKET = "gpulaunch.lease.aaaaaaaaaaaa", "gpulaunch.ticket.00000001.aaaaaaaaaaaa"
UNREADABLE = {
    "nested too deep": (LEASE, b"[" * 60_000),
    "no UTF-8": (LEASE, b"\xff"),
    "of another id": (LEASE, {"id": "x"}),
    "without GPUs": (LEASE, {"uuids": None}),
    "an empty ticket": (TICKET, b""),
    "a ticket of another number": (TICKET, {"id": "aaaaaaaaaaaa", "number": 2, "gpus": 1}),
}


@cases(UNREADABLE, "name", "damage")
def test_a_live_record_that_nobody_understands_stops_decisions(
    launcher: Launcher, name: str, damage: bytes | dict
) -> None:
    """An unreadable live record ends a launch with 125, file and owner named; a dead one goes."""
    content = damage
    if isinstance(damage, dict):
        content = json.dumps(record(launcher) | damage).encode()
    descriptor = put(launcher, name, content, live=True)
    done = launcher.run(*VGG, *SHOW)
    owner = pwd.getpwuid(os.geteuid()).pw_name
    kind = "lease" if name == LEASE else "ticket"
    said = f"{launcher.state / name}: this live {kind} of {owner} cannot be understood: "
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith(f"gpulaunch: error: {said}"), done.stderr
    os.close(descriptor)
    assert launcher.run(*VGG, *SHOW).stdout == "0,2,3\n"
    assert launcher.records() == []


def test_a_hard_link_is_no_record(launcher: Launcher, tmp_path: Path) -> None:
    """A file of somebody else that is linked under a record's name blames nobody for a lease."""
    log = tmp_path / "log"
    log.write_text(json.dumps(record(launcher) | {"id": "bbbbbbbbbbbb"}))
    name = "gpulaunch.lease.bbbbbbbbbbbb"
    os.link(log, launcher.state / name)
    with log.open("r+") as writer:
        fcntl.fcntl(writer, fcntl.F_OFD_SETLK, lock(fcntl.F_WRLCK))
        assert launcher.run(*VGG, *SHOW).stdout == "0,2,3\n"
        assert launcher.run("free", "bbbbbbbbbbbb").returncode == 2
        log.unlink()  # now it has one link, and is a record
        assert launcher.run(*VGG, *SHOW).stdout == "4,6,7\n"


def test_a_reader_cannot_pretend_life(launcher: Launcher) -> None:
    """A read lock, which any user could take on a record, does not keep a dead lease alive."""
    os.close(put(launcher, LEASE, json.dumps(record(launcher)).encode(), live=False))
    reader = os.open(launcher.state / LEASE, os.O_RDONLY)
    fcntl.fcntl(reader, fcntl.F_OFD_SETLK, lock(fcntl.F_RDLCK))
    assert launcher.run(*VGG, *SHOW).stdout == "0,2,3\n"
    os.close(reader)


def test_own_leases_are_live(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead leases are none of those among which companions and programs look for their own."""
    document = record(launcher) | {"id": LEASE[-12:]}
    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(launcher.state))
    table = open_table(private=True, warn=print)
    for live in (True, False):
        descriptor = put(launcher, LEASE, json.dumps(document).encode(), live=live)
        assert len(table.own_leases()) == live
        os.close(descriptor)
        (launcher.state / LEASE).unlink()


def test_a_ticket_of_a_later_version_keeps_its_place(launcher: Launcher) -> None:
    """A ticket with keys and forms that nobody knows yet bars those that come later."""
    later = record(launcher) | {"id": TICKET[-12:], "number": 1, "gpus": 8}
    later |= {"uuids": [f"GPU-dgx1-v100-{gpu}" for gpu in range(8)]}
    later |= {"mood": [1, {"a": None}], "launcher": {"pidfd": 7}}
    descriptor = put(launcher, TICKET, json.dumps(later).encode(), live=True)
    done = launcher.run(*VGG, *SHOW)
    os.close(descriptor)
    assert (done.returncode, "an earlier request for 8 GPUs waits" in done.stderr) == (75, True)
    assert launcher.run(*VGG, *SHOW).returncode == 0


def test_a_record_of_an_earlier_boot_is_dead(launcher: Launcher) -> None:
    """An unlocked record of a container holds nothing once the machine has been started anew."""
    own = record(launcher) | {"id": LEASE[-12:], "engine": "nosuch"}
    for boot, status in ((boot_id(), 75), ("0b47fc0e-another", 0)):
        (launcher.state / LEASE).write_text(json.dumps(own | {"boot_id": boot}))
        assert launcher.run(*DGX, "-n", "8", *SHOW).returncode == status


def test_tables_of_different_machines_are_apart(launcher: Launcher, tmp_path: Path) -> None:
    """Leases on a described machine block no other, nor one of its name described otherwise."""
    other = tmp_path / "other.toml"
    text = (Path(__file__).parents[2] / "profiles" / "machines" / "dgx1-v100.toml").read_text()
    other.write_text(text.replace("memory_mib = 16160", "memory_mib = 32480"))
    with held(launcher, *VGG):
        for machine in (str(other), "pcie-4gpu-workstation"):
            assert launcher.run("--topology", machine, "-n", "all", *SHOW).returncode == 0


HOLDER = (
    "import fcntl,os,sys; fcntl.flock(os.open(sys.argv[1], 0), int(sys.argv[2])); "
    "print('locked', flush=True); sys.stdin.read()"
)


@contextmanager
def host_lock_held(launcher: Launcher, how: int = fcntl.LOCK_EX) -> Iterator[subprocess.Popen]:
    """Have another process hold the host-wide lock for the block, or until its stdin is closed."""
    command = [sys.executable, "-c", HOLDER, str(launcher.state), str(int(how))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as holder:
        assert holder.stdout.readline() == "locked\n"
        try:
            yield holder
        finally:
            holder.send_signal(signal.SIGCONT)
            holder.stdin.close()


def test_the_host_lock_names_its_holder(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch that does not get the host-wide lock in time names who has it, and if that sleeps.

    A shared lock on a descriptor that can only be read is as good for that. With --wait it goes on
    as soon as the lock is free, or ends with its own time.
    """
    monkeypatch.setattr("gpulaunch.leases.table.LOCK_TIMEOUT_S", 0.05)
    me = pwd.getpwuid(os.getuid()).pw_name
    with host_lock_held(launcher, fcntl.LOCK_SH) as holder:
        want = f" is held for 0.05 s by pid {holder.pid} of {me} ("
        for stopped in ("", ", which is stopped"):
            done = launcher.run(*VGG, *SHOW)
            assert (done.returncode, want in done.stderr) == (125, True)
            assert done.stderr.splitlines()[0].endswith(f"…){stopped}")
            holder.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        holder.send_signal(signal.SIGCONT)
        assert launcher.run(*VGG, "--wait-timeout", "0.1s", *SHOW).returncode == 124
        with launcher.start(*VGG, "--wait", *SHOW) as waiter:
            line = waiter.stderr.readline()
            holder.stdin.close()
            assert (want in line, line.endswith(", and is waited for\n")) == (True, True)
            assert waiter.communicate()[0] == "0,2,3\n"


def test_what_needs_no_lock(launcher: Launcher) -> None:
    """`status`, --dry-run and `doctor` work while somebody holds the host-wide lock."""
    with host_lock_held(launcher):
        assert launcher.run("status", *DGX).returncode == 0
        assert launcher.run(*VGG, "--dry-run", "--", "true").returncode == 0
        assert launcher.run("doctor").returncode in (0, 1)


def test_ctrl_c_while_the_host_lock_is_held(launcher: Launcher) -> None:
    """INT and TERM end a launch that waits for the host-wide lock at once, and leave nothing."""
    for number, options in ((signal.SIGINT, ()), (signal.SIGTERM, ("--wait",))):
        with host_lock_held(launcher), launcher.start(*VGG, *options, "--", "true") as waiter:
            waits = f"-> FLOCK  ADVISORY  WRITE {waiter.pid} "
            until(lambda waits=waits: waits in Path("/proc/locks").read_text())
            waiter.send_signal(number)
            assert waiter.wait() in (-number, 128 + number)
        assert launcher.records() == []


def test_the_host_lock_follows_the_directory(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state directory that is replaced while we lock it is locked anew, so all lock the same."""
    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(launcher.state))
    table = open_table(private=True, warn=print)
    replaced = []

    def replace_then_lock(descriptor: int, *others: Any) -> bool:
        if not replaced:
            replaced.append(launcher.state.rename(launcher.state.with_name("old")))
            launcher.state.mkdir()
        return lock_in_time(descriptor, *others)

    monkeypatch.setattr("gpulaunch.leases.table.lock_in_time", replace_then_lock)
    with table.locked() as locked:
        assert os.path.samestat(os.fstat(locked._fd), launcher.state.stat())


@pytest.mark.parametrize(("limit", "exit_status", "lines"), [(64, 0, 0), (6, 125, 1)])
def test_few_descriptors(launcher: Launcher, limit: int, exit_status: int, lines: int) -> None:
    """A low limit on open files is no obstacle; one that is too low is one error line."""
    line = f"ulimit -n {limit}; exec gpulaunch --topology dgx1-v100 -- true"
    done = launcher.run("-c", line, executable="/bin/bash")
    assert (done.returncode, len(done.stderr.splitlines())) == (exit_status, lines), done.stderr
    assert launcher.records() == []


def test_a_state_directory_that_depends_on_where_one_stands(launcher: Launcher) -> None:
    """A relative GPULAUNCH_STATE_DIR would mean one table a directory, so it is refused."""
    environment = launcher.environment | {"GPULAUNCH_STATE_DIR": "."}
    done = launcher.run(*VGG, *SHOW, env=environment, cwd=launcher.state)
    problem = "GPULAUNCH_STATE_DIR=. is not an absolute path, which all launches agree on"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", complaint(problem))


FORGED = "gpulaunch.lease.ffffffffffff"


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
    with held(launcher, *DGX, "-n", "8"), launcher.start(*wait) as waiter:
        waiter.stderr.readline()
        (real,) = launcher.state.glob("gpulaunch.ticket.*")
        forged = json.loads(real.read_bytes()) | {"id": "f" * 12, "number": 1 << 30}
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
    forged = record(launcher, *DGX, "-n", "8") | {"id": FORGED[-12:], "command": []}
    descriptor = put(launcher, FORGED, json.dumps(forged).encode(), live=True)
    done = launcher.run(*VGG, "--wait-timeout", "0.2s", "--", "true")
    assert (done.returncode, "Traceback" in done.stderr) == (124, False), done.stderr
    os.close(descriptor)


def test_a_damaged_record_can_be_freed(launcher: Launcher) -> None:
    """A launch that an unreadable record stops is told how to end it, and that works."""

    def keep() -> int:
        put(launcher, FORGED, b"{", live=True)
        print("there", flush=True)
        return signal.pause() or 0

    with launcher.call(keep) as keeper:
        assert keeper.stdout.readline() == "there\n"
        done = launcher.run(*VGG, *SHOW)
        assert done.returncode == 125
        assert done.stderr.splitlines()[1].endswith("root can end it: gpulaunch free ffffffffffff")
        assert launcher.run("free", FORGED[-12:]).returncode == 0
    assert keeper.returncode == -signal.SIGTERM
    assert launcher.run(*VGG, *SHOW).stdout == "0,2,3\n"


def test_a_damaged_record_keeps_no_stragglers(launcher: Launcher) -> None:
    """An unreadable record, of any user, keeps none of a job's stragglers from being ended."""
    launcher.environment |= {"GPULAUNCH_GRACE": "0.3s", "GPULAUNCH_LEFTOVERS": "end"}
    with launcher.start(
        *VGG, "--", "sh", "-c", "sleep 600 & echo $!; read line", stdin=subprocess.PIPE
    ) as process:
        straggler = int(process.stdout.readline())
        descriptor = put(launcher, FORGED, b"{", live=True)
        process.communicate("\n")
        status = Path(f"/proc/{straggler}/stat")
        assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"
    os.close(descriptor)


def test_what_a_share_may_say(launcher: Launcher) -> None:
    """A live record with numbers that are none is a problem; one with a wrong share is shown."""
    light = ("--share", "-o", "utilization=10,5", "--memory", "1GiB")
    good = record(launcher, *DGX, *light) | {"id": FORGED[-12:]}
    endless = good["share"]["demand"] | {"power_w": float("inf")}
    for bad, problem in (
        ({"demand": endless}, "Infinity is no number"),
        ({"pipe_directory": "/tmp/a\0b"}, None),
        ({"pipe_directory": f"/{'x' * 100}"}, None),
    ):
        content = json.dumps(good | {"share": good["share"] | bad}).encode()
        descriptor = put(launcher, FORGED, content, live=True)
        done = launcher.run("status", *DGX, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        status = json.loads(done.stdout)
        assert len(status["leases"]) == (0 if problem else 1)
        assert [problem in said for said in status["problems"]] == ([True] if problem else [])
        os.close(descriptor)
        (launcher.state / FORGED).unlink()
