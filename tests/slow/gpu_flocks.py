"""Flocks by which two owners of a GPU meet, apart from all that gpulaunch writes.

Whoever believes that it has GPU i has an exclusive flock on the file gpu-i of a directory that
gpulaunch knows nothing of. Who finds that taken writes a line into the file `overlaps` there.
"""

import fcntl
import os
import select
from contextlib import suppress

PF_EXITING = 0x4  # include/linux/sched.h


class Flocks:
    """The flocks of one owner.

    Attributes:
        directory: of their files.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._fds: dict[int, int] = {}
        self._held: list[int] = []

    def take(self, gpus: tuple[int, ...]) -> None:
        """Take the flocks of GPUs that one has a lease of; note each that somebody else has."""
        for gpu in gpus:
            if self._take(gpu):
                self._held.append(gpu)
            else:
                with open(f"{self.directory}/overlaps", "a") as file:
                    file.write(f"GPU {gpu}: pid {os.getpid()}\n")

    def let_go(self) -> None:
        """Let go of all flocks, before the lease of the GPUs is released."""
        for gpu in self._held:
            fd = self._fds[gpu]
            count = int.from_bytes(os.pread(fd, 8, 0), "little") + 1
            os.pwrite(fd, count.to_bytes(8, "little"), 0)
            fcntl.flock(fd, fcntl.LOCK_UN)
        self._held = []

    def _take(self, gpu: int) -> bool:
        """Take one flock; return False if somebody else had it during the lease.

        The kernel closes the files of a killed process one by one, in any order, so the flock of
        one that is dying may last a little longer than its lease: that is waited for. An owner that
        let go of a flock on its own, which it counts in the file, did so before its release.
        """
        if gpu not in self._fds:
            path = f"{self.directory}/gpu-{gpu}"
            self._fds[gpu] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fd = self._fds[gpu]
        count = os.pread(fd, 8, 0)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not all(_is_over(pid) for pid in _holders(fd)):
                    return False
            else:
                return os.pread(fd, 8, 0) == count


def _holders(fd: int) -> list[int]:
    """Return the pid that has the flock of a file, by /proc/locks; none if it is free by now.

    Lines there end in PID MAJOR:MINOR:INODE START END; some file systems have other numbers there
    than in stat, but for the inode.
    """
    inode = str(os.fstat(fd).st_ino)
    with open("/proc/locks") as file:
        lines = [line.split() for line in file]
    return [
        int(fields[-4])
        for fields in lines
        if fields[1] == "FLOCK" and fields[-3].rpartition(":")[2] == inode
    ]


def _is_over(pid: int) -> bool:
    """Return False if a process lives; wait for the end of one that is dying, and return True."""
    with suppress(ProcessLookupError, FileNotFoundError):
        process = os.pidfd_open(pid)
        try:
            with open(f"/proc/{pid}/stat") as file:
                flags = int(file.read().rpartition(")")[2].split()[6])
            if not flags & PF_EXITING:
                return False
            poll = select.poll()
            poll.register(process, select.POLLIN)
            poll.poll()
        finally:
            os.close(process)
    return True
