"""`--record` and `--record-to`: what a launch in passing tells of its job."""

from collections.abc import Callable, Mapping

from gpulaunch.errors import GpulaunchError, UsageError
from gpulaunch.files.write import check_writable
from gpulaunch.launch.acquire import Acquired
from gpulaunch.launch.given import Given
from gpulaunch.launch.keepers import Keeper
from gpulaunch.launch.launch import Launch
from gpulaunch.measure.recording import Recording, absolute, write_run
from gpulaunch.measure.update_profile import check_own, learn
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.measure.measured_run import Run


def recorder_of(
    given: Mapping[str, Given], launch: Launch, warn: Callable[[str], None]
) -> "Recorder | None":
    """Return what measures a launch; None if it is not to be measured.

    Also None if only a setting for all launches asks for it and it cannot be measured.

    Args:
        given: the launch's options.
        launch: to be measured.
        warn: where to say what is odd but no failure.

    Raises:
        UsageError: nothing can be measured of it, though the command line asks.
        FailedError: nothing could be written, though the command line asks.
    """
    if not launch.recorded_in and "record_to" not in given:
        return None
    if given.keys() & {"record", "record_to"}:
        return Recorder(given, launch, warn)
    try:
        return Recorder(given, launch, warn) if launch.request.sharing is None else None
    except UsageError:
        return None
    except GpulaunchError as problem:
        warn(f"not measured: {problem.message}")
        return None


class Recorder:
    """Measures one launch, and writes what came of it. What fails is said, and the job goes on.

    Args:
        given: the launch's options.
        launch: which.
        warn: where to say what is odd but no failure.

    Raises:
        UsageError: nothing can be measured of it.
        FailedError: nothing could be written.
    """

    def __init__(
        self, given: Mapping[str, Given], launch: Launch, warn: Callable[[str], None]
    ) -> None:
        self._recording: Recording | None = Recording(launch)
        self._launch, self._warn = launch, warn
        self._run: Run | None = None
        self._path = absolute(given["record_to"].text) if "record_to" in given else None
        if self._path == "-":
            raise UsageError("--record-to -: stdout belongs to the job")
        if self._path:
            check_writable(self._path)
        if launch.recorded_in:
            check_own(launch.recorded_in)

    def begin(self, acquired: Acquired[Keeper]) -> None:
        """Begin to measure: the job has its GPUs, and is about to start."""
        try:
            if self._recording:
                self._recording.begin(acquired)
        except Exception as problem:  # noqa: BLE001  whatever it is, the job starts
            self._warn(f"nothing can be measured: {problem!r}")
            self._recording = None

    def end(self, status: int) -> None:
        """End measuring: the job has just ended.

        Its GPUs are still leased, so nothing is written yet.
        """
        try:
            self._run = self._recording.end(status) if self._recording else None
        except Exception as problem:  # noqa: BLE001  whatever it is, the GPUs are freed
            self._warn(f"what was measured is lost: {problem!r}")

    def write(self) -> None:
        """Write what was measured, now that the GPUs are free."""
        if self._run is None:
            return
        try:
            if self._path:
                write_run(self._path, self._run)
            if self._launch.recorded_in:
                for line in learn(self._launch.recorded_in, self._run):
                    self._warn(line)
        except GpulaunchError as problem:
            self._warn(f"what was measured is lost: {problem.message}")
        # whatever it is, the job's own end is what counts
        except Exception as problem:  # noqa: BLE001
            self._warn(f"what was measured is lost: {problem!r}")
