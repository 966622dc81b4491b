"""The connection to Redis is cut before every message of a handshake: clients hear what is true, or to ask again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import pytest

from tests.stores.postgres.proxy import Proxy
from tests.stores.postgres.test_cut_connections import cut_everywhere
from twophp.stores.redis.verify import verify

pytestmark = pytest.mark.anyio
MESSAGE: Final = 1 << 20


class ChunkProxy(Proxy):
    """One command is under way on a connection at a time, so what is read at once is a message, or a part of one."""

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        _kind_bytes: int,
        both: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        try:
            with suppress(OSError):
                while chunk := await reader.read(MESSAGE):
                    if self._cuts():
                        return
                    writer.write(chunk)
                    await writer.drain()
        finally:
            for end in both:
                end.transport.abort()


@pytest.mark.req("A-42", "A-52", "P-6-a", "P-8.1-a", "P-9.1-a")
async def test_a_connection_that_is_cut_anywhere_loses_nothing_and_repeats_nothing(ledger: str) -> None:
    proxy = ChunkProxy(ledger)
    await proxy.open()
    try:
        cuts = await cut_everywhere(proxy, f"redis://{proxy.address}/0?{ledger.partition('?')[2]}")
    finally:
        await proxy.close()
    assert cuts > 10, "a handshake has that many messages"
    assert (await verify(ledger)).findings == ()
