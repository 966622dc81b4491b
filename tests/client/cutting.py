"""A small server on a real socket that can be told to break off its next answer after any byte.

It keeps the server's side of the protocol in memory, or is a plain server; and it counts what it has done, by body.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Literal, TypeAlias

Step: TypeAlias = Literal["phase_1", "phase_2"]
ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset.
GREETING = b'{"id":"order-1"}'


class Answer:
    """How the server writes its answers."""

    def __init__(self, body: bytes = GREETING, *, chunked: bool = False, more: str = "") -> None:
        self._chunked, self._more = chunked, more
        self.body = body

    def bytes(self, status: str, fields: str) -> bytes:
        head = f"HTTP/1.1 {status}\r\n{fields}{self._more}"
        if not self._chunked:
            return f"{head}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body
        half = len(self.body) // 2
        chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in (self.body[:half], self.body[half:]) if part]
        return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + b"".join(chunks) + b"0\r\n\r\n"


class Origin:
    """``cuts`` says after how many bytes the answers to come break off, per step; ``corrupt`` changes them instead."""

    def __init__(self, answer: Answer, *, plain: bool) -> None:
        self._answer = answer
        self._plain = plain
        self._lock = threading.Lock()
        self._intents: dict[bytes, _Intent] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts: dict[Step, list[int]] = {}
        self.runs: Counter[bytes] = Counter()
        self.sent: dict[Step, bytes] = {}
        self.heads: list[bytes] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _address = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError), connection.makefile("rb") as lines:
            while head := _head(lines):
                fields = _fields(head)
                body = lines.read(int(fields.get(b"content-length", b"0")))
                self.heads.append(head)
                with self._lock:
                    step, answer = self._answered(head, fields, body)
                    self.sent[step] = answer
                    at = self.cuts[step].pop(0) if self.cuts.get(step) else len(answer)
                connection.sendall(answer[:at])
                if at < len(answer):
                    if at % 2:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
                    return

    def _answered(self, head: bytes, fields: dict[bytes, bytes], body: bytes) -> tuple[Step, bytes]:
        if self._plain:
            self.runs[body] += 1
            return "phase_1", self._answer.bytes("201 Created", "")
        id_ = fields[b"dtt-2php-client-correlation-id"]
        intent = self._intents.setdefault(id_, _Intent(len(self._intents), body))
        ids = f"DTT-2PHP-Server-Correlation-ID: {intent.number}\r\n"
        if b"/confirm " not in head.partition(b"\r\n")[0]:
            return "phase_1", self._answer.bytes("202 Accepted", f"{ids}DTT-2PHP-Phase-State: WAITING_CONFIRM\r\n")
        if not intent.is_done:
            self.runs[intent.body] += 1
            intent.is_done = True
        return "phase_2", self._answer.bytes("200 OK", f"{ids}DTT-2PHP-Phase-State: COMMITTED\r\n")


class _Intent:
    def __init__(self, number: int, body: bytes) -> None:
        self.number, self.body, self.is_done = number, body, False


def _head(lines: BinaryIO) -> bytes:
    head = b""
    while line := lines.readline():
        head += line
        if line == b"\r\n":
            return head
    return b""


def _fields(head: bytes) -> dict[bytes, bytes]:
    pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:] if line)
    return {name.lower(): value.strip() for name, _colon, value in pairs}


@contextmanager
def origin(answer: Answer | None = None, *, plain: bool = False) -> Iterator[Origin]:
    made = Origin(answer or Answer(), plain=plain)
    try:
        yield made
    finally:
        made.close()
