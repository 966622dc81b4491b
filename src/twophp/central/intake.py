"""What becomes of a batch: decided here for every database alike, from the rows it names as they are now.

Theory (A-57). A writer sends rows again until each was acknowledged, in any order, so a row that is known already is
acknowledged again, and an older version is no news. A version is written once: the same version with other content is
refused and alarmed, and so is a row that claims to be another writer's. What is accepted becomes a leaf of the Merkle
tree under the next number; the newest version of a row stands in the table under the number of its leaf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from twophp.central.merkle import leaf_hash
from twophp.central.ports import Ack, Alarm, Row, Service
from twophp.core.entry import LedgerEntry, broken_rules
from twophp.core.records import Instant

ID_CHARS: Final = 128
TEXT_CHARS: Final = 4_096
"""So many characters may all other texts of a row have together."""
MOST: Final = 2**53
"""No time and no count is as large: more than a program in JavaScript can count to."""

FOREIGN_ROW: Final = "foreign_row"
VERSION_CONFLICT: Final = "version_conflict"
BROKEN_RULE: Final = "broken_rule"

Key: TypeAlias = tuple[str, str, str]
"""Of a writer's row: both ids and the actor."""

_replace: Final = msgspec.structs.replace


class Taken(msgspec.Struct, kw_only=True):
    """What to answer and what to write."""

    acks: list[Ack]
    rows: dict[Key, Row]  # The newest version of every row that changes.
    leaves: list[bytes]  # Of every version that was accepted, in order.
    alarms: list[Alarm]
    replaced: list[int]  # The numbers under which rows stood that are in ``rows`` now.

    @property
    def fresh(self) -> int:
        """How many rows were not there before."""
        return len(self.rows) - len(self.replaced)


def key_of(entry: LedgerEntry) -> Key:
    """What a writer's row is found by."""
    return entry.client_correlation_id, entry.server_correlation_id, entry.actor


def take(writer: Service, entries: Sequence[LedgerEntry], at: Instant, size: int, known: Mapping[Key, Row]) -> Taken:
    """Decide a batch: ``size`` leaves are in the tree, ``known`` holds those of the writer's rows that it names."""
    taken = Taken(acks=[], rows={}, leaves=[], alarms=[], replaced=[])
    for entry in entries:
        refusal = _refusal(writer, entry)
        if refusal is not None:
            _refuse(taken, writer, entry, at, *refusal)
            continue
        key = key_of(entry)
        before = taken.rows.get(key) or known.get(key)
        if before is None or entry.version > before.entry.version:
            accepted = _replace(entry, sync_timestamp=at)
            taken.leaves.append(leaf_hash(accepted))
            if key in known and key not in taken.rows:
                taken.replaced.append(known[key].sequence)
            taken.rows[key] = Row(size + len(taken.leaves), accepted)
            taken.acks.append(_ack(entry, "stored", at))
        elif entry.version < before.entry.version:
            taken.acks.append(_ack(entry, "older", before.entry.sync_timestamp))
        elif _replace(entry, sync_timestamp=before.entry.sync_timestamp) == before.entry:
            taken.acks.append(_ack(entry, "known", before.entry.sync_timestamp))
        else:
            detail = f"version {entry.version} of the {entry.actor} row is here with other content"
            _refuse(taken, writer, entry, at, VERSION_CONFLICT, detail)
    return taken


def _refusal(writer: Service, entry: LedgerEntry) -> tuple[str, str] | None:
    if broken := broken_rules(entry) or _unfit(entry):
        return BROKEN_RULE, broken[0]
    if entry.service_ledger_id != writer.service_ledger_id:
        return FOREIGN_ROW, f"the {entry.actor} row says it was written by {entry.service_ledger_id}"
    return None


def _unfit(entry: LedgerEntry) -> list[str]:
    """What no database could keep, and nobody of good will would send."""
    ids = (entry.client_correlation_id, entry.server_correlation_id, entry.parent_reference_id, entry.service_ledger_id)
    texts = (
        *(entry.service_endpoint, entry.source, entry.target or "", entry.payload_ref or ""),
        *(entry.transaction_reference or "", entry.request_digest or ""),
    )
    numbers = (
        *(entry.phase_1_timestamp, entry.phase_2_timestamp or 0, entry.settled_at or 0),
        *(entry.ttl_ms, entry.version),
    )
    text = "".join((*ids, *texts))
    if max(map(len, ids)) > ID_CHARS or len(text) > ID_CHARS * len(ids) + TEXT_CHARS:
        return ["an id has at most 128 characters, and the texts of a row are short"]
    if min(numbers) < 0 or max(numbers) >= MOST:
        return ["times and counts are from 0 to 2**53"]
    if "\0" in text or not _is_unicode(text):
        return ["a text is Unicode, without a character 0"]
    return []


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(taken: Taken, writer: Service, entry: LedgerEntry, at: Instant, code: str, detail: str) -> None:
    taken.acks.append(_ack(entry, "refused", None, code, detail))
    if code != BROKEN_RULE:
        alarm = Alarm(
            alarm_id=0,  # The database numbers them.
            at=at,
            code=code,
            service_ledger_id=writer.service_ledger_id,
            client_correlation_id=entry.client_correlation_id,
            server_correlation_id=entry.server_correlation_id,
            detail=detail,
        )
        taken.alarms.append(alarm)


def _ack(
    entry: LedgerEntry, outcome: str, sync_timestamp: Instant | None, code: str | None = None, detail: str | None = None
) -> Ack:
    return Ack(
        client_correlation_id=entry.client_correlation_id,
        server_correlation_id=entry.server_correlation_id,
        actor=entry.actor,
        version=entry.version,
        outcome=outcome,  # type: ignore[arg-type]
        sync_timestamp=sync_timestamp,
        code=code,
        detail=detail,
    )
