"""The next change of the allocation table: a record that comes, goes, or is held no longer."""

from contextlib import suppress

from gpulaunch.process import libc


class Changes:
    """A descriptor that polls as readable when the table may have changed.

    Args:
        directory: directory of the records.

    Attributes:
        fds: the descriptor; empty if there are no events, so that one has to look now and then.
    """

    def __init__(self, directory: str) -> None:
        self.fds: list[int] = []
        # Whoever dies with a record closes it: an event of the directory, too.
        events = libc.IN_CREATE | libc.IN_DELETE | libc.IN_CLOSE_WRITE
        with suppress(OSError):
            self.fds = [libc.inotify()]
            libc.watch_file(self.fds[0], directory, events)

    def forget(self) -> None:
        """Take the events that have come."""
        for fd in self.fds:
            libc.file_events(fd)
