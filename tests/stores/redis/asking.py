"""A look behind the store."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import Redis


def keys_of(url: str, name: str = "") -> str:
    """A key of the ledger at this URL."""
    return f"{{{parse_qs(urlsplit(url).query).get('prefix', ['twophp'])[0]}}}:{name}"


async def send(url: str, *words: Any) -> Any:
    """Send a command, whatever it is about."""
    async with Redis.from_url(url.partition("?")[0], protocol=2) as client:
        return await client.execute_command(*words)  # type: ignore[no-untyped-call]


async def ask(url: str, command: str, name: str, *words: Any) -> Any:
    """Send a command about one key of the ledger."""
    return await send(url, command, keys_of(url, name), *words)
