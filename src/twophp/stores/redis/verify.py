"""Verification of a ledger in Redis: every chain holds, joined they are one, and records are what lines say.

It gives the report that a file's verification gives. Redis shows no two answers as of one moment, so the service may go
on meanwhile: what does not fit is read once more, together with the lines that have come since, until it stands still.
What the newest line about each record says is kept in memory for as long as it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from twophp.core.call import Call
from twophp.core.entry import LedgerEntry, Writer, client_entry, server_entry
from twophp.core.intent import SETTLED, Intent, Phase
from twophp.kernel.journal import GENESIS
from twophp.kernel.overlay import Slot
from twophp.stores.chains import Chain
from twophp.stores.clock import wall_clock
from twophp.stores.inspection import REPEATED, Inspection
from twophp.stores.redis import driver, layout, opening
from twophp.stores.redis.driver import Server
from twophp.stores.redis.journal import join, pages
from twophp.stores.redis.layout import PARTS, SLACK_MS, Layout
from twophp.stores.sqlite.verify import Finding, Progress, ProvenHead, Report

PAGE: Final = 500
ROUNDS: Final = 20
"""So often a record that does not fit is read again while it changes."""


class Told(msgspec.Struct):
    """What the journal says of one record."""

    line: int  # The newest line, as its writer numbers it, ...
    number: int  # ... and among all.
    kind: str
    subject: str
    after: str
    fence: int
    detail: str
    registered: str | None = None
    settled: str | None = None
    is_purged: bool = False
    is_gone: bool = False


class ServerInspection(Inspection):
    """One verification of a ledger that goes on changing."""

    def __init__(
        self, server: Server, keys: Layout, expect: ProvenHead | None = None, progress: Progress | None = None
    ) -> None:
        super().__init__(expect, progress)
        self._server = server
        self._keys = keys
        self._told: dict[int, Told] = {}
        self._ended: set[tuple[str, str]] = set()  # Kind and subject of what a line says is gone.
        self._reached: dict[int, Chain] = {}  # Each writer's chain where its row has it end.
        self._seen: set[int] = set()

    async def run(self) -> Report:
        """Check everything."""
        await join(self._server, self._keys)
        writers = await opening.read_writers(self._server, self._keys)
        lines = int(await self._ask("HGET", "state", "lines") or 0)
        self._total = await self._ask("ZCARD", "places") + await self._ask("HLEN", "record")
        self._begin({id_: _as_row(id_, row) for id_, row in writers.items()})
        await self._follow()
        self._check_expected()
        newest, chains = max(writers, default=0), self._chains
        self._chains = {id_: chain for id_, chain in chains.items() if id_ <= newest} | self._reached
        self._check_writers()
        self._chains = chains
        if self._head.seq < lines:
            message = f"the journal ends at line {self._head.seq}, and not at {lines}"
            self._find("truncated", message, seq=self._head.seq)
        await self._check_records()
        await self._check_gone()
        return self._report()

    async def _ask(self, command: str, name: str, *words: Any) -> Any:
        return await self._server.ask(command, self._keys.of(name), *words)

    # The chains.

    async def _follow(self) -> None:
        """The links that have come by now, since the last time."""
        newest = int(await self._ask("HGET", "state", "lines") or 0)
        await join(self._server, self._keys)
        async for page in pages(self._server, self._keys, self._head.seq + 1):
            for one in page:
                if one.first > newest:
                    return
                if one.link is None:
                    continue  # The next link says that something is missing.
                if one.joined is None:
                    message = f"the lines from {one.first} on were slipped in"
                    self._find("edited_line", message, seq=one.first)
                    continue
                self._note(self._check_link(one.as_row()))
                row = self._writers.get(one.link.writer)
                if row is not None and row["seq"] == one.link.seq:
                    self._reached[one.link.writer] = self._chains[one.link.writer]
            self._look(len(page))

    def _note(self, lines: Iterable[Sequence[Any]]) -> None:
        for line, number, _previous, record, kind, subject, event, before, after, fence, detail, _at in lines:
            if after == Phase.ABSENT:
                self._ended.add((kind, subject))
            if not record:
                continue
            known = self._told.get(record)
            told = Told(line, number, kind, subject, after, fence, detail)
            if known is not None:
                told.registered, told.settled, told.is_purged = known.registered, known.settled, known.is_purged
            if before == Phase.ABSENT:
                told.registered = detail
            if before == Phase.PROCESSING and after in SETTLED:
                told.settled = detail
            told.is_purged |= event == "payload_purged"
            told.is_gone = event == "purged"
            self._told[record] = told

    # Records.

    async def _check_records(self) -> None:
        cursor = 0
        while True:
            cursor, found = await self._ask("HSCAN", "record", cursor, "COUNT", PAGE)
            pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
            values = {int(id_): bytes(value) for id_, value in pairs}
            self._seen.update(values)
            await self._check_values(values)
            self._look(len(values))
            if not int(cursor):
                return

    async def _check_values(self, values: dict[int, bytes]) -> None:
        """What does not fit may have changed since its lines were read; then it is looked at once more."""
        self._records += sum(_kind_in(value) in REPEATED for value in values.values())
        for _round in range(ROUNDS):
            doubted = await self._doubted(values)
            if not doubted:
                return
            await self._follow()
            ids = list(doubted)
            now = dict(zip(ids, await self._ask("HMGET", "record", *ids), strict=True))
            same = {id_: values[id_] for id_ in ids if now[id_] == values[id_]}
            for problems in (await self._doubted(same)).values():
                for one in problems:
                    self._find(one.what, one.message, seq=one.seq, subject=one.subject)
            values = {id_: value for id_, value in now.items() if value is not None and id_ not in same}

    async def _doubted(self, values: dict[int, bytes]) -> dict[int, list[Finding]]:
        """What is wrong with these records, with their ledger rows and with their sealed parts."""
        slots = {id_: found for id_, value in values.items() if (found := self._slot(id_, value)) is not None}
        problems: dict[int, list[Finding]] = {}
        entries = await self._ask("HMGET", "entry", *slots) if slots else []
        identities = [slot.record.keys()[0] for slot, _has_row in slots.values()]
        names = [self._keys.part(part, identity) for identity in identities for part in PARTS]
        there = await self._server.run("there", names) if names else []
        parts = zip(there[::2], there[1::2], strict=True)
        findings, count = self._findings, self._count
        for (id_, (slot, has_row)), entry, has_parts in zip(slots.items(), entries, parts, strict=True):
            self._findings = []
            self._check_slot(slot, has_parts)
            if has_row and isinstance(slot.record, Intent | Call):
                self._check_row(id_, slot.record, entry)
            if self._findings:
                problems[id_] = self._findings
        self._findings, self._count = findings, count
        for id_ in values.keys() - slots.keys():
            if _kind_in(values[id_]) in ("", *REPEATED):
                message = f"the record {id_} cannot be read"
                problems[id_] = [Finding(what="record_differs", message=message, subject=str(id_))]
        return problems

    def _slot(self, id_: int, value: bytes) -> tuple[Slot, bool] | None:
        """A record that lines are about, if it can be read."""
        try:
            return layout.slot_of(id_, value) if _kind_in(value) in REPEATED else None
        except (KeyError, TypeError, ValueError, IndexError):
            return None

    def _check_slot(self, slot: Slot, has_parts: Sequence[Any]) -> None:
        record, told = slot.record, self._told.get(slot.id)
        said: Sequence[Any] = (0, "", "", 0, "", False, False)
        if told is not None:
            was_set_back = told.line != slot.last_line
            said = (told.number, told.subject, told.after, told.fence, told.detail, True, was_set_back)
        self._check_record(layout.kind_of(record), record, said)
        if isinstance(record, Intent) and told is not None:
            is_over = layout.seal_expiry_ms(record, wall_clock()) == SLACK_MS  # Then it goes by itself.
            bound = {
                "registered": told.registered,
                "settled": told.settled,
                "is_purged": told.is_purged,
                "has_payload": has_parts[0] or is_over,
                "has_response": has_parts[1],
                "forgotten": False,
            }
            self._check_bound(record, bound)

    def _check_row(self, id_: int, record: Intent | Call, value: bytes | None) -> None:
        """A ledger row says what its record says."""
        subject = record.keys()[0].values[-1]
        if value is None:
            self._find("entry_missing", f"the ledger row of {subject} is missing", subject=subject)
            return
        try:
            entry, _line = layout.entry_in(id_, value)
        except (KeyError, TypeError, ValueError, IndexError):
            self._find("entry_differs", f"the ledger row of {subject} cannot be read", subject=subject)
            return
        writer = Writer(source=entry.source, service_ledger_id=entry.service_ledger_id)
        mirrored = server_entry(record, writer) if isinstance(record, Intent) else client_entry(record, writer)
        same = replace(mirrored, version=entry.version, sync_timestamp=entry.sync_timestamp)
        for name in LedgerEntry.__struct_fields__:
            if (is_ := getattr(entry, name)) != (should := getattr(same, name)):
                message = f"ledger row of {subject}: {name} is {is_!r}, expected {should!r}"
                self._find("entry_differs", message, subject=subject)

    async def _check_gone(self) -> None:
        """Records that lines are about and that are not there, though no line says that they were forgotten."""
        candidates = [
            id_
            for id_, told in self._told.items()
            if id_ not in self._seen and not told.is_gone and told.kind in REPEATED and not self._has_ended(told)
        ]
        for start in range(0, len(candidates), PAGE):
            ids = candidates[start : start + PAGE]
            there = await self._ask("HMGET", "record", *ids)
            gone = [id_ for id_, value in zip(ids, there, strict=True) if value is None]
            if gone:
                await self._follow()
            for told in (self._told[id_] for id_ in gone):
                if not self._has_ended(told):
                    message = f"{told.kind} {told.subject} is gone, and no line says that it was forgotten"
                    self._find("record_missing", message, seq=told.number, subject=told.subject)

    def _has_ended(self, told: Told) -> bool:
        return (told.kind, told.subject) in self._ended


def _kind_in(value: bytes) -> str:
    """The kind of a record as it is kept; empty if it cannot be read."""
    try:
        return str(msgspec.json.decode(value.split(b" ", 3)[3])[0])
    except (msgspec.DecodeError, IndexError):
        return ""


def _as_row(id_: int, row: layout.WriterRow) -> dict[str, Any]:
    digest = bytes.fromhex(row.hash) if row.hash else GENESIS
    return msgspec.structs.asdict(row) | {"id": id_, "hash": digest}


async def verify(url: str, *, expect: ProvenHead | None = None, progress: Progress | None = None) -> Report:
    """Check a whole ledger. It takes up the links that nobody has joined yet, and writes nothing else."""
    place = driver.place_of(url)
    server, keys = Server(place), Layout(place.prefix)
    async with driver.in_our_words():
        try:
            await server.connect()
            await opening.insist_on_format(server, keys, may_make=False)
            return await ServerInspection(server, keys, expect, progress).run()
        finally:
            await server.close()
