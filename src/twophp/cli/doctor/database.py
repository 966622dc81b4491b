"""A ledger in PostgreSQL: whether a service could use it, and what it stands on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from twophp.cli.doctor.findings import Finding, failed_with, ok, warn
from twophp.cli.doctor.heads import check_noted, noted_in
from twophp.cli.doctor.store import check_store_time
from twophp.cli.rows import lasted
from twophp.core.errors import TwoPHPError
from twophp.stores.sqlite.verify import ProvenHead
from twophp.stores.urls import StoreUrl, ring_source

APART_MS: Final = 1_000


def check_ledger(url: str, note: Path | None) -> Iterator[Finding]:
    """Everything about the database and the ledger in it."""
    from twophp.stores.postgres.health import look_at  # noqa: PLC0415 - It brings the driver.

    yield _check_ring(url)
    noted = None if note is None else noted_in(note)
    line = 0 if noted is None else ProvenHead.parse(noted.head).seq
    try:
        health = asyncio.run(look_at(url, line))
    except TwoPHPError as error:
        yield failed_with("store.server", error, "as the message says: a service would not start either")
        return
    waits = f"a commit waits for {health.standbys}" if health.standbys else "no commit waits for a standby"
    pooled = ", through a pooler" if health.is_pooled else ""
    yield ok("store.server", f"PostgreSQL {health.server}{pooled}, durable; {waits}")
    if abs(health.ahead_ms) > APART_MS:
        which = "ahead of" if health.ahead_ms > 0 else "behind"
        means = f"the database's clock is {lasted(abs(health.ahead_ms))} {which} this machine's"
        yield warn("clock.database", means, "let NTP slew both: the database's time decides deadlines")
    else:
        yield ok("clock.database", "the database's clock and this machine's agree")
    yield from check_store_time(health.written_at, health.now)
    if note is not None:
        yield check_noted(note, noted, health.newest, health.noted, health.now)


def _check_ring(url: str) -> Finding:
    try:
        ring_source(StoreUrl("postgresql", url))
    except TwoPHPError as error:
        return failed_with("keys.ring", error, "give every replica the same ring")
    return ok("keys.ring", "a ring is given from outside; every replica needs the same")
