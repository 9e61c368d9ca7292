"""The socket of a dtach, which holds the terminal of a detached job."""

import os
import select
import socket
from contextlib import suppress

_LONGEST_S = 5.0


def connect(path: str) -> socket.socket | None:
    """Return a connection to a terminal, which is hung up when that closes; None if it is closed.

    A path may be longer than the kernel takes for a socket, so it is reached by its directory.
    """
    end = socket.socket(socket.AF_UNIX)
    directory = -1
    try:
        directory = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
        end.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    except OSError:
        end.close()
        return None
    finally:
        if directory >= 0:
            os.close(directory)
    return end


def wait_until_closed(path: str) -> None:
    """Sleep until a terminal whose job has ended is closed, for a few seconds at most."""
    end = connect(path)
    if end is None:
        return
    with end, suppress(OSError):
        poll = select.poll()
        poll.register(end, 0)  # for the end alone
        poll.poll(_LONGEST_S * 1000)
