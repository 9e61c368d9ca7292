"""A table full of what others wrote: what is read, what is not, and what that costs everybody."""

import json
import os
import pwd
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import DGX, SHOW, Launcher, complaint, held
from fake_nvml import FakeNvml
from test_table import put
from values import lease, ticket

from gpulaunch.leases.lease import Lease, Ticket
from gpulaunch.leases.record_file import record_name
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.topology import TableKey
from gpulaunch.process import Process
from gpulaunch.process.system import boot_id
from gpulaunch.records import replace

pytest_plugins = ("fake_nvml",)

ME = pwd.getpwuid(os.geteuid()).pw_name
HERE = load_described_machine("dgx1-v100")[0]
TABLE = TableKey("dgx1-v100", HERE.digest or "", "/profiles/dgx1-v100.toml")
ELSEWHERE = TableKey("elsewhere", "0badc0de", "/profiles/elsewhere.toml")
GONE = Process(1 << 22, 1)
MISSING = ("GPU-nope", "GPU-dgx1-v100-9")


class LiveRecords:
    """Records that are alive until they are closed, held by this process."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher, self._fds = launcher, []
        self._names: list[str] = []
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def add(self, *records: Lease | Ticket) -> None:
        """Publish records as gpulaunch does, each with its user as the owner of its file."""
        for record in records:
            self.write(record_name(record), json.dumps(record.to_document()).encode())
            os.fchown(self._fds[-1], record.user_id, -1)

    def write(self, name: str, content: bytes) -> None:
        """Write a file by hand, with the lock of a live record, whatever is in it."""
        self._names.append(name)
        self._fds.append(put(self._launcher, name, content, live=True))

    def release(self) -> None:
        """Let all of them die; their files stay."""
        while self._fds:
            os.close(self._fds.pop())

    def __enter__(self) -> "LiveRecords":
        """Hold them for the length of a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let all of them die at the end of the block, and remove their files."""
        self.release()
        for name in self._names:
            (self._launcher.state / name).unlink(missing_ok=True)


@contextmanager
def held_elsewhere(launcher: Launcher, *records: Lease) -> Iterator[None]:
    """Have another process hold records for the length of a block."""

    def hold() -> int:
        LiveRecords(launcher).add(*records)
        print("held", flush=True)
        return signal.pause() or 0

    with launcher.call(hold) as process:
        assert process.stdout.readline() == "held\n"
        yield
        process.kill()


def own_lease(number: int, *gpus: int, **fields: object) -> Lease:
    """Make a lease of this user of GPUs of the DGX-1."""
    defaults = {"user_id": os.geteuid(), "table": TABLE, "launcher": GONE, "job": GONE}
    made = lease(f"l{number}", **{**defaults, **fields})
    return replace(made, uuids=tuple(HERE.gpus[gpu].uuid for gpu in gpus))


def own_ticket(number: int, **fields: object) -> Ticket:
    """Make a ticket of this user that waits for all GPUs of the DGX-1."""
    made = ticket(number, 8, user_id=os.geteuid(), table=TABLE, launcher=GONE)
    return replace(made, uuids=tuple(gpu.uuid for gpu in HERE.gpus), **fields)


def document(launcher: Launcher, *machine: str) -> dict:
    """Return what `status --json` prints, which has to succeed."""
    done = launcher.run("status", *machine, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_gpus_that_the_machine_lacks(launcher: Launcher, dgx1_v100: FakeNvml) -> None:
    """A GPU in a record that the machine does not have counts for nothing anywhere."""
    assert dgx1_v100
    with LiveRecords(launcher) as records:
        records.add(
            replace(own_lease(1, table=None), uuids=("GPU-gone", "GPU-gone-too")),
            replace(own_ticket(1, table=None), uuids=MISSING, gpus=1),
            replace(own_ticket(2, table=None), uuids=("GPU-v100-0", *MISSING), gpus=3),
        )
        status = document(launcher)
        assert [one["gpus"] for one in status["leases"]] == [[None, None]]
        assert [one["id"] for one in status["queue"]] == ["t1", "t2"]
        assert [one["free"] for one in status["gpus"]] == [True] * 8
        for line in ("status", "status --gpus", "status --openmetrics", "doctor --health"):
            done = launcher.run(*line.split())
            assert (done.returncode, "Traceback" in done.stderr) == (0, False), line
        # The first ticket bars nobody; the second one waits for the first GPU alone.
        assert launcher.run("-n", "7", *SHOW).stdout == "1,2,3,4,5,6,7\n"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give files to others")
def test_file_that_a_foreign_ticket_names(launcher: Launcher, tmp_path: Path) -> None:
    """The path of a profile in another user's ticket is opened by nobody, who would block here."""
    path = tmp_path / "profile.toml"
    os.mkfifo(path)
    with LiveRecords(launcher) as records:
        records.add(own_ticket(1, user_id=60001, profile=str(path)))
        assert [one["user"] for one in document(launcher, *DGX)["queue"]] == ["uid 60001"]
        assert launcher.run(*DGX, "-n", "1", "--explain", "--", "true").returncode == 75


def test_more_leases_than_are_read(launcher: Launcher) -> None:
    """With 201 live leases of a user nobody is given a GPU, that user is named, `status` goes on.

    The owner or root ends one, and launches go on: the GPU of no lease is given twice.
    """
    leases = [own_lease(number, 0, table=ELSEWHERE) for number in range(200)]
    with held_elsewhere(launcher, *leases):
        assert launcher.run(*DGX, "-n", "all", *SHOW).returncode == 75  # no room for one of ours
        assert launcher.run(*DGX, "-n", "8", "--dry-run", "--", "true").returncode == 0
        with held_elsewhere(launcher, own_lease(200, 7)):
            for gpu in ("0", "7"):
                done = launcher.run(*DGX, "--only", gpu, "-n", "1", *SHOW)
                assert (done.returncode, done.stdout) == (125, "")
                assert f": {ME} has more than 200 live leases" in done.stderr.splitlines()[0]
            status = document(launcher, *DGX)
            assert ["more than 200 live" in one for one in status["problems"]] == [True]
            assert {one["free"] for one in status["gpus"]} == {False}
            for command in ("status", "doctor"):
                assert f"{ME} has more than 200 live leases" in launcher.run(command, *DGX).stdout
            done = launcher.run("free", "l200")
            assert (done.returncode, done.stderr) == (0, "")
        assert launcher.run(*DGX, "-n", "8", "--dry-run", "--", "true").returncode == 0
        assert launcher.run("free", "l0").returncode == 0  # one process holds all of them
    assert launcher.run(*DGX, "-n", "8", *SHOW).returncode == 0
    assert launcher.records() == []


def test_leases_that_no_process_holds(launcher: Launcher) -> None:
    """Leases that no process holds, as those of containers, stop nobody by their number."""
    held = own_lease(0, 0, table=ELSEWHERE, engine="docker", boot_id=boot_id())
    with LiveRecords(launcher) as records:
        records.add(*(replace(held, id=f"l{number}") for number in range(201)))
        records.release()
        assert launcher.run(*DGX, "-n", "8", *SHOW).returncode == 0


def test_no_user_takes_more_leases_than_are_read(launcher: Launcher) -> None:
    """A user's 200th lease is granted and the 201st refused, with one line and nothing taken."""
    with LiveRecords(launcher) as records:
        records.add(*(own_lease(number, 0, table=ELSEWHERE) for number in range(199)))
        with held(launcher, *DGX, "-n", "1") as job:
            assert job.gpus == "0"
            before = launcher.records()
            for options in ((), ("--wait",)):
                done = launcher.run(*DGX, "-n", "1", *options, "--", "echo", "ran")
                problem = f"{ME} has 200 leases: 200 is the most for one user"
                error = complaint(problem, "see 'gpulaunch status --mine'")
                assert (done.returncode, done.stdout, done.stderr) == (75, "", error)
            assert launcher.records() == before
        assert launcher.run(*DGX, "-n", "1", *SHOW).stdout == "0\n"


def test_no_user_waits_in_more_places_than_are_read(launcher: Launcher) -> None:
    """A user's first 1,000 places in the queue count; the 1,001st is refused, and none is left."""
    with LiveRecords(launcher) as records:
        records.add(*(own_ticket(number, table=ELSEWHERE) for number in range(1, 1000)))
        records.add(own_ticket(1000))
        assert [one["id"] for one in document(launcher, *DGX)["queue"]] == ["t1000"]
        records.add(own_ticket(1001))
        assert [one["id"] for one in document(launcher, *DGX)["queue"]] == ["t1000"]
        before = launcher.records()
        done = launcher.run(*DGX, "-n", "1", "--wait", "--", "true")
        assert (done.returncode, done.stdout) == (75, "")
        problem = f"{ME} has 1000 launches in the queue: 1000 is the most for one user"
        assert done.stderr.splitlines()[-2] == f"gpulaunch: error: {problem}"
        assert launcher.records() == before


def test_places_of_large_tickets(launcher: Launcher) -> None:
    """A ticket of 64 KiB counts as eight: after 125 of them a user's next one does not count."""
    with LiveRecords(launcher) as records:
        for number in range(1, 128):  # which orders those that are made at one instant
            made = own_ticket(number)
            if number in (125, 127):
                records.add(made)
            else:
                made = replace(made, table=ELSEWHERE)
                records.write(record_name(made), padded(made, 64 << 10))
        assert [one["id"] for one in document(launcher, *DGX)["queue"]] == ["t125"]


def padded(record: Lease | Ticket, size: int) -> bytes:
    """Return the content of a record of this size, as a version without a bound writes it."""
    room = size - len(json.dumps(record.to_document() | {"command": [""]}))
    content = json.dumps(record.to_document() | {"command": ["x" * room]}).encode()
    assert len(content) == size
    return content


@pytest.mark.parametrize(
    ("size", "status", "gpu"),
    [(20 << 10, 0, "1\n"), (64 << 10, 0, "1\n"), ((64 << 10) + 1, 125, "")],
)
def test_size_of_a_record(launcher: Launcher, size: int, status: int, gpu: str) -> None:
    """Records of earlier versions, of 20 KiB, hold their GPUs; beyond 64 KiB all decisions end."""
    with LiveRecords(launcher) as records:
        records.write("gpulaunch.lease.l1", padded(own_lease(1, 0), size))
        done = launcher.run(*DGX, "--only", "0,1", "-n", "1", *SHOW)
        assert (done.returncode, done.stdout) == (status, gpu)
        found = document(launcher, *DGX)
        assert (len(found["leases"]), len(found["problems"])) == ((0, 1) if status else (1, 0))
        if status:
            path = launcher.state / "gpulaunch.lease.l1"
            assert f"{path}: this live lease of {ME} cannot be understood" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give files to others")
def test_users_without_an_id_in_a_namespace(launcher: Launcher) -> None:
    """All users who have no id in a container's user namespace are not counted as one of them."""
    with LiveRecords(launcher) as records:
        for user_id in (60001, 60002, 60003):
            numbers = range(1000 * user_id, 1000 * user_id + 67)
            records.add(*(own_lease(one, 0, user_id=user_id) for one in numbers))
        words = ("--user", "--map-root-user", launcher.script, *DGX, "--only", "0,1", *SHOW)
        done = launcher.run(*words, executable=shutil.which("unshare"))
        assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_status_goes_on_beside_garbage(launcher: Launcher) -> None:
    """`status` shows what it can beside live records that stop all launches, and names them."""
    names = {"lease": "gpulaunch.lease.bad", "ticket": "gpulaunch.ticket.00000001.bad"}
    with LiveRecords(launcher) as records, held(launcher, *DGX, "-n", "2"):
        for name in names.values():
            records.write(name, b"{")
        shown = launcher.run("status", *DGX).stdout.replace("\n", "")
        for kind, name in names.items():
            assert f"{name}: this live {kind} of {ME} cannot be understood" in shown
        found = document(launcher, *DGX)
        assert (len(found["leases"]), len(found["problems"])) == (1, 2)
        assert launcher.run(*DGX, "-n", "1", *SHOW).returncode == 125
