"""A lease without a job: its holder is the process that takes it."""

from gpulaunch.process.system import this_process


class ThisProcess:
    """The holder of a lease that this process itself holds."""

    def __init__(self) -> None:
        self.process = this_process()

    def dismiss(self) -> None:
        """Do nothing: no process was started."""
