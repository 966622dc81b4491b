"""An application behind a real uvicorn socket, and the bytes that travel over it."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import uvicorn

from tests.patience import PATIENCE_S
from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware

TICK_S = 0.1
_DATE = re.compile(rb"(?mi)^date: [^\r\n]*\r\n")


def wrapped(app: Any, folder: Path, **settings: Any) -> TwoPhaseMiddleware:
    """The one line."""
    return TwoPhaseMiddleware(app, **options(folder, **settings))


def options(folder: Path, **settings: Any) -> dict[str, Any]:
    """What the one line says."""
    usual = {
        "service": "orders",
        "store": f"sqlite:///{folder}/orders.db",
        "identify": anonymous,
        "policies": {"*": Policy.standard()},
        "allow_insecure": True,
    }
    return usual | settings


class Served:
    """A server that is listening."""

    def __init__(self, port: int, server: AnnouncedServer, thread: threading.Thread) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.thread = thread
        self._server = server

    def stop(self) -> None:
        """Tell it to end, as a signal would, and go on."""
        self._server.stop()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def talk(self, *pieces: bytes | Until) -> bytes:
        """Send each piece, or wait for what one says; then everything until the server hangs up."""
        heard = b""
        with self.connect() as connection:
            for piece in pieces:
                if isinstance(piece, Until):
                    heard += piece.read(connection)
                else:
                    connection.sendall(piece)
            while got := connection.recv(65_536):
                heard += got
        return heard


class Until:
    """Read until these bytes were heard, so that what is sent next comes after them."""

    def __init__(self, wanted: bytes) -> None:
        self._wanted = wanted

    def read(self, connection: socket.socket) -> bytes:
        heard = b""
        while self._wanted not in heard:
            got = connection.recv(65_536)
            assert got, heard
            heard += got
        return heard


class AnnouncedServer(uvicorn.Server):
    """A uvicorn that says when its start has ended, one way or the other, and ends as soon as it is told to.

    A server of uvicorn's looks ten times a second whether to end, and pauses once more before it does.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.start_has_ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Tell it to end, from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # It has ended, and its loop is closed.
                self._loop.call_soon_threadsafe(self._stopping.set)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            super().run(sockets)
        except SystemExit:  # A start that failed; ``served`` says so in the test's own thread.
            if self.started:
                raise
        finally:
            self.start_has_ended.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.start_has_ended.set()

    async def main_loop(self) -> None:
        """As uvicorn's, which sleeps between two looks."""
        ticks = count()
        while not await self.on_tick(next(ticks)):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, but without its pause if nothing is under way."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)  # An idle connection is gone after one turn of the loop.
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
        else:
            await self.lifespan.shutdown()


@contextmanager
def served(app: Any, *, lifespan: str = "auto", **config: Any) -> Iterator[Served]:
    """Serve ``app`` in a thread of its own, from the moment on when it has started.

    A test may replace what a start uses, such as the function that opens a database: the server has to be past it.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    usual: dict[str, Any] = {"lifespan": lifespan, "log_level": "critical", "timeout_graceful_shutdown": 5}
    server = AnnouncedServer(uvicorn.Config(app, **(usual | config)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        assert server.start_has_ended.wait(PATIENCE_S), "the server is still starting"
        assert server.started, "the server did not start"
        yield Served(listener.getsockname()[1], server, thread)
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        listener.close()
        assert not thread.is_alive()


def both_ways(make: Callable[[], Any], folder: Path, *pieces: bytes | Until, **config: Any) -> tuple[bytes, bytes]:
    """What the bare application answers and what the wrapped one does, but for the date."""
    with served(make(), **config) as bare:
        plain = bare.talk(*pieces)
    with served(wrapped(make(), folder), **config) as two_phase:
        return undated(plain), undated(two_phase.talk(*pieces))


def undated(raw: bytes) -> bytes:
    """The bytes without the second in which they were sent."""
    return _DATE.sub(b"", raw)


def request(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    """A request as bytes, after which the server hangs up."""
    lines = [f"{method} {target} HTTP/1.1", "Host: orders.test", "Connection: close", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body
