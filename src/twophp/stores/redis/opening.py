"""Opening a ledger: what would not be durable is refused, the format is noted, a writer gets its row."""

from __future__ import annotations

from typing import Any, Final

from twophp.core.errors import ConfigError, SchemaMismatch, StoreUnavailable
from twophp.core.records import Instant
from twophp.kernel.journal import GENESIS
from twophp.stores.chains import Chain, beginning
from twophp.stores.redis import layout
from twophp.stores.redis.driver import OLDEST, Server
from twophp.stores.redis.layout import FORMAT, NAMES, Layout, WriterRow

_DURABLE: Final = {
    "appendonly": ("yes", "CONFIG SET appendonly yes"),
    "appendfsync": ("always", "CONFIG SET appendfsync always"),
    "no-appendfsync-on-rewrite": ("no", "CONFIG SET no-appendfsync-on-rewrite no"),
    "maxmemory-policy": ("noeviction", "CONFIG SET maxmemory-policy noeviction"),
}
TRIES: Final = 100


async def insist_on_durability(server: Server) -> None:
    """Refuse a server that trades what we promise for speed, that forgets what it has no room for, or is a replica."""
    server.is_new = False
    for info in await server.ask_all("INFO", "server"):
        version = str(info.get("redis_version", "0"))
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
            raise ConfigError(f"the ledger needs Redis 7, and this server is {version}", code="old_server")
    for found in await server.ask_all("CONFIG", "GET", *_DURABLE):
        settings = {name.decode(): value.decode() for name, value in zip(found[::2], found[1::2], strict=True)}
        weak = [name for name, (wanted, _cure) in _DURABLE.items() if settings.get(name) != wanted]
        if weak:
            said = ", ".join(f"{name}={settings.get(name)}" for name in weak)
            cure = "; ".join(_DURABLE[name][1] for name in weak)
            message = f"what the ledger acknowledges must survive, and this server has {said}: {cure}; CONFIG REWRITE"
            raise ConfigError(message, code="weak_durability")
    (first, *_replicas) = await server.ask_all("INFO", "replication")
    if first.get("role") != "master":
        raise StoreUnavailable("the server is a replica; name the primary", code="store_read_only")


async def insist_on_format(server: Server, keys: Layout, *, may_make: bool) -> None:
    """A ledger of this version, or none yet."""
    if may_make:
        await server.ask("HSETNX", keys.of("state"), "format", FORMAT)
    there = int(await server.ask("HGET", keys.of("state"), "format") or 0)
    if not there:
        message = f"no ledger {keys.tag} is there; look at prefix= and the database, or start its service once"
        raise SchemaMismatch(message, code="schema_too_old")
    if there != FORMAT:
        remedy = "upgrade twophp" if there > FORMAT else "start its service once, which migrates it"
        message = f"{keys.tag} has format {there}, this twophp knows {FORMAT}; {remedy}"
        raise SchemaMismatch(message, code="schema_too_new" if there > FORMAT else "schema_too_old")


async def read_writers(server: Server, keys: Layout) -> dict[int, WriterRow]:
    """Every handle that has ever written, and where its chain has come to."""
    found = await server.ask("HGETALL", keys.of("writer"))
    pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
    return {int(id_): layout.writer_in(value) for id_, value in sorted(pairs, key=lambda one: int(one[0]))}


async def read_head(server: Server, keys: Layout) -> tuple[bytes, int, bytes]:
    """Where the joined journal ends: as it is kept, the number of its last line, and its hash."""
    found = await server.ask("HGET", keys.of("state"), "head")
    return (b"", 0, GENESIS) if found is None else (found, *layout.head_in(found))


async def begin_writer(server: Server, keys: Layout, name: str) -> tuple[Chain, WriterRow, Instant]:
    """A chain of its own for a handle, and the latest instant that anybody has written. It proves a write."""
    for _attempt in range(TRIES):
        writers = await read_writers(server, keys)
        kept, lines, digest = await read_head(server, keys)
        last = max(writers, default=0)
        at = max((row.at for row in writers.values()), default=0)
        start = beginning(last, lines, digest)
        row = WriterRow(0, 0, 0, start.hex(), at, False, last, lines, name)  # noqa: FBT003 - a row's fields
        guards = ("writer", last + 1, b""), ("state", "head", kept)
        if await commit(server, keys, guards, ("HSET", "writer", last + 1, layout.writer_value(row))):
            return Chain(last + 1, hash=start), row, at
    raise StoreUnavailable("others begin to write all the time", code="store_busy")


async def close_writer(server: Server, keys: Layout, id_: int) -> None:
    """Nothing more becomes durable in that writer's name: from then on, reading a key tells for good."""
    for _attempt in range(TRIES):
        row = (await read_writers(server, keys)).get(id_)
        if row is None or row.is_closed:
            return
        closed = layout.writer_value(layout.closed(row))
        guard = "writer", id_, layout.writer_value(row)
        if await commit(server, keys, (guard,), ("HSET", "writer", id_, closed)):
            return
    raise StoreUnavailable("the writer's row does not stand still", code="store_busy")


async def commit(server: Server, keys: Layout, guards: Any, *commands: Any) -> bool:
    """Run these commands if these guards hold: a batch without records. Whether they held."""
    place_of = {name: place for place, name in enumerate(NAMES, 1)}
    values: list[Any] = [len(guards), 0, ""]
    for name, field, begins in guards:
        values += place_of[name], field, begins
    for command, name, *words in commands:
        values += len(words) + 2, command, place_of[name], *words
    return not await server.run("commit", keys.static, *values)
