"""`gpulaunch.allocate`: GPUs for a Python program, from the command's table and by its rules."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
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
    with subprocess.Popen(
        [sys.executable, "-c", prelude + textwrap.dedent(script)],
        env=launcher.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
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
    """The command cannot get what a program holds; `status` names the program, `free` ends it."""
    script = "lease = allocated(name='mine')\nprint(lease.id, flush=True); sys.stdin.read()"
    with program(launcher, script) as process:
        lease_id = process.stdout.readline().strip()
        (lease,) = leases(launcher)
        found = [lease[key] for key in ("id", "gpus", "profile", "name")]
        assert found == [lease_id, [0, 2, 3], "vgg16", "mine"]
        assert lease["pid"] == lease["job_pid"] == process.pid
        assert (lease["command"][:2], lease["left_over_pids"]) == ([sys.executable, "-c"], None)
        assert launcher.run(*VGG, *SHOW).stdout == "4,6,7\n"
        assert launcher.run("free", *DGX, lease_id).stdout == "ended mine (GPUs 0,2,3)\n"
        assert (process.wait(), launcher.records()) == (-signal.SIGTERM, [])


ENDS = {
    "the block ends": ("with allocated():\n    say()\nprint(input())", 0),
    "an exception": ("with allocated():\n    say()\n    raise RuntimeError('mine')", 1),
    "the program ends without a release": ("lease = allocated()\nsay()", 0),
    "the program kills itself": ("lease = allocated()\nsay()\nos.kill(os.getpid(), 9)", -9),
}


@pytest.mark.parametrize(("script", "status"), ENDS.values(), ids=ENDS)
def test_a_lease_ends_with_its_block_or_program(
    launcher: Launcher, script: str, status: int
) -> None:
    """A lease ends with its block or its program, however that ends, and exceptions propagate."""
    say = "def say():\n    print('got', flush=True)\n    sys.stdin.readline()\n"
    with program(launcher, say + script) as process:
        assert process.stdout.readline() == "got\n"
        assert len(leases(launcher)) == 1
        process.stdin.write("\n")
        if "input" in script:  # the program goes on
            process.stdin.flush()
            until(lambda: launcher.records() == [])
            process.stdin.write("go on\n")
        found, error = process.communicate()
        assert (found, process.returncode) == ("go on\n" if "input" in script else "", status)
        assert error == "" or error.endswith("RuntimeError: mine\n")
        assert launcher.run(*DGX, "-n", "8", *SHOW).stdout == "0,1,2,3,4,5,6,7\n"
        assert launcher.records() == []


def test_a_lease_of_this_process_is_none_around_it(launcher: Launcher) -> None:
    """What a process holds is no lease around its next ones; a launch around it still is.

    A forked or started child is inside the lease that its parent has applied.
    """
    script = """
        import gpulaunch, os, subprocess
        first = gpulaunch.allocate(1)
        first.apply()
        held = [gpulaunch.allocate(1) for _ in range(3)]
        print(sorted([*first.gpus, *(gpu for lease in held for gpu in lease.gpus)]), flush=True)
        if os.fork() == 0:
            print(gpulaunch.allocate(1).gpus == first.gpus, flush=True)
            os._exit(0)
        os.wait()
        subprocess.run(["gpulaunch", "-n", "all", "--", "printenv", "GPULAUNCH_GPU_COUNT"])
    """
    program = (sys.executable, "-c", textwrap.dedent(script))
    assert launcher.run(*DGX, "-n", "4", "--", *program).stdout == "[0, 1, 2, 3]\nTrue\n1\n"


def test_apply_sets_the_variables_until_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """`apply` sets the job's variables in this process; the release restores the earlier ones.

    What the program itself has changed since then stays. A second lease cannot be applied.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,6,5")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    before = dict(os.environ)
    with gpulaunch.allocate(2, topology=DGX1) as lease, gpulaunch.allocate(topology=DGX1) as second:
        assert dict(os.environ) == before
        lease.apply()
        lease.apply()
        assert {name: os.environ.get(name) for name in lease.env} == lease.env
        assert lease.env["CUDA_VISIBLE_DEVICES"] == "6,5"
        with pytest.raises(gpulaunch.FailedError) as refused:
            second.apply()
        problem = f"{lease} is applied in this process already, so {second} cannot be"
        hint = "call its release() first, or give environment() to a subprocess"
        assert (refused.value.message, refused.value.hint) == (problem, hint)
        assert os.environ["GPULAUNCH_LEASE"] == lease.id
        lease.release()
        second.apply()
        assert os.environ["GPULAUNCH_LEASE"] == second.id
        os.environ["NVIDIA_VISIBLE_DEVICES"] = "mine"
    assert dict(os.environ) == before | {"NVIDIA_VISIBLE_DEVICES": "mine"}


def test_the_environment_of_a_subprocess(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`environment` is the program's own, on this lease's GPUs, whatever lease is applied here."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    before = dict(os.environ)
    with gpulaunch.allocate(topology=DGX1) as first, gpulaunch.allocate(2, topology=DGX1) as lease:
        first.apply()
        assert lease.environment() == before | lease.env
        assert first.environment() == before | first.env == dict(os.environ)
        inside = lease.environment() | launcher.environment
        assert launcher.run("-n", "all", *SHOW, env=inside).stdout == "1,2\n"
    with pytest.raises(gpulaunch.FailedError, match=f"^lease {lease.id} has been released$"):
        lease.environment()


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
        assert (process.communicate(), process.returncode) == (("", ""), 0)
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


STAYS = {
    "fork": "child = os.fork()",
    "descriptor": 'child = subprocess.Popen(["cat"], pass_fds=[lease.fileno()]).pid',
}


@pytest.mark.parametrize("start", STAYS.values(), ids=STAYS)
def test_a_child_that_stays_holds_on(launcher: Launcher, start: str) -> None:
    """While a forked child lives, or a program with the lease's descriptor, the GPUs are taken.

    They are shown as held by a left-over process.
    """
    script = f"""
        lease = allocated()
        {start}
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


def test_errors_are_exported_with_their_exit_status(launcher: Launcher) -> None:
    """Each failure is a GpulaunchError with the command's exit status, and leaves the queue.

    A wrong argument is a UsageError of one line with its name.
    """
    found = []
    with gpulaunch.allocate(7, topology=DGX1):
        for arguments, error, text in (
            ({"wait": False, "wait_timeout": "1h"}, gpulaunch.WouldWaitError, "2 GPUs requested: "),
            ({"wait_timeout": 0.05}, gpulaunch.TimedOutError, "waited 0.05 s: 2 GPUs requested: "),
            ({"gpus": 9}, gpulaunch.UsageError, "9 GPUs requested: dgx1-v100 has 8$"),
            ({"gpus": 1.5}, gpulaunch.UsageError, "gpus: '1.500000' is neither a number of .*$"),
            ({"only": [0, 9]}, gpulaunch.UsageError, "only 0,9: '9' is no GPU of dgx1-v100, .*$"),
            ({"wait_timeout": 0}, gpulaunch.UsageError, "wait_timeout: '0s' is no length of .*$"),
            ({"name": "x" * (2 << 20)}, gpulaunch.UsageError, "the name has 2097152 characters"),
        ):
            with pytest.raises(error, match=f"^{text}") as caught:
                gpulaunch.allocate(**{"gpus": 2, "topology": DGX1, **arguments})
            assert isinstance(caught.value, gpulaunch.GpulaunchError)
            found.append((caught.value.exit_status, caught.value.hint))
            assert len(launcher.records()) == 1
    launcher.state.rmdir()
    with pytest.raises(gpulaunch.FailedError, match="cannot use this state directory") as failed:
        gpulaunch.allocate(topology=DGX1)
    assert [status for status, _ in found] == [75, 124, 2, 2, 2, 2, 2]
    assert (found[0][1], failed.value.exit_status) == ("give wait=True to queue", 125)


ARGUMENTS = [
    ({"gpus": "2"}, (0, 3)),
    ({"gpus": "all"}, tuple(range(8))),
    ({"gpus": 2, "only": [1, 2, "GPU-dgx1-v100-3"], "exclude": [2]}, (1, 3)),
    ({"exclude": {0, 1}}, (2,)),
    ({"gpus": 2, "exclude": 0}, (1, 2)),
    ({"exclude": []}, (0,)),
    ({"memory": 15 << 30}, (0,)),
    ({"gpu_model": "v100-sxm2"}, (0,)),
    ({"gpus": 4, "policy": "greedy", "pattern": "chain"}, (0, 3, 2, 1)),
    ({"gpus": 5, "sensitive": True}, (0, 2, 3, 4, 7)),
    ({"gpus": 5, "sensitive": "false"}, (0, 1, 2, 3, 4)),
]


def test_each_argument_chooses_as_its_option_does() -> None:
    """Each argument narrows or changes the choice as its option does, in any natural type."""
    for arguments, gpus in ARGUMENTS:
        with gpulaunch.allocate(**{"topology": DGX1, **arguments}) as lease:
            assert lease.gpus == gpus, arguments
    with gpulaunch.allocate(3, bandwidth_model="mapa", sensitive=True, topology=DGX1) as lease:
        assert lease.reason.startswith("57.86 GB/s effective bandwidth")


def test_settings_apply_as_for_the_command(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment counts as for the command, and an argument comes before it.

    A time limit is for jobs: nothing ends a program at it, and none is promised.
    """
    for name, value in (("TOPOLOGY", DGX1), ("GPUS", "3"), ("TIME_LIMIT", "1m")):
        monkeypatch.setenv(f"GPULAUNCH_{name}", value)
    with gpulaunch.allocate(profile="vgg16") as lease:
        assert lease.gpus == (0, 2, 3)
        (shown,) = leases(launcher)
        assert (shown["time_limit_s"], shown["ends_at"]) == (None, None)
    with gpulaunch.allocate(2) as lease:
        assert lease.gpus == (0, 3)


def test_a_program_waits_in_the_same_queue(launcher: Launcher) -> None:
    """Programs and commands wait in one queue, and are served in its order."""
    waits = "lease = gpulaunch.allocate(8, topology='dgx1-v100', wait=True)\n"
    waits += "print('got', flush=True)\ninput()"
    command = (*DGX, "-n", "8", "--wait", "--", "sh", "-c", "echo got; read line")
    with held(launcher, *DGX, "-n", "8") as holder, program(launcher, waits) as first:
        await_ticket(launcher, 1)
        with launcher.start(*command, stdin=subprocess.PIPE) as second:
            await_ticket(launcher, 2)
            assert [one["pid"] for one in table(launcher)["queue"]] == [first.pid, second.pid]
            holder.end()
            for waiter in (first, second):
                assert waiter.stdout.readline() == "got\n"
                assert [lease["pid"] for lease in leases(launcher)] == [waiter.pid]
                waiter.communicate("\n")


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
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert (table(launcher)["queue"], len(launcher.records())) == ([], 1)
        holder.end()
        assert launcher.run(*DGX, "-n", "8", "--", "true").returncode == 0


def waits_for_the_lock(pid: int) -> bool:
    """Return whether a process stands in line for some flock."""
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any("->" in fields and "FLOCK" in fields and str(pid) in fields for fields in lines)


# asyncio


def test_asyncio_goes_on_while_a_lease_is_waited_for(launcher: Launcher) -> None:
    """A task that waits for GPUs blocks no other, and gets what another task has freed."""

    async def other() -> tuple[int, ...]:
        with await gpulaunch.aallocate(8, topology=DGX1) as first:
            waiter = asyncio.create_task(waits())
            await asyncio.to_thread(await_ticket, launcher)
        assert not waiter.done()
        return (*first.gpus, *await waiter)

    async def waits() -> tuple[int, ...]:
        with await gpulaunch.aallocate(2, topology=DGX1, wait=True) as lease:
            assert len(launcher.records()) == 1
            return lease.gpus

    assert asyncio.run(other()) == (*range(8), 0, 3)
    assert launcher.records() == []


def test_a_cancelled_wait_has_left_the_queue(launcher: Launcher) -> None:
    """Whoever awaits a cancelled wait finds its ticket gone, and gets what is free then."""

    async def cancels() -> None:
        with await gpulaunch.aallocate(1, topology=DGX1) as lease:
            waiter = asyncio.create_task(waits())
            await asyncio.to_thread(await_ticket, launcher)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert launcher.records() == [f"gpulaunch.lease.{lease.id}"]

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
            await waiter

    async def waits() -> None:
        await gpulaunch.aallocate(1, topology=DGX1, wait=True)

    directory = os.open(launcher.state, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    asyncio.run(cancels())
    os.close(directory)
    until(lambda: launcher.run(*DGX, "-n", "8", "--", "true").returncode == 0)
    until(lambda: launcher.records() == [])


def test_the_recipe_for_notebooks(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell of the guide can be run again and again; without its release it is refused.

    A cell that only replaces its lease holds the new one alone, and a ResourceWarning says so.
    """
    monkeypatch.setenv("GPULAUNCH_TOPOLOGY", DGX1)
    before = dict(os.environ)
    page = (Path(__file__).parents[2] / "docs/guides/notebooks.md").read_text()
    (cell,) = (block for block in page.split("```python\n") if "lease.apply()" in block)
    cell = cell.partition("```")[0]
    notebook: dict[str, object] = {}
    for _ in range(2):
        exec(cell, notebook)
        lease = notebook["lease"]
        assert [found["id"] for found in leases(launcher)] == [lease.id]
        assert os.environ == before | lease.env
    with pytest.raises(gpulaunch.FailedError, match="is applied in this process already"):
        exec(cell.replace("lease.release()", "pass"), notebook)
    lease.release()
    del lease
    with pytest.warns(ResourceWarning, match="unclosed file <_io.FileIO name='lease "):
        exec("lease = gpulaunch.allocate(1)", notebook)
    assert [found["id"] for found in leases(launcher)] == [notebook["lease"].id]
    notebook["lease"].release()
    assert (launcher.records(), dict(os.environ)) == ([], before)


def test_the_import_stays_light() -> None:
    """`import gpulaunch` imports nothing heavy: no rich, networkx, psutil or docker."""
    heavy = "logging rich networkx psutil docker ctypes pynvml filelock json tomllib"
    script = f"import gpulaunch, sys; print(*(set('{heavy}'.split()) & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", script]) == b"\n"


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
