"""What a registrar is made of: the store that writes, the store that audits, and the witness, each by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec

from twophp.core.errors import ConfigError
from twophp.ports import Clock, WholeStore
from twophp.registrar.witness import MemoryWitness, Witness
from twophp.stores.memory import MemoryStore
from twophp.stores.sqlite.reading import reading
from twophp.stores.sqlite.registrar import RegistrarStore, SQLiteWitness
from twophp.stores.urls import parse_store_url

OWN_SURFACE: Final = "registrar_consumed"
OWN_AUDIT: Final = "registrar_audit"
_SUPPORTED: Final = "memory:, sqlite:///relative.db, sqlite:////absolute.db or postgresql://user@host/database"


class Opened(msgspec.Struct, kw_only=True):
    """The parts of an open registrar, and the URL that they were opened by."""

    store: WholeStore
    audit: WholeStore  # A handle of its own: what it writes is no part of any transaction of ``store``.
    witness: Witness
    url: str

    async def close(self) -> None:
        """Close the store and every connection."""
        try:
            await self.witness.close()
        finally:
            try:
                await self.audit.close()
            finally:
                await self.store.close()


async def open_parts(url: str, clock: Clock) -> Opened:
    """Open or make what ``url`` names: all of it, or nothing stays open."""
    where = parse_store_url(url)
    if where.kind == "memory":
        memory = MemoryStore(clock=clock)
        return Opened(store=memory, audit=memory, witness=MemoryWitness(memory), url=url)
    if where.kind == "postgresql":
        return await _open_on_postgres(url, clock)
    if where.kind != "sqlite":
        raise ConfigError(f"a registrar cannot live in {where.kind}; use {_SUPPORTED}", code="unknown_store")
    async with AsyncExitStack() as opened:
        store, audit = [
            await opened.enter_async_context(RegistrarStore(where.path, clock=clock)) for _part in ("store", "audit")
        ]
        parts = Opened(store=store, audit=audit, witness=SQLiteWitness(where.path), url=url)
        opened.pop_all()
    return parts


async def _open_on_postgres(url: str, clock: Clock) -> Opened:
    from twophp.stores.postgres import registrar as postgres  # noqa: PLC0415 - Others need no driver.

    async with AsyncExitStack() as opened:
        store, audit = [
            await opened.enter_async_context(postgres.RegistrarStore(url, clock=clock)) for _part in ("store", "audit")
        ]
        witness = await postgres.PostgresWitness.open(url)
        parts = Opened(store=store, audit=audit, witness=witness, url=url)
        opened.pop_all()
    return parts


@asynccontextmanager
async def witnessing(url: str) -> AsyncIterator[Witness]:
    """Look from outside at a database that is there: nothing is made or migrated."""
    where = parse_store_url(url)
    if where.kind != "postgresql":
        with reading(where.path) as connection:
            yield SQLiteWitness(where.path, connection)
        return
    from twophp.stores.postgres.registrar import PostgresWitness  # noqa: PLC0415 - Others need no driver.

    witness = await PostgresWitness.open(url)
    try:
        yield witness
    finally:
        await witness.close()
