"""`--record` and `--record-to`: measure an ordinary launch."""

import json
import os
from collections.abc import Callable, Mapping

from gpulaunch.errors import GpulaunchError, UsageError
from gpulaunch.files.write import check_writable, write_text
from gpulaunch.launch.acquire import Acquired
from gpulaunch.launch.given import Given
from gpulaunch.launch.keepers import Keeper
from gpulaunch.launch.launch import Launch
from gpulaunch.measure.recording import Recording
from gpulaunch.measure.run import Run, run_document
from gpulaunch.measure.update_profile import check_own, learn


def recorder_of(
    given: Mapping[str, Given], launch: Launch, warn: Callable[[str], None]
) -> "Recorder | None":
    """Return the recorder of a launch; None if it is not to be measured.

    It is also None if only a setting for all launches asks for it and the launch cannot be
    measured.

    Args:
        given: the launch's options by name.
        launch: the launch.
        warn: called with the text of a warning.

    Raises:
        UsageError: the launch cannot be measured, though the command line asks for it.
        FailedError: the result could not be written, though the command line asks for it.
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
    """The measurement of one launch; failures are reported, and the job goes on.

    Args:
        given: the launch's options by name.
        launch: the launch.
        warn: called with the text of a warning.

    Raises:
        UsageError: the launch cannot be measured.
        FailedError: the result could not be written.
    """

    def __init__(
        self, given: Mapping[str, Given], launch: Launch, warn: Callable[[str], None]
    ) -> None:
        self._recording: Recording | None = Recording(launch)
        self._launch, self._warn = launch, warn
        self._run: Run | None = None
        self._path: str | None = None
        if "record_to" in given:
            if given["record_to"].text == "-":
                raise UsageError("--record-to -: stdout belongs to the job")
            self._path = os.path.abspath(given["record_to"].text)  # outlives a change of directory
            check_writable(self._path)
        if launch.recorded_in:
            check_own(launch.recorded_in)

    def begin(self, acquired: Acquired[Keeper]) -> None:
        """Begin to measure, as the job has its GPUs and is about to start."""
        try:
            if self._recording:
                self._recording.begin(acquired)
        except Exception as problem:  # noqa: BLE001  whatever fails here, the job starts
            self._warn(f"nothing can be measured: {problem!r}")
            self._recording = None

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
            if self._path:
                document = run_document(self._run)
                text = json.dumps(document, indent=2, allow_nan=False)
                write_text(self._path, f"{text}\n")
            if self._launch.recorded_in:
                for line in learn(self._launch.recorded_in, self._run):
                    self._warn(line)
        except GpulaunchError as problem:
            self._warn(f"what was measured is lost: {problem.message}")
        # Whatever fails here, the job's own exit status counts.
        except Exception as problem:  # noqa: BLE001
            self._warn(f"what was measured is lost: {problem!r}")
