"""Opening a ledger: what would not be durable is refused, the schema is brought up to date, a writer gets its row."""

from __future__ import annotations

import logging
from typing import Any, Final

from twophp.core.errors import ConfigError, SchemaMismatch, StoreUnavailable
from twophp.core.records import Instant
from twophp.stores.chains import Chain
from twophp.stores.postgres.script import Script

log: Final = logging.getLogger("twophp.store")

PATIENCE_S: Final = 3_600
"""So long a step of a migration may take, and so long it is waited for; `be_patient` says the same of locks."""


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


async def stop_older_handles(connection: Any, script: Script) -> None:
    """Before the schema is migrated: whoever wrote by the older one writes no more, nor begins anew (``begin_writer``).

    It is durable before the first step, in a transaction of its own. A batch takes its records first and its writer's
    row last; a migration that took them the other way round would wait for it, and it for the migration.
    """
    async with connection.transaction():
        await _lock_schema(connection, script)
        if not await connection.fetchval(script.named("has_version")):
            return
        if 0 < await connection.fetchval(script.named("read_version")) < script.migrations()[-1][0]:
            await insist_on_durability(connection, script)
            await connection.execute(script.named("close_writers"), timeout=PATIENCE_S)


async def migrate(connection: Any, script: Script) -> None:
    """Bring the schema to this version of twophp; whoever else starts meanwhile waits. A step may take long."""
    async with connection.transaction():
        await _lock_schema(connection, script)
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
                if there:
                    log.info("migrating %s to schema %d", script.schema, number)
                await connection.execute(text, timeout=PATIENCE_S)
                await connection.execute(script.named("note_version"), number)
        if 0 < there < newest:  # Whoever began since its handle was stopped.
            await connection.execute(script.named("close_writers"), timeout=PATIENCE_S)


async def _lock_schema(connection: Any, script: Script) -> None:
    """Until the transaction ends. Another replica may be migrating, which takes as long as it takes."""
    await connection.execute(script.named("be_patient"))
    if not await connection.fetchval(script.named("try_lock_schema")):
        log.info("another replica opens or migrates %s; waiting for it", script.schema)
        await connection.fetchval(script.named("lock_schema"), timeout=PATIENCE_S)


async def insist_on_whole_copy(connection: Any, script: Script) -> None:
    """A ledger that is half copied has forgotten what it executed."""
    if await connection.fetchval(script.named("unfinished_copy")) is not None:
        message = f"a copy into {script.schema} is not finished; run `twophp store copy` again"
        raise StoreUnavailable(message, code="copy_unfinished")


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
    """A chain of its own for a handle, and the latest instant that anybody has written. It proves a write.

    The schema may have been migrated since the handle was opened: then it writes no more.
    """
    async with connection.transaction():
        await connection.execute(script.named("lock_timeout"))
        await connection.fetchval(script.named("lock_schema"))
        try:
            await insist_on_schema(connection, script)
        except (
            SchemaMismatch
        ) as mismatch:  # As good as a database that cannot be reached: nothing is written from here.
            raise StoreUnavailable(mismatch.message, code=mismatch.code) from mismatch
        id_, digest, at = await connection.fetchrow(script.named("begin_writer"), name)
    return Chain(id_, hash=digest), at


async def close_writer(connection: Any, script: Script, chain: Chain) -> None:
    """Nothing more becomes durable in that writer's name: from then on, reading a key tells for good."""
    async with connection.transaction():
        await connection.execute(script.named("lock_timeout"))
        await connection.execute(script.named("close_writer"), chain.id)
