"""What a ledger in Redis says of itself, for ``twophp doctor``. Links that nobody has joined yet are taken up."""

from __future__ import annotations

import msgspec

from twophp.core.records import Instant
from twophp.stores.clock import wall_clock
from twophp.stores.redis import driver, opening
from twophp.stores.redis.driver import Server
from twophp.stores.redis.journal import join, pages
from twophp.stores.redis.layout import Layout
from twophp.stores.sqlite.verify import ProvenHead


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """One look."""

    server: str  # Its version.
    is_cluster: bool
    used_bytes: int
    most_bytes: int  # 0: as much as the machine has.
    ahead_ms: int  # How far the server's clock is ahead of this machine's.
    written_at: Instant
    now: Instant
    newest: ProvenHead | None
    noted: bytes | None  # The hash of the line that was asked about, if it is the end of a link.


async def look_at(url: str, line: int = 0) -> Health:
    """Refuse what a service would refuse, then look."""
    place = driver.place_of(url)
    server, keys = Server(place, connections=1), Layout(place.prefix)
    async with driver.in_our_words():
        try:
            await server.connect()
            await opening.insist_on_durability(server)
            await opening.insist_on_format(server, keys, may_make=False)
            await join(server, keys)
            before = wall_clock()
            seconds, micros, *_found = await server.run("load", keys.several(("state", "key", "record")), 0)
            now = int(seconds) * 1_000 + int(micros) // 1_000
            ahead_ms = now - (before + wall_clock()) // 2
            about, memory = [(await server.ask_all("INFO", part))[0] for part in ("server", "memory")]
            writers = await opening.read_writers(server, keys)
            _kept, lines, digest = await opening.read_head(server, keys)
            noted = await _hash_of(server, keys, line)
        finally:
            await server.close()
    return Health(
        server=str(about["redis_version"]),
        is_cluster=about.get("redis_mode") == "cluster",
        used_bytes=int(memory["used_memory"]),
        most_bytes=int(memory["maxmemory"]),
        ahead_ms=ahead_ms,
        written_at=max((row.at for row in writers.values()), default=0),
        now=now,
        newest=ProvenHead(lines, digest) if lines else None,
        noted=noted,
    )


async def _hash_of(server: Server, keys: Layout, line: int) -> bytes | None:
    """The joined hash of the link that ends with this line."""
    places = "BYSCORE", "REV", "LIMIT", 0, 1, "WITHSCORES"
    found = await server.ask("ZRANGE", keys.of("places"), line, "-inf", *places)
    if not found:
        return None
    async for page in pages(server, keys, int(float(found[1]))):
        link = page[0].link
        return page[0].joined if link is not None and page[0].first + link.count - 1 == line else None
    return None
