"""GPUs that a program holds."""

import json
import os
import sys
from collections.abc import MutableMapping

from gpulaunch.errors import FailedError
from gpulaunch.launch.launch import Keeper, visible_gpus
from gpulaunch.launch.surroundings import inherited_variables, open_table
from gpulaunch.leases.environment import job_environment
from gpulaunch.leases.lease import Share
from gpulaunch.leases.record_file import wait_until_unlocked
from gpulaunch.process.apart import run_apart
from gpulaunch.process.ending import forget_environment
from gpulaunch.process.libc import out_of_the_way

_applied: "dict[int, HeldLease]" = {}
"""The lease that a process has applied, by its pid: a forked child is inside its parent's."""


def environment_around() -> dict[str, str]:
    """Return this process's environment as it was before a lease that it holds was applied."""
    # Another thread may remove a variable meanwhile, at which dict(os.environ) raises.
    found = {name: os.environ.get(name) for name in list(os.environ)}
    around = {name: value for name, value in found.items() if value is not None}
    if lease := _applied.get(os.getpid()):
        lease.restore(around)
    return around


_DONE = b"."
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PROGRAM = (
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; "
    "from gpulaunch.api import held_lease; held_lease.leave_when_told(sys.argv[2])"
)


class GroupCompanion:
    """A process that leaves the share group if this program is killed.

    It is started anew, since a fork of a program with threads is not safe.
    """

    def __init__(self, share: Share, record_fd: int) -> None:
        import subprocess  # late: few programs share

        # A new open file description, which does not hold the lock of the record.
        record_reader = out_of_the_way(os.open(f"/proc/self/fd/{record_fd}", os.O_RDONLY))
        try:
            self._process = subprocess.Popen(  # noqa: S603
                [
                    *(sys.executable, "-c", _PROGRAM, _PACKAGE),
                    json.dumps([record_reader, share.group, share.pipe_directory]),
                ],
                pass_fds=(record_reader,),
                # Closed with this object, also if the lease is thrown away without a release.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(record_reader)

    def dismiss(self) -> None:
        """End the companion; call it when the group has been left."""
        self._process.communicate(_DONE)


def leave_when_told(argument: str) -> None:
    """Wait, and leave the group of GroupCompanion unless the program says that it has done so."""
    from gpulaunch.sharing.membership import ShareGroup  # late: few programs share

    forget_environment()
    record_reader, uuids, directory = json.loads(argument)
    if os.read(0, 1) != _DONE:
        wait_until_unlocked(record_reader)
        ShareGroup(open_table(private=True, warn=lambda _: None), uuids, directory).leave()


class HeldLease:
    """GPUs that this process holds until it releases them or ends, however it ends.

    Attributes:
        gpus: indices of the GPUs, in rank order.
        uuids: UUIDs of the GPUs, in rank order.
        env: environment variables that tell a job its GPUs.
        sm_percentage: its share of their SMs, 1-100, if it shares them; None if they are its own.
    """

    def __init__(self, keeper: Keeper) -> None:
        launch, lease, gpus = keeper.launch, keeper.lease, keeper.grant.gpus
        self.id = lease.id
        self.gpus = tuple(gpu.index for gpu in gpus)
        self.uuids = lease.uuids
        self.env = job_environment(
            visible_gpus(launch, keeper.grant),
            driver=launch.machine.topology.driver,
            by_uuid=launch.by_uuid,
            count=len(gpus),
            lease_id=self.id,
            share=lease.share,
        )
        self.reason = keeper.grant.reason
        self.sm_percentage = lease.share.sm_percentage if lease.share else None
        self._keeper: Keeper | None = keeper
        self._owner = os.getpid()
        self._replaced: dict[str, str | None] = {}
        self._companion: GroupCompanion | None = None
        if lease.share and lease.share.pipe_directory:
            self._companion = GroupCompanion(lease.share, keeper.record.fd)

    def apply(self) -> None:
        """Set the variables of `env` in this process's environment until the release.

        CUDA reads them when it starts: call this before anything that starts it, such as torch.cuda
        or jax. All threads have one environment, so a process applies one lease at a time, and
        holds it until release(), even if nothing refers to it. A second call does no harm.

        Raises:
            FailedError: the lease has been released, or another one of this process is applied.
        """
        self.fileno()  # raises if it has been released
        if self._owner == os.getpid():
            # Another thread may be about to apply its own lease: look and enter in one step.
            other = _applied.setdefault(self._owner, self)
            if other is not self:
                raise FailedError(
                    f"{other!r} is applied in this process already, so {self!r} cannot be",
                    "call its release() first, or give environment() to a subprocess",
                )
        variables: dict[str, str | None] = {**inherited_variables(), **self.env}
        # Note all before setting any: another thread that allocates meanwhile undoes them.
        self._replaced = {name: os.environ.get(name) for name in variables} | self._replaced
        for name, value in variables.items():
            _set_variable(os.environ, name, value)

    def environment(self) -> dict[str, str]:
        """Return the environment for a subprocess on these GPUs: all of it, for env=.

        It is this process's, with the variables of `env` in place of those of a lease that is
        applied here.

        Raises:
            FailedError: the lease has been released.
        """
        self.fileno()  # likewise
        around = environment_around()
        without = inherited_variables(around)
        return {name: value for name, value in around.items() if name not in without} | self.env

    def release(self) -> None:
        """Free the GPUs; a second call does nothing.

        In a forked child it only closes the child's copy of the lease, which stays the parent's. An
        exception that interrupts it, such as KeyboardInterrupt, does not stop the release.
        """
        if self._keeper is None:
            return
        self.restore(os.environ)
        if _applied.get(os.getpid()) is self:
            del _applied[os.getpid()]
        run_apart(self._release)

    def restore(self, environment: MutableMapping[str, str]) -> None:
        """Put what apply() has replaced back into an environment, unless it has changed since."""
        for name, value in self._replaced.items():
            if environment.get(name) == self.env.get(name):
                _set_variable(environment, name, value)

    def _release(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        if os.getpid() == self._owner:
            keeper.release()
            if self._companion:
                from gpulaunch.sharing.membership import leave_group  # late: few programs share

                leave_group(keeper.table, keeper.lease)
                self._companion.dismiss()
        else:
            keeper.record.close()

    def fileno(self) -> int:
        """Return the lease's descriptor; a child process that inherits it holds the GPUs, too.

        With subprocess, pass it in pass_fds.

        Raises:
            FailedError: the lease has been released.
        """
        if self._keeper is None:
            raise FailedError(f"lease {self.id} has been released")
        return self._keeper.record.fd

    def __enter__(self) -> "HeldLease":
        """Return the lease itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free the GPUs, also after an exception."""
        self.release()

    def __repr__(self) -> str:
        """Return a text such as <lease c3d9528f5152: GPUs 0,3>."""
        return f"<lease {self.id}: GPUs {','.join(map(str, self.gpus))}>"


def _set_variable(environment: MutableMapping[str, str], name: str, value: str | None) -> None:
    if value is None:
        environment.pop(name, None)
    else:
        environment[name] = value
