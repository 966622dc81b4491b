"""A ledger in PostgreSQL or Redis: whether a service could use it, and what it stands on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from twophp.cli.doctor.findings import Finding, failed_with, ok, warn
from twophp.cli.doctor.heads import check_noted, noted_in
from twophp.cli.doctor.store import check_store_time
from twophp.cli.rows import lasted
from twophp.core.errors import TwoPHPError
from twophp.stores.sqlite.verify import ProvenHead
from twophp.stores.urls import REDIS, parse_store_url, ring_source

APART_MS: Final = 1_000
NEARLY_FULL: Final = 0.8
"""From this share of its memory on a server is warned about."""


def check_ledger(url: str, note: Path | None) -> Iterator[Finding]:
    """Everything about the database and the ledger in it."""
    yield _check_ring(url)
    noted = None if note is None else noted_in(note)
    line = 0 if noted is None else ProvenHead.parse(noted.head).seq
    try:
        health, said = _redis(url, line) if url.startswith(REDIS) else _postgres(url, line)
    except TwoPHPError as error:
        yield failed_with("store.server", error, "as the message says: a service would not start either")
        return
    yield said
    if abs(health.ahead_ms) > APART_MS:
        which = "ahead of" if health.ahead_ms > 0 else "behind"
        means = f"the database's clock is {lasted(abs(health.ahead_ms))} {which} this machine's"
        yield warn("clock.database", means, "let NTP slew both: the database's time decides deadlines")
    else:
        yield ok("clock.database", "the database's clock and this machine's agree")
    yield from check_store_time(health.written_at, health.now)
    if note is not None:
        yield check_noted(note, noted, health.newest, health.noted, health.now)


def _postgres(url: str, line: int) -> tuple[Any, Finding]:
    from twophp.stores.postgres.health import look_at  # noqa: PLC0415 - It brings the driver.

    health = asyncio.run(look_at(url, line))
    waits = f"a commit waits for {health.standbys}" if health.standbys else "no commit waits for a standby"
    pooled = ", through a pooler" if health.is_pooled else ""
    return health, ok("store.server", f"PostgreSQL {health.server}{pooled}, durable; {waits}")


def _redis(url: str, line: int) -> tuple[Any, Finding]:
    from twophp.stores.redis.health import look_at  # noqa: PLC0415 - It brings the driver.

    health = asyncio.run(look_at(url, line))
    what = f"Redis {health.server}{', a cluster' if health.is_cluster else ''}, synced at every change"
    used = f"{health.used_bytes / 2**20:,.0f} MiB"
    if not health.most_bytes:
        return health, ok("store.server", f"{what}; {used} of memory used, no limit set")
    most = f"{health.most_bytes / 2**20:,.0f} MiB"
    if health.used_bytes > health.most_bytes * NEARLY_FULL:
        means = f"{what}; {used} of {most} of memory used"
        return health, warn("store.server", means, "raise maxmemory: when it is full nothing more is registered")
    return health, ok("store.server", f"{what}; {used} of {most} of memory used")


def _check_ring(url: str) -> Finding:
    try:
        ring_source(parse_store_url(url))
    except TwoPHPError as error:
        return failed_with("keys.ring", error, "give every replica the same ring")
    return ok("keys.ring", "a ring is given from outside; every replica needs the same")
