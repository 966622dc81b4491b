"""What becomes of a batch: decided here for every database alike, from the rows it names as they are now.

Theory (A-57). A writer sends rows again until each was acknowledged, in any order, so a row that is known already is
acknowledged again, and an older version is no news. A version is written once: the same version with other content is
refused and alarmed, and so is a row that claims to be another writer's. One thing may be added to a version: that it is
indeterminate. A ledger that was older than the field has taken the row without it. What is accepted becomes a leaf of
the Merkle tree under the next number; the newest version of a row stands in the table under the number of its leaf.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from hashlib import sha256
from operator import is_
from typing import Any, Final, TypeAlias

import msgspec

from twophp.central.ports import Ack, Alarm, Service
from twophp.central.proof.merkle import BEFORE_LEAF, bound, row_bytes
from twophp.core.entry import CLIENT_PHASES, LedgerEntry, broken_rules, outcome_of
from twophp.core.intent import Phase
from twophp.core.records import Instant

ID_CHARS: Final = 255
TEXT_CHARS: Final = 4_096
"""At most this many characters have all other texts of a row together."""
PIECE: Final = 256
"""This many rows are looked at together: few enough that none is old before it is processed."""
MOST: Final = 2**53
"""Every time and count is below this: a program in JavaScript cannot count further."""

FOREIGN_ROW: Final = "foreign_row"
VERSION_CONFLICT: Final = "version_conflict"
BROKEN_RULE: Final = "broken_rule"

Key: TypeAlias = tuple[str, str, str]
"""Of a writer's row: both ids and the actor."""
Values: TypeAlias = Sequence[Any]
"""A row as a database has it: its number, then the fields of the entry. Phases and modes equal their texts."""
Past: TypeAlias = tuple[int, int, bytes]
"""The number of a version, the number of the one that superseded it, and the row in its leaf."""

FIELDS: Final = len(LedgerEntry.__struct_fields__)
_ACTOR: Final = LedgerEntry.__struct_fields__.index("actor")
_SYNC: Final = LedgerEntry.__struct_fields__.index("sync_timestamp")
_VERSION: Final = LedgerEntry.__struct_fields__.index("version")
_KINDS: Final = frozenset(
    {("client", phase, outcome_of(phase), False, False) for phase in CLIENT_PHASES}
    | {("server", phase, outcome_of(phase), True, False) for phase in Phase if phase is not Phase.ABSENT}
    | {(actor, Phase.FAILED, Phase.FAILED, actor == "server", True) for actor in ("client", "server")}
)
"""What actor, phase and outcome may be together, whether there is then no target, and whether it is indeterminate."""

_LENGTHS: Final = frozenset(range(1, ID_CHARS + 1))
_OF_ONE_ROW: Final = ("payload_ref", "request_digest")
_ENDS: Final = ("actor", "phase", "outcome")
_COMPARED: Final = ("client_correlation_id", "parent_reference_id", "actor", "target")

_is_none: Final = partial(is_, None)
_astuple: Final = msgspec.structs.astuple
_encode: Final = msgspec.msgpack.Encoder().encode


class Taken(msgspec.Struct, kw_only=True):
    """What to answer, and what to write beside the rows themselves."""

    acks: list[Ack] = []
    leaves: list[bytes] = []  # Of every version that was accepted, in order.
    alarms: list[Alarm] = []
    replaced: list[Values] = []  # Rows as they stood of which a newer version was accepted.
    past: list[Past] = []  # Every version that a newer one was accepted of: those of ``replaced``, and of this batch.
    written: int = 0

    @property
    def fresh(self) -> int:
        """How many rows were not there before."""
        return self.written - len(self.replaced)


def key_of(row: Values) -> Key:
    """What a writer's row is found by."""
    return row[1], row[2], row[5]


def ids_of(entry: LedgerEntry) -> Key:
    """The same, of a row that has no number yet."""
    return entry.client_correlation_id, entry.server_correlation_id, entry.actor


def repeated(entries: Sequence[LedgerEntry]) -> set[str]:
    """The client ids that a batch has more than once: of such a row it may bring a newer version."""
    ids = [entry.client_correlation_id for entry in entries]
    if len(set(ids)) == len(ids):
        return set()
    return {id_ for id_, count in Counter(ids).items() if count > 1}


def take(
    taken: Taken,
    writer: Service,
    entries: Sequence[LedgerEntry],
    at: Instant,
    size: int,
    known: Mapping[Key, Values],
    unsure: AbstractSet[str],
) -> Iterator[list[Values]]:
    """Decide a batch, and yield the rows that are to be written, some at a time and each once.

    ``size`` leaves are in the tree. ``known`` holds those of the writer's rows that the batch names, ``unsure`` their
    client ids and those that the batch has more than once: any other row is new.

    Runs once for every row of every service, so what is common is decided with as few steps as can be, and no row is
    kept for long: the collector of garbage would look at every value of every one of them.
    """
    last: dict[Key, Values] = {}  # Of these the batch may have a newer version yet.
    for start in range(0, len(entries), PIECE):
        rows: list[Values] = []
        for fields in _fit(taken, writer, entries[start : start + PIECE], at):
            if fields[0] not in unsure:
                rows.append(_accepted(taken, fields, at, size))
            elif row := _newer(taken, writer, fields, at, size, known, last):
                last[key_of(row)] = row
        taken.written += len(rows)
        yield rows
    taken.written += len(last)
    yield list(last.values())


def _fit(taken: Taken, writer: Service, entries: Sequence[LedgerEntry], at: Instant) -> Iterable[Values]:
    """The fields of the rows that nothing is wrong with; the others are refused."""
    rows = list(map(_astuple, entries))
    return rows if _are_plain(rows, writer.service_ledger_id) else _judged(taken, writer, entries, at)


def _judged(taken: Taken, writer: Service, entries: Sequence[LedgerEntry], at: Instant) -> Iterator[Values]:
    """The same, one by one: a refusal is recorded before the next row is decided."""
    for entry in entries:
        refusal = _refusal(writer, entry)
        if refusal is None:
            yield _astuple(entry)
        else:
            _refuse(taken, writer, _astuple(entry), at, *refusal)


def _accepted(taken: Taken, fields: Values, at: Instant, size: int) -> Values:
    """The row, as a leaf of its own."""
    row = list(fields)
    row[_SYNC] = at
    leaves = taken.leaves
    leaves.append(sha256(BEFORE_LEAF + _encode(bound(row))).digest())
    taken.acks.append(_ack(fields, "stored", at))
    row.insert(0, size + len(leaves))
    return row


def _newer(
    taken: Taken,
    writer: Service,
    fields: Values,
    at: Instant,
    size: int,
    known: Mapping[Key, Values],
    last: Mapping[Key, Values],
) -> Values | None:
    """The row, unless another version of it, in this batch or in the database, says that it is no news."""
    key = (fields[0], fields[1], fields[_ACTOR])
    sent, stored = last.get(key), known.get(key)
    before = sent or stored
    if before is not None and fields[_VERSION] <= before[_VERSION + 1] and not _adds_indeterminate(fields, before):
        _answer_known(taken, writer, fields, at, before)
        return None
    if stored is not None and sent is None:
        taken.replaced.append(stored)
    row = _accepted(taken, fields, at, size)
    if before is not None:
        taken.past.append((before[0], row[0], row_bytes(before[1 : FIELDS + 1])))
    return row


def _answer_known(taken: Taken, writer: Service, fields: Values, at: Instant, before: Values) -> None:
    if fields[_VERSION] < before[_VERSION + 1]:
        taken.acks.append(_ack(fields, "older", before[_SYNC + 1]))
    elif _is_same(fields, before):
        taken.acks.append(_ack(fields, "known", before[_SYNC + 1]))
    else:
        detail = f"version {fields[_VERSION]} of the {fields[_ACTOR]} row is here with other content"
        _refuse(taken, writer, fields, at, VERSION_CONFLICT, detail)


def _adds_indeterminate(fields: Values, before: Values) -> bool:
    """Whether it is the version that is here, and adds that it is unknown whether the effects happened."""
    is_this = fields[_VERSION] == before[_VERSION + 1]
    return is_this and fields[-1] and not before[-1] and _is_same([*fields[:-1], before[-1]], before)


def _is_same(fields: Values, row: Values) -> bool:
    return [*fields[:_SYNC], *fields[_SYNC + 1 :]] == [*row[1 : _SYNC + 1], *row[_SYNC + 2 :]]


def _are_plain(rows: Sequence[Values], service_ledger_id: str) -> bool:
    """A quick check that none of these rows has anything wrong. If it says no, ``_refusal`` checks each row."""
    of = dict(zip(LedgerEntry.__struct_fields__, zip(*rows, strict=True), strict=True))
    client_ids, parents, actors, targets = (of[name] for name in _COMPARED)
    ids = [*client_ids, *of["server_correlation_id"], *parents]
    texts = [*{*of["service_endpoint"], *of["source"], *targets, *of["transaction_reference"]} - {None}]
    texts += [text for name in _OF_ONE_ROW for text in of[name] if text]
    counts = {*of["ttl_ms"], *of["version"]}
    times = [*of["phase_1_timestamp"], *filter(None, of["phase_2_timestamp"]), *filter(None, of["settled_at"])]
    all_text = "".join([*ids, *texts])
    return (
        of["service_ledger_id"].count(service_ledger_id) == len(rows)
        and {*zip(*(of[name] for name in _ENDS), map(_is_none, targets), of["indeterminate"], strict=True)} <= _KINDS
        and all(a != "server" or p == c for a, p, c in zip(actors, parents, client_ids, strict=True))
        and _LENGTHS.issuperset(map(len, ids))
        and 0 < min(map(len, texts)) <= max(map(len, texts)) <= TEXT_CHARS // 8  # Not too long together either.
        and all_text.isascii()
        and "\0" not in all_text
        and 0 < min(counts) <= max(counts) < MOST
        and 0 <= min(times) <= max(times) < MOST
    )


def _refusal(writer: Service, entry: LedgerEntry) -> tuple[str, str] | None:
    if broken := broken_rules(entry) or _unfit(entry):
        return BROKEN_RULE, broken[0]
    if entry.service_ledger_id != writer.service_ledger_id:
        return FOREIGN_ROW, f"the {entry.actor} row says it was written by {entry.service_ledger_id}"
    return None


def _unfit(entry: LedgerEntry) -> list[str]:
    """Fields that no database can keep, and no honest writer sends."""
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
        return [f"an id has at most {ID_CHARS} characters, and the texts of a row are short"]
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


def _refuse(taken: Taken, writer: Service, fields: Values, at: Instant, code: str, detail: str) -> None:
    taken.acks.append(_ack(fields, "refused", None, code, detail))
    if code != BROKEN_RULE:
        alarm = Alarm(
            alarm_id=0,  # The database numbers them.
            at=at,
            code=code,
            service_ledger_id=writer.service_ledger_id,
            client_correlation_id=fields[0],
            server_correlation_id=fields[1],
            detail=detail,
        )
        taken.alarms.append(alarm)


def _ack(
    fields: Values, outcome: str, sync_timestamp: Instant | None, code: str | None = None, detail: str | None = None
) -> Ack:
    return Ack(
        client_correlation_id=fields[0],
        server_correlation_id=fields[1],
        actor=fields[_ACTOR],
        version=fields[_VERSION],
        outcome=outcome,  # type: ignore[arg-type]
        sync_timestamp=sync_timestamp,
        code=code,
        detail=detail,
    )
