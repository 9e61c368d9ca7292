"""nvidia-cuda-mps-control: a front end that reads commands on stdin; -d starts the daemon.

The front end is started many times a test, so it imports little: of socket and signal only what is
beneath them.
"""

import _signal as signal
import _socket as socket
import os
import select
import struct
import sys
from contextlib import suppress

PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_NO_DAEMON = "Cannot find MPS control daemon process"
_BROKEN = "Cannot send command to MPS control daemon process"


def connect() -> socket.socket | None:
    """Connect to the daemon, as a user who may quit it where that matters."""
    for name in ("control_privileged", "control"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with suppress(OSError):
            connection.connect(os.path.join(os.environ[PIPE], name))
            return connection
        connection.close()
    return None


def front_end() -> int:
    """Send what comes on stdin, line by line; print the answers. Returns the exit status."""
    connection = connect()
    if not connection:
        print(_NO_DAEMON, file=sys.stderr)
        return 1
    try:
        if not connection.recv(16):  # it is quitting
            raise ConnectionResetError
        connection.send(b"ui")
        for line in sys.stdin:
            connection.send(line.encode())
            answer = _answer(connection)
            if not answer.startswith("="):  # its exit status, or nothing
                return int(answer or "1")
            print(answer[1:], end="", flush=True)
    except OSError:
        print(_BROKEN, file=sys.stderr)
        return 1
    return 0


def _answer(connection: socket.socket) -> str:
    """Return what the daemon answers; after a quit its exit status; nothing if it just dies."""
    try:
        answer = connection.recv(1 << 20).decode()
    except OSError:
        return ""
    if answer.startswith("!"):
        _wait_until_gone(connection)
        return answer[1:]
    return answer


def _wait_until_gone(connection: socket.socket) -> None:
    pid, _, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    connection.close()
    with suppress(OSError):
        process = os.pidfd_open(pid)
        select.select([process], [], [])


def start_in_background() -> int:
    """Fork the daemon, and wait until it listens or has given up. Returns the exit status."""
    import traceback

    from common import note
    from daemon import Daemon, DaemonError

    problem, told = os.pipe()
    if os.fork():
        os.close(told)
        with open(problem) as file:
            text = file.read()
        print(text[1:], end="")
        return int(text[:1] or "1")
    os.setsid()
    os.close(problem)

    def listening() -> None:
        os.write(told, b"0")
        os.close(told)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)

    try:
        status = Daemon().run(listening)
    except DaemonError as error:
        os.write(told, f"1{error}".encode())
        status = 1
    except BaseException:  # noqa: BLE001  nobody would see it
        note("crashed", pid=os.getpid(), text=traceback.format_exc())
        status = 1
    os._exit(status)


def main() -> int:
    """Do what the options say. Returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not os.environ.get(PIPE):
        print(
            f"a stand-in has no default for {PIPE}: nothing outside of a test is touched",
            file=sys.stderr,
        )
        return 2
    if "-d" in sys.argv[1:]:
        return start_in_background()
    return front_end()


sys.exit(main())
