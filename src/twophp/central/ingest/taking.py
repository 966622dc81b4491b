"""Taking rows in as a service's own, pushed or pulled: no service speaks for another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from twophp.central.ports import Ack, Service
from twophp.central.stores.store import CentralStore
from twophp.core.entry import LedgerEntry
from twophp.core.records import Instant

OTHER_SOURCE: Final = "other_source"


async def take_up(store: CentralStore, writer: Service, rows: Sequence[LedgerEntry], at: Instant) -> Sequence[Ack]:
    """One ack per row, in their order. A row in another service's name is refused before it is looked at."""
    own = [row for row in rows if row.source == writer.name]
    if len(own) == len(rows):
        return await store.ingest(writer, rows, at)
    acks = iter(await store.ingest(writer, own, at))
    return [next(acks) if row.source == writer.name else _other_source(row) for row in rows]


def _other_source(row: LedgerEntry) -> Ack:
    return Ack(
        client_correlation_id=row.client_correlation_id,
        server_correlation_id=row.server_correlation_id,
        actor=row.actor,
        version=row.version,
        outcome="refused",
        code=OTHER_SOURCE,
        detail="the row was written in another service's name",
    )
