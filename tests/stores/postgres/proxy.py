"""A proxy that understands where a message of PostgreSQL's begins and ends, and cuts one connection at a boundary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

_LENGTH: Final = 4
_GONE: Final = (OSError, asyncio.IncompleteReadError)


class Proxy:
    """Messages are numbered over all connections and in both directions, from ``arm`` on."""

    def __init__(self, server: str) -> None:
        self._server = urlsplit(server)
        self._cut_before: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._passed = 0
        self.has_cut = False

    @property
    def address(self) -> str:
        """What to connect to in the server's place."""
        return f"{self._server.hostname}:{self._listening.sockets[0].getsockname()[1]}"

    def arm(self, before: int) -> None:
        """Cut the connection on which this message comes, before it goes on."""
        self._cut_before, self._passed, self.has_cut = before, 0, False

    async def open(self) -> None:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(self._server.hostname, self._server.port)
        both = (writer, to_server)
        ways = ((reader, to_server, 0), (from_server, writer, 1))
        for way in ways:
            task = asyncio.create_task(self._relay(*way, both))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        kind_bytes: int,
        both: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        """Message by message. The first one of a client has no byte that says its kind."""
        try:
            with suppress(*_GONE):
                while True:
                    head = await reader.readexactly(kind_bytes + _LENGTH)
                    body = await reader.readexactly(int.from_bytes(head[kind_bytes:]) - _LENGTH)
                    kind_bytes = 1
                    if self._cuts():
                        return
                    writer.write(head + body)
                    await writer.drain()
        finally:
            for end in both:
                end.transport.abort()

    def _cuts(self) -> bool:
        is_it = self._passed == self._cut_before
        self._passed += 1
        if is_it:
            self._cut_before, self.has_cut = None, True
        return is_it


@asynccontextmanager
async def proxied(server: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(server)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()
