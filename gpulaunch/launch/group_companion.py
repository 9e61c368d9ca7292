"""A companion that leaves the share group of a Python program that is killed.

It is started by exec, since a program with threads cannot fork safely.
"""

import json
import os
import sys
from contextlib import suppress
from io import FileIO

from gpulaunch.launch.open_table import open_table
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import wait_until_unlocked
from gpulaunch.process.companion import forget_environment
from gpulaunch.process.libc import out_of_the_way
from gpulaunch.sharing.share_group import ShareGroup

_DONE = b"."
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PROGRAM = (
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; "
    "from gpulaunch.launch import group_companion; group_companion.main(sys.argv[2])"
)


class GroupCompanion:
    """The companion, seen from the program; it waits for a word from it, or for its end.

    Args:
        lease: lease of this process, with a pipe directory.
        record_fd: descriptor of the lease's record.
    """

    def __init__(self, lease: Lease, record_fd: int) -> None:
        import subprocess  # late: few programs share

        share = lease.share
        assert share is not None  # noqa: S101  for the type checker
        read_end, write_end = (out_of_the_way(fd) for fd in os.pipe())
        # Closed with this object, also if the lease is thrown away without a release.
        self._word = FileIO(write_end, "w")
        # A new open file description, which does not hold the lock of the record.
        record_reader = out_of_the_way(os.open(f"/proc/self/fd/{record_fd}", os.O_RDONLY))
        try:
            self._process = subprocess.Popen(  # noqa: S603
                [
                    *(sys.executable, "-c", _PROGRAM, _PACKAGE),
                    json.dumps([read_end, record_reader, share.group, share.pipe_directory]),
                ],
                pass_fds=(read_end, record_reader),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(read_end)
            os.close(record_reader)

    def dismiss(self) -> None:
        """End the companion; call it when the group has been left."""
        with suppress(OSError):
            self._word.write(_DONE)
        self._word.close()
        self._process.wait()


def main(argument: str) -> None:
    """Wait, and leave the group unless the program says that it has done so.

    Args:
        argument: JSON that GroupCompanion wrote.
    """
    forget_environment()
    read_end, record_reader, uuids, directory = json.loads(argument)
    if os.read(read_end, 1) != _DONE:
        wait_until_unlocked(record_reader)
        ShareGroup(open_table(described=True, warn=lambda _: None), uuids, directory).leave()
