"""Opening a ledger: what would not be durable is refused, the schema is brought up to date, a writer gets its row."""

from __future__ import annotations

from typing import Any

from twophp.core.errors import ConfigError, SchemaMismatch, StoreUnavailable
from twophp.core.records import Instant
from twophp.stores.postgres.chain import Chain
from twophp.stores.postgres.script import Script


async def insist_on_durability(connection: Any, script: Script) -> None:
    """Some set-ups trade what we promise for speed, and a standby cannot be written."""
    fsync, whole_pages, commit, is_read_only, _pid = await connection.fetchrow(script.named("about_server"))
    if is_read_only == "on":
        raise StoreUnavailable("the database can only be read; name the primary", code="store_read_only")
    if fsync != "on" or whole_pages != "on" or commit == "off":
        message = (
            "the ledger needs fsync, full_page_writes and synchronous_commit, and this server has "
            f"fsync={fsync}, full_page_writes={whole_pages}, synchronous_commit={commit}"
        )
        raise ConfigError(message, code="weak_durability")


async def migrate(connection: Any, script: Script) -> None:
    """Bring the schema to this version of twophp; whoever else starts meanwhile waits."""
    async with connection.transaction():
        await connection.execute(script.named("lock_schema"))
        if not await connection.fetchval(script.named("has_schema"), script.schema):
            await connection.execute(script.named("make_schema").format(schema=script.schema))
        if not await connection.fetchval(script.named("has_version")):
            await connection.execute(script.named("make_version"))
        there, steps = await connection.fetchval(script.named("read_version")), script.migrations()
        newest = steps[-1][0]
        if there > newest:
            message = f"schema {there} is newer than this twophp knows ({newest}); upgrade twophp"
            raise SchemaMismatch(message, code="schema_too_new")
        for number, text in steps:
            if number > there:
                await connection.execute(text)
                await connection.execute(script.named("note_version"), number)


async def insist_on_schema(connection: Any, script: Script) -> None:
    """For whoever only looks: there is a ledger, and it is of this version."""
    newest = script.migrations()[-1][0]
    there = 0
    if await connection.fetchval(script.named("has_version")):
        there = await connection.fetchval(script.named("read_version"))
    if there != newest:
        remedy = "upgrade twophp" if there > newest else "start its service once, which makes or migrates it"
        message = f"{script.schema} has schema {there}, this twophp reads {newest}; {remedy}"
        raise SchemaMismatch(message, code="schema_too_new" if there > newest else "schema_too_old")


async def begin_writer(connection: Any, script: Script, name: str) -> tuple[Chain, Instant]:
    """A chain of its own for a handle, and the latest instant that anybody has written. It proves a write."""
    id_, at = await connection.fetchrow(script.named("begin_writer"), name)
    return Chain(id_), at


async def close_writer(connection: Any, script: Script, chain: Chain) -> None:
    """Nothing more becomes durable in that writer's name: from then on, reading a key tells for good."""
    async with connection.transaction():
        await connection.execute(script.named("lock_timeout"))
        await connection.execute(script.named("close_writer"), chain.id)
