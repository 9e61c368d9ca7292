"""A Docker Engine that makes no container: it writes down what it is asked for, and refuses."""

import json
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any


class RecordingEngine:
    """An engine at a socket in a directory; close() ends it.

    Attributes:
        host: the address that DOCKER_HOST wants.
        answers: documents that it answers with, by the path without the API's version and query;
            nothing else is there, and nothing else is made.
        requests: paths and bodies, except of pings; tests may clear it.
    """

    def __init__(self, directory: Path) -> None:
        self.host = f"unix://{directory}/docker.sock"
        self.answers: dict[str, Any] = {}
        self.requests: list[tuple[str, bytes]] = []
        self._server = _Server(str(directory / "docker.sock"), _Handler)
        self._server.engine = self
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def documents(self, path: str) -> list[Any]:
        """Return the documents that were sent to paths with a part."""
        return [json.loads(body) for asked, body in self.requests if path in asked]


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    engine: RecordingEngine


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        engine = self.server.engine
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        start, _, rest = self.path.partition("/v1.")
        path = (rest[rest.find("/") :] if rest and not start else self.path).partition("?")[0]
        if path == "/_ping":
            self._reply(200, b"OK")
            return
        engine.requests.append((self.path, body))
        if path == "/images/create":  # docker run --pull always
            self._reply(200, b"")
        elif path in engine.answers:
            self._reply(200, json.dumps(engine.answers[path]).encode())
        elif self.command != "GET":
            self._reply(500, b'{"message": "nothing is made here"}')
        else:
            self._reply(404, b'{"message": "nothing is here"}')

    do_GET = do_POST = do_HEAD = _answer  # noqa: N815  the names that the server looks for

    def _reply(self, status: int, content: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Api-Version", "1.44"),
            ("Ostype", "linux"),
            ("Content-Length", str(len(content))),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
