"""What a ledger in PostgreSQL says of itself, for ``twophp doctor``. Links that nobody has joined yet are taken up."""

from __future__ import annotations

import msgspec

from twophp.core.records import Instant
from twophp.stores.clock import wall_clock
from twophp.stores.postgres import driver, opening
from twophp.stores.postgres.journal import join
from twophp.stores.postgres.script import Script
from twophp.stores.sqlite.verify import ProvenHead


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """One look."""

    server: str  # Its version.
    standbys: str  # Those that a commit waits for; empty: none.
    is_pooled: bool
    ahead_ms: int  # How far the database's clock is ahead of this machine's.
    written_at: Instant
    now: Instant
    newest: ProvenHead | None
    noted: bytes | None  # The hash of the line that was asked about, if it is the end of a link.


async def look_at(url: str, line: int = 0) -> Health:
    """Refuse what a service would refuse, then look."""
    place = driver.place_of(url)
    script = Script(place.schema)
    async with driver.in_our_words():
        pool, is_pooled = await driver.open_pool(place, most=1)
        try:
            async with pool.acquire() as connection, connection.transaction():
                await opening.insist_on_durability(connection, script)
                await opening.insist_on_schema(connection, script)
                await opening.insist_on_whole_copy(connection, script)
                await join(connection, script)
                before = wall_clock()
                server, standbys, now, at = await connection.fetchrow(script.named("about_ledger"))
                ahead_ms = now - (before + wall_clock()) // 2
                lines, digest = await connection.fetchrow(script.named("joined_so_far"))
                noted = await connection.fetchval(script.named("hash_of_line"), line)
        finally:
            await driver.close_pool(pool)
    newest = ProvenHead(lines, digest) if lines else None
    return Health(
        server=server,
        standbys=standbys,
        is_pooled=is_pooled,
        ahead_ms=ahead_ms,
        written_at=at,
        now=now,
        newest=newest,
        noted=noted,
    )
