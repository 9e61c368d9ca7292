"""mps_client [--deaf|--tidy] [--stays]: a CUDA program as far as MPS is concerned.

At its start it connects to the control daemon of CUDA_MPS_PIPE_DIRECTORY as libcuda does in cuInit,
which starts a server if there is none and waits while there is one of another user; without a
daemon it goes on without MPS and says nothing to the user. Then it prints a line, "attached PID" or
"without PID", and stays until a line comes on stdin, or USR1, or it is terminated by MPS: then it
ends with status 1, as a program does that looks at its errors.

--deaf   ignores INT and TERM
--tidy   detaches and ends in order on TERM
--stays  does not end when MPS has terminated it: only the others end it
"""

import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress

from common import PIPE, cuda_variables, note

_CUDA_ERROR = 1


def connect() -> socket.socket | None:
    """Attach to MPS, if there is a daemon."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(os.path.join(os.environ[PIPE], "control"))
        if not connection.recv(16):  # it is quitting
            raise ConnectionResetError
        connection.send(b"client")
        said = {"environment": cuda_variables(), "command": ["mps_client", *sys.argv[1:]]}
        connection.send(json.dumps(said).encode())
        answer = connection.recv(4096).decode()
    except (KeyError, OSError):
        connection.close()
        note("without", pid=os.getpid(), environment=cuda_variables())
        return None
    if answer != "attached":
        print(answer or "CUDA_ERROR_MPS_CONNECTION_FAILED", file=sys.stderr)
        sys.exit(_CUDA_ERROR)
    return connection


def told_to_end(poll: select.poll, connection: socket.socket | None) -> bool:
    """Wait for something; returns whether that is a reason to end in order."""
    for source, _ in poll.poll():
        if connection and source == connection.fileno():
            if connection.recv(
                4096
            ):  # nothing comes when the daemon dies, and nothing follows from that
                print("CUDA_ERROR_MPS_CLIENT_TERMINATED", file=sys.stderr, flush=True)
                if "--stays" not in sys.argv:
                    sys.exit(_CUDA_ERROR)
        elif source != 0 or os.read(0, 4096):
            return True
        poll.unregister(source)
    return False


def main() -> None:
    """Be a client, or run without MPS."""
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "--deaf" in sys.argv:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--tidy" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: None)
    connection = connect()
    print("attached" if connection else "without", os.getpid(), flush=True)
    poll = select.poll()
    for source in (0, woken, *([connection.fileno()] if connection else [])):
        poll.register(source, select.POLLIN)
    while not told_to_end(poll, connection):
        pass
    if connection:
        with suppress(OSError):
            connection.send(b"detach")


main()
