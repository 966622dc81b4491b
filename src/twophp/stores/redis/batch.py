"""The Redis driver of the kernel: load what a batch reads, apply its commands, write what they change under guards.

Nothing is locked. Every record that was read and every key that was found free is a guard of the one script that writes
the batch: if somebody else was quicker, nothing is written, and the batch is decided again on what is there then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from twophp.core.entry import LEDGER_ID, LedgerEntry, broken_rules
from twophp.core.errors import ConstraintViolation, Refused, StoreError, StorePoisoned
from twophp.core.intent import INTENT, SETTLED, Intent, Phase
from twophp.core.obligation import Obligation
from twophp.core.records import JournalEvent, Key
from twophp.kernel.apply import Applied, Failure, Operations, Outcome, Snapshot, apply
from twophp.kernel.overlay import Slot, Slots
from twophp.ports import Command, Part
from twophp.stores.chains import Chain, add_link, numbered
from twophp.stores.group_commit import refuse_too_large
from twophp.stores.redis import layout
from twophp.stores.redis.driver import Server
from twophp.stores.redis.layout import DUE, KIND_OF_KEY, NAMES, PARTS, Layout, WriterRow
from twophp.stores.redis.supply import Supply
from twophp.stores.waiters import mark_of

AT_ONCE: Final = 500
"""So many fields or members one command of the script takes."""
_OPEN: Final = frozenset({Phase.WAITING_CONFIRM, Phase.PROCESSING, Phase.TTL_EXPIRED})
_PLACE_OF: Final = {name: place for place, name in enumerate(NAMES, 1)}
_WRITER_GUARD: Final = 1


class Meeting(StoreError):
    """Somebody else has changed what this batch was decided on. Nothing was written."""

    default_code = "store_busy"


class Row(msgspec.Struct, frozen=True):
    """A ledger row as it was read, and how the value of its record begins; empty: that is gone for good."""

    id: int
    entry: LedgerEntry
    last_line: int
    record: bytes


class Loaded(msgspec.Struct):
    """What a batch has read."""

    slots: Slots = {}
    before: dict[int, Any] = {}  # The records as they were, by id.
    with_row: set[int] = set()
    names: dict[bytes, int] = {}  # The names that were looked for, and the ids under them; 0: it is free.
    refused: dict[Key, Failure] = {}


class Batch:
    """One attempt at a batch."""

    def __init__(self, server: Server, keys: Layout, supply: Supply, chain: Chain, row: WriterRow) -> None:
        self._server = server
        self._keys = keys
        self._supply = supply
        self.chain = chain
        self.row = row
        self.taken: set[bytes] = set()  # The names that it took to be free, though no command had looked.
        self._loaded = Loaded()
        self._guards: list[tuple[str, bytes, bytes]] = []
        self._dynamic: dict[bytes, int] = {}
        self._words: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        self._parts: list[list[Any]] = []  # Commands about sealed parts.
        self._rows: set[bytes] = set()  # The names of the ledger rows that it writes.
        self._lines = 0
        self._link = b""

    async def decide(self, commands: Sequence[Command], noticed: Iterable[bytes]) -> tuple[list[Outcome], bool]:
        """Decide every command on what is there, with the names that an earlier attempt met; whether to write."""
        keys = dict.fromkeys(key for command in commands for key in command.keys)
        self._loaded = await load(self._server, self._keys, self._supply, keys, noticed, ids=2 * len(commands))
        snapshot = Snapshot(self._loaded.slots, self._loaded.refused, self._check, takes_statements=False)
        applied = apply(snapshot, commands, self._supply.time.now())
        if applied.operations.is_empty:
            return applied.answers, False
        refuse_too_large(applied.operations, len(commands))
        await self._collect(applied)
        return applied.answers, True

    # What is written.

    async def _collect(self, applied: Applied) -> None:
        operations = applied.operations
        fresh = [slot for slot in operations.changed if not slot.id]
        await self._supply.have(self._server, self._keys, len(fresh))
        for slot in fresh:
            slot.id = self._supply.next_id()
        for name, id_ in self._loaded.names.items():
            if not id_:
                self._guards.append(("key", name, b""))
        for id_, record in self._loaded.before.items():
            self._guards.append(("record", b"%d" % id_, b"%d " % record.version))
        purged = await self._purge(operations)
        at = self._supply.time.reach(operations.at)  # A line may be ahead of our time; the next batch is not behind it.
        lines = [*numbered(operations.lines, self.chain), *purged]
        self._add_link(lines, at, operations.lines)
        for slot in operations.changed:
            self._collect_slot(slot)
        await self._collect_drops(operations)
        await self._mark(operations)

    def _add_link(self, lines: list[Any], at: int, told: Iterable[tuple[Slot | None, JournalEvent]]) -> None:
        """The lines of this batch, chained to this writer's last link. The writer's row moves on with every batch."""
        self._guards.insert(0, ("writer", b"%d" % self.chain.id, layout.writer_value(self.row)))
        if lines:
            link, self.chain = add_link(self.chain, lines, at, self._supply.last_id + 1)
            self._lines, self._link = len(lines), layout.link_name(link.id)
            self._put("link", self._link, layout.link_value(link))
            self._add("ids", 0, self._link)
            ended = [mark_of(event.subject) for _slot, event in told if event.kind == INTENT and event.after in SETTLED]
            if ended:
                self._words["PUBLISH", "news"] = [",".join(ended)]
            for _slot, event in told:
                if event.kind == "ledger" and event.event == "restamped":  # The setting changes with its line.
                    self._put("meta", LEDGER_ID, event.after)
        self.row = layout.moved(self.row, self.chain, at)
        self._put("writer", self.chain.id, layout.writer_value(self.row))

    def _collect_slot(self, slot: Slot) -> None:
        """A record as it is in the end, with the keys that it holds, and its ledger row."""
        record, id_ = slot.record, slot.id
        before = self._loaded.before.get(id_)
        held, now = _names_of(before), _names_of(record) if not slot.is_dropped else {}
        for name in held.keys() - now.keys():
            self._words["HDEL", "key"].append(name)
        for name in now.keys() - held.keys():
            self._put("key", name, id_)
            self._take(name)
        has_row = slot.entry is not None or id_ in self._loaded.with_row
        if slot.entry is not None:
            self._collect_row(slot, slot.entry)
        if slot.is_dropped:
            return
        self._put("record", id_, layout.record_value(slot, has_row=has_row))
        kind = layout.kind_of(record)
        if kind in DUE:
            member = layout.name_of(*record.keys()[0].values)
            if record.due_at is not None:
                self._add(f"due:{kind}", record.due_at, member)
            elif before is not None:
                self._words["ZREM", f"due:{kind}"].append(member)
        if isinstance(record, Obligation):
            self._add("obligations", id_, id_)
            if record.settled_at is not None:
                self._add("settled", record.settled_at, layout.indexed(record.obligation_id, id_))
        self._collect_parts(slot, before)

    def _take(self, name: bytes) -> None:
        """A name that nobody may have; unless it was looked for, in which case there is a guard already."""
        if name not in self._loaded.names:
            self._guards.append(("key", name, b""))
            self.taken.add(name)

    def _collect_parts(self, slot: Slot, before: Any) -> None:
        identity, expires = slot.record.keys()[0], layout.seal_expiry_ms(slot.record, self._supply.time.now())
        for part, sealed in (slot.seals or {}).items():
            if sealed is None:
                self._part("DEL", part, identity)
            elif part == "payload" and expires is not None:
                self._part("SET", part, identity, sealed, "PX", expires)
            else:
                self._part("SET", part, identity, sealed)
        if isinstance(slot.record, Intent) and before is not None and before.phase is not slot.record.phase:
            if "payload" in (slot.seals or {}):
                return
            if expires is None:
                self._part("PERSIST", "payload", identity)
            else:
                self._part("PEXPIRE", "payload", identity, expires)

    def _collect_row(self, slot: Slot, entry: LedgerEntry) -> None:
        id_, name = slot.id, layout.row_name(entry)
        if name in self._rows:
            raise ConstraintViolation(f"{entry.client_correlation_id}: two changes bring one ledger row")
        self._rows.add(name)
        self._put("entry", id_, layout.entry_value(entry, slot.last_line))
        self._add("unsynced", id_, id_)
        self._words["ZREM", "outlived"].append(id_)
        if entry.phase in _OPEN:
            self._add("open", entry.phase_1_timestamp, id_)
        else:
            self._words["ZREM", "open"].append(id_)
        if slot.entry_is_new:
            self._put("key", name, id_)
            self._take(name)
            self._add("rows", id_, id_)
            for index, member in _indexes(entry, id_):
                self._add(index, 0, member)

    async def _collect_drops(self, operations: Operations) -> None:
        """A record goes with its sealed parts. Its ledger row stays, and waits to be purged if it was shipped."""
        gone = [slot for slot in operations.dropped if slot.stored]
        ids = [slot.id for slot in gone if slot.id in self._loaded.with_row and slot.entry is None]
        rows = await read_rows(self._server, self._keys, ids)
        for slot in gone:
            before = self._loaded.before[slot.id]
            self._words["HDEL", "record"].append(slot.id)
            if slot not in operations.changed:
                self._words["HDEL", "key"].extend(_names_of(before))
            kind, identity = layout.kind_of(before), before.keys()[0]
            if kind in DUE:
                self._words["ZREM", f"due:{kind}"].append(layout.name_of(*identity.values))
                for part in PARTS:
                    self._part("DEL", part, identity)
            if isinstance(before, Obligation):
                self._words["ZREM", "obligations"].append(slot.id)
                self._words["ZREM", "settled"].append(layout.indexed(before.obligation_id, slot.id))
            row = rows.get(slot.id)
            if row is not None:
                self._guard_row(row)
                if row.entry.sync_timestamp is not None:
                    self._add("outlived", row.entry.sync_timestamp, slot.id)

    async def _mark(self, operations: Operations) -> None:
        """The central ledger has these versions. A row that was changed meanwhile, or changes here, is not marked."""
        said = ((entry, synced.at) for synced in operations.synced for entry in synced.entries)
        entries = {layout.row_name(entry): (entry, at) for entry, at in said}
        dropped = {slot.id for slot in operations.dropped}
        for name, row in (await self._rows_of(entries)).items():
            entry, at = entries[name]
            if name in self._rows or row.entry.version != entry.version:
                continue
            self._guard_row(row)
            marked = replace(row.entry, sync_timestamp=at)
            self._put("entry", row.id, layout.entry_value(marked, row.last_line))
            self._words["ZREM", "unsynced"].append(row.id)
            if not row.record or row.id in dropped:
                self._add("outlived", at, row.id)

    async def _purge(self, operations: Operations) -> list[tuple[int, int, JournalEvent]]:
        """Forget the rows that are there as they were seen and have no record any more; the lines that tell of it."""
        if not operations.purges:
            return []
        rows = await self._rows_of(layout.row_name(purge.entry) for purge in operations.purges)
        told = []
        for purge in operations.purges:
            name = layout.row_name(purge.entry)
            row = rows.pop(name, None)
            if row is None or row.record or row.entry.sync_timestamp is None or row.entry != purge.entry:
                continue
            self._guard_row(row)
            for key, field in (("entry", b"%d" % row.id), ("key", name)):
                self._words["HDEL", key].append(field)
            for index in ("rows", "outlived", "open"):
                self._words["ZREM", index].append(row.id)
            for index, member in _indexes(row.entry, row.id):
                self._words["ZREM", index].append(member)
            operations.at = max(operations.at, purge.line.observed_at)
            told.append((row.last_line, row.id, purge.line))
        return told

    async def _rows_of(self, names: Iterable[bytes]) -> dict[bytes, Row]:
        """The rows of these names that are there."""
        if not (names := list(names)):
            return {}
        found = await self._server.ask("HMGET", self._keys.of("key"), *names)
        ids = {name: int(id_) for name, id_ in zip(names, found, strict=True) if id_ is not None}
        rows = await read_rows(self._server, self._keys, list(ids.values()))
        return {name: rows[id_] for name, id_ in ids.items() if id_ in rows}

    def _guard_row(self, row: Row) -> None:
        """It stays as it was seen, and so does its record, or there is none."""
        self._guards.append(("entry", b"%d" % row.id, layout.entry_guard(row.entry)))
        self._guards.append(("record", b"%d" % row.id, row.record))

    def _check(self, slot: Slot | None, entry: LedgerEntry) -> None:
        """What no row may break; said before anything is written, so that it costs nobody else."""
        subject = entry.client_correlation_id
        is_there = slot is not None and (slot.id in self._loaded.with_row or slot.entry is not None)
        if broken := broken_rules(entry):
            raise ConstraintViolation(f"{subject}: {broken[0]}")
        if entry.version == 1 and (is_there or self._loaded.names.get(layout.row_name(entry))):
            raise ConstraintViolation(f"{subject}: there is a row for it")
        if entry.version != 1 and not is_there:
            raise StoreError(f"{subject}: a ledger row that is not there cannot change", code="bad_change")

    # Sending it.

    def _put(self, name: str, field: Any, value: Any) -> None:
        self._words["HSET", name] += field, value

    def _add(self, name: str, score: int, member: Any) -> None:
        self._words["ZADD", name] += score, member

    def _part(self, command: str, part: Part, identity: Key, *more: Any) -> None:
        key = self._keys.part(part, identity)
        place = self._dynamic.setdefault(key, len(NAMES) + 1 + len(self._dynamic))
        self._parts.append([len(more) + 2, command, place, *more])

    def _commands(self) -> Iterator[Any]:
        """What lets go goes first, and then what takes its place."""
        for (command, name), words in sorted(self._words.items(), key=lambda one: one[0][0] not in ("HDEL", "ZREM")):
            for start in range(0, len(words), AT_ONCE):
                some = words[start : start + AT_ONCE]
                yield from (len(some) + 2, command, _PLACE_OF[name], *some)
        for part in self._parts:
            yield from part

    async def commit(self) -> None:
        """Write all of it, or raise Meeting."""
        values: list[Any] = [len(self._guards), self._lines, self._link]
        for name, field, begins in self._guards:
            values += _PLACE_OF[name], field, begins
        values += self._commands()
        broken = await self._server.run("commit", [*self._keys.static, *self._dynamic], *values)
        if broken == _WRITER_GUARD:
            raise StorePoisoned("somebody else has moved or closed this writer's row; open the database anew")
        if broken:
            raise Meeting("others change the same records")


async def load(
    server: Server, keys: Layout, supply: Supply, wanted: Iterable[Key], noticed: Iterable[bytes] = (), *, ids: int = 0
) -> Loaded:
    """The records under these keys, in one trip; and ids for that many new ones, if they are short."""
    refused: dict[Key, Failure] = {}
    names: dict[bytes, int] = {}
    for key in wanted:
        try:
            if key.by not in KIND_OF_KEY:
                raise StoreError(f"Redis keeps no {key.by} yet", code="unknown_record")  # noqa: TRY301 - for its caller.
            names[layout.key_name(key)] = 0
        except (StoreError, Refused) as error:
            refused[key] = Failure(error)
    names.update(dict.fromkeys(noticed, 0))
    ask = supply.lacking(ids)
    began_ns = supply.asks()
    found = await server.run("load", keys.several(("state", "key", "record")), ask, *names)
    seconds, micros, last, ids_found, records = found
    supply.heard(began_ns, int(seconds), int(micros), last, ask)
    for name, id_ in zip(names, ids_found, strict=True):
        names[name] = int(id_ or 0)
    loaded = Loaded(names=names, refused=refused, slots={}, before={}, with_row=set())
    for id_, value in zip(records[::2], records[1::2], strict=True):
        slot, has_row = layout.slot_of(int(id_), value)
        loaded.before[slot.id] = slot.record
        if has_row:
            loaded.with_row.add(slot.id)
        loaded.slots.update(dict.fromkeys(slot.keys, slot))
        names.update(dict.fromkeys(_names_of(slot.record), slot.id))  # Also those that nobody looked for.
    return loaded


async def read_rows(server: Server, keys: Layout, ids: Sequence[int]) -> dict[int, Row]:
    """The ledger rows of these ids that are there."""
    if not ids:
        return {}
    entries = await server.ask("HMGET", keys.of("entry"), *ids)
    records = await server.ask("HMGET", keys.of("record"), *ids)
    return {
        id_: Row(id_, *layout.entry_in(id_, entry), b"" if record is None else record.partition(b" ")[0] + b" ")
        for id_, entry, record in zip(ids, entries, records, strict=True)
        if entry is not None
    }


def _names_of(record: Any) -> dict[bytes, None]:
    return {} if record is None else dict.fromkeys(map(layout.key_name, record.keys()))


def _indexes(entry: LedgerEntry, id_: int) -> Iterator[tuple[str, bytes]]:
    """Where a ledger row is found by what it says."""
    yield "called", layout.indexed(entry.client_correlation_id, id_)
    yield "servers", layout.indexed(entry.server_correlation_id, id_)
    if entry.actor == "client":
        yield "sources", layout.indexed(entry.source, id_)
        yield "children", layout.name_of(entry.parent_reference_id, entry.client_correlation_id)
