"""Ledger rows to make calls of, and the draft's worked example: seven calls, fourteen rows."""

from __future__ import annotations

from typing import Any

from twophp.core.entry import LedgerEntry, outcome_of
from twophp.core.intent import Mode, Phase

T0 = 1_767_225_600_000

# Row, client id, server id, actor, source, target, parent: as the worked table has them (draft §10.3).
WORKED = """
E01 client-corr-id1 server-corr-id1 client client    serviceA  client-corr-id1
E02 client-corr-id1 server-corr-id1 server serviceA  null      client-corr-id1
E03 client-corr-id2 server-corr-id2 client serviceA  serviceB1 client-corr-id1
E04 client-corr-id2 server-corr-id2 server serviceB1 null      client-corr-id2
E05 client-corr-id3 server-corr-id3 client serviceA  serviceB2 client-corr-id1
E06 client-corr-id3 server-corr-id3 server serviceB2 null      client-corr-id3
E07 client-corr-id4 server-corr-id4 client serviceA  serviceB3 client-corr-id1
E08 client-corr-id4 server-corr-id4 server serviceB3 null      client-corr-id4
E09 client-corr-id5 server-corr-id5 client serviceB1 serviceC1 client-corr-id2
E10 client-corr-id5 server-corr-id5 server serviceC1 null      client-corr-id5
E11 client-corr-id6 server-corr-id6 client serviceB2 serviceD1 client-corr-id3
E12 client-corr-id6 server-corr-id6 server serviceD1 null      client-corr-id6
E13 client-corr-id7 server-corr-id7 client serviceB3 serviceE1 client-corr-id4
E14 client-corr-id7 server-corr-id7 server serviceE1 null      client-corr-id7
"""


def row(
    client_id: str, actor: str, *, source: str, callee: str, parent: str | None = None, **facts: Any
) -> LedgerEntry:
    """One side of a call to ``callee``, settled unless ``facts`` say otherwise."""
    is_client = actor == "client"
    phase = facts.get("phase", Phase.COMMITTED)
    known: dict[str, Any] = {
        "client_correlation_id": client_id,
        "server_correlation_id": client_id.replace("client", "server"),
        "service_ledger_id": f"ledger of {source}",
        "service_endpoint": f"{callee}/orders",
        "actor": actor,
        "source": source,
        "target": callee if is_client else None,
        "parent_reference_id": parent or client_id,
        "phase": phase,
        "phase_1_timestamp": T0,
        "phase_2_timestamp": T0 + 3,
        "ttl_ms": 30_000,
        "outcome": outcome_of(phase),
        "payload_ref": None,
        "sync_timestamp": None,
        "transaction_reference": None,
        "version": 1,
        "mode": Mode.STANDARD,
        "client_id_is_proxy": False,
    }
    return LedgerEntry(**(known | facts))


def client_row(client_id: str = "client-1", **facts: Any) -> LedgerEntry:
    return row(client_id, "client", **({"source": "shop", "callee": "orders"} | facts))


def server_row(client_id: str = "client-1", **facts: Any) -> LedgerEntry:
    return row(client_id, "server", **({"source": "orders", "callee": "orders"} | facts))


def _worked(line: str) -> LedgerEntry:
    _name, client_id, server_id, actor, source, target, parent = line.split()
    callee = source if target == "null" else target
    return row(client_id, actor, source=source, callee=callee, parent=parent, server_correlation_id=server_id)


FOURTEEN = [_worked(line) for line in WORKED.split("\n") if line]
