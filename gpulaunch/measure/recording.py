"""`--record` and `-o record_to=FILE`: what a job uses of its GPUs from start to end."""

import json
import os
import time
from collections.abc import Callable

from gpulaunch.errors import GpulaunchError, UsageError
from gpulaunch.files.write import check_writable, write_text
from gpulaunch.launch.acquire import Acquired
from gpulaunch.launch.assess import granted_gpus
from gpulaunch.launch.keepers import Keeper
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.open_table import open_table_of
from gpulaunch.measure.run import SHARED, STOPPED, Run, run_document
from gpulaunch.measure.sampler import Sampler
from gpulaunch.measure.update_profile import check_own, learn
from gpulaunch.process.job import exit_status
from gpulaunch.process.system import now
from gpulaunch.sharing.mps_directories import last_join_ns

MOMENT_S = 0.05


def recorder_of(
    launch: Launch, path: str | None, warn: Callable[[str], None], *, is_asked: bool
) -> "Recorder | None":
    """Return the recorder of a launch; None if it is not to be measured.

    It is also None if only a setting for all launches asks for it and the launch cannot be
    measured.

    Args:
        launch: the launch.
        path: where to write the run as JSON; None for nowhere.
        warn: called with the text of a warning.
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


class Recorder:
    """The measurement of one launch; failures are reported, and the job goes on.

    Args:
        launch: the launch to record.
        path: where to write the run as JSON; None for nowhere.
        warn: called with the text of a warning.

    Raises:
        UsageError: the launch cannot be measured.
        FailedError: the result could not be written.
    """

    def __init__(self, launch: Launch, path: str | None, warn: Callable[[str], None]) -> None:
        _refuse_unmeasurable(launch)
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
        self._problems: list[str] = []
        self._lease_id = ""
        self._keeper: Keeper | None = None
        self._group: tuple[str, ...] = ()
        self._directory = ""
        self._mates: dict[str, str] = {}
        self._joined_ns: int | None = None
        self._promised: float | None = None
        self._date, self._began_s = now(), time.monotonic()

    def begin(self, acquired: Acquired[Keeper]) -> None:
        """Begin to measure, as the job has its GPUs and is about to start."""
        try:
            self._begin(acquired)
        except Exception as problem:  # noqa: BLE001  whatever fails here, the job starts
            self._warn(f"nothing can be measured: {problem!r}")
            self._sampler = None

    def end(self, status: int) -> None:
        """End measuring, as the job has just ended.

        Its GPUs are still leased, so nothing is written yet.

        Args:
            status: the job's wait status.
        """
        try:
            if self._sampler:
                self._run = self._end(status, self._sampler)
        except Exception as problem:  # noqa: BLE001  whatever fails here, the GPUs are freed
            self._warn(f"what was measured is lost: {problem!r}")

    def write(self) -> None:
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
        # Whatever fails here, the job's own exit status counts.
        except Exception as problem:  # noqa: BLE001
            self._warn(f"what was measured is lost: {problem!r}")

    def _begin(self, acquired: Acquired[Keeper]) -> None:
        if acquired.lease.share:
            self._problems = [SHARED]
            self._group = acquired.lease.share.group
            self._directory = acquired.lease.share.pipe_directory or ""
            self._joined_ns = last_join_ns(self._directory)
            self._mates = self._find_mates(acquired.lease.id)
            if pace := acquired.lease.share.promised_pace:
                self._promised = 1 / pace - 1
        self._lease_id = acquired.lease.id
        self._keeper = acquired.holder
        self._sampler = Sampler(granted_gpus(self._launch, acquired.grant))
        self._sampler.start()
        self._date, self._began_s = now(), time.monotonic()

    def _end(self, status: int, sampler: Sampler) -> Run:
        duration_s = time.monotonic() - self._began_s
        stopped_s = self._keeper.stopped_s if self._keeper else 0.0
        if stopped_s > MOMENT_S:
            self._problems.append(f"{STOPPED} for {stopped_s:.1f} s")
        gpus = sampler.stop()
        beside = self._find_constant_mate()
        return Run(
            command=self._launch.command,
            exit_status=exit_status(status),
            duration_s=duration_s,
            gpus=gpus,
            date=self._date,
            problems=(*self._problems, *sampler.problems),
            beside=beside,
            promised_slowdown=self._promised if beside else None,
        )

    def _find_constant_mate(self) -> str | None:
        """Return what the one other job on the GPUs uses, if nobody else was there meanwhile."""
        if len(self._mates) != 1 or self._find_mates(self._lease_id) != self._mates:
            return None
        # A third job may have come and gone between the two looks.
        if last_join_ns(self._directory) != self._joined_ns:
            return None
        return next(iter(self._mates.values()))

    def _find_mates(self, own_id: str) -> dict[str, str]:
        """Return the jobs that share the GPUs now: id of the lease -> name of what it uses."""
        seen = open_table_of(self._launch, lambda _: None).peek().of(self._launch.machine)
        return {
            lease.id: lease.share.client.demand.name
            for lease in seen.leases
            if lease.share and lease.share.group == self._group and lease.id != own_id
        }


def _refuse_unmeasurable(launch: Launch) -> None:
    refuse_described(launch)
    if launch.container:
        command = launch.container.command
        if command.starts or not command.is_attached:
            shown = " ".join(command.argv[:2])
            raise UsageError(
                f"'{shown}' does not stay until its container ends, so nothing can be measured",
                "run it in the foreground, without -d",
            )


def refuse_described(launch: Launch) -> None:
    """Refuse to measure on a machine that is only described.

    Raises:
        UsageError: the launch's machine is only described.
    """
    if launch.machine.key:
        raise UsageError(
            f"{launch.machine.topology.name} is only described: there is nothing to measure",
            "leave out --topology, or unset GPULAUNCH_TOPOLOGY",
        )
