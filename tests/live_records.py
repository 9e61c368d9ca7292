"""Live records of several users, held by the process that runs this."""

import fcntl
import os
import resource
import signal
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpulaunch.leases.lease import Lease
from gpulaunch.leases.record_file import Draft, record_name
from gpulaunch.leases.ticket import Ticket


class LiveRecords:
    """Records in a state directory that are alive until they are closed.

    Args:
        directory: the state directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._fds = directory, []
        self._names: list[str] = []
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def add(self, *records: Lease | Ticket) -> None:
        """Publish records as gpulaunch does, each with its user as the owner of its file."""
        directory_fd = os.open(self._directory, os.O_RDONLY)
        for record in records:
            draft = Draft(str(self._directory))
            draft.publish(record, directory_fd)
            self._fds.append(os.dup(draft.fd))
            self._names.append(record_name(record))
            draft.close()
            if record.user_id != os.geteuid():
                os.chown(record_name(record), record.user_id, -1, dir_fd=directory_fd)
        os.close(directory_fd)

    def write(self, names: Iterable[str], content: bytes, user_id: int | None = None) -> None:
        """Write files by hand, with the locks of live records, whatever is in them."""
        for name in names:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            fd = os.open(self._directory / name, flags, 0o644)
            self._fds.append(fd)
            self._names.append(name)
            os.write(fd, content)
            lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
            if user_id is not None:
                os.fchown(fd, user_id, -1)

    def release(self) -> None:
        """Let all of them die; their files stay."""
        while self._fds:
            os.close(self._fds.pop())

    def close(self) -> None:
        """Let all of them die, and remove their files."""
        self.release()
        for name in self._names:
            (self._directory / name).unlink(missing_ok=True)

    def __enter__(self) -> "LiveRecords":
        """Hold them for the length of a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let all of them die at the end of the block."""
        self.close()


@contextmanager
def held_elsewhere(directory: Path, *records: Lease | Ticket) -> Iterator[int]:
    """Have another process hold records for the length of a block; yield its pid."""
    ready, tell = os.pipe()
    over, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        LiveRecords(directory).add(*records)
        os.write(tell, b".")
        os.read(over, 1)
        os._exit(0)
    os.close(over)
    os.close(tell)
    try:
        assert os.read(ready, 1) == b"."
        yield pid
    finally:
        os.close(end)
        os.close(ready)
        os.waitpid(pid, 0)
