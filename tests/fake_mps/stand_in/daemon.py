"""The control daemon: it says what driver 550's says, word for word, as far as seen without a GPU.

What it is told to do, and what happens, is beside this file's folder: told.json, which a test
changes, and events.jsonl. It knows the commands that gpulaunch sends, and one user, whose daemons
are that user's alone. Taken from the real program, run with a server that never becomes ready:
every sentence below, when which is said, the names of the sockets, and that a
daemon that is to quit waits for its server and takes no connection meanwhile. test_fake_mps.py
compares.

From the documentation or assumed, since no real client was at hand: terminate_client of a process
that is no client (1), and everything that a client itself meets. Different on purpose: the sockets
speak another protocol; the log is written at once, and not by way of a FIFO; a second daemon is
not refused, and no daemon starts a server for a client: gpulaunch does neither.
"""

import json
import os
import re
import selectors
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_LOG = "CUDA_MPS_LOG_DIRECTORY"


def told() -> dict:
    """Return what the test wants now; see FakeMps.tell."""
    with open(os.path.join(_FOLDER, "told.json")) as file:
        return json.load(file)


def note(event: str, **what: object) -> None:
    """Write down what happens, in one write."""
    line = {"event": event, "pipe": os.environ.get(_PIPE), **what}
    descriptor = os.open(os.path.join(_FOLDER, "events.jsonl"), os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, f"{json.dumps(line)}\n".encode())
    os.close(descriptor)


def cuda_variables(lines: Iterable[str]) -> dict[str, str]:
    """Return the part of an environment that CUDA looks at."""
    return dict(line.split("=", 1) for line in lines if line.startswith("CUDA_"))


@dataclass
class Server:
    """A server process.

    Attributes:
        looks: how often get_server_status has been asked.
    """

    pid: int
    process: int
    looks: int = 0


@dataclass(eq=False)
class Peer:
    """Who is connected: a front end, or a client of MPS.

    Attributes:
        pid, uid: of the process, in this pid namespace.
        kind: "ui" or "client"; empty before it says.
        server: pid of the server that a client is attached to.
    """

    socket: socket.socket
    pid: int
    uid: int
    kind: str = ""
    server: int | None = None
    detached: bool = False


class Daemon:
    """The control daemon of this process's CUDA_MPS_PIPE_DIRECTORY."""

    def __init__(self) -> None:
        self._directory = os.environ[_PIPE]
        self._selector = selectors.DefaultSelector()
        self._peers: list[Peer] = []
        self._listeners: list[socket.socket] = []
        self._server: Server | None = None
        self._quitter: Peer | None = None
        self._quitting = False
        self._sent_away = 0

    # -------------------------------------------------------------------------------- start and end

    def run(self, listening: Callable[[], None]) -> None:
        """Start, serve and end.

        Args:
            listening: called when it listens.
        """
        os.umask(0)
        self._open_log()
        self._log(f"Starting control daemon using socket {self._directory}/control")
        self._listen()
        own = [f"{name}={text}" for name, text in os.environ.items()]
        note("started", pid=os.getpid(), uid=os.geteuid(), environment=cuda_variables(own))
        listening()
        while self._server or not self._quitting:
            self._turn()
        note("ended", pid=os.getpid())
        if self._quitter:
            with suppress(OSError):
                self._quitter.socket.send(b"!")

    def _listen(self) -> None:
        for name in ("control_privileged", "control"):
            path = os.path.join(self._directory, name)
            with suppress(FileNotFoundError):
                os.unlink(path)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(path)
            listener.listen()
            self._listeners.append(listener)
            self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def _turn(self) -> None:
        """Serve once who has something to say; the dead first."""
        ready = self._selector.select()
        for key, _ in sorted(
            ready, key=lambda pair: isinstance(pair[0].data, Peer) and pair[0].data.kind != "client"
        ):
            if isinstance(key.data, Peer):
                self._hear(key.data)
            else:
                key.data(key.fileobj)
        if self._quitting and self._server and self._is_ready() and not self._clients():
            self._end_server()

    # -------------------------------------------------------------------------------------- the log

    def _open_log(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        directory = os.environ.get(_LOG, "")
        self._log_file = os.open(os.path.join(directory, "control.log"), flags, 0o644)

    def _log(self, text: str) -> None:
        os.write(self._log_file, f"[{time.ctime()} Control {os.getpid()}] {text}\n".encode())

    # --------------------------------------------------------------------------------- who is there

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        if self._quitting:  # the real one leaves them in the queue; the answer is the same
            connection.close()
            return
        if self._sent_away < told()["busy"]:  # the real one does so while it hears another
            self._sent_away += 1
            connection.close()
            return
        pid, uid, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        connection.send(b"hello")
        peer = Peer(connection, pid, uid)
        self._peers.append(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _hear(self, peer: Peer) -> None:
        try:
            text = peer.socket.recv(1 << 16).decode()
        except OSError:
            text = ""
        if not text:
            self._leave(peer)
        elif not peer.kind:
            peer.kind = text
        elif peer.kind == "ui":
            self._command(peer, text)
        elif text == "detach":
            peer.detached = True
        else:
            self._attach(peer, cuda_variables(text.split("\0")))

    def _leave(self, peer: Peer) -> None:
        self._selector.unregister(peer.socket)
        peer.socket.close()
        self._peers.remove(peer)
        if peer is self._quitter:
            self._quitter = None
        if peer.kind != "client":
            return
        died = bool(peer.server) and not peer.detached
        note("died" if died else "left", pid=peer.pid, server=peer.server)

    def _clients(self) -> list[Peer]:
        return [
            peer
            for peer in self._peers
            if peer.server and self._server and peer.server == self._server.pid
        ]

    def _attach(self, peer: Peer, environment: dict[str, str]) -> None:
        """Let a client in if there is a server that is ready."""
        note("asked", pid=peer.pid, uid=peer.uid, environment=environment)
        answer = "CUDA_ERROR_MPS_CONNECTION_FAILED"
        if self._server and self._is_ready() and not self._quitting:
            peer.server, answer = self._server.pid, "attached"
            note("attached", pid=peer.pid, server=peer.server, environment=environment)
        with suppress(OSError):
            peer.socket.send(answer.encode())

    # ----------------------------------------------------------------------------------- the server

    def _state(self) -> str:
        """Return the server's state now, whether or not anything asks for it."""
        wish = told()
        return "INITIALIZING" if self._server.looks < wish["looks"] else wish["status"]

    def _is_ready(self) -> bool:
        return self._state() == "ACTIVE"

    def _start_server(self, uid: int) -> None:
        program = None if told()["server_fails"] else shutil.which("nvidia-cuda-mps-server")
        ready, told_by = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._become_server(program, told_by)
        os.close(told_by)
        process = os.pidfd_open(pid)
        self._log(f"Starting new server {pid} for user {uid}")
        server = self._server = Server(pid, process)
        self._selector.register(process, selectors.EVENT_READ, lambda _: self._server_ended(server))
        with open(ready, "rb") as pipe:
            pipe.read()  # until it runs, or has ended
        if program is None:
            self._server_ended(server)
        else:
            note("server", pid=pid, uid=uid)

    def _become_server(self, program: str | None, ready: int) -> None:
        try:
            for listener in self._listeners:
                listener.close()
            os.set_inheritable(ready, True)
            os.environ["FAKE_MPS_READY"] = str(ready)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execv(program or "", ["nvidia-cuda-mps-server"])
        finally:
            os._exit(1)

    def _server_ended(self, server: Server) -> None:
        if self._server is not server:
            return
        _, status = os.waitpid(server.pid, 0)
        self._log(f"Server {server.pid} exited with status {os.WEXITSTATUS(status)}")
        self._selector.unregister(server.process)
        os.close(server.process)
        self._server = None

    def _end_server(self) -> None:
        os.kill(self._server.pid, signal.SIGKILL)
        self._server_ended(self._server)

    # ------------------------------------------------------------------------------------- commands

    def _command(self, peer: Peer, line: str) -> None:
        line = line.rstrip("\n")
        words = line.split()
        name = words[0] if words else ""
        self._log(f"Cmd:{line}")
        wish = told()
        note("command", command=line, pid=peer.pid, uid=peer.uid)
        if name in wish["hangs"]:
            return
        if name in wish["dies"]:
            os.kill(os.getpid(), signal.SIGKILL)
        handler = getattr(self, f"_do_{name}", None) if re.fullmatch(r"[a-z_]+", name) else None
        answer = handler(peer, words[1:]) if handler else [f'Unknown command "{name}"']
        answer = wish["answers"].get(name, answer)
        if answer is not None:
            with suppress(OSError):
                peer.socket.send(("=" + "".join(f"{text}\n" for text in answer)).encode())

    def _found(self, words: list[str]) -> tuple[Server | None, list[str]]:
        """Return the server that a command's first word names, or the answer if there is none."""
        if self._server and str(self._server.pid) == words[0]:
            return self._server, []
        return None, [f"Server {words[0]} not found"]

    def _do_get_server_list(self, _: Peer, __: list[str]) -> list[str]:
        return [str(self._server.pid)] if self._server else []

    def _do_get_server_status(self, _: Peer, words: list[str]) -> list[str]:
        server, problem = self._found(words)
        if not server:
            return problem
        state = self._state()
        server.looks += 1
        return [state]

    def _do_start_server(self, _: Peer, words: list[str]) -> list[str]:
        if not self._server:
            self._start_server(int(words[1]))
        return []

    def _do_get_client_list(self, _: Peer, words: list[str]) -> list[str]:
        server, problem = self._found(words)
        return [str(peer.pid) for peer in self._clients()] if server else problem

    def _do_terminate_client(self, _: Peer, words: list[str]) -> list[str]:
        server, problem = self._found(words)
        if not server or self._state() == "INITIALIZING":
            return [*problem, f"Server {words[0]} not found!", "1"]
        client = next((one for one in self._clients() if str(one.pid) == words[1]), None)
        if not client or "terminate_client" in told()["refuses"]:
            return ["1"]
        note("terminated", pid=client.pid, server=server.pid)
        client.server, client.detached = None, True
        with suppress(OSError):
            client.socket.send(b"terminated")
        return ["0"]

    def _do_get_default_active_thread_percentage(self, _: Peer, __: list[str]) -> list[str]:
        return ["100.0"]

    def _do_quit(self, peer: Peer, _: list[str]) -> None:
        self._quitting, self._quitter = True, peer


def start_in_background() -> int:
    """Fork the daemon, and wait until it listens or has given up. Returns the exit status."""
    ready, told_by = os.pipe()
    if os.fork():
        os.close(told_by)
        with open(ready, "rb") as pipe:
            return 0 if pipe.read() else 1
    os.setsid()
    os.close(ready)

    def listening() -> None:
        os.write(told_by, b"0")
        os.close(told_by)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)

    try:
        Daemon().run(listening)
    except BaseException:  # noqa: BLE001  nobody would see it
        note("crashed", pid=os.getpid(), text=traceback.format_exc())
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(start_in_background())
