"""A 2PHP server from the draft alone, on plain sockets: what it answers is byte for byte what a test says.

It knows no status read, recognises no repeated client correlation id, and drops a connection where a test says so. A
confirm runs what was registered once; an auto-confirmed request runs every time it comes.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SERVER_ID = "server-id-of-its-own"
LOST = b""  # The connection is closed without an answer.


def answer(status: int, *headers: str, body: bytes = b"", phase: str | None = None) -> bytes:
    """An answer as it stands on the wire; ``headers`` are whole lines."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", "Connection: close", *headers]
    if phase is not None:
        lines.append(f"DTT-2PHP-Phase-State: {phase}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


REGISTERED = answer(200, f"DTT-2PHP-Server-Correlation-ID: {SERVER_ID}", "DTT-2PHP-TTL: 30000", phase="WAITING_CONFIRM")
COMMITTED = answer(200, "DTT-2PHP-Resource-ID: r1", body=b"done", phase="COMMITTED")
EXPIRED = answer(408, "DTT-2PHP-Message: Request TTL exceeded. Re-submit as new request.", phase="TTL_EXPIRED")
ACCEPTED = answer(202, "DTT-2PHP-Resource-ID: r1", phase="PROCESSING")
NOT_FOUND = answer(404, "Content-Type: text/plain", body=b"no such page")


class Foreign:
    """What it answers to each kind of request, in turn; the last answer is given again and again."""

    def __init__(self, **answers: list[bytes]) -> None:
        usual = {"phase_1": [REGISTERED], "phase_2": [COMMITTED], "status": [NOT_FOUND]}
        self._answers = usual | answers
        self._lock = threading.Lock()
        self.url = ""
        self.sent: list[str] = []  # The kinds, in the order in which they came.
        self.lines: list[str] = []
        self.ids: set[str] = set()
        self.runs = 0
        self.on_heard: Callable[[str], object] | None = None  # Called before the answer leaves.

    def heard(self, line: str, headers: dict[str, str]) -> bytes:
        """Take a request, and say what to answer."""
        method, path = line.split()[:2]
        kind = "phase_1" if "dtt-2php-server-correlation-id" not in headers else "phase_2"
        kind = "status" if method == "GET" else kind
        with self._lock:
            number = self.sent.count(kind)
            auto = kind == "phase_1" and headers.get("dtt-2php-auto-confirm") == "true"
            self.runs += auto or (kind == "phase_2" and number == 0)
            self.sent.append(kind)
            self.lines.append(f"{method} {path}")
            self.ids.add(headers.get("dtt-2php-client-correlation-id", ""))
            answers = self._answers[kind]
        if self.on_heard is not None:
            self.on_heard(kind)
        return answers[min(number, len(answers) - 1)]


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        line = self.rfile.readline().decode("latin-1").strip()
        if not line:
            return
        headers: dict[str, str] = {}
        while field := self.rfile.readline().decode("latin-1").strip():
            name, _colon, value = field.partition(":")
            headers[name.lower()] = value.strip()
        self.rfile.read(int(headers.get("content-length", "0")))
        assert isinstance(self.server, _Server)
        self.wfile.write(self.server.foreign.heard(line, headers))


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    foreign: Foreign


@contextmanager
def foreign(**answers: list[bytes]) -> Iterator[Foreign]:
    """A foreign server that is open."""
    made = Foreign(**answers)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.foreign = made
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
