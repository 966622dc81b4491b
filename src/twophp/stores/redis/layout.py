"""What lies in Redis, and how: a few hashes and sorted sets under one hash tag, so that one script reaches all of it.

state        settings of the format: the next id, how many lines there are, the head of the joined journal
key          hash: the name of a key that a record or a ledger row holds -> the id of that record
record       hash: id -> "version last_line has_row [kind, field, ...]"
entry        hash: id -> "version sync_timestamp last_line [field, ...]", the ledger row of that record
due:KIND     by time: the identities of records that want attention
payload:NAME, response:NAME    sealed parts, each a key of its own, so that a payload can expire
rows, open, unsynced, outlived    ids of ledger rows: all, those not ended, those to ship, those to purge
called, servers, children, sources    names and ids, to find ledger rows by what they say
obligations, settled    ids of obligations, and when they were settled
meta         small settings of the ledger
writer       hash: id -> where a handle's chain of links has come to
link, ids, places, joined    links by name; their names; their places among all lines; their joined hashes
news         a channel: intents that have ended
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from twophp.core.budget import Spent
from twophp.core.call import Call
from twophp.core.entry import LedgerEntry
from twophp.core.errors import Refused
from twophp.core.fence import Fence
from twophp.core.intent import UNCONFIRMED, Intent, Phase
from twophp.core.job import Job
from twophp.core.obligation import Obligation
from twophp.core.quota import Usage
from twophp.core.records import Instant, Key, Record
from twophp.kernel.journal import Link
from twophp.kernel.overlay import Slot
from twophp.ports import Part
from twophp.stores.chains import Chain
from twophp.stores.sqlite.table import Table
from twophp.stores.sqlite.tables import TABLE_OF_RECORD, entry_of

FORMAT: Final = 1
DUE: Final = ("intent", "obligation", "job", "call")
NAMES: Final = (
    *("state", "places", "key", "record", "entry", "rows", "open", "unsynced", "outlived"),
    *("called", "servers", "children", "sources", "obligations", "settled", "meta"),
    *("writer", "link", "ids", "joined", "news"),
    *(f"due:{kind}" for kind in DUE),
)
PARTS: Final[tuple[Part, ...]] = ("payload", "response")
SLACK_MS: Final = 60_000
"""A payload that nobody confirmed outlives TTL and grace by so much: its expiry is no clock that anybody judges by."""

TABLE_OF_KIND: Final[dict[str, Table]] = {
    TABLE_OF_RECORD[record].kind: TABLE_OF_RECORD[record]
    for record in (Intent, Obligation, Job, Call, Usage, Spent, Fence)
}
KIND_OF_KEY: Final = {by: table.kind for table in TABLE_OF_KIND.values() for by in table.reads}

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[Any]).decode
_SYNC: Final = 1 + LedgerEntry.__struct_fields__.index("sync_timestamp")


def kind_of(record: Any) -> str:
    """The kind that a record is kept as. Every record that comes here was put under a key that is known."""
    return TABLE_OF_RECORD[type(record)].kind


def name_of(by: str, *values: str) -> bytes:
    """The field of ``key`` for a key, or the member of an index: JSON, so that no two are spelled alike."""
    try:
        return _encode((by, *values))
    except UnicodeEncodeError as error:
        raise Refused("a text is Unicode: it holds half a character", code="bad_text") from error


def key_name(key: Key) -> bytes:
    """The field of ``key`` for this key."""
    return name_of(key.by, *key.values)


def row_name(entry: LedgerEntry) -> bytes:
    """The field of ``key`` for a ledger row: there is one for a pair of ids and a side."""
    return name_of("entry", entry.client_correlation_id, entry.server_correlation_id, entry.actor)


def indexed(value: str, id_: int) -> bytes:
    """A member of an index of ledger rows: rows of one value stand in the order of their ids."""
    return name_of(value, f"{id_:016x}")


def prefix_of(value: str) -> bytes:
    """How every member of an index begins that has this value."""
    return name_of(value)[:-1] + b","


def id_in(member: bytes) -> int:
    """The id in a member of an index."""
    return int(_decode(member)[1], 16)


def values_in(member: bytes) -> tuple[str, ...]:
    """The values in a name."""
    return tuple(_decode(member))


def record_value(slot: Slot, *, has_row: bool) -> bytes:
    """A record as it is kept."""
    record: Any = slot.record
    text = _encode((kind_of(record), *msgspec.structs.astuple(record)))
    return b"%d %d %d %b" % (record.version, slot.last_line, has_row, text)


def record_guard(slot: Slot) -> bytes:
    """How the value begins as long as nobody has changed it."""
    return b"%d " % slot.stored


def slot_of(id_: int, value: bytes) -> tuple[Slot, bool]:
    """A record as it was read, and whether it has a ledger row."""
    version, last_line, has_row, text = value.split(b" ", 3)
    kind, *fields = _decode(text)
    record: Record = TABLE_OF_KIND[kind].record((id_, *fields))
    return Slot(record, record.keys(), id_, int(version), int(last_line)), has_row == b"1"


def entry_value(entry: LedgerEntry, last_line: int) -> bytes:
    """A ledger row as it is kept."""
    at = b"" if entry.sync_timestamp is None else b"%d" % entry.sync_timestamp
    text = _encode(msgspec.structs.astuple(replace(entry, sync_timestamp=None)))
    return b"%d %b %d %b" % (entry.version, at, last_line, text)


def entry_guard(entry: LedgerEntry) -> bytes:
    """How the value begins as long as nobody has changed or marked it."""
    at = b"" if entry.sync_timestamp is None else b"%d" % entry.sync_timestamp
    return b"%d %b " % (entry.version, at)


def entry_in(id_: int, value: bytes) -> tuple[LedgerEntry, int]:
    """A ledger row as it was read, and the line that it was written with."""
    _version, at, last_line, text = value.split(b" ", 3)
    fields = [id_, *_decode(text)]
    fields[_SYNC] = int(at) if at else None
    return entry_of(tuple(fields)), int(last_line)


class WriterRow(msgspec.Struct, frozen=True, array_like=True):
    """Where the chain of a handle has come to. It is a guard of every batch: whoever closes it ends that handle."""

    seq: int
    link: int
    lines: int
    hash: str
    at: Instant  # Time never runs backwards, not even over a restart.
    is_closed: bool
    previous: int  # The writer before it, ...
    joined: int  # ... and how many lines were joined when it began.
    name: str


def writer_value(row: WriterRow) -> bytes:
    """The row as it is kept."""
    return _encode(row)


writer_in: Final = msgspec.json.Decoder(WriterRow).decode


def moved(row: WriterRow, chain: Chain, at: Instant) -> WriterRow:
    """The row after a batch."""
    return replace(row, seq=chain.seq, link=chain.link, lines=chain.lines, hash=chain.hash.hex(), at=at)


def closed(row: WriterRow) -> WriterRow:
    """The row of a writer that writes no more."""
    return replace(row, is_closed=True)


def head_value(lines: int, digest: bytes) -> bytes:
    """Where the joined journal ends, as it is kept."""
    return b"%d %b;" % (lines, digest.hex().encode())


def head_in(value: bytes) -> tuple[int, bytes]:
    """The number of the last joined line, and its hash."""
    lines, digest = value.rstrip(b";").split(b" ")
    return int(lines), bytes.fromhex(digest.decode())


def link_value(link: Link) -> bytes:
    """A link as it is kept."""
    return msgspec.msgpack.encode(msgspec.structs.astuple(link))


def link_in(value: bytes) -> Link:
    """A link as it was read."""
    return Link(*msgspec.msgpack.decode(value))


def link_name(link: int) -> bytes:
    """The name of a link, and of a line: they sort as their numbers do."""
    return b"%016x" % link


def seal_expiry_ms(record: Any, now: Instant) -> int | None:
    """In how many milliseconds the payload of an intent may go by itself; None: it stays until it is destroyed.

    Nobody may confirm after TTL and grace (draft §12.2, A-84). Once confirmed, whoever executes the intent needs it for
    as long as that takes; once settled, it is due to be purged, and goes by itself if nobody comes.
    """
    if not isinstance(record, Intent):
        return None
    if record.phase in UNCONFIRMED:
        until: Instant | None = record.abandoned_at
    else:
        until = None if record.phase is Phase.PROCESSING else record.due_at
    return None if until is None else max(until - now, 0) + SLACK_MS


class Layout:
    """The names of everything that belongs to one ledger."""

    def __init__(self, prefix: str) -> None:
        self.tag = f"{{{prefix}}}"
        self.static = tuple(self.of(name) for name in NAMES)

    def of(self, name: str) -> str:
        """A key."""
        return f"{self.tag}:{name}"

    def several(self, names: Iterable[str]) -> list[str]:
        """Some keys."""
        return [self.of(name) for name in names]

    def part(self, part: Part, identity: Key) -> bytes:
        """The key of a sealed part."""
        return b"%b:%b:%b" % (self.tag.encode(), part.encode(), key_name(identity))
