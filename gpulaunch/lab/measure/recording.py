"""`--record` and `-o record_to=FILE`: what a job uses of its GPUs from start to end."""

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from gpulaunch.errors import GpulaunchError, UsageError
from gpulaunch.files.write import check_writable, write_text
from gpulaunch.lab.measure.run import SHARED, STOPPED, Run, RunBeside, run_document
from gpulaunch.lab.measure.sampler import Sampler
from gpulaunch.lab.measure.update_profile import check_own, learn
from gpulaunch.launch.launch import Events, Keeper, Launch
from gpulaunch.launch.surroundings import open_table
from gpulaunch.leases.lease import Share, share_groups
from gpulaunch.leases.table import Table
from gpulaunch.machine.find import Machine
from gpulaunch.process.job import exit_status
from gpulaunch.process.system import now
from gpulaunch.sharing.speed import Capacity, least_of, pace, speeds

MOMENT_S = 0.05

Jobs = tuple[tuple[str, int], ...]
"""Names of jobs and their caps in % of the SMs, ascending."""


def recorder_of(
    launch: Launch, path: str | None, warn: Callable[[str], None], *, is_asked: bool
) -> "Recorder | None":
    """Return the recorder of a launch; None if it is not to be measured.

    It is also None if only a setting for all launches asks for it and the launch cannot be
    measured.

    Args:
        path: where to write the run as JSON; None for nowhere.
        is_asked: whether the command line asks for a measurement.

    Raises:
        UsageError: the launch cannot be measured, though the command line asks for it.
        FailedError: the result could not be written, though the command line asks for it.
    """
    if not launch.recorded_in and path is None:
        return None
    if is_asked:
        return Recorder(launch, path, warn)
    try:
        return Recorder(launch, path, warn) if launch.request.sharing is None else None
    except UsageError:
        return None
    except GpulaunchError as problem:
        warn(f"not measured: {problem.message}")
        return None


class Recorder(Events):
    """The measurement of one launch; failures are reported, and the job goes on.

    Args:
        path: where to write the run as JSON; None for nowhere.

    Raises:
        UsageError: the launch cannot be measured.
        FailedError: the result could not be written.
    """

    def __init__(self, launch: Launch, path: str | None, warn: Callable[[str], None]) -> None:
        refuse_described(launch.machine)
        if launch.container and not launch.container.attached:
            shown = " ".join(launch.command[:2])
            raise UsageError(
                f"'{shown}' does not stay until its container ends, so nothing can be measured",
                "run it in the foreground, without -d",
            )
        if path == "-":
            raise UsageError("-o record_to=-: stdout belongs to the job")
        if path is not None:
            check_writable(path)
        if launch.recorded_in:
            check_own(launch.recorded_in)
        self._launch, self._warn = launch, warn
        self._path = path and os.path.abspath(path)  # it outlives a change of the directory
        self._run: Run | None = None
        self._sampler: Sampler | None = None
        self._company = Company()
        self._date, self._began_s, self._next_look_s = now(), time.monotonic(), 0.0

    def granted(self, keeper: Keeper) -> None:
        """Begin to measure, as the job has its GPUs and is about to start."""
        self._keeper = keeper
        try:
            look = None
            if (share := keeper.lease.share) and self._launch.request.sharing:
                table = open_table(private=self._launch.private, warn=lambda _: None)
                look = partial(self._look_beside, share, table)
            self._sampler = Sampler(keeper.grant.gpus, look)
            self._sampler.start()
        except Exception as problem:  # noqa: BLE001  whatever fails here, the job starts
            self._warn(f"nothing can be measured: {problem!r}")
            self._sampler = None
        self._date, self._began_s = now(), time.monotonic()

    def over(self, status: int) -> None:
        """End measuring, as the job has just ended.

        Its GPUs are still leased, so nothing is written yet.
        """
        try:
            if self._sampler:
                self._run = self._end(status, self._sampler)
        except Exception as problem:  # noqa: BLE001  whatever fails here, the GPUs are freed
            self._warn(f"what was measured is lost: {problem!r}")

    def ended(self, _exit_status: int) -> None:
        """Write the measurements, now that the GPUs are free."""
        if self._run is None:
            return
        try:
            if self._path:
                text = json.dumps(run_document(self._run), indent=2, allow_nan=False)
                write_text(self._path, f"{text}\n")
            if self._launch.recorded_in:
                for line in learn(self._launch.recorded_in, self._run):
                    self._warn(line)
        except GpulaunchError as problem:
            self._warn(f"what was measured is lost: {problem.message}")
        except Exception as problem:  # noqa: BLE001  the job's own exit status counts
            self._warn(f"what was measured is lost: {problem!r}")

    def _end(self, status: int, sampler: Sampler) -> Run:
        duration_s = time.monotonic() - self._began_s
        problems, beside = [], None
        gpus = sampler.stop()
        if share := self._keeper.lease.share:
            problems.append(SHARED)
            sharing = self._launch.request.sharing
            capacity = least_of(sharing.capacities if sharing else {}, share.group)
            beside = self._company.run_beside(share, capacity, time.monotonic())
        stopped_s = self._keeper.stopped_s
        if stopped_s > MOMENT_S:
            problems.append(f"{STOPPED} for {stopped_s:.1f} s")
        return Run(
            command=self._launch.command,
            exit_status=exit_status(status),
            duration_s=duration_s,
            gpus=gpus,
            date=self._date,
            problems=(*problems, *sampler.problems),
            beside=beside,
        )

    def _look_beside(self, share: Share, table: Table) -> None:
        """See which jobs share the GPUs now; the sampler comes here with each reading.

        Looks are as far apart as a fiftieth of the time so far, and a second at most.
        """
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + min(1.0, (now_s - self._began_s) / 50)
        with suppress(GpulaunchError, OSError):  # who was there before counts on
            leases = table.peek(problems=[]).of(self._launch.machine).leases
            members = share_groups(leases).get(share.group, [])
            own = self._keeper.lease.id
            self._company.add([one.share for one in members if one.share and one.id != own], now_s)


class Company:
    """The jobs that shared a job's GPUs, and for how long."""

    def __init__(self) -> None:
        self._seconds: dict[Jobs, float] = defaultdict(float)
        self._now: Jobs = ()
        self._since_s: float | None = None
        self._others: list[Share] = []

    def add(self, shares: Sequence[Share], now_s: float) -> None:
        """Count the time since the last look for the jobs that were there then.

        Args:
            now_s: the monotonic clock.
        """
        if self._since_s is not None:
            self._seconds[self._now] += now_s - self._since_s
        self._since_s = now_s
        ordered = sorted(shares, key=lambda one: (one.client.demand.name, one.sm_percentage))
        self._now = tuple((one.client.demand.name, one.sm_percentage) for one in ordered)
        self._others = ordered or self._others

    def run_beside(self, share: Share, capacity: Capacity, now_s: float) -> RunBeside | None:
        """Return the others, if they were always the same, for half of the time at least.

        Args:
            now_s: the monotonic clock; the others may have ended just before the job.
        """
        self.add((), now_s)
        sets = [jobs for jobs in self._seconds if jobs]
        if len(sets) != 1 or self._seconds[sets[0]] < self._seconds[()]:
            return None
        shares = (share, *self._others)
        demands = [one.client.demand for one in shares]
        caps = tuple(one.sm_percentage for one in shares)
        names = tuple(demand.name for demand in demands[1:])
        (alone,) = speeds(demands[:1], capacity, caps[:1])
        beside = pace(demands, capacity, caps).speeds[0]
        is_guess = share.promised_pace is None
        return RunBeside(names, caps, self._seconds[()], alone, None if is_guess else beside)


def refuse_described(machine: Machine) -> None:
    """Raise UsageError if a machine is only described, so that there is nothing to measure."""
    if machine.key:
        raise UsageError(
            f"{machine.topology.name} is only described: there is nothing to measure",
            "leave out --topology, or unset GPULAUNCH_TOPOLOGY",
        )
