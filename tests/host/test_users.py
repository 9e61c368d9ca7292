"""One table for all: Unix users, pid namespaces, a container, and the directory of root's setup.

The users are real, made for these tests, so most of this needs root. They cannot read root's home,
where this virtual environment may lie, so they run a copy of the package under a Python that all
may execute.
"""

import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import rich
from agent import Agent, talk
from conftest import DGX, SHOW, VGG, Launcher, complaint, held, holders, until, wait_for_end
from engine import IMAGE, Engine, write_cdi_spec

pytest_plugins = ("fake_nvml",)

ALL = (*DGX, "-n", "all")
REPOSITORY = Path(__file__).parents[2]
BUSY = "gpulaunch: hint: add --wait to queue, or see 'gpulaunch status --topology dgx1-v100'\n"
QUEUED = 'echo "$CUDA_VISIBLE_DEVICES"; read line'


class Elsewhere(Launcher):
    """Launches in the same table, but from elsewhere.

    Args:
        launcher: whose table and environment.
        command: what starts gpulaunch there.
        options: of subprocess, for every start.
    """

    def __init__(self, launcher: Launcher, command: list[str], **options) -> None:
        self.state = launcher.state
        self.environment = dict(launcher.environment)
        self.script, *self.first = command
        self.options = options

    def run(self, *arguments: str | bytes, **options) -> subprocess.CompletedProcess[str]:
        return super().run(*self.first, *arguments, **self.options | options)

    def start(self, *arguments: str | bytes, **options) -> subprocess.Popen[str]:
        return super().start(*self.first, *arguments, **self.options | options)


class User(Elsewhere):
    """A real Unix user.

    Attributes:
        name: login name.
        python: what runs gpulaunch for them.
    """

    def __init__(self, name: str, python: str, package: Path, launcher: Launcher) -> None:
        entry = pwd.getpwnam(name)
        self.name, self.python, self.uid = name, python, entry.pw_uid
        identity = {"user": self.uid, "group": entry.pw_gid, "extra_groups": [], "umask": 0o022}
        super().__init__(launcher, [python, "-m", "gpulaunch"], **identity, cwd="/")
        self.environment |= {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(package)}

    @contextmanager
    def doing(self, code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
        """Run Python in the state directory; yield once it has printed a line, and end it after."""
        options = {"env": self.environment, **self.options, "cwd": self.state}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [self.python, "-c", code, *map(str, arguments)]
        with subprocess.Popen(command, **pipes, **options) as process:
            assert process.stdout.readline() == "ready\n"
            yield process
            process.communicate("")

    def does(self, code: str, *arguments: object) -> list[str]:
        """Return what that Python prints after `ready`, once it has ended."""
        with self.doing(code, *arguments) as process:
            printed = process.stdout.read().splitlines()
        assert process.returncode == 0
        return printed


class Accounts(NamedTuple):
    """Two users, and how they run gpulaunch."""

    names: list[str]
    python: str
    package: Path


@pytest.fixture(scope="module")
def accounts() -> Iterator[Accounts]:
    """Make two users who are there only as long as this module runs."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make users")
    if not shutil.which("useradd") or not shutil.which("userdel"):
        pytest.skip("needs useradd and userdel")
    names = [f"gputest-{letter}-{os.urandom(3).hex()}" for letter in "ab"]
    package = Path(tempfile.mkdtemp(prefix="gpulaunch-", dir="/tmp"))
    useradd = ["useradd", "--no-create-home", "--home-dir", "/nonexistent"]
    try:
        package.chmod(0o755)
        # Their Python need not have what commands draw with.
        for part in (REPOSITORY / "gpulaunch", REPOSITORY / "profiles", Path(rich.__file__).parent):
            # Another process may be writing a .pyc, which has a longer name until it is whole.
            ignore = shutil.ignore_patterns("*.pyc.*")
            shutil.copytree(part, package / part.name, ignore=ignore)
        for name in names:
            subprocess.run([*useradd, name], check=True)
        python = python_for(pwd.getpwnam(names[0]).pw_uid)
        # The users cannot write there.
        subprocess.run([python, "-m", "compileall", "-q", str(package)], check=True)
        yield Accounts(names, python, package)
    finally:
        for name in names:
            with suppress(KeyError):
                end_processes_of(pwd.getpwnam(name).pw_uid)
                subprocess.run(["userdel", "--force", name], check=True, stderr=subprocess.DEVNULL)
        shutil.rmtree(package)


def python_for(uid: int) -> str:
    """Return a Python that this user can run, and that gpulaunch can use."""
    options = {"user": uid, "group": uid, "cwd": "/", "capture_output": True}
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"):
        check = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
        with suppress(PermissionError, FileNotFoundError):
            if subprocess.run(check, check=False, **options).returncode == 0:
                return python
    pytest.skip("needs a Python 3.10 or newer that every user can execute")


def end_processes_of(uid: int) -> None:
    """End what a failed test left running, so that the user can be removed."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid:
                os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Launcher]:
    """Yield root's launcher, its state directory like /run/lock: world-writable and sticky."""
    # pytest's own directory is closed to other users.
    home = Path(tempfile.mkdtemp(prefix="gpulaunch-", dir="/tmp"))
    home.chmod(0o755)
    try:
        launcher = Launcher(home)
        launcher.state.chmod(0o1777)
        launcher.environment |= {"GPULAUNCH_GRACE": "0.3s", "HOME": str(tmp_path)}
        yield launcher
    finally:
        shutil.rmtree(home)


@pytest.fixture
def alice(accounts: Accounts, root: Launcher) -> User:
    """Return one of the two users."""
    return User(accounts.names[0], accounts.python, accounts.package, root)


@pytest.fixture
def bob(accounts: Accounts, root: Launcher) -> User:
    """Return the other user."""
    return User(accounts.names[1], accounts.python, accounts.package, root)


@contextmanager
def usual_protection() -> Iterator[None]:
    """Set what systemd sets for files in sticky directories, and the kernel alone does not."""
    with ExitStack() as stack:
        for name, value in {"hardlinks": 1, "symlinks": 1, "fifos": 1, "regular": 2}.items():
            path = Path(f"/proc/sys/fs/protected_{name}")
            try:
                setting = stack.enter_context(path.open("r+"))
            except OSError:
                pytest.skip(f"may not set fs.protected_{name}")
            # Another run of these tests would take our value for the machine's.
            fcntl.flock(setting, fcntl.LOCK_EX)
            stack.callback(path.write_text, setting.read())
            path.write_text(f"{value}")
        yield


@contextmanager
def queued(
    launcher: Launcher, *options: str, lines: int = 2
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Yield a launch that waits and then holds its GPUs, and the lines that say that it waits."""
    command = (*options, "--wait", "--", "sh", "-c", QUEUED)
    with launcher.start(*command, stdin=subprocess.PIPE) as process:
        try:
            yield process, [process.stderr.readline() for _ in range(lines)]
        finally:
            process.kill()


def status(launcher: Launcher) -> dict:
    """Return the table, without predicted starts, which each reading makes anew."""
    done = launcher.run("status", *DGX, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    for entry in document["queue"]:
        assert sorted(entry.pop("predicted_start")) == ["from", "to"]
    return document


def lease_of(launcher: Launcher) -> dict:
    """Return the only lease there is."""
    (lease,) = status(launcher)["leases"]
    return lease


def outcome(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


def is_running(pid: int) -> bool:
    """Return whether it runs; PID 1 may be slow to reap what has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# Two users


def test_protected_files(alice: User, bob: User, root: Launcher) -> None:
    """With fs.protected_regular=2 and umask 077 two users and root still have one table.

    Eight launches at once share the machine's eight GPUs without meeting.
    """
    alice.options["umask"] = bob.options["umask"] = 0o077
    command = (*DGX, "--wait", "--", "sh", "-c", QUEUED)
    with usual_protection():
        launchers = (alice, bob, root, alice, bob, alice, bob, root)
        begun = [launcher.start(*command, stdin=subprocess.PIPE) for launcher in launchers]
        try:
            gpus = sorted(int(process.stdout.readline()) for process in begun)
            assert gpus == list(range(8))
            error = "gpulaunch: error: 1 GPU requested: 0 of 8 are free, 8 are leased\n"
            assert outcome(alice.run("-q", *DGX, *SHOW)) == (75, "", error + BUSY)
        finally:
            for process in begun:
                process.communicate("\n")
        assert [process.returncode for process in begun] == [0] * 8
        assert alice.run(*ALL, *SHOW).returncode == 0


def test_users_wait_for_each_other_in_order(alice: User, bob: User) -> None:
    """Each sees who has GPUs and who waits, and passes no earlier request of the other."""
    with (
        held(alice, *DGX, "-n", "5") as first,
        held(bob, *DGX, "-n", "3") as other,
        queued(bob, *DGX, "-n", "5", lines=3) as (second, said),
        queued(alice, *DGX, lines=3) as (third, _),
    ):
        assert {line.partition(" has GPUs ")[0] for line in said[1:]} == {
            f"gpulaunch: info: {user.name}" for user in (alice, bob)
        }
        seen = status(alice)
        assert seen == status(bob)
        leases = {(one["user"], len(one["gpus"]), one["job_pid"]) for one in seen["leases"]}
        assert leases == {(alice.name, 5, first.job_pid), (bob.name, 3, other.job_pid)}
        places = [(one["user"], one["gpus"], one["position"]) for one in seen["queue"]]
        assert places == [(bob.name, 5, 1), (alice.name, 1, 2)]
        other.end()  # three GPUs are free now, but not for who came later
        done = alice.run(*DGX, *SHOW)
        earlier = f"{bob.name} for 5 GPUs, {alice.name} for 1 GPU"
        queue = f"gpulaunch: info: earlier in the queue: {earlier}"
        assert (done.returncode, done.stderr.splitlines()[2]) == (75, queue)
        first.end()
        gpus = [process.stdout.readline().strip().split(",") for process in (second, third)]
        assert [len(gpus[0]), len(gpus[1]), len({*gpus[0], *gpus[1]})] == [5, 1, 6]


# One user against the other


def test_who_may_not_ask_the_engine(alice: User, root: Launcher, docker: Engine) -> None:
    """A container's lease stays taken for a user barred from the engine, and status says why.

    Of containers without a lease this user's launches know nothing, and say nothing.
    """
    docker.socket.chmod(0o660)
    path = root.environment["PATH"]
    root.environment |= {**docker.environment, "PATH": f"{docker.environment['PATH']}:{path}"}
    run = ("docker", "run", "-d", "--gpus", "all", "--init", IMAGE, "sleep", "1000")
    assert root.run(*DGX, "-q", *run).returncode == 0
    (record,) = root.records()
    (watcher,) = holders(root.state / record)
    os.kill(watcher, signal.SIGKILL)
    wait_for_end(watcher)

    alice.environment["DOCKER_HOST"] = docker.host
    lease = lease_of(alice)
    refused = f"cannot reach the Docker Engine at {docker.socket}: permission denied"
    assert (lease["container"], lease["container_problem"]) == (None, refused)
    assert alice.run(*DGX, *SHOW).returncode == 75
    docker.remove_all()
    statuses = [user.run(*DGX, *SHOW).returncode for user in (alice, root, alice)]
    assert statuses == [75, 0, 0]

    write_cdi_spec(docker.cdi, ["GPU-dgx1-v100-0"])
    device = ("--device", "nvidia.com/gpu=GPU-dgx1-v100-0")
    assert docker.docker("run", "-d", *device, IMAGE, "sleep", "1000").returncode == 0
    assert root.run(*ALL, *SHOW).returncode == 75
    assert outcome(alice.run(*ALL, "--", "true")) == (0, "", "")


def test_root_launches_inside_anyones_lease(alice: User, bob: User, root: Launcher) -> None:
    """Root launches inside any user's lease, as containers run as root; another user is warned."""
    with held(alice, *DGX, "-n", "4") as outer:
        lease_id = lease_of(root)["id"]
        for user in (root, bob):
            user.environment["GPULAUNCH_LEASE"] = lease_id
        with held(root, *DGX, "-n", "3") as inner:
            assert set(inner.gpus.split(",")) < set(outer.gpus.split(","))
            assert root.run(*DGX, "-n", "2", *SHOW).returncode == 75
            assert root.run(*DGX, "-n", "5", *SHOW).returncode == 2
            done = bob.run(*DGX, "-n", "4", *SHOW)
        assert not set(done.stdout.strip().split(",")) & set(outer.gpus.split(","))
        warning = f"lease {lease_id} belongs to {alice.name}, so it is ignored"
        assert done.stderr == f"gpulaunch: warning: {warning}: unset GPULAUNCH_LEASE\n"


def test_free_is_refused_to_others(alice: User, bob: User, root: Launcher) -> None:
    """`free` of another user's lease or ticket is refused, and changes nothing; root may."""
    with held(alice, *VGG) as job, queued(alice, *ALL) as (waiter, _):
        before = status(alice)
        for record in (*before["leases"], *before["queue"]):
            owner = f"belongs to {alice.name}: only {alice.name} or root can end it"
            refused = complaint(f"job {record['id']} {owner}")
            for text in (record["id"], record["id"][:8]):
                assert outcome(bob.run("free", text, *DGX)) == (2, "", refused)
        assert status(alice) == before
        assert (is_running(job.job_pid), waiter.poll()) == (True, None)
        ticket, lease = before["queue"][0]["id"], before["leases"][0]["id"]
        left = (0, f"{ticket} has left the queue\n", "")
        assert outcome(root.run("free", ticket, *DGX)) == left
        waiter.wait()
        ended = f"ended {lease} (GPUs 0,2,3)\n"
        assert outcome(root.run("free", lease, *DGX)) == (0, ended, "")
        assert job.process.wait() == 128 + signal.SIGTERM
        assert root.records() == []


def test_free_means_own_leases_first(alice: User, bob: User, root: Launcher) -> None:
    """A name means one's own lease or waiting launch where others have the name, too.

    To root, who has none, it means any; to an agent of root it never does.
    """
    named = (*DGX, "--name", "job")
    with held(alice, *named) as hers, held(bob, *named), held(root, *DGX, "--name", "a"):
        one, two = (lease for lease in status(root)["leases"] if lease["name"] == "job")
        listed = f"{one['id']} ({one['user']}), {two['id']} ({two['user']})"
        assert listed in root.run("free", "job", *DGX).stderr
        root.run("-qd", *named, "--after", "a:any", "--", "true")
        assert root.run("free", "job").stdout == "job has been ended before it was in the queue\n"
        (his,) = (lease for lease in (one, two) if lease["user"] == bob.name)
        ended = f"ended job (GPU {his['gpus'][0]})\n"
        assert outcome(bob.run("free", "job", *DGX)) == (0, ended, "")
        assert outcome(bob.run("free", "--mine", *DGX))[1] == "nothing on dgx1-v100 is yours\n"
        assert "only" in bob.run("free", "job", *DGX).stderr

        async def speak(agent: Agent) -> None:
            leases = (await agent.call("look"))["leases"]
            (lease,) = (lease for lease in leases if lease["user"] == alice.name)
            for job in (lease["id"], "job"):
                said = await agent.fails("free", job=job)
                assert said == f"'{job}' is no lease or job of yours (exit status 2)"

        root.environment["GPULAUNCH_TOPOLOGY"] = "dgx1-v100"
        talk(root, speak)
        assert is_running(hers.job_pid)
        assert root.run("free", "job", *DGX).returncode == 0
        assert not is_running(hers.job_pid)


DAMAGE = """
import errno, fcntl, os, signal, struct, sys
print("ready", flush=True)
name, launcher, job = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
own = "gpulaunch.lease.own"
os.close(os.open(own, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
reader = os.open(name, os.O_RDONLY)

def lock(kind):
    fcntl.fcntl(reader, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, 0, 0, 0, 0))

attempts = [
    ("EPERM", lambda: os.unlink(name)),
    ("EPERM", lambda: os.rename(name, "elsewhere")),
    ("EPERM", lambda: os.rename(own, name)),
    ("EPERM", lambda: os.link(name, "gpulaunch.lease.linked")),
    ("EACCES", lambda: os.open(name, os.O_WRONLY)),
    ("EACCES", lambda: os.truncate(name, 0)),
    ("EBADF", lambda: lock(fcntl.F_WRLCK)),
    ("EAGAIN", lambda: lock(fcntl.F_RDLCK)),
    ("EPERM", lambda: os.kill(launcher, signal.SIGKILL)),
    ("EPERM", lambda: os.kill(job, signal.SIGKILL)),
]
for number, (want, attempt) in enumerate(attempts):
    try:
        attempt()
        got = "done"
    except OSError as problem:
        got = errno.errorcode[problem.errno]
    if got != want:
        print(number, got)
os.unlink(own)
"""


def test_a_record_cannot_be_damaged_by_others(alice: User, bob: User) -> None:
    """Whatever another user tries on a record, its processes or directory fails; umask is 0."""
    alice.options["umask"] = 0
    with usual_protection(), held(alice, *VGG) as job:
        (name,) = alice.records()
        record = alice.state / name
        before = record.read_bytes(), record.stat().st_mode, status(alice)
        assert bob.does(DAMAGE, name, job.process.pid, job.job_pid) == []
        assert (record.read_bytes(), record.stat().st_mode, status(alice)) == before
        assert outcome(bob.run(*VGG, *SHOW)) == (0, "4,6,7\n", "")
        assert job.end() == 7
    assert alice.records() == []


OPEN = """
import fcntl, os, struct, sys
reader = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(reader, fcntl.LOCK_EX)
if sys.argv[2:]:
    fcntl.fcntl(reader, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
    fcntl.fcntl(reader, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
print("ready", flush=True)
sys.stdin.read()
"""


def test_dead_records_of_others(alice: User, bob: User, root: Launcher) -> None:
    """A dead record stays dead though another user has every lock that a reader can get.

    Other users ignore it, and root's next launch removes it. Nor does a reader delay an end.
    """
    with held(alice, *ALL) as job, bob.doing(OPEN, *alice.records()):
        assert job.end() == 7
        assert bob.records() == []
    with held(alice, *ALL) as job, queued(alice, *VGG) as (waiter, _):
        waiter.kill()
        waiter.wait()
        job.kill_all()
        dead = alice.records()
        with bob.doing(OPEN, dead[0], "lock"):
            assert status(bob)["leases"] == []
            assert outcome(bob.run(*VGG, *SHOW)) == (0, "0,2,3\n", "")
            assert (len(dead), bob.records()) == (2, dead)
            assert outcome(root.run(*VGG, *SHOW)) == (0, "0,2,3\n", "")
        assert bob.records() == []


PLANT = """
import os, socket
print("ready", flush=True)
(record,) = os.listdir()
content = open(record, "rb").read()

def copy(name):
    with open(name, "wb") as file:
        file.write(content)

def bind(name):
    socket.socket(socket.AF_UNIX).bind(name)

kinds = [
    lambda name: os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)),
    copy,
    lambda name: os.symlink(record, name),
    lambda name: os.symlink("/dev/zero", name),
    lambda name: os.symlink("nothing", name),
    lambda name: os.mkfifo(name, 0o644),
    lambda name: os.mkfifo(name, 0o600),
    lambda name: os.mkdir(name, 0o755),
    lambda name: os.mkdir(name, 0o700),
    bind,
]
for number, make in enumerate(kinds):
    make(f"gpulaunch.lease.aaaaaaaaaaa{number}")
    make(f"gpulaunch.ticket.0000000{number}.aaaaaaaaaaa{number}")
"""


def test_what_another_user_plants(alice: User, bob: User) -> None:
    """Another user's things under a record's name, unless locked, block and free nothing."""
    with held(alice, *VGG):
        bob.does(PLANT)
        error = f"gpulaunch: error: 6 GPUs requested: 5 of 8 are free, 3 are leased\n{BUSY}"
        assert outcome(alice.run("-q", *DGX, "-n", "6", *SHOW)) == (75, "", error)
        assert outcome(alice.run(*VGG, *SHOW)) == (0, "4,6,7\n", "")
        assert [lease["user"] for lease in status(alice)["leases"]] == [alice.name]


PUT = """
import fcntl, os, struct, sys
name, mode, content = sys.argv[1], int(sys.argv[2], 8), sys.argv[3]
fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)
os.write(fd, content.encode())
fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
print("ready", flush=True)
sys.stdin.read()
"""


def test_an_unreadable_record_stops_others(alice: User, bob: User, root: Launcher) -> None:
    """A record that its owner lets nobody read is told of and shuts nobody out but root."""
    name = "gpulaunch.lease.aaaaaaaaaaaa"
    problem = f"{alice.state}/{name}: cannot read this record of {bob.name}: permission denied"
    told = (0, "0,2,3\n", f"gpulaunch: warning: {problem}, so it does not count\n")
    with bob.doing(PUT, name, "600", "no lease"):
        assert outcome(alice.run(*VGG, *SHOW)) == told
        unclear = f"{alice.state}/{name}: this live lease of {bob.name} cannot be understood: "
        done = root.run(*VGG, *SHOW)
        assert (done.returncode, done.stdout) == (125, "")
        assert done.stderr.startswith(f"gpulaunch: error: {unclear}")
    assert outcome(alice.run(*VGG, *SHOW)) == told
    assert outcome(root.run(*VGG, *SHOW)) == (0, "0,2,3\n", "")
    assert outcome(alice.run(*VGG, *SHOW)) == (0, "0,2,3\n", "")


def test_free_spares_others(alice: User, bob: User, root: Launcher) -> None:
    """Root's `free` ends holders and waiters, but no other user's reader of the record.

    Of a forged lease it spares the processes that this names, and ends its maker's holder.
    """
    with held(alice, *ALL) as job:
        (name,) = alice.records()
        forged = json.loads((alice.state / name).read_bytes()) | {"id": "bbbbbbbbbbbb"}
        with bob.doing(PUT, "gpulaunch.lease.bbbbbbbbbbbb", "644", json.dumps(forged)) as holder:
            done = root.run("free", "bbbbbbbbbbbb", *DGX)
            assert is_running(job.job_pid)
            assert outcome(done) == (0, "ended bbbbbbbbbbbb (GPUs 0-7)\n", "")
            assert holder.wait() == -signal.SIGTERM
        assert lease_of(root)["user"] == alice.name
        with queued(alice, *VGG) as (waiter, _):
            (ticket,) = (record for record in alice.records() if ".ticket." in record)
            with bob.doing(OPEN, ticket) as reader:
                assert root.run("free", status(root)["queue"][0]["id"], *DGX).returncode == 0
                waiter.wait()
                assert reader.poll() is None
        job.process.kill()
        job.process.wait()  # so that `free` itself has to see who holds the lease
        with bob.doing(OPEN, name) as reader:
            assert root.run("free", lease_of(root)["id"], *DGX).returncode == 0
            assert (is_running(job.job_pid), reader.poll()) == (False, None)


def test_a_state_directory_of_another_user(alice: User, bob: User, root: Launcher) -> None:
    """A state directory that belongs to another user serves, with a warning that names them."""
    os.chown(root.state, alice.uid, -1)
    owner = f"belongs to {alice.name}, who can remove any lease in it"
    warning = f"gpulaunch: warning: state directory {root.state} {owner}\n"
    assert outcome(bob.run(*VGG, *SHOW)) == (0, "0,2,3\n", warning)
    assert outcome(alice.run(*VGG, *SHOW)) == (0, "0,2,3\n", "")


# Pid namespaces


@contextmanager
def namespace(script: str, *options: str) -> Iterator[int]:
    """Hold a namespace open for the block, after a script; yield the pid of its process."""
    if os.geteuid() != 0:
        pytest.skip("needs root for a namespace")
    command = ["unshare", *options, "bash", "-c", f"{script} && echo ready && read line"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            if process.stdout.readline() != "ready\n":
                pytest.skip(f"may not make such a namespace here: {process.stderr.read()}")
            yield process.pid
        finally:
            with suppress(BrokenPipeError):
                process.communicate("\n")


@pytest.fixture
def inside(launcher: Launcher) -> Iterator[Elsewhere]:
    """Yield a launcher in a pid namespace of its own, with the state directory of `launcher`."""
    launcher.environment |= {"GPULAUNCH_GRACE": "0.3s"}
    with namespace("true", "--fork", "--pid", "--mount-proc", "--kill-child") as pid:
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        enter = ["nsenter", f"--target={child}", "--pid", "--mount"]
        yield Elsewhere(launcher, [*enter, launcher.script])


def test_namespaces_wait_for_each_other(launcher: Launcher, inside: Elsewhere) -> None:
    """Launches in two pid namespaces see one table, and wait for each other until the end."""
    with held(inside, *ALL) as job, queued(launcher, *ALL) as (waiter, said):
        assert said[0].endswith("8 GPUs requested: 0 of 8 are free, 8 are leased\n")
        seen = status(launcher)
        assert seen == status(inside)
        (lease,) = seen["leases"]
        assert (lease["job_pid"], lease["left_over_pids"]) == (job.job_pid, None)
        pids = [str(lease["pid"]), str(job.job_pid)]
        subprocess.run([inside.script, *inside.first[:-1], "kill", "-KILL", *pids], check=True)
        assert len(waiter.stdout.readline().split(",")) == 8
        with queued(inside, *ALL) as (below, _):
            waiter.communicate("\n")
            assert len(below.communicate("\n")[0].split(",")) == 8


def test_free_across_namespaces(launcher: Launcher, inside: Elsewhere) -> None:
    """`free` ends a lease in a pid namespace below, and cannot end one above."""
    with held(inside, *VGG) as job:
        lease = lease_of(launcher)
        ended = f"ended {lease['id']} (GPUs 0,2,3)\n"
        assert outcome(launcher.run("free", lease["id"], *DGX)) == (0, ended, "")
        assert job.process.wait() == 128 + signal.SIGTERM
        assert launcher.records() == []
    with held(launcher, *VGG) as job:
        lease = lease_of(inside)
        error = f"the processes of job {lease['id']} are not visible here, or not its owner's"
        said = complaint(error, "run this where they run")
        assert outcome(inside.run("free", lease["id"], *DGX)) == (125, "", said)
        assert lease_of(launcher) == lease
        assert is_running(job.job_pid)
        assert job.end() == 7


# What root sets up


class Machine(NamedTuple):
    """A machine of its own, as far as /run and /etc go.

    Attributes:
        pid: of a process there.
        enter: the command that enters it.
    """

    pid: int
    enter: list[str]

    def path(self, path: str) -> Path:
        """Return a path of that machine, as it can be used here."""
        return Path(f"/proc/{self.pid}/root{path}")

    def launcher(self, launcher: Launcher) -> Elsewhere:
        """Return root's launcher on that machine."""
        there = Elsewhere(launcher, [*self.enter, launcher.script])
        del there.environment["GPULAUNCH_STATE_DIR"]
        return there

    def user(self, user: User) -> Elsewhere:
        """Return a user's launcher on that machine."""
        group = pwd.getpwuid(user.uid).pw_gid
        identity = [f"--reuid={user.uid}", f"--regid={group}", "--clear-groups"]
        command = [*self.enter, "setpriv", *identity, user.script, *user.first]
        there = Elsewhere(user, command, cwd="/")
        del there.environment["GPULAUNCH_STATE_DIR"]
        return there


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Yield a machine without setup: empty /etc/tmpfiles.d and /var/lib."""
    base = tmp_path / "etc"
    base.mkdir()
    script = f"""mount -t tmpfs -o mode=755 tmpfs /run && mkdir -m 1777 /run/lock &&
        mount -t tmpfs tmpfs {base} && mkdir {base}/upper {base}/work &&
        mount -t tmpfs -o mode=1777 tmpfs /dev/shm &&
        mount -t overlay -o lowerdir=/etc,upperdir={base}/upper,workdir={base}/work overlay /etc &&
        rm -rf /etc/tmpfiles.d && mount -t tmpfs -o mode=755 tmpfs /var/lib"""
    with namespace(script, "--mount") as pid:
        yield Machine(pid, ["nsenter", f"--mount=/proc/{pid}/ns/mnt"])


def test_setup(root: Launcher, alice: User, machine: Machine) -> None:
    """`gpulaunch setup` makes a lasting table for all users; a second setup changes nothing.

    It is for root, and refused where GPULAUNCH_STATE_DIR says that nobody would use it, or while
    there are leases or waiters in the earlier directory. It repairs one that was made by hand.
    """
    launcher, user = machine.launcher(root), machine.user(alice)
    refused = complaint("setup needs root", "sudo gpulaunch setup")
    assert outcome(user.run("setup")) == (2, "", refused)
    own = {**launcher.environment, "GPULAUNCH_STATE_DIR": "/run/lock"}
    error = "GPULAUNCH_STATE_DIR is set, so nobody who has it would use what setup makes"
    assert outcome(launcher.run("setup", env=own)) == (2, "", complaint(error))
    with held(user, *VGG), queued(user, *ALL):
        ends = "wait for them to end, or see 'gpulaunch status'"
        refused = complaint("2 leases live in /run/lock", ends)
        assert outcome(launcher.run("setup")) == (125, "", refused)
    assert_nothing_made(machine)
    said = "/run/gpulaunch holds the allocation table from now on; "
    said += "/etc/tmpfiles.d/gpulaunch.conf makes it at every boot\n"
    assert outcome(launcher.run("setup", umask=0o077)) == (0, said, "")
    made = machine.path("/run/gpulaunch")
    entry = machine.path("/etc/tmpfiles.d/gpulaunch.conf")

    def facts() -> tuple:
        found = made.stat()
        return found.st_ino, found.st_uid, found.st_gid, oct(found.st_mode), entry.read_text()

    first = facts()
    assert first[1:4] == (0, 0, "0o41777")
    entries = [line for line in first[4].splitlines() if not line.startswith("#")]
    assert entries == ["d /run/gpulaunch 1777 root root -"]
    with held(user, *VGG):
        made.chmod(0o755)
        os.chown(made, alice.uid, -1)
        assert outcome(launcher.run("setup", umask=0o077)) == (0, said, "")
        assert facts() == first
        assert outcome(launcher.run(*VGG, *SHOW)) == (0, "4,6,7\n", "")
        (name,) = os.listdir(made)
        assert (made / name).stat().st_uid == alice.uid
        assert os.listdir(machine.path("/run/lock")) == []


def assert_nothing_made(machine: Machine) -> None:
    assert not machine.path("/run/gpulaunch").exists()
    assert not machine.path("/etc/tmpfiles.d").exists()


def test_setup_of_a_common_history(root: Launcher, alice: User, machine: Machine) -> None:
    """After `setup --history` all see all launches and the same totals, and can remove none.

    What ran before stays private.
    """
    launcher, user = machine.launcher(root), machine.user(alice)
    own_home(user, alice.uid)
    assert user.run(*DGX, "--name", "before", "--", "true").returncode == 0
    said = "/var/lib/gpulaunch/history holds the history of all users' launches from now on\n"
    assert outcome(launcher.run("setup", "--history", umask=0o077)) == (0, said, "")
    made = machine.path("/var/lib/gpulaunch/history")
    assert (made.stat().st_uid, oct(made.stat().st_mode)) == (0, "0o41777")
    for who, name in ((launcher, "one"), (user, "two")):
        assert who.run(*DGX, "--name", name, "--", "true", umask=0o077).returncode == 0
    everyone = [names(who, "--everyone") for who in (launcher, user)]
    assert everyone == [["one", "two"]] * 2
    assert (names(launcher), names(user)) == (["one"], ["before", "two"])
    assert names(launcher, "--user", alice.name) == ["two"]
    options = ("history", *DGX, "--everyone", "--totals", "--json")
    totals = [json.loads(who.run(*options).stdout)["totals"] for who in (launcher, user)]
    assert totals[0] == totals[1]
    jobs = {(one["user"], one["job"]) for one in totals[0]}
    assert jobs == {("root", "one"), (alice.name, "two")}
    for directory, uid in ((made / "0", 0), (made / str(alice.uid), alice.uid)):
        (file,) = directory.iterdir()
        modes = [oct(path.stat().st_mode) for path in (directory, file)]
        assert ([directory.stat().st_uid, *modes]) == [uid, "0o40755", "0o100644"]


def own_home(user: Elsewhere, uid: int) -> Path:
    """Give a user a home of their own; return where their private history is."""
    home = Path(tempfile.mkdtemp(dir=user.state.parent))
    os.chown(home, uid, uid)
    user.environment["HOME"] = str(home)
    return home / ".local/state/gpulaunch/history"


def names(user: Elsewhere, *options: str) -> list[str]:
    """Return the names of the launches in the history, as a user sees it."""
    done = user.run("history", *DGX, "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return [one["name"] for one in json.loads(done.stdout)["launches"]]


@pytest.mark.parametrize("plant", ["directory", "link", "file of the month"])
def test_history_where_the_name_is_taken(
    root: Launcher, alice: User, bob: User, machine: Machine, plant: str
) -> None:
    """Whatever another user makes in the common history, nobody's launches go without a line.

    Nor do detached ones fail: the lines are in the home then, and that is said.
    """
    launcher, user = machine.launcher(root), machine.user(alice)
    private = own_home(user, alice.uid)
    assert launcher.run("setup", "--history").returncode == 0
    taken = made = machine.path(f"/var/lib/gpulaunch/history/{alice.uid}")
    is_taken = plant != "file of the month"
    if plant == "directory":
        made.mkdir()
        made.chmod(0o777)
    elif plant == "link":
        made.symlink_to("/tmp")
    else:
        made = taken.with_name(f"{alice.uid}-{time.strftime('%Y-%m', time.gmtime())}.jsonl")
        made.touch()
    os.chown(made, bob.uid, bob.uid, follow_symlinks=False)
    done = user.run(*DGX, "--name", "one", "--", "true")
    detached = user.run(*DGX, "-d", "--name", "two", "--", "true")
    assert (done.returncode, detached.returncode, detached.stdout) == (0, 0, "two\n")
    assert user.run("wait", "two").returncode == 0
    said = f"{taken.name} is {bob.name}'s, so your history is in {private}"
    findings = json.loads(user.run("doctor", *DGX, "--json").stdout)["findings"]
    doctor = str([one["text"] for one in findings])
    assert [said in text for text in (done.stderr, detached.stderr, doctor)] == [is_taken] * 3
    assert (names(user), private.exists()) == (["one", "two"], is_taken)
    assert names(launcher, "--everyone") == ([] if is_taken else ["one", "two"])


def test_history_filled_by_another_user(
    root: Launcher, alice: User, bob: User, machine: Machine
) -> None:
    """A user's garbage in the common history costs others four seconds of CPU at most.

    And little memory: of each user's files a bounded part is read, and that once.
    """
    launcher, user = machine.launcher(root), machine.user(alice)
    assert launcher.run("setup", "--history").returncode == 0
    assert user.run(*DGX, "--name", "one", "--", "true").returncode == 0
    place = machine.path("/var/lib/gpulaunch/history") / str(bob.uid)
    place.mkdir()
    os.chown(place, bob.uid, bob.uid)
    sizes = {f"{bob.uid}-{2020 + number}-01": 64 << 20 for number in range(60)}
    # Files with alice's name are not hers.
    sizes |= {f"{alice.uid}-9999-{number}": 0 for number in range(30_000)}
    for name, size in sizes.items():
        file = os.open(place / f"{name}.jsonl", os.O_CREAT | os.O_WRONLY)
        os.truncate(file, size)
        os.fchown(file, bob.uid, bob.uid)
        os.close(file)
    (file := place / f"{bob.uid}-2090-01.jsonl").write_bytes(b"{\n" * 1_000_000)
    os.chown(file, bob.uid, bob.uid)
    script = 'ulimit -t 4; ulimit -v 400000; exec "$0" "$@"'
    limited = Elsewhere(launcher, [*machine.enter, "sh", "-c", script, Launcher.script])
    assert (names(limited, "--everyone"), names(user)) == (["one"], ["one"])


def test_removal(root: Launcher, machine: Machine, tmp_path: Path) -> None:
    """What the guide says removes all that an installation for all users and its setups made."""
    guide = (REPOSITORY / "docs/guides/install.md").read_text()
    begin = guide.index("To remove it, when no job runs")
    blocks = re.findall("```sh\n(.*?)```", guide[begin : guide.index("\n## ", begin)], re.DOTALL)
    for place in ("/usr/local", "/opt"):
        layers = [tmp_path / "etc" / f"{place.strip('/').replace('/', '-')}-{n}" for n in "uw"]
        for layer in layers:
            machine.path(str(layer)).mkdir()
        overlay = f"lowerdir={place},upperdir={layers[0]},workdir={layers[1]}"
        mount = [*machine.enter, "mount", "-t", "overlay", "-o", overlay, "overlay", place]
        subprocess.run(mount, check=True)
    made = "/opt/gpulaunch/bin /opt/gpulaunch/share /usr/local/share /etc/gpulaunch"
    script = f"""set -e; sudo() {{ "$@"; }}
        list() {{ find /usr/local /opt /etc /run /var/lib -xdev | sort; }}
        list >{tmp_path}/before
        mkdir -p {made}; cp {Launcher.script} /opt/gpulaunch/bin/gpulaunch
        ln -s /opt/gpulaunch/bin/gpulaunch /usr/local/bin/
        ln -s /opt/gpulaunch/share /usr/local/share/gpulaunch-man
        for what in "" --history; do /usr/local/bin/gpulaunch setup $what; done
        /usr/local/bin/gpulaunch --topology dgx1-v100 -- true; touch /etc/gpulaunch/config.toml
        {"".join(blocks)}
        list >{tmp_path}/after"""
    words = [*machine.enter, "bash", "-c", script]
    environment = machine.launcher(root).environment
    subprocess.check_output(words, env=environment)
    before, after = ({*(tmp_path / name).read_text().split("\n")} for name in ("before", "after"))
    assert after - before <= {"/etc/tmpfiles.d"}


def wait_until_blocked(process: subprocess.Popen[str]) -> None:
    """Return once the process waits for flock; no event tells, but /proc/locks does."""

    def is_blocked() -> bool:
        assert process.poll() is None, process.communicate()
        lines = Path("/proc/locks").read_text().splitlines()
        return any("->" in line and line.split()[-4] == str(process.pid) for line in lines)

    until(is_blocked)


def test_setup_between_choosing_and_locking(root: Launcher, alice: User, machine: Machine) -> None:
    """A launch that locks the old directory only after setup allocates nothing there."""
    launcher, user = machine.launcher(root), machine.user(alice)
    old = os.open(machine.path("/run/lock"), os.O_RDONLY)
    fcntl.flock(old, fcntl.LOCK_EX)
    with launcher.start("setup") as setup:
        wait_until_blocked(setup)
        with user.start(*VGG, *SHOW) as late:
            wait_until_blocked(late)
            os.close(old)  # the kernel serves them in order
            printed, said = late.communicate()
        assert setup.wait() == 0, setup.communicate()
    moved = "the state directory moved from /run/lock to /run/gpulaunch during this launch"
    assert (late.returncode, printed, said) == (125, "", complaint(moved, "run the command again"))
    assert outcome(user.run(*VGG, *SHOW)) == (0, "0,2,3\n", "")


@pytest.mark.usefixtures("dgx1_v100")
def test_setup_while_private_leases_live(launcher: Launcher, machine: Machine) -> None:
    """In a container with a private table launches on real GPUs see each other's leases.

    There, too, setup is refused while leases live in its directory.
    """
    script = """mkdir /run/lower /run/upper /run/work && mount -t overlay overlay /run/lock -o \
        lowerdir=/run/lower,upperdir=/run/upper,workdir=/run/work && chmod 1777 /run/lock"""
    subprocess.run([*machine.enter, "sh", "-c", script], check=True)
    launcher.environment |= {"GPULAUNCH_TABLE": "private"}
    container = machine.launcher(launcher)
    with held(container, "-n", "all"):
        assert container.run(*SHOW).returncode == 75
        done = container.run("setup")
        assert done.returncode == 125
        assert done.stderr.startswith("gpulaunch: error: 1 lease lives in /dev/shm\n")
        assert_nothing_made(machine)
