"""Store URLs: ``memory:``, ``sqlite:///a.db``, ``postgresql://…``, ``redis://…``; and the vault that belongs to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, runtime_checkable

import msgspec

from twophp.core.errors import ConfigError
from twophp.ports import Clock, Vault, WholeStore
from twophp.stores.clock import system_clock
from twophp.stores.keys import (
    KEYS_FILE_VARIABLE,
    KEYS_VARIABLE,
    Keys,
    configured_keys,
    dev_ephemeral_key,
    provided_vault,
)
from twophp.stores.memory import MemoryStore
from twophp.stores.ring_file import KeysFile, RingFile, watching_vault
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.blocking import BlockingSQLite
from twophp.stores.sqlite.reading import holds_seals, newest_seals
from twophp.stores.vault import AesGcmVault, KeyRing

if TYPE_CHECKING:
    from twophp.stores.postgres import PostgresStore
    from twophp.stores.redis import RedisStore

SUPPORTED: Final = (
    "memory:, sqlite:///relative.db, sqlite:////absolute.db, postgresql://user@host/database or redis://host:6379"
)
_SQLITE: Final = "sqlite:///"
POSTGRESQL: Final = ("postgresql://", "postgres://")
REDIS: Final = ("redis://", "rediss://")
_SERVERS: Final = {"postgresql": "PostgreSQL", "redis": "Redis"}


@runtime_checkable
class Opens(Protocol):
    """A store that takes its time to open."""

    async def open(self) -> None:
        """Connect; until then it knows nothing."""
        ...


class StoreUrl(msgspec.Struct, frozen=True):
    """A store URL, understood. ``path`` is a file's, or the whole URL of a database; that may hold a password."""

    kind: Literal["memory", "sqlite", "postgresql", "redis"]
    path: str = ""


def parse_store_url(url: str, *, supported: str = SUPPORTED) -> StoreUrl:
    """Parse ``url``. The path is taken literally: nothing in it is an escape or an option.

    ``supported`` is what an error says to use instead.
    """
    if url == "memory:":
        return StoreUrl("memory")
    if url.startswith(POSTGRESQL):
        return StoreUrl("postgresql", url)
    if url.startswith(REDIS):
        return StoreUrl("redis", url)
    path = url.removeprefix(_SQLITE)
    if path == url or path in ("", ":memory:"):
        scheme = url.partition(":")[0]  # No more of it: a URL may hold a password.
        message = f"no store is known for a {scheme!r} URL like this; use {supported}"
        raise ConfigError(message, code="unknown_store")
    return StoreUrl("sqlite", path)


def absolute_url(url: str) -> str:
    """The URL with an absolute path: the process may change its folder, or send the URL to another process."""
    where = parse_store_url(url)
    return f"{_SQLITE}{Path(where.path).absolute()}" if where.kind == "sqlite" else url


def open_store(url: str, *, clock: Clock = system_clock) -> WholeStore:
    """The store that ``url`` names; made if it is not there. One on a server is open once it was entered."""
    where = parse_store_url(url)
    if where.kind == "postgresql":
        return _postgres(where.path, clock)
    if where.kind == "redis":
        return _redis(where.path, clock)
    return MemoryStore(clock=clock) if where.kind == "memory" else SQLiteStore(where.path, clock=clock)


def _postgres(url: str, clock: Clock) -> PostgresStore:
    from twophp.stores.postgres import PostgresStore  # noqa: PLC0415 - Whoever has no PostgreSQL needs no driver.

    return PostgresStore(url, clock=clock)


def _redis(url: str, clock: Clock) -> RedisStore:
    from twophp.stores.redis import RedisStore  # noqa: PLC0415 - Whoever has no Redis needs no driver.

    return RedisStore(url, clock=clock)


@asynccontextmanager
async def opening(url: str, *, clock: Clock = system_clock) -> AsyncIterator[WholeStore]:
    """As ``open_store``, for a block that builds on the store. It stays open after the block unless the block fails."""
    store = open_store(url, clock=clock)
    try:
        if isinstance(store, Opens):
            await store.open()
        yield store
    except BaseException:
        await store.close()
        raise


def open_blocking(url: str, *, clock: Clock = system_clock) -> BlockingSQLite | None:
    """A handle for threads on a store that is open already, or None if the kind of store has none."""
    where = parse_store_url(url)
    return BlockingSQLite(where.path, clock=clock) if where.kind == "sqlite" else None


def open_vault(url: str, keys: Keys | None = None, *, clock: Clock = system_clock) -> Vault:
    """The vault for the store at ``url``.

    Its ring is ``keys``, which may be a callable that has it; or what ``TWOPHP_KEYS`` or ``TWOPHP_KEYS_FILE`` says; or
    else: for SQLite the file beside the database, made on the first start; for memory a ring that is forgotten with it.
    For a server there is no else: every replica needs the same ring, and no machine of them is the place for it.
    """
    where = parse_store_url(url)
    vault = _open_vault(where, keys, clock)
    if where.kind == "sqlite" and keys is not dev_ephemeral_key:
        _refuse_other_ring(where.path, vault)
    return vault


def _open_vault(where: StoreUrl, keys: Keys | None, clock: Clock) -> AesGcmVault:
    if callable(keys):
        return provided_vault(keys)
    source = ring_source(where, keys, clock=clock)
    if isinstance(source, RingFile):
        source.ensure(lambda: holds_seals(where.path))
    return AesGcmVault(source) if isinstance(source, KeyRing) else watching_vault(source)


def _refuse_other_ring(path: str, vault: AesGcmVault) -> None:
    """Refuse a ring that is not the database's: no seal opens, and new seals would not open under the right ring.

    Several seals are tried: a single one may have been tampered with, and says nothing about the ring.
    """
    service, newest = newest_seals(path)
    if newest and all(row.problem(vault, service) for row in newest):
        message = f"the key ring opens nothing of what {path} sealed last; give the ring that belongs to the database"
        raise ConfigError(message, code="other_key_ring")


def ring_source(
    where: StoreUrl, keys: Keys | None = None, *, clock: Clock = system_clock
) -> KeyRing | KeysFile | RingFile:
    """Where the keys of a store come from. A ring file is not made here."""
    configured = configured_keys(keys)
    if isinstance(configured, Path):
        return KeysFile(configured)
    if configured is not None:
        return configured
    if (server := _SERVERS.get(where.kind)) is not None:
        message = (
            f"{server} needs a key ring that every replica has: set {KEYS_VARIABLE}, {KEYS_FILE_VARIABLE} or keys="
        )
        raise ConfigError(message, code="keys_required")
    return KeyRing.generate() if where.kind == "memory" else RingFile.beside(where.path, clock=clock)
