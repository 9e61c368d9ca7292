"""A door before Docker's engine: a private socket at which clients talk to it through this process.

Every byte passes as it is, but for requests that create or start a container, which a porter sees
first. Each connection carries one request (Connection: close), so that no answer has to be read to
know where it ends, and streams that leave HTTP behind pass like any other.
"""

import errno
import json
import os
import re
import select
import signal
import time

# As in client.py: `import socket` makes enums of all its constants, which costs 2.5 ms.
from _socket import AF_UNIX, SHUT_RDWR, SHUT_WR, socket
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, Protocol

from gpulaunch.containers.docker.client import percent_encode
from gpulaunch.errors import FailedError, GpulaunchError, UsageError, call_failed
from gpulaunch.process.libc import ALL_SIGNALS, change_mask

_PIECE_BYTES = 1 << 16
_MOST_HEAD_BYTES = 1 << 20
_MOST_BODY_BYTES = 64 << 20
_STATUSES = {2: "400 Bad Request", 75: "409 Conflict", 124: "409 Conflict"}
_NAME = "gpulaunch.door."
# accept may succeed later, once a descriptor or memory is free again.
_BUSY = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
_BUSY_S = 0.1

Document = dict[str, Any]
"""The body of a request."""


class NotHereError(Exception):
    """The image of a container is not here: the engine says so, and its client pulls it."""


class Porter(Protocol):
    """The interface to what sees requests at a door first; its methods are called in threads.

    Each may raise GpulaunchError, which the client is told in place of the engine's answer. Each
    gets a descriptor that is readable once the client has gone, and a function that sends the
    request on and returns the container that was made or started, or None if the engine has
    refused. The client gets the engine's answer after that; what is not sent passes as it is.
    """

    def create(self, document: Document, gone: int, send: Callable[[Document], str | None]) -> None:
        """See a request to create a container, and perhaps send another one.

        Raises:
            NotHereError: the image with the name that it tells is not here.
        """

    def start(self, container: str, gone: int, send: Callable[[], str | None]) -> None:
        """Hear that a container, by name or id, is to be started."""

    def removed(self) -> None:
        """Hear that a container may have been removed."""


class Door:
    """A socket before an engine's own, in a directory that only its user can enter.

    Args:
        engine: path of the engine's socket.

    Attributes:
        address: what DOCKER_HOST is to be.

    Raises:
        FailedError: the socket cannot be made.
    """

    _porter: Porter

    def __init__(self, engine: str) -> None:
        self._engine = engine
        _sweep()
        self._directory = f"{_place()}/{_NAME}{os.urandom(6).hex()}"
        path = f"{self._directory}/docker.sock"
        self.address = f"unix://{path}"
        self._listener = socket(AF_UNIX)
        try:
            os.mkdir(self._directory, 0o700)
            self._listener.bind(f"{self._directory}/new")
            self._listener.listen(4096)
            # Only now: until it listens, others take it for that of a launcher that was killed.
            os.rename(f"{self._directory}/new", path)
        except OSError as problem:
            raise call_failed(path, problem) from None

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._listener.fileno()

    def serve(self, porter: Porter) -> None:
        """Let clients in, in threads of this process."""
        self._porter = porter
        # Signals still interrupt the main thread; what that one starts has this mask, too.
        mask = change_mask(signal.SIG_BLOCK, ALL_SIGNALS)
        try:
            start_new_thread(self._serve, ())
        finally:
            change_mask(signal.SIG_SETMASK, mask)

    def leave(self) -> None:
        """Leave the door to a process that was forked."""
        self._listener.close()

    def close(self) -> None:
        """Let nobody in any more; who is in goes on."""
        _remove(self._directory)
        with suppress(OSError):
            self._listener.shutdown(SHUT_RDWR)  # wakes the thread in accept()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                # What socket.accept() itself calls.
                descriptor, _ = self._listener._accept()  # type: ignore[attr-defined] # noqa: SLF001
            except OSError as problem:
                if problem.errno not in _BUSY:  # it is closed
                    return
                time.sleep(_BUSY_S)
                continue
            start_new_thread(self._attend, (socket(fileno=descriptor),))

    def _attend(self, client: socket) -> None:
        with closing(client), suppress(ConnectionError):  # one of the two has gone
            head, rest = _read_head(client)
            if not head:
                return
            try:
                self._handle(client, head, rest)
            except GpulaunchError as problem:
                client.sendall(_told(problem))
            except ConnectionError:
                raise
            except OSError as problem:
                client.sendall(_told(call_failed("a system call failed", problem)))
            except Exception as problem:  # a fault of ours: nothing passes unseen
                client.sendall(_told(FailedError(repr(problem))))
                raise

    def _handle(self, client: socket, head: bytes, rest: bytes) -> None:
        line, *fields = head.decode("latin-1").split("\r\n")
        method, target = (*line.split(" "), "")[:2]
        words = _words_in(target)
        if "100-continue" in _value(fields, "expect").lower():
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        # Whatever leaves HTTP does so in answer to one request; any other ends the connection.
        connection = "Upgrade, close" if _value(fields, "upgrade") else "close"
        fields = [*_without(fields, "connection", "expect"), f"Connection: {connection}"]
        answer = b""
        match [method, *words]:
            case ["POST", "containers", "create"]:
                rest = _read_body(client, fields, rest)
                fields = _without(fields, "transfer-encoding", "content-length")
                answer = self._create(client, [line, *fields], rest)
                fields.append(f"Content-Length: {len(rest)}")
            case ["POST", "containers", name, "start" | "restart"]:
                answer = self._start(client, [line, *fields], name)
        if answer:
            client.sendall(answer)
            return
        with closing(self._connect()) as engine:
            engine.sendall(_message([line, *fields], rest))
            _relay(client, engine)
        if method == "DELETE" and "containers" in words:
            self._porter.removed()

    def _create(self, client: socket, head: Sequence[str], body: bytes) -> bytes:
        """Return the engine's answer to a request to create a container; none if it may pass."""
        answer = b""

        def send(changed: Document) -> str | None:
            nonlocal answer
            sent = json.dumps(changed).encode()
            answer = self._exchange(_message([*head, f"Content-Length: {len(sent)}"], sent))
            made = re.search(rb'"Id":\s*"([0-9a-f]{64})"', answer.partition(b"\r\n\r\n")[2])
            return made[1].decode() if made and _status_of(answer) == b"201" else None

        try:
            document = json.loads(body)
        except (ValueError, RecursionError):  # the engine will say so
            return b""
        if isinstance(document, dict):
            try:
                with select.epoll() as gone:  # tells that the client has gone, not that it sends
                    gone.register(client, 0)
                    self._porter.create(document, gone.fileno(), send)
            except NotHereError as missing:
                line = f"GET /images/{percent_encode(str(missing))}/json HTTP/1.1"
                answer = self._exchange(_message([line, "Host: docker", "Connection: close"]))
        return answer

    def _start(self, client: socket, head: Sequence[str], container: str) -> bytes:
        """Return the engine's answer to a request to start a container; none if it may pass."""
        answer = b""

        def send() -> str | None:
            nonlocal answer
            answer = self._exchange(_message(head))
            return container if _status_of(answer) in (b"204", b"304") else None

        with select.epoll() as gone:
            gone.register(client, 0)
            self._porter.start(container, gone.fileno(), send)
        return answer

    def _exchange(self, request: bytes) -> bytes:
        """Send a request, and return the whole answer."""
        with closing(self._connect()) as engine:
            engine.sendall(request)
            answer = b"".join(_answer_parts_of(engine))
        if not answer:
            raise ConnectionResetError
        return answer

    def _connect(self) -> socket:
        engine = socket(AF_UNIX)
        try:
            engine.connect(self._engine)
        except OSError as problem:
            engine.close()
            what = f"cannot reach the Docker Engine at {self._engine}"
            raise call_failed(what, problem) from None
        return engine


def _place() -> str:
    """Return a directory for sockets, whose paths have at most 107 bytes."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    return own if own.startswith("/") and len(own) < 64 and os.access(own, os.W_OK) else "/tmp"  # noqa: S108


def _sweep() -> None:
    """Remove this user's doors whose launchers were killed."""
    place = _place()
    for name in os.listdir(place):
        if not name.startswith(_NAME):
            continue
        directory = f"{place}/{name}"
        with suppress(OSError), closing(socket(AF_UNIX)) as probe:
            if os.lstat(directory).st_uid == os.geteuid():
                probe.setblocking(False)  # a launcher that is stopped lets nobody in
                try:
                    probe.connect(f"{directory}/docker.sock")
                except ConnectionRefusedError:
                    _remove(directory)


def _remove(directory: str) -> None:
    with suppress(OSError):
        os.unlink(f"{directory}/docker.sock")
        os.rmdir(directory)


def _read_head(sender: socket) -> tuple[bytes, bytes]:
    """Return the head of a message, and what has come after it; nothing if the sender has gone."""
    data = b""
    for part in _parts_of(sender):
        data += part
        head, blank_line, rest = data.partition(b"\r\n\r\n")
        if blank_line:
            return head, rest
        if len(data) > _MOST_HEAD_BYTES:
            break
    return b"", b""


def _read_body(client: socket, fields: Sequence[str], rest: bytes) -> bytes:
    """Return the whole body of a request, of which a part has come already.

    Raises:
        UsageError: it is too long, or its length is no number.
    """
    came = bytearray(rest)

    def read(least: int) -> None:
        while len(came) < least:
            part = client.recv(_PIECE_BYTES)
            if not part:
                raise ConnectionAbortedError
            came.extend(part)
            _check_length(len(came))

    try:
        if "chunked" not in _value(fields, "transfer-encoding").lower():
            length = _check_length(int(_value(fields, "content-length") or 0))
            read(length)
            return bytes(came[:length])
        body = bytearray()
        while True:
            while b"\r\n" not in came:
                read(len(came) + 1)
            size, _, _ = came.partition(b"\r\n")
            length = int(size.partition(b";")[0], 16)
            _check_length(len(body) + length)
            begin = len(size) + 2
            read(begin + length + 2)
            body += came[begin : begin + length]
            del came[: begin + length + 2]
            if length == 0:
                return bytes(body)
    except ValueError:
        raise UsageError("the length of the request's body is no number") from None


def _check_length(length: int) -> int:
    if not 0 <= length <= _MOST_BODY_BYTES:
        raise UsageError(f"the request has more than {_MOST_BODY_BYTES >> 20} MiB")
    return length


def _words_in(target: str) -> list[str]:
    """Return the words of a path, such as containers and create, without the API's version."""
    words = target.partition("?")[0].removeprefix("/").split("/")
    if words[0].startswith("v") and words[0][1:].replace(".", "").isdecimal():
        del words[0]
    return words


def _name(field: str) -> str:
    return field.partition(":")[0].strip().lower()


def _value(fields: Sequence[str], name: str) -> str:
    values = (field.partition(":")[2].strip() for field in fields if _name(field) == name)
    return next(values, "")


def _without(fields: Sequence[str], *names: str) -> list[str]:
    return [field for field in fields if _name(field) not in names]


def _told(problem: GpulaunchError) -> bytes:
    """Return the answer that tells a client why the engine was not asked."""
    status = _STATUSES.get(problem.exit_status, "500 Internal Server Error")
    body = json.dumps({"message": f"gpulaunch: {problem.message}"}).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _message(head: Sequence[str], body: bytes = b"") -> bytes:
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


def _status_of(answer: bytes) -> bytes:
    return (*answer.split(b" ", 2), b"")[1]


def _relay(client: socket, engine: socket) -> None:
    """Pass bytes between a client and the engine, until both directions have ended."""
    up_has_ended = allocate_lock()
    up_has_ended.acquire()

    def pass_up() -> None:
        try:
            _pass(_parts_of(client), client, engine)
        finally:
            up_has_ended.release()

    start_new_thread(pass_up, ())
    _pass(_answer_parts_of(engine), engine, client)
    up_has_ended.acquire()


def _parts_of(source: socket) -> Iterator[bytes]:
    with suppress(OSError):  # it has gone, and has not read all that it got
        while part := source.recv(_PIECE_BYTES):
            yield part


def _answer_parts_of(engine: socket) -> Iterator[bytes]:
    """Yield an answer that says that the connection ends with it; nothing of a part of a head.

    Not every engine repeats that, and a client would send its next request to nobody. An answer
    that leaves HTTP stays as it is.
    """
    head, rest = _read_head(engine)
    if not head:
        return
    lines = head.decode("latin-1").split("\r\n")
    if _status_of(head) != b"101":
        lines = [*_without(lines, "connection"), "Connection: close"]
    yield _message(lines, rest)
    yield from _parts_of(engine)


def _pass(parts: Iterable[bytes], source: socket, sink: socket) -> None:
    """Pass on what comes from one end of a connection, and its end as that: the other may go on.

    What a client has sent before it closed still reaches the engine, and what nobody hears is read
    all the same: who sends it may do so before it reads.
    """
    for part in parts:
        with suppress(OSError):
            sink.sendall(part)
    with suppress(OSError):
        sink.shutdown(SHUT_WR)
    gone = select.poll()
    gone.register(source, 0)
    gone.poll()  # until it does not listen any more, either
    with suppress(OSError):
        sink.shutdown(SHUT_RDWR)
