"""`--notify COMMAND`: a command of the user's at each event of a launch."""

import os
import time

from gpulaunch.launch.acquire import Acquired
from gpulaunch.launch.assess import granted_gpus
from gpulaunch.launch.keepers import Keeper
from gpulaunch.launch.launch import Launch
from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.process.background import run_beside
from gpulaunch.process.execute import clean_environment

EVENT_VARIABLE = "GPULAUNCH_EVENT"
"""Variable with the event; those with more about it begin so, too."""

_LIMIT_S = 60


def notifier_of(launch: Launch, command: str) -> "Notifier | None":
    """Return what tells of a launch; None in a launch that such a command has started itself.

    Args:
        launch: the launch.
        command: text for sh.
    """
    return None if EVENT_VARIABLE in os.environ else Notifier(launch, command)


def notify(command: str, event: str, **about: str | None) -> None:
    """Run a user's command for an event, beside this process and without waiting for it.

    Args:
        command: text for sh.
        event: start, idle, end, failure or another word.
        **about: what else it is told, as variables GPULAUNCH_EVENT_*; None is left out.
    """
    variables = clean_environment()
    variables.pop(LEASE_VARIABLE.encode(), None)  # it is no part of a job
    told = {f"{EVENT_VARIABLE}_{name.upper()}": text for name, text in about.items()}
    for name, text in {EVENT_VARIABLE: event, **told}.items():
        if text is not None:
            variables[os.fsencode(name)] = os.fsencode(text)
    run_beside(command, variables, _LIMIT_S)


class Notifier:
    """What tells of one launch.

    Args:
        launch: the launch.
        command: text for sh.
    """

    def __init__(self, launch: Launch, command: str) -> None:
        self._launch, self._command = launch, command
        self._about: dict[str, str | None] = {"name": launch.name}
        self._started_s: float | None = None

    def started(self, acquired: Acquired[Keeper]) -> None:
        """Tell that the job has its GPUs and is about to start."""
        self._started_s = time.monotonic()
        self._about["lease"] = acquired.lease.id
        gpus = granted_gpus(self._launch, acquired.grant)
        self._about["gpus"] = ",".join(gpu.name for gpu in gpus)
        notify(self._command, "start", **self._about)

    def idle(self, seconds: float) -> None:
        """Tell that the GPUs have done nothing for a while; called from another thread."""
        # What the job orphans at this very moment goes to init instead of this process. It is
        # looked after all the same: it has the lease's record open.
        notify(self._command, "idle", **self._about, idle_s=f"{seconds:.0f}")

    def ended(self, exit_status: int, *, queued: bool) -> None:
        """Tell that the launch has ended, and that its GPUs are free.

        Args:
            exit_status: its exit status.
            queued: whether it was detached or has waited. A launch that is refused at once needs
                nobody to tell of it.
        """
        if self._started_s is None and not queued:
            return
        seconds = None if self._started_s is None else time.monotonic() - self._started_s
        notify(
            self._command,
            "failure" if exit_status else "end",
            **self._about,
            exit_status=str(exit_status),
            duration_s=None if seconds is None else f"{seconds:.0f}",
        )
