"""Latency under a fixed load: ``python -m bench.paced URL MODE RATE SECONDS CONNECTIONS RUN`` prints it as JSON.

wrk sends as fast as it is answered, so its latency is that of a full server. Here handshakes (or requests) are due at
fixed instants, ``RATE`` of them a second, answered or not. One is sent over a connection that is free; if
none is, it waits for one. Its latency counts from the instant at which it was due, so a server that stalls pays for
everything that became due in that time (wrk2 measures so, too). A handshake ends with the answer to its second request.

One process, one thread, ``select``, whose timeouts are exact to about 50 µs; its collector is off.
"""

from __future__ import annotations

import gc
import re
import select
import socket
import subprocess
import sys
import time
from collections import deque
from urllib.parse import urlsplit

import msgspec

BODY = b'{"sku": "A-1", "quantity": 3, "note": "%s"}' % (b"x" * 240)
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
SERVER_ID = re.compile(rb"\r\ndtt-2php-server-correlation-id: *(\S+)", re.IGNORECASE)
END = b"\r\n\r\n"
GOOD = (b"HTTP/1.1 200", b"HTTP/1.1 201")
WARM_UP = 3
"""Calls for each connection before the time is taken,"""
WARM_RATE = 1e6
"""all at once: each waits for a connection that is free."""
PATIENCE_S = 5.0
"""How long after the last one was due answers are waited for."""


class Paced(msgspec.Struct, frozen=True):
    """What one run found."""

    per_second: float
    done: int
    errors: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def paced(url: str, mode: str, *, rate: float, seconds: float, connections: int, run: str) -> Paced:
    """Drive the server from a process of its own."""
    facts = (url, mode, f"{rate:.2f}", str(seconds), str(connections), run)
    command = [sys.executable, "-m", "bench.paced", *facts]
    found = subprocess.run(command, capture_output=True, check=True)  # noqa: S603 - our own
    return msgspec.json.decode(found.stdout, type=Paced)


def _request(host: str, path: str, fields: dict[str, str], body: bytes) -> bytes:
    lines = {"Host": host, "Content-Type": "application/json", **fields, "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


class Line:
    """One connection and what is sent over it, one call after the other."""

    def __init__(self, url: str, mode: str, prefix: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._mode, self._prefix, self._serial = parts.netloc, mode, prefix, 0
        self._client_id, self._server_id = "", ""
        self._answer = b""
        self.socket = socket.create_connection((parts.hostname, parts.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due_at, self.is_good = 0.0, True

    def start(self, due_at: float) -> None:
        """Send the first request of a call, or the only one."""
        self.due_at, self.is_good = due_at, True
        if self._mode == "replay" and self._server_id:
            self._confirm()
            return
        self._serial += 1
        self._client_id, self._server_id = f"{self._prefix}-{self._serial}", ""
        self._send("/orders", {} if self._mode == "plain" else self._fields(), BODY)

    def answered(self) -> bool:
        """Read what is there; whether the call is done."""
        self._answer += self.socket.recv(65_536)
        end = self._answer.find(END)
        if end < 0:
            return False
        head = self._answer[:end]
        length = LENGTH.search(head)
        if len(self._answer) < end + len(END) + (int(length[1]) if length else 0):
            return False
        self._answer = b""
        self.is_good &= head.startswith(GOOD)
        if self._mode in {"handshake", "replay"} and not self._server_id and (found := SERVER_ID.search(head)):
            self._server_id = found[1].decode()
            self._confirm()
            return False
        return True

    def _confirm(self) -> None:
        self._send("/orders/confirm", self._fields(), b"")

    def _fields(self) -> dict[str, str]:
        fields = {"DTT-2PHP-Enabled": "true", "DTT-2PHP-Client-Correlation-ID": self._client_id}
        if self._mode == "auto":
            fields["DTT-2PHP-Auto-Confirm"] = "true"
        if self._server_id:
            fields["DTT-2PHP-Server-Correlation-ID"] = self._server_id
        return fields

    def _send(self, path: str, fields: dict[str, str], body: bytes) -> None:
        self.socket.sendall(_request(self._host, path, fields, body))


def drive(lines: list[Line], rate: float, seconds: float) -> Paced:
    """Start calls when they are due, take answers when they come."""
    free, took, errors = deque(lines), list[float](), 0
    busy: dict[socket.socket, Line] = {}
    began = time.perf_counter()
    amount, started = int(rate * seconds), 0
    while started < amount or busy:
        now = time.perf_counter() - began
        if now > seconds + PATIENCE_S:
            break
        while free and started < amount and started / rate <= now:
            line = free.popleft()
            line.start(started / rate)
            busy[line.socket] = line
            started += 1
        timeout = started / rate - now if free and started < amount else PATIENCE_S
        ready, _, _ = select.select(busy, (), (), max(timeout, 0.0))
        for one in ready:
            line = busy[one]
            if line.answered():
                took.append(time.perf_counter() - began - line.due_at)
                errors += not line.is_good
                free.append(busy.pop(one))
    elapsed = time.perf_counter() - began
    took.sort()
    at = [took[min(int(len(took) * share), len(took) - 1)] * 1e3 for share in (0.5, 0.99, 1.0)]
    return Paced(len(took) / elapsed, len(took), errors + amount - len(took), *at)


def main() -> None:
    """See the module."""
    url, mode, rate, seconds, connections, run = sys.argv[1:]
    lines = [Line(url, mode, f"{run}-{number}") for number in range(int(connections))]
    drive(lines, rate=WARM_RATE, seconds=WARM_UP * len(lines) / WARM_RATE)
    gc.disable()
    print(msgspec.json.encode(drive(lines, float(rate), float(seconds))).decode())


if __name__ == "__main__":
    main()
