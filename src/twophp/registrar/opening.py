"""What a registrar is made of: the store that writes, the store that audits, and the witness, each by itself."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

import msgspec

from twophp.core.errors import ConfigError
from twophp.ports import Clock, WholeStore
from twophp.registrar.witness import MemoryWitness, Witness
from twophp.stores.memory import MemoryStore
from twophp.stores.sqlite.registrar import RegistrarStore, SQLiteWitness
from twophp.stores.urls import parse_store_url

OWN_SURFACE: Final = "registrar_consumed"
OWN_AUDIT: Final = "registrar_audit"


class Opened(msgspec.Struct, kw_only=True):
    """The parts of an open registrar. ``path`` is empty in memory."""

    store: WholeStore
    audit: WholeStore  # A handle of its own: what it writes is no part of any transaction of ``store``.
    witness: Witness
    path: str = ""

    async def close(self) -> None:
        """Close the store and every connection."""
        self.witness.close()
        try:
            await self.audit.close()
        finally:
            await self.store.close()


async def open_parts(url: str, clock: Clock) -> Opened:
    """Open or make what ``url`` names: all of it, or nothing stays open."""
    where = parse_store_url(url)
    if where.kind == "memory":
        memory = MemoryStore(clock=clock)
        return Opened(store=memory, audit=memory, witness=MemoryWitness(memory))
    if where.kind != "sqlite":
        raise ConfigError("a registrar lives in memory: or in sqlite:///a.file", code="unknown_store")
    async with AsyncExitStack() as opened:
        store, audit = [
            await opened.enter_async_context(RegistrarStore(where.path, clock=clock)) for _part in ("store", "audit")
        ]
        parts = Opened(store=store, audit=audit, witness=SQLiteWitness(where.path), path=where.path)
        opened.pop_all()
    return parts
