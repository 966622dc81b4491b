"""What becomes of a batch: decided here for every database alike, from the rows it names as they are now.

Theory (A-57). A writer sends rows again until each was acknowledged, in any order, so a row that is known already is
acknowledged again, and an older version is no news. A version is written once: the same version with other content is
refused and alarmed, and so is a row that claims to be another writer's. What is accepted becomes a leaf of the Merkle
tree under the next number; the newest version of a row stands in the table under the number of its leaf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, TypeAlias

import msgspec

from twophp.central.merkle import BEFORE_LEAF
from twophp.central.ports import Ack, Alarm, Service
from twophp.core.entry import CLIENT_PHASES, LedgerEntry, broken_rules, outcome_of
from twophp.core.intent import Phase
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
Values: TypeAlias = tuple[Any, ...]
"""A row as a database has it: its number, then the fields of the entry. Phases and modes equal their texts."""

_SYNC: Final = LedgerEntry.__struct_fields__.index("sync_timestamp")
_VERSION: Final = LedgerEntry.__struct_fields__.index("version")
_SERVER_PHASES: Final = frozenset(Phase) - {Phase.ABSENT}
_PHASES_OF: Final = {"client": CLIENT_PHASES, "server": _SERVER_PHASES}
_OUTCOME_OF: Final = {phase: outcome_of(phase) for phase in Phase}

_astuple: Final = msgspec.structs.astuple
_encode: Final = msgspec.msgpack.Encoder().encode


class Taken(msgspec.Struct, kw_only=True):
    """What to answer and what to write."""

    acks: list[Ack]
    rows: dict[Key, Values]  # The newest version of every row that changes.
    leaves: list[bytes]  # Of every version that was accepted, in order.
    alarms: list[Alarm]
    replaced: list[int]  # The numbers under which rows stood that are in ``rows`` now.

    @property
    def fresh(self) -> int:
        """How many rows were not there before."""
        return len(self.rows) - len(self.replaced)


def key_of(row: Values) -> Key:
    """What a writer's row is found by."""
    return row[1], row[2], row[5]


def ids_of(entry: LedgerEntry) -> Key:
    """The same, of a row that has no number yet."""
    return entry.client_correlation_id, entry.server_correlation_id, entry.actor


def nothing() -> Taken:
    """What was taken before the first row."""
    return Taken(acks=[], rows={}, leaves=[], alarms=[], replaced=[])


def take(
    writer: Service,
    entries: Sequence[LedgerEntry],
    at: Instant,
    size: int,
    known: Mapping[Key, Values],
    taken: Taken | None = None,
) -> Taken:
    """Decide a batch: ``size`` leaves are in the tree, ``known`` holds those of the writer's rows that it names.

    Runs once for every row of every service, so what is common is decided with as few steps as can be. A batch may be
    decided piece by piece: ``taken`` is what came of the pieces before.
    """
    taken = taken or nothing()
    rows, leaves, acks = taken.rows, taken.leaves, taken.acks
    for entry in entries:
        refusal = None if _is_plain(entry, writer.service_ledger_id) else _refusal(writer, entry)
        if refusal is not None:
            _refuse(taken, writer, entry, at, *refusal)
            continue
        key = (entry.client_correlation_id, entry.server_correlation_id, entry.actor)
        before = rows.get(key) or known.get(key)
        if before is None or entry.version > before[_VERSION + 1]:
            fields = _astuple(entry)
            values = (*fields[:_SYNC], at, *fields[_SYNC + 1 :])
            leaves.append(sha256(BEFORE_LEAF + _encode(values)).digest())
            if before is not None and key not in rows:
                taken.replaced.append(before[0])
            rows[key] = (size + len(leaves), *values)
            acks.append(_ack(entry, "stored", at))
        elif entry.version < before[_VERSION + 1]:
            acks.append(_ack(entry, "older", before[_SYNC + 1]))
        elif _is_same(entry, before):
            acks.append(_ack(entry, "known", before[_SYNC + 1]))
        else:
            detail = f"version {entry.version} of the {entry.actor} row is here with other content"
            _refuse(taken, writer, entry, at, VERSION_CONFLICT, detail)
    return taken


def _is_same(entry: LedgerEntry, row: Values) -> bool:
    fields = _astuple(entry)
    return fields[:_SYNC] == row[1 : _SYNC + 1] and fields[_SYNC + 1 :] == row[_SYNC + 2 :]


def _is_plain(entry: LedgerEntry, service_ledger_id: str) -> bool:
    """Whether nothing is wrong with a row, told quickly. What it says no to, ``_refusal`` looks at with care."""
    client_id, server_id, parent = entry.client_correlation_id, entry.server_correlation_id, entry.parent_reference_id
    actor, target, phase, source, endpoint = (
        entry.actor,
        entry.target,
        entry.phase,
        entry.source,
        entry.service_endpoint,
    )
    text = (
        f"{client_id}{server_id}{parent}{endpoint}{source}{target}{entry.payload_ref}"
        f"{entry.transaction_reference}{entry.request_digest}"
    )
    return bool(
        entry.service_ledger_id == service_ledger_id
        and phase in _PHASES_OF.get(actor, ())
        and (target is not None if actor == "client" else target is None and parent == client_id)
        and entry.outcome == _OUTCOME_OF[phase]
        and 0 < len(client_id) <= ID_CHARS
        and 0 < len(server_id) <= ID_CHARS
        and 0 < len(parent) <= ID_CHARS
        and source
        and endpoint
        and len(text) <= TEXT_CHARS
        and text.isascii()
        and "\0" not in text
        and 0 < entry.ttl_ms < MOST
        and 0 < entry.version < MOST
        and 0 <= entry.phase_1_timestamp < MOST
        and 0 <= (entry.phase_2_timestamp or 0) < MOST
        and 0 <= (entry.settled_at or 0) < MOST
    )


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
    if not entry.parent_reference_id:
        return ["a row names its parent (draft §9.8)"]
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
