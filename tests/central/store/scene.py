"""Writers, rows and batches for the tests of the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from tests.core.calls import FOURTEEN, T0, client_row, server_row
from twophp.central.ports import Ack, Row, RowFilter, Service
from twophp.central.stores.store import CentralStore
from twophp.core.entry import LedgerEntry, outcome_of
from twophp.core.intent import Phase

__all__ = ["FOURTEEN", "LEDGER", "T0", "client_row", "server_row"]

LEDGER = "ledger of orders"


async def writer(store: CentralStore, ledger: str = LEDGER) -> Service:
    return await store.register(f"writer of {ledger}", ledger, f"credential of {ledger}", T0)


def order(number: int, *, version: int = 1, phase: Phase = Phase.COMMITTED, **facts: Any) -> LedgerEntry:
    """A server row of the service ``orders``, in a version."""
    known = {"version": version, "phase": phase, "outcome": outcome_of(phase), "phase_1_timestamp": T0 + number}
    return server_row(f"client-{number}", **(known | facts))


async def send(store: CentralStore, *rows: LedgerEntry, at: int = T0, ledger: str = LEDGER) -> Sequence[Ack]:
    return await store.ingest(await writer(store, ledger), rows, at)


async def send_each_by_its_writer(store: CentralStore, rows: Sequence[LedgerEntry], at: int = T0) -> None:
    for ledger in dict.fromkeys(row.service_ledger_id for row in rows):
        await send(store, *(row for row in rows if row.service_ledger_id == ledger), at=at, ledger=ledger)


async def everything(store: CentralStore) -> list[Row]:
    return [row async for chunk in store.export(RowFilter()) for row in chunk]


async def contents(store: CentralStore) -> list[LedgerEntry]:
    """Every row as it was sent, in an order of its own."""
    rows = [replace(row.entry, sync_timestamp=None) for row in await everything(store)]
    return sorted(rows, key=lambda row: (row.client_correlation_id, row.actor))


def outcomes(acks: Sequence[Ack]) -> list[str]:
    return [ack.code or ack.outcome for ack in acks]
