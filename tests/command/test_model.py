"""A machine of four GPUs under random commands, beside a model that says what each must come to.

All is done and seen from outside: launches, reservations, `free`, `drain` and SIGKILL go through
the command line and the kernel, and what is so is what jobs and `status` say. The model is the
product's own rule, in a few lines: a request starts once enough of its GPUs are free that no
earlier one wants.
"""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import hypothesis
from conftest import Launcher, until
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from test_table import put

from gpulaunch.process.system import identify
from gpulaunch.records import as_list

MACHINE = ("--topology", "pcie-4gpu-workstation")
GPUS = frozenset(range(4))
JOB = ("--", "sh", "-c", 'echo "$GPULAUNCH_LEASE $$"; read line; exit 7')
SETS = st.frozensets(st.sampled_from(sorted(GPUS)), min_size=1)
AT_RANDOM = st.integers(0, 99)
VERSIONS = {
    "the least that counts": {},
    "of a later version": {"mood": [1, {"good": True}], "job": {"pid": 5}, "share": {"slice": 3}},
    "of processes that have ended": {"launcher": [1 << 22, 1], "job": [1 << 22, 1]},
}


class Launched:
    """A launch, a reservation or a record, which holds GPUs or waits for some.

    Attributes:
        process: its launcher; None for a reservation or a record.
        wants: GPUs that would do.
        count: how many of these it needs.
        in_order: whether it passes nobody.
        id: of its lease or ticket.
        gpus: what it has.
        percentage: its part of them.
        job: pid of its job; None for a record.
        record: descriptor that keeps a record alive.
        is_orphan: whether its launcher was killed.
    """

    def __init__(self, wants: Iterable[int], count: int) -> None:
        self.process = None
        self.wants, self.count = frozenset(wants), count
        self.in_order = False
        self.id = ""
        self.gpus: frozenset[int] = frozenset()
        self.percentage = 100
        self.job: int | None = None
        self.record: int | None = None
        self.is_orphan = False


class Machine(RuleBasedStateMachine):
    """The model: who holds what, who waits in which order, and what is drained.

    A rule that does not apply does nothing: which GPUs a request gets may depend on timing, and
    hypothesis asks that what it draws does not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.launcher = Launcher(Path(self.home.name))
        self.launcher.environment["GPULAUNCH_GRACE"] = "0.1s"
        self.holders: list[Launched] = []
        self.queue: list[Launched] = []
        self.drained: set[int] = set()

    @initialize()
    def learn_the_table(self) -> None:
        """Read from a real record what names the machine."""
        with self.launcher.start(*MACHINE, *JOB, stdin=subprocess.PIPE) as process:
            process.stdout.readline()
            (name,) = self.launcher.records()
            self.table = json.loads((self.launcher.state / name).read_bytes())["table"]
            process.communicate("\n")

    def command(self, verb: str, *words: str, status: int = 0) -> str:
        """Run a command about the machine; return what it prints."""
        done = self.launcher.run(verb, *MACHINE, *words)
        assert done.returncode == status, done.stderr
        return done.stdout

    def status(self) -> dict:
        return json.loads(self.command("status", "--json"))

    def free_gpus(self) -> frozenset[int]:
        """Return the GPUs that nobody has and that are in service."""
        return GPUS - self.drained - {gpu for one in self.holders for gpu in one.gpus}

    def can_start(self, one: Launched, ahead: Iterable[Launched]) -> bool:
        """Return whether a request starts now, with these before it."""
        wanted = {gpu for other in ahead for gpu in other.wants}
        if one.in_order and wanted & one.wants:
            return False
        return len((self.free_gpus() & one.wants) - wanted) >= one.count

    def serve(self) -> None:
        """Wait for all who wait to get what they can have now, and for no one else."""
        served = True
        while served:
            served = False
            for place, one in enumerate(self.queue):
                if self.can_start(one, self.queue[:place]):
                    self.starts(one)
                    self.queue.remove(one)
                    served = True
                    break

    def starts(self, one: Launched) -> None:
        """Read from a job that it runs, and from the table what it has."""
        line = one.process.stdout.readline()
        assert line, one.process.stderr.read()
        lease_id, job = line.split()
        assert one.id in ("", lease_id), "a lease has the id of its ticket"
        one.id, one.job = lease_id, int(job)
        (lease,) = [lease for lease in self.status()["leases"] if lease["id"] == lease_id]
        self.takes(one, lease["gpus"])

    def takes(self, one: Launched, gpus: Iterable[int]) -> None:
        """Note who has got which GPUs, which must be free."""
        one.gpus = frozenset(gpus)
        assert len(one.gpus) == one.count
        assert one.gpus <= one.wants & self.free_gpus()
        self.holders.append(one)

    def is_gone(self, one: Launched) -> None:
        """Note that a holder has let go of its GPUs, or that who waited has left the queue."""
        for ones in (self.holders, self.queue):
            if one in ones:
                ones.remove(one)
        if one.process:
            with one.process:
                one.process.kill()
        self.serve()

    # What may come

    @rule(wants=SETS, count=st.integers(1, 4), waits=st.booleans(), in_order=st.booleans())
    def launch(self, wants: frozenset[int], count: int, waits: bool, in_order: bool) -> None:
        """Launch; what cannot start now waits at the end of the queue, or is refused with 75."""
        if len(self.holders) + len(self.queue) > 5:
            return
        one = Launched(wants, min(count, len(wants)))
        one.in_order = in_order
        words = ["--only", ",".join(map(str, sorted(wants))), "-n", str(one.count)]
        words += ["--wait"] if waits else []
        words += ["-o", "queue=fifo"] if in_order else []
        one.process = self.launcher.start(
            *MACHINE, *words, *JOB, stdin=subprocess.PIPE, start_new_session=True
        )
        if self.can_start(one, self.queue):
            self.starts(one)
        elif waits:
            said = one.process.stderr.readline()
            assert f"waiting as number {len(self.queue) + 1} in the queue: " in said
            one.id = self.status()["queue"][-1]["id"]
            self.queue.append(one)
        else:
            with one.process:
                assert one.process.wait() == 75, one.process.stderr.read()

    @rule(gpu=st.sampled_from(sorted(GPUS)), percentage=st.sampled_from([30, 50, 60]))
    def share(self, gpu: int, percentage: int) -> None:
        """Share a GPU with other shares of up to 100 % together, or be refused."""
        if self.queue or len(self.holders) > 4:
            return
        one = Launched([gpu], 1)
        one.percentage = percentage
        words = ("--share", f"{percentage}%", "--only", str(gpu))
        one.process = self.launcher.start(
            *MACHINE, *words, *JOB, stdin=subprocess.PIPE, start_new_session=True
        )
        beside = [other.percentage for other in self.holders if gpu in other.gpus]
        if gpu in self.drained or sum(beside) + percentage > 100:
            with one.process:
                assert one.process.wait() == 75, one.process.stderr.read()
            return
        line = one.process.stdout.readline()
        assert line, one.process.stderr.read()
        one.id, one.job = line.split()[0], int(line.split()[1])
        one.gpus = frozenset([gpu])
        self.holders.append(one)

    @rule(wants=SETS)
    def reserve(self, wants: frozenset[int]) -> None:
        """Reserve a GPU, which is given as to a launch, and kept without a job."""
        if len(self.holders) > 4:
            return
        one = Launched(wants, 1)
        one.in_order = True  # else its hour would let it pass who waits for endless jobs
        starts = self.can_start(one, self.queue)
        only = ",".join(map(str, sorted(wants)))
        words = ("--for", "1h", "--keep", "--json", "-n", "1", "--only", only, "-o", "queue=fifo")
        told = self.command("reserve", *words, status=0 if starts else 75)
        if starts:
            document = json.loads(told)
            one.id = document["lease"]
            self.takes(one, document["gpus"])

    @rule(gpu=st.sampled_from(sorted(GPUS)), form=st.sampled_from(sorted(VERSIONS)))
    def another_version_launches(self, gpu: int, form: str) -> None:
        """Write a record as another version does; it holds its GPUs as long as it is locked."""
        if gpu in self.free_gpus():
            one = Launched([gpu], 1)
            one.id = os.urandom(6).hex()
            document = self.record(one.id, gpu) | VERSIONS[form]
            one.record = self.write(one.id, document, live=True)
            self.takes(one, [gpu])

    @rule(gpu=st.sampled_from(sorted(GPUS)), cut=st.booleans())
    def dies_while_it_writes(self, gpu: int, cut: bool) -> None:
        """Leave an unlocked record, whole or half written, which holds nothing, whoever lives."""
        lease_id = os.urandom(6).hex()
        alive = {"launcher": as_list(identify(os.getpid())), "job": as_list(identify(1))}
        descriptor = self.write(lease_id, self.record(lease_id, gpu) | alive, live=False)
        if cut:
            os.ftruncate(descriptor, 40)
        os.close(descriptor)

    @rule()
    def newer_version_launches(self) -> None:
        """Launch beside a live record that needs a later version: nobody decides, or ends it."""
        if self.queue:
            return
        lease_id = os.urandom(6).hex()
        descriptor = self.write(lease_id, self.record(lease_id, 0) | {"version": 2}, live=True)
        done = self.launcher.run(*MACHINE, *JOB)
        os.close(descriptor)
        assert (done.returncode, "reads version 2" in done.stderr) == (125, True)
        assert done.stderr.endswith("uses a later gpulaunch: use that one, too\n")

    def record(self, lease_id: str, gpu: int) -> dict:
        """Return the least that a lease's record says."""
        uuids = [f"GPU-{MACHINE[1]}-{gpu}"]
        return {"version": 1, "id": lease_id, "table": self.table, "uuids": uuids, "ancestors": []}

    def write(self, lease_id: str, document: dict, *, live: bool) -> int:
        """Write a record by hand; return the descriptor that keeps it alive."""
        name = f"gpulaunch.lease.{lease_id}"
        return put(self.launcher, name, json.dumps(document).encode(), live=live)

    @rule(at=AT_RANDOM)
    def job_ends(self, at: int) -> None:
        """End a job, which frees its GPUs, whether its launcher lives or not."""
        if not self.holders:
            return
        one = self.holders[at % len(self.holders)]
        if one.record is not None:
            os.close(one.record)
        elif one.process is None:
            self.command("free", one.id)
        elif one.is_orphan:
            one.process.stdin.close()
            self.until_freed(one)
        else:
            one.process.stdin.close()
            assert one.process.wait() == 7
        self.is_gone(one)

    def until_freed(self, one: Launched) -> None:
        """Wait for the companion of a job that has ended to free its GPUs."""
        record = self.launcher.state / f"gpulaunch.lease.{one.id}"
        until(lambda: not record.exists())

    @rule(at=AT_RANDOM, whom=st.sampled_from(["launcher", "job", "group"]))
    def is_killed(self, at: int, whom: str) -> None:
        """Kill a launcher, whose job keeps the lease, or a job, or both."""
        jobs = [one for one in self.holders if one.job]
        if not jobs:
            return
        one = jobs[at % len(jobs)]
        if whom == "launcher" and not one.is_orphan:
            one.process.kill()
            one.process.wait()
            one.is_orphan = True
            return
        if whom == "job" and not one.is_orphan:
            os.kill(one.job, signal.SIGKILL)
            assert one.process.wait() == 128 + signal.SIGKILL
        else:
            os.killpg(one.process.pid, signal.SIGKILL)
            self.until_freed(one)
        self.is_gone(one)

    @rule(at=AT_RANDOM, number=st.sampled_from([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
    def waiter_is_killed(self, at: int, number: signal.Signals) -> None:
        """Kill a waiter, which leaves the queue to those behind it."""
        if not self.queue:
            return
        one = self.queue[at % len(self.queue)]
        one.process.send_signal(number)
        assert one.process.wait() == -number
        self.is_gone(one)

    @rule(at=AT_RANDOM)
    def free(self, at: int) -> None:
        """End a job, a reservation or a wait by its id."""
        everybody = [one for one in (*self.holders, *self.queue) if one.record is None]
        if everybody:
            one = everybody[at % len(everybody)]
            self.command("free", one.id)
            self.is_gone(one)

    @rule(gpu=st.sampled_from(sorted(GPUS)))
    def drain(self, gpu: int) -> None:
        """Drain a GPU, which is given to nobody then; who has it keeps it."""
        self.command("drain", str(gpu))
        self.drained.add(gpu)

    @rule()
    def undrain(self) -> None:
        """Put a GPU into service again for the next."""
        if self.queue or not self.drained:
            return
        gpu = self.drained.pop()
        self.command("undrain", str(gpu))

    # What is always so

    @invariant()
    def status_says_what_is_so(self) -> None:
        """`status` shows every lease and ticket, in order, no others, and whose each GPU is."""
        status = self.status()
        leases = {lease["id"]: frozenset(lease["gpus"]) for lease in status["leases"]}
        assert leases == {one.id: one.gpus for one in self.holders}
        assert [ticket["id"] for ticket in status["queue"]] == [one.id for one in self.queue]
        assert {gpu["index"] for gpu in status["gpus"] if gpu["free"]} == self.free_gpus()
        for gpu in status["gpus"]:
            owners = {one.id for one in self.holders if gpu["index"] in one.gpus}
            assert set(gpu["leases"]) == owners
            assert bool(gpu["drained"]) == (gpu["index"] in self.drained)

    def teardown(self) -> None:
        """After all have ended every GPU is free, and no record is left."""
        try:
            for one in [*self.queue, *self.holders]:
                if one.record is not None:
                    os.close(one.record)
            self.command("free", "--mine")
            for one in [*self.queue, *self.holders]:
                if one.process:
                    one.process.communicate()
            for gpu in self.drained:
                self.command("undrain", str(gpu))
            done = self.launcher.run(*MACHINE, "-n", "4", "--", "true")
            assert (done.returncode, done.stderr, self.launcher.records()) == (0, "", [])
        finally:
            self.clear_away()

    def clear_away(self) -> None:
        """Let no process outlive an example that failed."""
        for one in [*self.queue, *self.holders]:
            if one.process and one.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(one.process.pid, signal.SIGKILL)
                one.process.communicate()
        self.home.cleanup()


def test_random_commands_end_as_the_model_says() -> None:
    """No GPU has two owners, none is lost, the queue keeps its order, shares fit, and no ghosts."""
    run_state_machine_as_test(
        Machine,
        settings=hypothesis.settings(
            max_examples=5 + hypothesis.settings().max_examples // 20,
            stateful_step_count=20,
            phases=[hypothesis.Phase.generate],  # what hangs would hang at every step of shrinking
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )
