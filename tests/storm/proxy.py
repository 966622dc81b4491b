"""A TCP proxy that does one bad thing, at one boundary of one call, and is honest otherwise.

It understands just enough of HTTP/1.1 to know where a message begins and ends. The exchanges of a call are numbered in
the order their requests arrive, over all connections.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal, TypeAlias

import msgspec

Boundary: TypeAlias = Literal["request", "forwarded", "half", "replied"]
"""Before the request goes on; after it, before its reply; in the middle of the reply; after all of it."""
How: TypeAlias = Literal["cut", "reset", "drop", "delay"]

BOUNDARIES: Final[tuple[Boundary, ...]] = ("request", "forwarded", "half", "replied")
HOWS: Final[tuple[How, ...]] = ("cut", "reset", "drop", "delay")
ABORT: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset.
LONGEST_S: Final = 10


class Fault(msgspec.Struct, frozen=True):
    """What happens, where, in which exchange of the call."""

    exchange: int
    boundary: Boundary
    how: How


class Proxy:
    """Between a client and the server at ``port``. A connection whose reply is dropped or delayed is let go by name."""

    def __init__(self, port: int, fault: Fault | None) -> None:
        self._port = port
        self._fault = fault
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.exchanges = 0
        self.cut_at: dict[str, int] = {}  # After how many bytes a reply breaks off, once, by the end of the path.
        self.replies: dict[str, bytes] = {}
        self.struck = threading.Event()
        self.go_on = threading.Event()  # Ends a delay.
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.go_on.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        with self._lock:
            for connection in self._open:
                connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _address = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._port))
        with self._lock:
            self._open += [client, server]
        with suppress(OSError):
            while request := _message(client):
                if not self._exchange(client, server, request):
                    break
        with suppress(OSError):
            server.close()
            client.close()

    def _exchange(self, client: socket.socket, server: socket.socket, request: bytes) -> bool:
        """One request and its reply; False when the connection is not to be used any more."""
        with self._lock:
            number = self.exchanges
            self.exchanges += 1
        if self._strikes(number, "request", client):
            return False
        server.sendall(request)
        if self._strikes(number, "forwarded", client):
            _message(server)  # It answers all the same; nobody hears it.
            return False
        reply = _message(server)
        if self._cuts(request, reply, client):
            return False
        client.sendall(reply[: len(reply) // 2])
        if self._strikes(number, "half", client):
            return False
        client.sendall(reply[len(reply) // 2 :])
        return not self._strikes(number, "replied", client)

    def _cuts(self, request: bytes, reply: bytes, client: socket.socket) -> bool:
        last = request.split(b" ", 2)[1].decode().rpartition("/")[2]
        self.replies[last] = reply
        at = self.cut_at.pop(last, None)
        if at is None:
            return False
        client.sendall(reply[:at])
        if at % 2:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        client.close()
        return True

    def _strikes(self, number: int, boundary: Boundary, client: socket.socket) -> bool:
        fault = self._fault
        if fault is None or (fault.exchange, fault.boundary) != (number, boundary):
            return False
        self.struck.set()
        if fault.how == "delay":
            self.go_on.wait(LONGEST_S)
            return False
        if fault.how == "drop":
            self.go_on.wait(LONGEST_S)  # Silence: the client has to give up by itself.
        elif fault.how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        client.close()
        return True


@contextmanager
def proxied(port: int, fault: Fault | None) -> Iterator[Proxy]:
    proxy = Proxy(port, fault)
    try:
        yield proxy
    finally:
        proxy.close()


def _message(connection: socket.socket) -> bytes:
    """One whole message; empty if the other side has gone instead."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += (more := connection.recv(65_536))
        if not more:
            return b""
    head, _blank, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    wanted = int(lengths[0].split(b":")[1]) if lengths else 0
    while len(body) < wanted:
        body += (more := connection.recv(65_536))
        if not more:
            return b""
    return head + b"\r\n\r\n" + body
