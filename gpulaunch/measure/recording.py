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
from gpulaunch.leases.share import Share
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
        self._beside: tuple[dict[str, str], int | None] = ({}, None)
        self._date, self._began_s = now(), time.monotonic()

    def begin(self, acquired: Acquired[Keeper]) -> None:
        """Begin to measure, as the job has its GPUs and is about to start."""
        self._acquired = acquired
        try:
            if acquired.lease.share:
                self._beside = self._look_beside(acquired.lease.share)
            self._sampler = Sampler(granted_gpus(self._launch, acquired.grant))
            self._sampler.start()
        except Exception as problem:  # noqa: BLE001  whatever fails here, the job starts
            self._warn(f"nothing can be measured: {problem!r}")
            self._sampler = None
        self._date, self._began_s = now(), time.monotonic()

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

    def _end(self, status: int, sampler: Sampler) -> Run:
        duration_s = time.monotonic() - self._began_s
        problems, beside, promised = [], None, None
        if share := self._acquired.lease.share:
            problems.append(SHARED)
            mates = list(self._beside[0].values())
            if len(mates) == 1 and self._look_beside(share) == self._beside:
                beside = mates[0]
                promised = 1 / share.promised_pace - 1 if share.promised_pace else None
        stopped_s = self._acquired.holder.stopped_s
        if stopped_s > MOMENT_S:
            problems.append(f"{STOPPED} for {stopped_s:.1f} s")
        gpus = sampler.stop()
        return Run(
            command=self._launch.command,
            exit_status=exit_status(status),
            duration_s=duration_s,
            gpus=gpus,
            date=self._date,
            problems=(*problems, *sampler.problems),
            beside=beside,
            promised_slowdown=promised,
        )

    def _look_beside(self, share: Share) -> tuple[dict[str, str], int | None]:
        """Return the jobs that share the GPUs now, and when the last one joined.

        Jobs are told by the id of the lease, with the name of what it uses. The time tells of a
        third job that came and went between two looks.
        """
        seen = open_table_of(self._launch, lambda _: None).peek().of(self._launch.machine)
        jobs = {}
        for lease in seen.leases:
            if lease.share and lease.share.group == share.group:
                jobs[lease.id] = lease.share.client.demand.name
        jobs.pop(self._acquired.lease.id, None)
        return jobs, last_join_ns(share.pipe_directory or "")


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
