"""`--record` and `-o record_to=FILE`: measure an ordinary launch."""

from collections.abc import Callable, Mapping

from gpulaunch.errors import GpulaunchError, UsageError
from gpulaunch.files.write import check_writable
from gpulaunch.launch.acquire import Acquired
from gpulaunch.launch.keepers import Keeper
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.options import Options
from gpulaunch.measure.nccl_recording import NcclRecording, record_nccl
from gpulaunch.measure.recording import Recording, absolute, write_run
from gpulaunch.measure.update_profile import check_own, learn
from gpulaunch.records import replace
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.measure.measured_run import Run


def recorder_of(options: Options, launch: Launch, warn: Callable[[str], None]) -> "Recorder | None":
    """Return the recorder of a launch; None if it is not to be measured.

    It is also None if only a setting for all launches asks for it and the launch cannot be
    measured.

    Args:
        options: the launch's options.
        launch: the launch.
        warn: called with the text of a warning.

    Raises:
        UsageError: the launch cannot be measured, though the command line asks for it.
        FailedError: the result could not be written, though the command line asks for it.
    """
    if not launch.recorded_in and not options.record_to:
        return None
    if options.given.keys() & {"record", "record_to"}:
        return Recorder(options, launch, warn)
    try:
        return Recorder(options, launch, warn) if launch.request.sharing is None else None
    except UsageError:
        return None
    except GpulaunchError as problem:
        warn(f"not measured: {problem.message}")
        return None


class Recorder:
    """The measurement of one launch; failures are reported, and the job goes on.

    Args:
        options: the launch's options.
        launch: the launch.
        warn: called with the text of a warning.

    Raises:
        UsageError: the launch cannot be measured.
        FailedError: the result could not be written.
    """

    def __init__(self, options: Options, launch: Launch, warn: Callable[[str], None]) -> None:
        self._recording: Recording | None = Recording(launch)
        self._launch, self._warn = launch, warn
        self._run: Run | None = None
        self._path = absolute(options.record_to) if options.record_to else None
        if self._path == "-":
            raise UsageError("-o record_to=-: stdout belongs to the job")
        if self._path:
            check_writable(self._path)
        if launch.recorded_in:
            check_own(launch.recorded_in)
        self._nccl: NcclRecording | None = None
        self._acquired: Acquired[Keeper] | None = None

    def begin(self, acquired: Acquired[Keeper]) -> Mapping[str, str]:
        """Begin to measure, as the job has its GPUs and is about to start.

        Returns:
            Further variables for the job.
        """
        self._acquired = acquired
        try:
            if self._recording:
                self._recording.begin(acquired)
                self._nccl = record_nccl(self._launch)
        except Exception as problem:  # noqa: BLE001  whatever fails here, the job starts
            self._warn(f"nothing can be measured: {problem!r}")
            self._recording = None
        return self._nccl.variables if self._nccl else {}

    def end(self, status: int) -> None:
        """End measuring, as the job has just ended.

        Its GPUs are still leased, so nothing is written yet.
        """
        try:
            self._run = self._recording.end(status) if self._recording else None
        except Exception as problem:  # noqa: BLE001  whatever fails here, the GPUs are freed
            self._warn(f"what was measured is lost: {problem!r}")

    def write(self) -> None:
        """Write the measurements, now that the GPUs are free."""
        if self._run is None:
            return
        try:
            self._read_nccl(self._run)
            if self._path:
                write_run(self._path, self._run)
            if self._launch.recorded_in:
                for line in learn(self._launch.recorded_in, self._run):
                    self._warn(line)
        except GpulaunchError as problem:
            self._warn(f"what was measured is lost: {problem.message}")
        # Whatever fails here, the job's own exit status counts.
        except Exception as problem:  # noqa: BLE001
            self._warn(f"what was measured is lost: {problem!r}")

    def close(self) -> None:
        """Remove the folder of NCCL's log, if there is one."""
        if self._nccl:
            self._nccl.close()

    def _read_nccl(self, run: "Run") -> None:
        """Add what NCCL's log shows to the run, and say what is worse than promised."""
        if self._nccl is None or self._acquired is None:
            return
        try:
            found = self._nccl.read(self._launch, self._acquired)
        except Exception as problem:  # noqa: BLE001  the run is worth keeping without it
            self._warn(f"NCCL's log cannot be read: {problem!r}")
            return
        if found:
            self._run = replace(run, nccl_pattern=found.pattern, nccl_confidence=found.confidence)
            if found.shortfall:
                self._warn(found.shortfall)
