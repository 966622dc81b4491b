"""Who calls whom in the draft's worked example (§10.3), and the fourteen rows that must come of it.

Seven calls, numbered as in the draft. Each participant writes one row for each call it takes part in, so there are
fourteen: E01 to E14, the caller's before the callee's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from twophp.core.entry import LedgerEntry

CLIENT: Final = "client"
ENTRANCE: Final = "serviceA"
STEM: Final = "client-corr-id"
"""Of the draft's names for client correlation ids; the number of the call follows."""
SERVER_STEM: Final = "server-corr-id"


class Boundary(NamedTuple):
    """One call of the example."""

    number: int
    source: str
    target: str


CHAIN: Final = (
    Boundary(1, CLIENT, ENTRANCE),
    Boundary(2, ENTRANCE, "serviceB1"),
    Boundary(3, ENTRANCE, "serviceB2"),
    Boundary(4, ENTRANCE, "serviceB3"),
    Boundary(5, "serviceB1", "serviceC1"),
    Boundary(6, "serviceB2", "serviceD1"),
    Boundary(7, "serviceB3", "serviceE1"),
)
SERVICES: Final = tuple(boundary.target for boundary in CHAIN)
PARTICIPANTS: Final = (CLIENT, *SERVICES)

PICTURE: Final = """\
client ── serviceA ─┬─ serviceB1 ── serviceC1
                    ├─ serviceB2 ── serviceD1
                    └─ serviceB3 ── serviceE1"""


def calls_of(service: str) -> tuple[Boundary, ...]:
    """What a service calls while it serves a call, in this order."""
    return tuple(boundary for boundary in CHAIN if boundary.source == service)


def id_within(member: str, number: int) -> str:
    """The client correlation id of call ``number`` in the tree that the id ``member`` belongs to.

    A service that names its calls after the one it serves makes the very same calls when it has to make them again.
    """
    return f"{member.rstrip('0123456789')}{number}"


class WorkedRow(NamedTuple):
    """What the draft's table says of a row. Servers choose their ids, so those have the draft's names here."""

    client_correlation_id: str
    server_correlation_id: str
    actor: str
    source: str
    target: str | None
    parent_reference_id: str


def _worked_rows() -> tuple[WorkedRow, ...]:
    rows = []
    for number, source, target in CHAIN:
        client_id, server_id = f"{STEM}{number}", f"{SERVER_STEM}{number}"
        served = next((f"{STEM}{above.number}" for above in CHAIN if above.target == source), client_id)
        rows.append(WorkedRow(client_id, server_id, "client", source, target, served))
        rows.append(WorkedRow(client_id, server_id, "server", target, None, client_id))
    return tuple(rows)


WORKED: Final = _worked_rows()


def as_worked(entries: Iterable[LedgerEntry]) -> tuple[WorkedRow, ...]:
    """Rows as the draft's table has them: the servers' ids numbered in the order they are met."""
    names: dict[str, str] = {}
    return tuple(
        WorkedRow(
            entry.client_correlation_id,
            names.setdefault(entry.server_correlation_id, f"{SERVER_STEM}{len(names) + 1}"),
            entry.actor,
            entry.source,
            entry.target,
            entry.parent_reference_id,
        )
        for entry in entries
    )
