"""Connections of the gate, and those that are kept for the next call to the same place.

A TLS handshake takes several times as long as the call it is for, and a service calls the same few receivers again and
again. A line is used again only if it leads where this very call was judged to go: the same name and port, and an
address that the name has *now*. Every line carries one call at a time. Bytes that the other side sends unasked end it,
and so does a short while without a call.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Collection
from contextlib import suppress
from ipaddress import IPv6Address
from typing import Final, TypeAlias

from twophp.core.networks import Address
from twophp.delivery.egress_http import MAX_ANSWER_HEAD_BYTES
from twophp.delivery.egress_urls import Target

MOST_LINES: Final = 64
"""How many are kept, all receivers together."""
IDLE_S: Final = 4.0
"""How long a line is kept without a call. Servers close after five seconds and more; it is better to close first."""

SKIP_S: Final = 0.25
"""How long the rest of an answer is waited for, so that its line can be kept."""

_Place: TypeAlias = tuple[bool, str, int]


class _Protocol(asyncio.StreamReaderProtocol):
    """Closes the connection when the other side sends bytes while no call is made."""

    resting: Line | None = None
    unread = 0

    def data_received(self, data: bytes) -> None:
        if self.resting is not None:
            self.resting.writer.transport.abort()
        else:
            self.unread += len(data)
            super().data_received(data)


class Line:
    """One connection to one address."""

    def __init__(
        self,
        target: Target,
        address: Address,
        reader: asyncio.StreamReader,
        transport: asyncio.Transport,
        ours: _Protocol,
    ) -> None:
        self.place: _Place = _place(target)
        self.address = address
        self._reader = reader
        self.writer = asyncio.StreamWriter(transport, ours, reader, asyncio.get_running_loop())
        self._protocol = ours
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the connection is open, as far as is known here."""
        return not self.writer.transport.is_closing()

    @property
    def unread(self) -> int:
        """How many bytes have come that are not read yet."""
        return self._protocol.unread

    async def read_until(self, end: bytes) -> bytes:
        """Up to these bytes, and with them."""
        return self._noted(await self._reader.readuntil(end))

    async def read_exactly(self, length: int) -> bytes:
        """So many bytes."""
        return self._noted(await self._reader.readexactly(length))

    def _noted(self, read: bytes) -> bytes:
        self._protocol.unread -= len(read)
        return read

    def rest(self, seconds: float) -> None:
        """Wait for the next call, though not for ever."""
        self._protocol.resting = self
        self._expiry = asyncio.get_running_loop().call_later(seconds, self.writer.transport.abort)

    def wake(self) -> None:
        """The next call is here."""
        self._protocol.resting = None
        if self._expiry is not None:
            self._expiry.cancel()

    async def hang_up(self) -> None:
        """Close at once: a TLS goodbye would wait for that of the other side."""
        self.wake()
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()


async def open_line(target: Target, address: Address, ssl_context: ssl.SSLContext) -> Line:
    """Connect by number: the flag makes the system refuse to look anything up."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_ANSWER_HEAD_BYTES, loop=loop)
    transport, protocol = await loop.create_connection(
        lambda: _Protocol(reader, loop=loop),
        str(address),
        target.port,
        family=socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET,
        flags=socket.AI_NUMERICHOST,
        ssl=ssl_context if target.tls else None,
        server_hostname=target.host if target.tls else None,
    )
    return Line(target, address, reader, transport, protocol)


class Lines:
    """The lines that wait for their next call."""

    def __init__(self, *, most: int = MOST_LINES, idle_s: float = IDLE_S) -> None:
        self._most = most
        self._idle_s = idle_s
        self._idle: list[Line] = []
        self._skipping: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def take(self, target: Target, addresses: Collection[Address]) -> Line | None:
        """The line that rested last, of those that lead to one of these addresses. It belongs to this caller now."""
        place = _place(target)
        self._idle = [line for line in self._idle if line.is_alive]
        for line in reversed(self._idle):
            if line.place == place and line.address in addresses:
                self._idle.remove(line)
                line.wake()
                return line
        return None

    async def keep(self, line: Line, *, after: int) -> None:
        """Keep the line for the next call, once ``after`` bytes of the answer are read. No caller waits for these."""
        if line.unread >= after:
            await line.read_exactly(after)  # They are here already.
            await self._rest(line)
        else:
            task = asyncio.get_running_loop().create_task(self._rest_after(line, after))
            self._skipping.add(task)
            task.add_done_callback(self._skipping.discard)

    async def _rest_after(self, line: Line, length: int) -> None:
        """A body that does not come is not waited for: it could go on for ever."""
        try:
            async with asyncio.timeout(SKIP_S):
                await line.read_exactly(length)
        except (OSError, asyncio.IncompleteReadError):
            await line.hang_up()
        else:
            await self._rest(line)

    async def _rest(self, line: Line) -> None:
        """If there are enough, the one that has rested longest makes room."""
        if self._is_closed or not line.is_alive or line.unread:  # More than an answer is not for the next one.
            await line.hang_up()
            return
        line.rest(self._idle_s)
        self._idle.append(line)
        if len(self._idle) > self._most:
            await self._idle.pop(0).hang_up()

    async def close(self) -> None:
        """Hang up everywhere, and keep nothing from now on."""
        self._is_closed = True
        if self._skipping:
            await asyncio.wait(self._skipping)  # Not for long, and then they hang up by themselves.
        while self._idle:
            await self._idle.pop().hang_up()


def _place(target: Target) -> _Place:
    return target.tls, target.host, target.port
