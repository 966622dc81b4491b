"""The same requests over a socket, through a protocol of uvicorn's, in the test's own event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from tests.patience import PATIENCE_S
from twophp.asgi.messages import App, Scope

OF_THE_CONNECTION = ("scheme", "client", "server", "root_path", "state", "extensions")


class Listener:
    """An application behind a protocol. Every connection is a pair of sockets, so there is no port to wait for."""

    def __init__(self, app: App, protocol: type[asyncio.Protocol], **config: Any) -> None:
        usual = {"lifespan": "off", "log_config": None, "access_log": False, "proxy_headers": False}
        self.config = uvicorn.Config(app, http=protocol, **(usual | config))
        self.config.load()

    async def connect(
        self, facts: Scope | None = None, state: ServerState | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection. What a test says about it (TLS, an address, a mount) holds for all of its requests."""

        class Connection(self.config.http_protocol_class):  # type: ignore[misc, name-defined]
            def on_message_begin(self) -> None:
                super().on_message_begin()
                self.scope.update(facts or {})

        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        await loop.connect_accepted_socket(
            lambda: Connection(config=self.config, server_state=state or ServerState(), app_state={}, _loop=loop), far
        )
        return await asyncio.open_connection(sock=near)

    async def talk(self, pieces: Iterable[bytes], facts: Scope | None = None) -> bytes:
        """Send all of it, then say no more: everything that comes back until the server hangs up."""
        reader, writer = await self.connect(facts)
        try:
            with suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
            async with asyncio.timeout(PATIENCE_S):
                return await reader.read()
        finally:
            writer.close()


def request_bytes(scope: Scope, body: bytes | tuple[bytes, ...]) -> list[bytes]:
    """A scope's request as it goes over the wire: in one piece, or chunk by chunk."""
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    lines = [b"%b %b%b HTTP/1.1" % (scope["method"].encode(), scope["raw_path"], query)]
    lines += [b"%b: %b" % pair for pair in scope["headers"]]
    said = {name for name, _value in scope["headers"]}
    if isinstance(body, tuple):
        lines.append(b"transfer-encoding: chunked")
        chunks = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in body if chunk]
        return [b"\r\n".join([*lines, b"", b""]), *chunks, b"0\r\n\r\n"]
    if body and b"content-length" not in said:
        lines.append(b"content-length: %d" % len(body))
    return [b"\r\n".join([*lines, b"", b""]) + body]


async def exchange(
    listener: Listener, scope: Scope, body: bytes | tuple[bytes, ...], going_on: set[asyncio.Task[None]] | None
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """One request and its answer: status, fields and body, without what is only the connection's.

    Waits for what a handler does after its answer, too, unless it is told where to note what is ``going_on``.
    """
    facts, state = {name: scope[name] for name in OF_THE_CONNECTION}, ServerState()
    reader, writer = await listener.connect(facts, state)
    try:
        async with asyncio.timeout(PATIENCE_S):
            for piece in request_bytes(scope, body):
                writer.write(piece)
                await writer.drain()
            answer = await _answer(reader, is_head=scope["method"] == "HEAD")
            if going_on is not None:
                going_on |= state.tasks
            elif state.tasks:
                await asyncio.wait(list(state.tasks))
            return answer
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader, *, is_head: bool) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    status = int(first.split(b" ")[1])
    pairs = [(name, value) for name, _colon, value in (line.partition(b": ") for line in lines)]
    found = dict(pairs)
    if is_head or status in (204, 304):
        return status, pairs, b""
    if found.get(b"transfer-encoding") == b"chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        return status, [pair for pair in pairs if pair[0] != b"transfer-encoding"], body
    return status, pairs, await reader.readexactly(int(found[b"content-length"]))
