"""Rows as services write them."""

from __future__ import annotations

from typing import Any

import msgspec

from twophp.core.entry import LedgerEntry, outcome_of
from twophp.core.intent import Mode, Phase

T0 = 1_767_225_600_000
OTHER = "00000000-0000-4000-8000-000000000000"


def row(number: object, writer: str, *, actor: str = "server", version: int = 1, **facts: Any) -> LedgerEntry:
    """One row of call ``number``: by default what ``orders`` writes when it is registered there."""
    phase = Phase(facts.pop("phase", "WAITING_CONFIRM"))
    usual: dict[str, Any] = {
        "client_correlation_id": f"client-{number}",
        "server_correlation_id": f"server-{number}",
        "service_ledger_id": writer,
        "service_endpoint": "orders/orders",
        "actor": actor,
        "source": "orders" if actor == "server" else "checkout",
        "target": None if actor == "server" else "orders",
        "parent_reference_id": f"client-{number}",
        "phase": phase,
        "phase_1_timestamp": T0,
        "phase_2_timestamp": None if phase in (Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED) else T0 + 100,
        "ttl_ms": 30_000,
        "outcome": outcome_of(phase),
        "payload_ref": None,
        "sync_timestamp": None,
        "transaction_reference": None,
        "version": version,
        "mode": Mode.STANDARD,
        "client_id_is_proxy": False,
        "settled_at": T0 + 300 if phase in (Phase.COMMITTED, Phase.FAILED) else None,
    }
    return LedgerEntry(**(usual | facts))


def changed(entry: LedgerEntry, **facts: Any) -> LedgerEntry:
    return msgspec.structs.replace(entry, **facts)
