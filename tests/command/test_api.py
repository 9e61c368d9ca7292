"""`gpulaunch.allocate`: GPUs for a Python program, from the command's table and by its rules."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import DGX, SHOW, VGG, Launcher, held, until

import gpulaunch

DGX1 = "dgx1-v100"


@pytest.fixture(autouse=True)
def table_here(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process take part in the test's own table, too."""
    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(launcher.state))


@contextmanager
def program(launcher: Launcher, script: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program for the block; `allocated` holds the three GPUs of the main job."""
    prelude = "import gpulaunch, os, signal, subprocess, sys\n"
    prelude += (
        "allocated = lambda **more: "
        f"gpulaunch.allocate(3, profile='vgg16', topology='{DGX1}', **more)\n"
    )
    options = {
        "env": launcher.environment,
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
    }
    options["stderr"] = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", prelude + textwrap.dedent(script)], **options
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def table(launcher: Launcher) -> dict:
    """Return the described machine's table."""
    return json.loads(launcher.run("status", *DGX, "--json").stdout)


def leases(launcher: Launcher) -> list[dict]:
    return table(launcher)["leases"]


def await_ticket(launcher: Launcher, count: int = 1) -> None:
    """Return when that many are in the queue."""
    until(lambda: sum(name.startswith("gpulaunch.ticket.") for name in launcher.records()) >= count)


# What a lease is


def test_a_lease_says_what_it_is(launcher: Launcher) -> None:
    """A lease has its GPUs in rank order, UUIDs, variables, id and reason, and prints short."""
    with gpulaunch.allocate(3, profile="vgg16", topology=DGX1) as lease:
        uuids = ("GPU-dgx1-v100-0", "GPU-dgx1-v100-2", "GPU-dgx1-v100-3")
        assert (lease.gpus, lease.uuids) == ((0, 2, 3), uuids)
        assert lease.env == {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "0,2,3",
            "NVIDIA_VISIBLE_DEVICES": ",".join(uuids),
            "GPULAUNCH_GPU_COUNT": "3",
            "GPULAUNCH_LEASE": lease.id,
        }
        assert lease.reason == "60 GB/s effective bandwidth, the most of 56 candidates"
        assert repr(lease) == f"<lease {lease.id}: GPUs 0,2,3>"
        assert launcher.records() == [f"gpulaunch.lease.{lease.id}"]
    assert launcher.records() == []


def test_the_command_sees_the_same_table(launcher: Launcher) -> None:
    """The command cannot get what a program holds, and `status` names it as launcher and job."""
    script = (
        "with allocated(name='mine') as lease:\n    print(lease.id, flush=True); sys.stdin.read()"
    )
    with program(launcher, script) as process:
        lease_id = process.stdout.readline().strip()
        (lease,) = leases(launcher)
        assert (lease["id"], lease["gpus"], lease["profile"], lease["name"]) == (
            lease_id,
            [0, 2, 3],
            "vgg16",
            "mine",
        )
        assert lease["pid"] == lease["job_pid"] == process.pid
        assert (lease["command"][:2], lease["left_over_pids"]) == ([sys.executable, "-c"], None)
        assert launcher.run(*VGG, *SHOW).stdout == "4,6,7\n"
        assert launcher.run(*DGX, "-n", "8", *SHOW).returncode == 75


# How it ends

ENDS = [
    ("the block ends", "with allocated():\n    say()\nprint(input())", "go on\n", 0),
    ("an exception", "with allocated():\n    say()\n    raise RuntimeError('mine')", "", 1),
    ("sys.exit", "with allocated():\n    say()\n    sys.exit(3)", "", 3),
    ("the program ends without a release", "lease = allocated()\nsay()", "", 0),
    (
        "the program kills itself",
        "lease = allocated()\nsay()\nos.kill(os.getpid(), 9)",
        "",
        -signal.SIGKILL,
    ),
    ("os._exit", "with allocated():\n    say()\n    os._exit(4)", "", 4),
]


@pytest.mark.parametrize(
    ("sentence", "script", "out", "status"), ENDS, ids=[row[0] for row in ENDS]
)
def test_a_lease_ends_with_its_block_or_program(
    launcher: Launcher, sentence: str, script: str, out: str, status: int
) -> None:
    """A lease ends with its block or its program, however that ends, and exceptions propagate."""
    say = "def say():\n    print('got', flush=True)\n    sys.stdin.readline()\n"
    with program(launcher, say + script) as process:
        assert process.stdout.readline() == "got\n"
        assert len(leases(launcher)) == 1
        process.stdin.write("\n")
        if out:  # the program goes on
            process.stdin.flush()
            until(lambda: launcher.records() == [])
            process.stdin.write(out)
        found, error = process.communicate(timeout=30)
        assert (found, process.returncode) == (out, status), sentence
        assert error == "" or error.endswith("RuntimeError: mine\n"), sentence
        assert launcher.run(*DGX, "-n", "8", *SHOW).stdout == "0,1,2,3,4,5,6,7\n", sentence
        assert launcher.records() == [], sentence


def test_release_twice_is_harmless(launcher: Launcher) -> None:
    """A second release does nothing, also at the end of the block, and frees no other lease."""
    with gpulaunch.allocate(8, topology=DGX1) as lease:
        lease.release()
        with gpulaunch.allocate(8, topology=DGX1):
            lease.release()
            assert len(launcher.records()) == 1
    assert launcher.records() == []


# The variables


def test_apply_sets_the_variables_until_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """`apply` sets the job's variables in this process; the release restores the earlier ones.

    What the program itself has changed since then stays.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,6,5")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    before = dict(os.environ)
    with gpulaunch.allocate(2, topology=DGX1) as lease:
        assert dict(os.environ) == before
        lease.apply()
        lease.apply()
        assert {name: os.environ.get(name) for name in lease.env} == lease.env
        assert lease.env["CUDA_VISIBLE_DEVICES"] == "6,5"
        os.environ["NVIDIA_VISIBLE_DEVICES"] = "mine"
    assert dict(os.environ) == before | {"NVIDIA_VISIBLE_DEVICES": "mine"}


def test_the_environment_of_a_subprocess(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`environment` is the program's own, on this lease's GPUs, whatever lease is applied here."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setenv("PATH", launcher.environment["PATH"])
    before = dict(os.environ)
    script = "echo $CUDA_VISIBLE_DEVICES; gpulaunch -n all -- printenv GPULAUNCH_GPU_COUNT"
    with gpulaunch.allocate(topology=DGX1) as first, gpulaunch.allocate(2, topology=DGX1) as lease:
        first.apply()
        assert lease.environment() == before | lease.env
        assert first.environment() == before | first.env == dict(os.environ)
        told = subprocess.check_output(["sh", "-c", script], env=lease.environment(), text=True)
        assert told == "1,2\n2\n"
    with pytest.raises(gpulaunch.FailedError, match=f"^lease {lease.id} has been released$"):
        lease.environment()


def test_one_lease_is_applied_at_a_time() -> None:
    """A second `apply` in a process is refused with both leases; after a release it is right."""
    before = dict(os.environ)
    with gpulaunch.allocate(topology=DGX1) as first, gpulaunch.allocate(topology=DGX1) as second:
        first.apply()
        with pytest.raises(gpulaunch.FailedError) as refused:
            second.apply()
        assert refused.value.message == (
            f"{first} is applied in this process already, so {second} cannot be"
        )
        assert refused.value.hint == (
            "call its release() first, or give environment() to a subprocess"
        )
        assert os.environ["GPULAUNCH_LEASE"] == first.id
        first.release()
        second.apply()
        assert os.environ["GPULAUNCH_LEASE"] == second.id
    assert dict(os.environ) == before


def test_an_applied_lease_stays(launcher: Launcher) -> None:
    """A lease that is applied stays until its release or the end of the process."""
    script = "allocated().apply(); print('applied', flush=True); sys.stdin.readline()"
    with program(launcher, script) as process:
        assert process.stdout.readline() == "applied\n"
        assert [lease["pid"] for lease in leases(launcher)] == [process.pid]
        process.communicate("\n", timeout=30)
    assert leases(launcher) == []


OWN = [
    ("applied", "first.apply()"),
    ("set by hand", "os.environ.update(first.env)"),
    ("applied twice", "first.apply(); first.apply()"),
    (
        "applied, and partly changed since",
        "first.apply(); os.environ.pop('NVIDIA_VISIBLE_DEVICES')",
    ),
]


@pytest.mark.parametrize(("sentence", "apply"), OWN, ids=[row[0] for row in OWN])
@pytest.mark.parametrize("launch", ["", "gpulaunch --topology dgx1-v100 -n 4 --"])
def test_a_lease_of_this_process_is_none_around_it(
    launcher: Launcher, sentence: str, apply: str, launch: str
) -> None:
    """What a process holds is no lease around its next ones; a launch around it still is.

    A forked or started child is inside the lease that its parent has applied.
    """
    script = """
        import gpulaunch, os, subprocess
        first = gpulaunch.allocate(1, topology="dgx1-v100")
        APPLY
        held = [gpulaunch.allocate(1, topology="dgx1-v100") for _ in range(3)]
        print(sorted([*first.gpus, *(gpu for lease in held for gpu in lease.gpus)]), flush=True)
        if os.fork() == 0:
            print(gpulaunch.allocate(1).gpus == first.gpus, flush=True)
            os._exit(0)
        os.wait()
        subprocess.run(["gpulaunch", "-n", "all", "--", "printenv", "GPULAUNCH_GPU_COUNT"])
    """.replace("APPLY", apply)
    command = [*launch.split(), sys.executable, "-c", textwrap.dedent(script)]
    found = subprocess.check_output(command, env=launcher.environment, text=True)
    assert found == "[0, 1, 2, 3]\nTrue\n1\n", sentence


def test_a_program_started_after_apply(launcher: Launcher) -> None:
    """A program started after `apply` sees the GPUs, and launches in it choose among them.

    A further lease of the program's own takes other GPUs.
    """
    script = """
        with allocated() as lease:
            lease.apply()
            show = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
            subprocess.run(show)
            subprocess.run(["gpulaunch", "-n", "2", "--", *show])
            with gpulaunch.allocate(1, topology="dgx1-v100") as inner:
                print(*inner.gpus, flush=True)
                subprocess.run(["gpulaunch", "-n", "3", "--", *show])
            subprocess.run(["gpulaunch", "-n", "4", "--", *show])
    """
    with program(launcher, script) as process:
        out, error = process.communicate(timeout=30)
        assert out == "0,2,3\n0,3\n1\n0,2,3\n"
        (never,) = error.splitlines()
        assert "4 GPUs requested: lease " in never


# Children


def test_a_forked_child_frees_nothing(launcher: Launcher) -> None:
    """A forked child that leaves the block, or releases, only drops its copy of the lease."""
    script = """
        with allocated() as lease:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                print("left", flush=True)
                sys.stdin.readline()
    """
    with program(launcher, script) as process:
        assert process.stdout.readline() == "left\n"
        assert [lease["gpus"] for lease in leases(launcher)] == [[0, 2, 3]]
        process.stdin.write("\n")
        assert (process.communicate(timeout=30), process.returncode) == (("", ""), 0)
    assert launcher.records() == []


def test_a_program_that_is_started_keeps_no_lease_alive(launcher: Launcher) -> None:
    """A program that was started does not inherit the lease: its GPUs are free when it dies."""
    script = """
        with allocated():
            subprocess.Popen(["sleep", "60"], close_fds=False)
            child = os.posix_spawnp("sleep", ["sleep", "60"], os.environ)
            os.kill(os.getpid(), signal.SIGSTOP)
    """
    with program(launcher, script) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert (len(children), len(leases(launcher))) == (2, 1)
        process.kill()
        process.wait()
        found = leases(launcher)
        for child in children:
            os.kill(int(child), signal.SIGKILL)
    assert found == []


def test_a_forked_child_that_stays_holds_on(launcher: Launcher) -> None:
    """While a forked child lives the GPUs are taken, shown as held by a left-over process."""
    script = """
        lease = allocated()
        child = os.fork()
        if child:
            print(child, flush=True)
        sys.stdin.readline()
    """
    with program(launcher, script) as process:
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        (lease,) = leases(launcher)
        assert (lease["left_over_pids"], lease["left_over_since"]) == ([child], None)
        assert launcher.run("free", *DGX, lease["id"]).returncode == 0
        assert launcher.records() == []


# Errors


def test_errors_are_exported_with_their_exit_status(launcher: Launcher) -> None:
    """Each failure is a GpulaunchError with the command's exit status."""
    with gpulaunch.allocate(7, topology=DGX1):
        with pytest.raises(
            gpulaunch.WouldWaitError, match=r"^2 GPUs requested: 1 of 8 is free, 7 are leased\n"
        ) as busy:
            gpulaunch.allocate(2, topology=DGX1)
        with pytest.raises(
            gpulaunch.TimedOutError, match=r"^waited 0.3 s: 2 GPUs requested: "
        ) as late:
            gpulaunch.allocate(2, topology=DGX1, wait_timeout=0.3)
        with pytest.raises(
            gpulaunch.UsageError, match=r"^9 GPUs requested: dgx1-v100 has 8$"
        ) as never:
            gpulaunch.allocate(9, topology=DGX1)
    launcher.state.rmdir()
    with pytest.raises(
        gpulaunch.FailedError, match="cannot use this state directory: no such file"
    ) as failed:
        gpulaunch.allocate(topology=DGX1)
    assert [caught.value.exit_status for caught in (busy, late, never, failed)] == [75, 124, 2, 125]
    assert busy.value.hint == "give wait=True to queue"
    (who,) = busy.value.__notes__
    assert " has GPUs 0-6 (" in who
    assert all(
        isinstance(caught.value, gpulaunch.GpulaunchError) for caught in (busy, late, never, failed)
    )


def test_only_what_is_exported_is_there() -> None:
    """All that the package lists is there; any other name is an AttributeError as everywhere."""
    assert all(hasattr(gpulaunch, name) for name in gpulaunch.__all__)
    with pytest.raises(AttributeError, match="module 'gpulaunch' has no attribute 'alocate'"):
        gpulaunch.alocate  # noqa: B018
    namespace: dict[str, object] = {}
    exec("from gpulaunch import *", namespace)
    assert set(gpulaunch.__all__) <= namespace.keys()


WRONG = [
    ("gpus", 0, "0 GPUs requested: at least 1 is needed"),
    ("gpus", -1, "-1 GPUs requested: at least 1 is needed"),
    ("gpus", 1.5, "'1.500000' is neither a number of GPUs nor 'all'"),
    ("gpus", "some", "'some' is neither a number of GPUs nor 'all'"),
    ("policy", "best", "unknown policy 'best': did you mean best-fit or best-effort?"),
    ("pattern", "moon", "unknown pattern 'moon'"),
    ("bandwidth_model", "x", "unknown bandwidth model 'x'"),
    ("memory", "lots", "'lots' is no amount of memory such as 8GiB"),
    ("only", [0, 9], "'9' is no GPU of dgx1-v100, which has GPUs 0-7"),
    ("exclude", ("GPU-",), "'GPU-' fits 8 GPUs of dgx1-v100, which has GPUs 0-7"),
    ("sensitive", "maybe", "'maybe' is neither true nor false"),
    ("uuid", "maybe", "'maybe' is neither true nor false"),
    ("wait", "maybe", "'maybe' is neither true nor false"),
    ("wait_timeout", 0, "'0s' is no length of time such as 90s, 10m or 1h30m"),
    ("wait_timeout", "soon", "'soon' is no length of time such as 90s, 10m or 1h30m"),
    ("topology", "dgx9", "unknown topology 'dgx9': did you mean dgx2?"),
    ("profile", "vgg17", "unknown profile 'vgg17': did you mean vgg16?"),
    (
        "gpu_model",
        "A100",
        "1 GPU requested: 0 of dgx1-v100's 8 satisfy gpu_model A100: they are Tesla V100-SXM2-16GB",
    ),
]


@pytest.mark.parametrize(("argument", "value", "problem"), WRONG, ids=str)
def test_a_wrong_argument_is_one_line_that_names_it(
    launcher: Launcher, argument: str, value: object, problem: str
) -> None:
    """A wrong argument is a UsageError of one line with its name, and nothing is held."""
    with pytest.raises(gpulaunch.UsageError) as caught:
        gpulaunch.allocate(**{"topology": DGX1, argument: value})
    text = str(caught.value)
    assert (text.endswith(problem), "\n" in text, launcher.records()) == (True, False, []), text
    before = text.removesuffix(problem)
    assert before == "" or before.startswith(argument), text


# Every argument


def granted(**arguments: object) -> tuple[int, ...]:
    with gpulaunch.allocate(**{"topology": DGX1, **arguments}) as lease:
        return lease.gpus


ARGUMENTS = [
    ({}, (0,)),
    ({"gpus": 2}, (0, 3)),
    ({"gpus": "2"}, (0, 3)),
    ({"gpus": "all"}, tuple(range(8))),
    ({"profile": "vgg16", "gpus": 3}, (0, 2, 3)),
    ({"gpus": 2, "policy": "baseline"}, (0, 1)),
    ({"gpus": 2, "only": [1, 2, "GPU-dgx1-v100-3"], "exclude": [2]}, (1, 3)),
    ({"gpus": "all", "only": (4, 0)}, (0, 4)),
    ({"gpus": 2, "only": "6,7"}, (6, 7)),
    ({"exclude": {0, 1}}, (2,)),
    ({"gpus": 2, "exclude": 0}, (1, 2)),
    ({"gpus": 2, "only": range(4, 6)}, (4, 5)),
    ({"exclude": []}, (0,)),
    ({"memory": "15GiB"}, (0,)),
    ({"memory": 15 << 30}, (0,)),
    ({"gpu_model": "v100-sxm2"}, (0,)),
    ({"topology": "pcie-4gpu-workstation", "gpus": "all"}, (0, 1, 2, 3)),
]


@pytest.mark.parametrize(("arguments", "gpus"), ARGUMENTS, ids=str)
def test_each_argument_chooses_as_its_option_does(
    arguments: dict[str, object], gpus: tuple[int, ...]
) -> None:
    """Each argument narrows or changes the choice as its option does, in any natural type."""
    assert granted(**arguments) == gpus


SCORED = [
    {"gpus": 4, "pattern": "chain", "policy": "greedy"},
    {"gpus": 4, "pattern": "ring", "policy": "greedy"},
    {"gpus": 4, "pattern": "all-to-all", "policy": "greedy"},
    {"gpus": 5, "sensitive": True},
    {"gpus": 5, "sensitive": False},
    {"gpus": 4, "bandwidth_model": "mapa", "pattern": "ring"},
    {"gpus": 4, "bandwidth_model": "cut", "pattern": "ring"},
]


@pytest.mark.parametrize("arguments", SCORED, ids=map(str, SCORED))
def test_each_argument_weighs_as_its_option_does(
    launcher: Launcher, arguments: dict[str, object]
) -> None:
    """Pattern, sensitivity and bandwidth model give the same GPUs and reason as the options."""
    names = {"sensitive": "bandwidth_sensitive"}
    said = [f"{names.get(name, name)}={str(value).lower()}" for name, value in arguments.items()]
    line = [word for text in said for word in ("-o", text)]
    document = json.loads(launcher.run(*DGX, *line, "--dry-run", "--json", "--", "x").stdout)
    with gpulaunch.allocate(topology=DGX1, **arguments) as lease:
        assert list(lease.gpus) == [gpu["index"] for gpu in document["gpus"]]
        assert lease.reason == document["reason"]


def test_uuid_and_name(launcher: Launcher) -> None:
    """uuid=True names the GPUs by UUID, and `name` is what `status` calls the program."""
    with gpulaunch.allocate(2, topology=DGX1, uuid=True, name="mine") as lease:
        assert lease.env["CUDA_VISIBLE_DEVICES"] == "GPU-dgx1-v100-0,GPU-dgx1-v100-3"
        assert [found["name"] for found in leases(launcher)] == ["mine"]


def test_settings_apply_as_for_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment counts as for the command, and an argument comes before it."""
    monkeypatch.setenv("GPULAUNCH_TOPOLOGY", DGX1)
    monkeypatch.setenv("GPULAUNCH_GPUS", "3")
    monkeypatch.setenv("GPULAUNCH_PROFILE", "vgg16")
    with gpulaunch.allocate() as lease:
        assert lease.gpus == (0, 2, 3)
    with gpulaunch.allocate(2) as lease:
        assert lease.gpus == (0, 3)


NAMES = [
    pytest.param(3, id="a number"),
    pytest.param("x" * (2 << 20), id="long"),
    pytest.param("", id="empty"),
    pytest.param("\x1b[31m\udcff\u6f22", id="a terminal's"),
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_keeps_others_from_launching(launcher: Launcher, name: object) -> None:
    """A program of any name gets a lease that others can read, or none: their launches go on."""
    try:
        lease = gpulaunch.allocate(topology=DGX1, name=name)
    except gpulaunch.UsageError:
        assert launcher.records() == []
        return
    with lease:
        done = launcher.run(*VGG, *SHOW)
        assert (done.returncode, done.stdout) == (0, "1,2,3\n"), done.stderr


# Waiting


def test_a_program_waits_in_the_same_queue(launcher: Launcher) -> None:
    """Programs and commands wait in one queue, and are served in its order."""
    waits = (
        f"with gpulaunch.allocate(8, topology='{DGX1}', wait=True):\n    print('got', flush=True); "
        "sys.stdin.read()"
    )
    command = (*DGX, "-n", "8", "--wait", "--", "sh", "-c", "echo got; read line")
    with held(launcher, *DGX, "-n", "8") as holder, program(launcher, waits) as first:
        await_ticket(launcher, 1)
        with launcher.start(*command, stdin=subprocess.PIPE) as second:
            await_ticket(launcher, 2)
            with program(launcher, waits) as third:
                await_ticket(launcher, 3)
                queue = table(launcher)["queue"]
                assert [ticket["pid"] for ticket in queue] == [first.pid, second.pid, third.pid]
                assert [ticket["gpus"] for ticket in queue] == [8, 8, 8]
                holder.end()
                for waiter in (first, second, third):
                    assert waiter.stdout.readline() == "got\n"
                    assert [lease["pid"] for lease in leases(launcher)] == [waiter.pid]
                    waiter.stdin.close()
                    assert waiter.wait(30) in (0, 1)  # `read` finds the end of its input
    assert launcher.records() == []


def test_wait_timeout_alone_waits(launcher: Launcher) -> None:
    """wait_timeout says to wait; who has waited for so long has left the queue."""
    with held(launcher, *DGX, "-n", "8"):
        with pytest.raises(
            gpulaunch.TimedOutError, match=r"^waited 0.05 s: 1 GPU requested: 0 of 8 are free"
        ):
            gpulaunch.allocate(topology=DGX1, wait_timeout=0.05)
        assert len(launcher.records()) == 1
        with pytest.raises(gpulaunch.WouldWaitError):
            gpulaunch.allocate(topology=DGX1, wait_timeout="1h", wait=False)


INTERRUPTED = """
    try:
        with gpulaunch.allocate(8, topology="dgx1-v100", wait=True):
            print("got")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    sys.stdin.readline()
"""


def test_ctrl_c_leaves_the_queue(launcher: Launcher) -> None:
    """A KeyboardInterrupt while waiting propagates, and the program has left the queue."""
    with held(launcher, *DGX, "-n", "8") as holder, program(launcher, INTERRUPTED) as process:
        await_ticket(launcher)
        until(lambda: state(process.pid) == "S")
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert (table(launcher)["queue"], len(launcher.records())) == ([], 1)
        holder.end()
        assert launcher.run(*DGX, "-n", "8", "--", "true").returncode == 0


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def waits_for_the_lock(pid: int) -> bool:
    """Return whether a process stands in line for some flock."""
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any("->" in fields and "FLOCK" in fields and str(pid) in fields for fields in lines)


def test_ctrl_c_while_taking_holds_nothing(launcher: Launcher) -> None:
    """A KeyboardInterrupt at the moment of taking GPUs leaves none with the program."""
    directory = os.open(launcher.state, os.O_RDONLY)
    with held_lock(directory) as let_go, program(launcher, INTERRUPTED) as process:
        until(lambda: waits_for_the_lock(process.pid))
        process.send_signal(signal.SIGINT)
        let_go()
        assert process.stdout.readline() == "interrupted\n"
        assert leases(launcher) == []
        assert launcher.run(*DGX, "-n", "8", "--", "true").returncode == 0


@contextmanager
def held_lock(directory: int) -> Iterator[Callable[[], None]]:
    """Hold the host-wide lock for the block."""
    import fcntl

    fcntl.flock(directory, fcntl.LOCK_EX)
    try:
        yield lambda: fcntl.flock(directory, fcntl.LOCK_UN)
    finally:
        os.close(directory)


# Threads


def test_threads_get_distinct_gpus(launcher: Launcher) -> None:
    """Sixteen threads that each want one of eight GPUs never share one, and all are served."""
    owners: dict[int, int] = {}
    conflicts: list[str] = []
    eight_at_once = threading.Barrier(8)
    turn = iter(range(16))

    def work(_: int) -> int:
        with gpulaunch.allocate(1, topology=DGX1, wait=True) as lease:
            (gpu,) = lease.gpus
            if owners.setdefault(gpu, threading.get_ident()) != threading.get_ident():
                conflicts.append(f"GPU {gpu}")
            if next(turn) < 8:
                eight_at_once.wait(30)
            del owners[gpu]
        return gpu

    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(work, range(16)))
    assert (conflicts, len(got), set(got)) == ([], 16, set(range(8)))
    assert launcher.records() == []


def test_threads_that_apply(launcher: Launcher) -> None:
    """Threads that apply their leases share no GPU: one at a time may, and nothing of it stays."""
    before = dict(os.environ)
    at_work: dict[int, int] = {}
    twice: list[int] = []
    refused: list[gpulaunch.FailedError] = []
    all_have = threading.Barrier(4)

    def work(item: int) -> None:
        with gpulaunch.allocate(1, topology=DGX1, wait_timeout=60) as lease:
            if at_work.setdefault(lease.gpus[0], item) != item:
                twice.append(lease.gpus[0])
            all_have.wait(60)
            try:
                lease.apply()
            except gpulaunch.FailedError as problem:
                refused.append(problem)
            all_have.wait(60)
            at_work.pop(lease.gpus[0], None)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(32)))
    assert (twice, len(refused)) == ([], 24)
    assert (launcher.records(), dict(os.environ)) == ([], before)


# asyncio


def test_asyncio_goes_on_while_a_lease_is_waited_for(launcher: Launcher) -> None:
    """A task that waits for GPUs blocks no other, and gets what another task has freed."""

    async def other() -> tuple[int, ...]:
        async with gpulaunch.aallocate(8, topology=DGX1) as first:
            waiter = asyncio.create_task(waits())
            await asyncio.to_thread(await_ticket, launcher)
        assert not waiter.done()
        return (*first.gpus, *await waiter)

    async def waits() -> tuple[int, ...]:
        async with gpulaunch.aallocate(2, topology=DGX1, wait=True) as lease:
            assert len(launcher.records()) == 1
            return lease.gpus

    assert asyncio.run(other()) == (*range(8), 0, 3)
    assert launcher.records() == []


def test_a_cancelled_wait_has_left_the_queue(launcher: Launcher) -> None:
    """Whoever awaits a cancelled wait finds its ticket gone, and gets what is free then."""

    async def cancels() -> None:
        lease = await gpulaunch.aallocate(1, topology=DGX1)
        for _ in range(20):
            waiter = asyncio.create_task(waits())
            await asyncio.to_thread(await_ticket, launcher)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert launcher.records() == [f"gpulaunch.lease.{lease.id}"]
        lease.release()

    async def waits() -> None:
        await gpulaunch.aallocate(8, topology=DGX1, wait=True)

    asyncio.run(cancels())
    assert launcher.records() == []


def test_a_cancellation_is_not_kept_waiting_by_the_lock(launcher: Launcher) -> None:
    """While somebody else has the host-wide lock, a cancelled wait ends after a second."""

    async def cancels() -> None:
        waiter = asyncio.create_task(waits())
        await asyncio.to_thread(until, lambda: waits_for_the_lock(os.getpid()))
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiter, 8)

    async def waits() -> None:
        await gpulaunch.aallocate(1, topology=DGX1, wait=True)

    with held_lock(os.open(launcher.state, os.O_RDONLY)) as let_go:
        asyncio.run(cancels())
        let_go()
        until(lambda: launcher.run(*DGX, "-n", "8", "--", "true").returncode == 0)
        until(lambda: launcher.records() == [])


# Notebooks


def test_a_cell_that_is_run_twice(launcher: Launcher) -> None:
    """A cell that replaces its lease holds the new one alone, and a ResourceWarning says so."""
    cell = compile(f"lease = gpulaunch.allocate(1, topology='{DGX1}')", "cell", "exec")
    notebook: dict[str, object] = {"gpulaunch": gpulaunch}
    exec(cell, notebook)
    with pytest.warns(ResourceWarning, match="unclosed file <_io.FileIO name='lease "):
        exec(cell, notebook)
    lease = notebook["lease"]
    assert isinstance(lease, gpulaunch.HeldLease)
    assert [found["id"] for found in leases(launcher)] == [lease.id]
    lease.release()
    exec(cell, notebook)
    assert [found["gpus"] for found in leases(launcher)] == [[0]]
    lease = notebook["lease"]
    assert isinstance(lease, gpulaunch.HeldLease)
    lease.release()
    assert launcher.records() == []


def test_the_recipe_for_notebooks(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell of the guide can be run again and again; without its release it is refused."""
    monkeypatch.setenv("GPULAUNCH_TOPOLOGY", DGX1)
    before = dict(os.environ)
    page = (Path(__file__).parents[2] / "docs/guides/notebooks.md").read_text()
    (cell,) = (block for block in page.split("```python\n") if "lease.apply()" in block)
    cell = cell.partition("```")[0]
    notebook: dict[str, object] = {}
    for _ in range(3):
        exec(cell, notebook)
        lease = notebook["lease"]
        assert isinstance(lease, gpulaunch.HeldLease)
        assert [found["id"] for found in leases(launcher)] == [lease.id]
        assert os.environ == before | lease.env
    without = cell.replace("lease.release()", "pass")
    assert without != cell
    with pytest.raises(gpulaunch.FailedError, match="is applied in this process already"):
        exec(without, notebook)
    for one in (lease, notebook["lease"]):
        assert isinstance(one, gpulaunch.HeldLease)
        one.release()
    assert (launcher.records(), dict(os.environ)) == ([], before)


# multiprocessing


@pytest.mark.parametrize(
    ("method", "holds"), [("fork", True), ("spawn", False), ("forkserver", False)]
)
def test_children_of_multiprocessing(launcher: Launcher, method: str, holds: bool) -> None:
    """A forked worker holds the GPUs after its parent was killed; any other does not."""
    script = f"""
        import multiprocessing
        lease = allocated()
        worker = multiprocessing.get_context("{method}").Process(target=signal.pause)
        worker.start()
        print(worker.pid, flush=True)
        sys.stdin.readline()
    """
    with program(launcher, script) as process:
        worker = int(process.stdout.readline())
        assert len(leases(launcher)) == 1
        process.kill()
        process.wait()
        assert bool(leases(launcher)) == holds
        with suppress(ProcessLookupError):  # it may have noticed
            os.kill(worker, signal.SIGKILL)
        until(lambda: leases(launcher) == [])


def test_a_program_that_is_given_the_descriptor_holds_on(launcher: Launcher) -> None:
    """A program that was started with the lease's descriptor holds the GPUs, too."""
    script = """
        lease = allocated()
        child = subprocess.Popen(["sleep", "60"], pass_fds=[lease.fileno()])
        print(child.pid, flush=True)
        sys.stdin.readline()
    """
    with program(launcher, script) as process:
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        assert [lease["left_over_pids"] for lease in leases(launcher)] == [[child]]
        os.kill(child, signal.SIGKILL)
        until(lambda: leases(launcher) == [])


# What it costs


def test_the_import_stays_light(launcher: Launcher) -> None:
    """`import gpulaunch` imports nothing heavy: no rich, networkx, psutil or docker."""
    script = (
        "import sys; before = set(sys.modules); import gpulaunch; print(*sorted(set(sys.modules) - "
        "before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=launcher.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    heavy = {
        "logging",
        "rich",
        "networkx",
        "psutil",
        "docker",
        "ctypes",
        "pynvml",
        "filelock",
        "json",
        "tomllib",
    }
    assert ("gpulaunch" in imported, imported & heavy) == (True, set())


def test_fork_of_a_waiter_is_not_in_the_queue(launcher: Launcher) -> None:
    """A child that was forked while a thread waited bars nobody once its parent is killed."""
    script = """
        import threading
        waiter = threading.Thread(target=allocated, kwargs={"wait": True}, daemon=True)
        waiter.start()
        sys.stdin.readline()
        if os.fork() == 0:
            print("forked", flush=True)
            signal.pause()
        signal.pause()
    """
    with held(launcher, *DGX, "-n", "8"), program(launcher, script) as process:
        until(lambda: len(table(launcher)["queue"]) == 1)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "forked\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        process.kill()
        process.wait()
        assert table(launcher)["queue"] == []
        os.kill(int(children), signal.SIGKILL)


def test_a_program_promises_no_time_limit(launcher: Launcher) -> None:
    """A time limit in a file or the environment is for jobs: nothing ends a program at it."""
    script = (
        "import gpulaunch, json, os\n"
        "os.chdir(os.environ['GPULAUNCH_STATE_DIR'])\n"
        "with gpulaunch.allocate(1, topology='dgx1-v100') as lease:\n"
        "    record = json.load(open(f'gpulaunch.lease.{lease.id}'))\n"
        "    print([key for key in record if 'limit' in key or 'ends' in key])\n"
    )
    environment = launcher.environment | {"GPULAUNCH_TIME_LIMIT": "1m"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
