"""The door before an engine, with a socket as the engine: what passes, and what is looked at."""

import json
import os
import resource
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import until

from gpulaunch.containers.door import Door, NotHereError
from gpulaunch.errors import UsageError, WouldWaitError

ID = "a" * 64
MADE = b'HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n\r\n{"Id":"%s"}' % ID.encode()
Talk = Callable[[socket.socket], None]


class Porter:
    """Notes what it sees; `answer` is what create() returns or raises."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.answer: Any = None
        self.waits, self.gone = threading.Event(), threading.Event()

    def create(self, document: dict[str, Any], gone: int, send: Any) -> None:
        self.seen.append(document)
        if self.answer == "wait":
            self.waits.set()
            select.select([gone], [], [])
            self.gone.set()
            raise ConnectionAbortedError
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer:
            self.sends(send, self.answer)

    def start(self, container: str, gone: int, send: Any) -> None:  # noqa: ARG002
        self.seen.append(container)
        self.sends(send)

    def removed(self) -> None:
        self.seen.append("removed")

    def sends(self, send: Any, *changed: dict[str, Any]) -> None:
        container = None
        try:
            container = send(*changed)
        finally:
            self.seen.append(("ended", container))


class Place:
    """A door, its porter, and an engine that talks as it is told to."""

    def __init__(self, directory: Path) -> None:
        self.porter, self.talk = Porter(), answers(MADE)
        self.requests: list[bytes] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / "engine.sock"))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()
        self.door = Door(str(directory / "engine.sock"))
        self.door.serve(self.porter)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self.requests.append(until_blank(connection))
            self.talk(connection)

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(60)
        client.connect(self.door.address.removeprefix("unix://"))
        return client

    def ask(self, request: bytes) -> bytes:
        """Send a request, and return the whole answer."""
        with self.connect() as client:
            client.sendall(request)
            return everything(client)

    def close(self) -> None:
        self.door.close()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def until_blank(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data and (part := connection.recv(1 << 16)):
        data += part
    return data


def everything(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def answers(answer: bytes) -> Talk:
    return lambda connection: connection.sendall(answer)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    place = Place(tmp_path)
    yield place
    place.close()
    assert not Path(place.door.address.removeprefix("unix://")).parent.exists()


def create(body: bytes, *fields: bytes) -> bytes:
    head = [b"POST /v1.45/containers/create?name=x HTTP/1.1", b"Host: x", *fields]
    return b"\r\n".join([*head, b"", body])


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_request_to_create_is_changed(place: Place, is_chunked: bool) -> None:
    """However its body comes, the engine gets another one, and the container's id is told."""
    place.porter.answer = {"Image": "other", "café": 1}
    body, fields = b'{"Image": "img"}', [b"Content-Length: 16"]
    if is_chunked:
        body, fields = (
            b'6;x\r\n{"Imag\r\na\r\ne": "img"}\r\n0\r\n\r\n',
            [b"Transfer-Encoding: chunked"],
        )
    answer = place.ask(create(body, *fields, b"X-Own: 1"))
    assert place.porter.seen == [{"Image": "img"}, ("ended", ID)]
    head, _, sent = place.requests[0].partition(b"\r\n\r\n")
    assert json.loads(sent) == place.porter.answer
    assert b"X-Own: 1" in head
    assert b"Content-Length: %d" % len(sent) in head
    assert b"chunked" not in head
    assert (answer.split(b"\r\n")[0], answer.endswith(b'{"Id":"%s"}' % ID.encode())) == (
        b"HTTP/1.1 201 Created",
        True,
    )


@pytest.mark.parametrize("body", [b"{nonsense", b"[]", b"null", b"[" * 30_000])
def test_what_is_no_request_is_the_engines_to_refuse(place: Place, body: bytes) -> None:
    """A body that is no JSON object passes as it is."""
    place.talk = answers(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    answer = place.ask(create(body, b"Content-Length: %d" % len(body)))
    assert (answer.split(b"\r\n")[0], place.porter.seen) == (b"HTTP/1.1 400 Bad Request", [])
    assert place.requests[0].endswith(body[:9])


@pytest.mark.parametrize("length", [b"x", b"-1", b"99999999999"])
def test_a_length_that_is_none(place: Place, length: bytes) -> None:
    """The client is told, and the engine hears nothing of it."""
    answer = place.ask(create(b"{}", b"Content-Length: " + length))
    assert (answer[:12], place.requests) == (b"HTTP/1.1 400", [])


def test_a_client_that_asks_whether_to_go_on(place: Place) -> None:
    """It is told to, and the one answer that comes then is that of the engine."""
    place.porter.answer = {"Image": "img"}
    with place.connect() as client:
        client.sendall(create(b"", b"Content-Length: 2", b"Expect: 100-continue"))
        assert until_blank(client) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"{}")
        assert everything(client).startswith(b"HTTP/1.1 201 Created\r\n")
    assert (b"Expect" in place.requests[0], place.porter.seen[-1]) == (False, ("ended", ID))


def test_what_is_removed_is_told(place: Place) -> None:
    """Once the engine has answered, whatever it says."""
    place.talk = answers(b"HTTP/1.1 204 No Content\r\n\r\n")
    place.ask(b"DELETE /v1.45/containers/abc?force=1 HTTP/1.1\r\n\r\n")
    until(lambda: place.porter.seen)
    assert place.porter.seen == ["removed"]


def test_one_request_goes_through_a_connection(place: Place) -> None:
    """Also where a client asked to leave HTTP, and the engine did not."""
    place.talk = answers(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\n")
    answer = place.ask(b"GET /_ping HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert b"Connection: Upgrade, close" in place.requests[0]
    assert answer == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (UsageError("9 of 8"), b"400"),
        (WouldWaitError("busy"), b"409"),
        (OSError(28, "full"), b"500"),
    ],
)
def test_a_refusal_is_told_as_the_engines(place: Place, problem: Exception, status: bytes) -> None:
    """The client gets our message, also of a fault of ours, and the engine no request."""
    place.porter.answer = problem
    head, _, body = place.ask(create(b"{}", b"Content-Length: 2")).partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == status
    assert json.loads(body)["message"].startswith("gpulaunch: ")
    assert str(problem.args[-1]) in json.loads(body)["message"]
    assert place.requests == []


def test_an_image_that_is_not_here_is_the_engines_to_tell(place: Place) -> None:
    """The engine is asked for the image, and what it says is passed on."""
    place.porter.answer = NotHereError("a/b:c")
    missing = b'HTTP/1.1 404 Not Found\r\n\r\n{"message":"No such image: a/b:c"}'
    place.talk = answers(missing)
    answer = place.ask(create(b"{}", b"Content-Length: 2"))
    assert place.requests[0].startswith(b"GET /images/a%2Fb:c/json HTTP/1.1\r\n")
    assert (answer[:12], answer[-35:]) == (b"HTTP/1.1 404", missing[-35:])


def test_a_start_that_fails_is_told(place: Place) -> None:
    """The porter hears whether a container was started; the answer is the engine's."""
    for status, started in ((b"204 No Content", "box"), (b"500 Internal Server Error", None)):
        place.talk = answers(b"HTTP/1.1 %s\r\n\r\n" % status)
        answer = place.ask(b"POST /containers/box/restart?t=0 HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert place.porter.seen[-2:] == ["box", ("ended", started)]


def test_an_engine_that_ends_before_it_answers(place: Place) -> None:
    """Then nothing was made, and the client's connection ends as the engine's did."""
    place.porter.answer = {"a": 1}
    place.talk = lambda _: None
    assert place.ask(create(b"{}", b"Content-Length: 2")) == b""
    assert place.porter.seen[-1] == ("ended", None)


def test_a_client_that_goes_while_it_waits(place: Place) -> None:
    """The porter can see that a client has gone, and one that has sent all is still there."""
    place.porter.answer = "wait"
    with place.connect() as client:
        client.sendall(create(b"{}", b"Content-Length: 2") + b"\r\n")
        client.shutdown(socket.SHUT_WR)
        assert place.porter.waits.wait(60)
        assert not place.porter.gone.wait(0.2)
    assert place.porter.gone.wait(60)
    assert place.requests == []


def test_streams_pass_in_both_directions(place: Place) -> None:
    """20 MB each way at once, as by exec, and an end of the input that is not the connection's."""
    big = os.urandom(1 << 20) * 20
    got: list[bytes] = []

    def echo(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\n\r\n")
        writer = threading.Thread(target=connection.sendall, args=(big,))
        writer.start()
        got.append(everything(connection))
        writer.join()
        connection.sendall(b"end")

    place.talk = echo
    with place.connect() as client:
        client.sendall(
            b"POST /exec/1/start HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        )
        assert until_blank(client).startswith(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\n")
        writer = threading.Thread(
            target=lambda: (client.sendall(big), client.shutdown(socket.SHUT_WR))
        )
        writer.start()
        answer = everything(client)
        writer.join()
    assert (answer.endswith(b"end"), len(answer) - len(big) in range(-(1 << 16), 4)) == (True, True)
    assert got == [big]


@pytest.mark.parametrize("reads", [False, True])
def test_nothing_of_an_answer_is_lost(place: Place, reads: bool) -> None:
    """The engine has ended while much of its answer is on its way, and may have read no input."""
    body, closed = os.urandom(180 << 10), threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\n\r\n" + body)
        if reads:
            everything(connection)
        connection.close()
        closed.set()

    place.talk = answer
    with place.connect() as client:
        client.sendall(
            b"POST /exec/1/start HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        )
        if reads:
            client.shutdown(socket.SHUT_WR)
        else:
            client.setblocking(False)
            with suppress(BlockingIOError, ConnectionError):
                while True:
                    client.send(b"x" * (64 << 10))
            client.settimeout(60)
        assert closed.wait(60)
        came = b""
        with suppress(ConnectionResetError):  # as some of the input was never read
            while part := client.recv(1 << 12):
                came += part
        assert came.partition(b"\r\n\r\n")[2] == body


def test_an_engine_that_reads_no_more(place: Place) -> None:
    """Its end is an end to the client, and no broken connection, however much that had to say."""
    closed = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\n\r\nend")
        connection.shutdown(socket.SHUT_WR)
        closed.wait(60)

    place.talk = answer
    with place.connect() as client:
        client.sendall(b"POST /exec/1/start HTTP/1.1\r\nUpgrade: tcp\r\n\r\n")
        client.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                client.send(b"x" * (64 << 10))
        client.settimeout(60)
        assert everything(client).endswith(b"\r\n\r\nend")
    closed.set()


def test_the_last_words_of_a_client_that_has_gone(place: Place) -> None:
    """The engine gets all that was sent, whether or not it goes on talking to nobody."""
    body, has_gone, got = os.urandom(180 << 10), threading.Event(), []

    def read(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\n\r\n")
        has_gone.wait(60)
        with suppress(ConnectionError):
            connection.sendall(b"x" * (1 << 20))
        got.append(everything(connection))

    place.talk = read
    with place.connect() as client:
        client.sendall(b"POST /exec/1/start HTTP/1.1\r\nUpgrade: tcp\r\n\r\n")
        until_blank(client)
        client.sendall(body)
    has_gone.set()
    until(lambda: got)
    assert got == [body]


def test_each_answer_ends_its_connection(place: Place) -> None:
    """The client is told so, be the engine's answer what it may; a long body goes there at once."""
    body = b"x" * (5 << 20)

    def late(connection: socket.socket) -> None:
        came = len(place.requests[0].partition(b"\r\n\r\n")[2])
        while came < len(body):
            came += len(connection.recv(1 << 16))
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok"
        )

    place.talk = late
    request = b"POST /build HTTP/1.1\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n"
    answer = place.ask(request % len(body) + body)
    assert b"Connection: close" in place.requests[0]
    assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


def test_a_client_that_has_gone_ends_a_stream(place: Place) -> None:
    """The engine sees that nobody listens to its events any more."""
    ended = threading.Event()

    def stream(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n{}\n")
        everything(connection)
        ended.set()

    place.talk = stream
    with place.connect() as client:
        client.sendall(b"GET /events HTTP/1.1\r\n\r\n")
        until_blank(client)
    assert ended.wait(60)


def test_an_engine_that_is_gone(place: Place, tmp_path: Path) -> None:
    """The client is told that the engine cannot be reached, and where."""
    (tmp_path / "engine.sock").unlink()
    answer = place.ask(b"GET /info HTTP/1.1\r\n\r\n")
    assert b"cannot reach the Docker Engine at" in answer


def test_doors_of_launchers_that_were_killed_are_swept(place: Place, tmp_path: Path) -> None:
    """A new door takes away those that nobody serves, and no other."""
    left = Path(place.door.address.removeprefix("unix://")).parent.with_name("gpulaunch.door.left")
    left.mkdir()
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(left / "docker.sock"))
    other = Door(str(tmp_path / "engine.sock"))
    assert (left.exists(), os.path.exists(place.door.address.removeprefix("unix://"))) == (
        False,
        True,
    )
    other.close()


def test_a_launcher_that_is_stopped_keeps_no_other_out(place: Place, tmp_path: Path) -> None:
    """Nobody answers at its door, where many may wait already."""
    stopped = Path(place.door.address.removeprefix("unix://")).parent.with_name("gpulaunch.door.z")
    stopped.mkdir()
    waiting = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stopped / "docker.sock"))
        listener.listen(0)
        with suppress(BlockingIOError):
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(str(stopped / "docker.sock"))
        Door(str(tmp_path / "engine.sock")).close()
        assert stopped.exists()
    for one in waiting:
        one.close()
    (stopped / "docker.sock").unlink()
    stopped.rmdir()


def test_a_door_outlives_a_lack_of_descriptors(place: Place) -> None:
    """It lets nobody in for a moment, and others afterwards."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 4, limits[1])
    )
    clients = []
    with suppress(OSError):
        while True:
            clients.append(place.connect())
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for client in clients:
        client.close()
    place.talk = answers(b"HTTP/1.1 200 OK\r\n\r\n")
    assert place.ask(b"GET /_ping HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200 OK")


def test_no_door_takes_another_for_a_dead_one() -> None:
    """Of doors that are made at the same time, each of which sweeps the dead ones, all stay."""
    program = (
        "import os, gpulaunch.containers.door as module\n"
        "for _ in range(300):\n"
        "    door = module.Door('/nowhere')\n"
        "    print(os.path.exists(door.address.removeprefix('unix://')))\n"
        "    door.close()\n"
    )
    words = [sys.executable, "-c", program]
    made = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [set(one.communicate()[0].split()) for one in made] == [{"True"}] * 3
