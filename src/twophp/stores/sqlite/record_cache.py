"""A cache of the records that this handle wrote last.

A handshake reads its intent three times, and most often in the process that wrote it. SQLite counts the commits of
other connections (``data_version``); while that number is unchanged, the cached records and the cached head of the
journal are what the file holds. After a failed batch of this handle the cache is emptied.

A commit of another handle puts the whole cache in doubt, and the head of the journal is read anew. Of the records only
intents are kept: among workers on one file each intent mostly stays with the worker that registered it, while counters
and fences are changed by all. Before a doubted intent is used, id, version, phase and fence are read from its row,
inside the write transaction, in which nobody else writes:

- Every change of an intent by any handle raises its version, so an equal version means an equal record; a row of a
  forgotten intent does not match. An intent that another handle has settled, renewed, recovered, replaced or forgotten
  is read anew, also by a command that only reads.
- A direct edit of the file may leave the version. The phase and the fence decide whether something runs or settles; an
  intent that was set back differs in one of them, is read, and is then compared with its history.
- A direct edit of other columns is not seen here. The cached record is the right one: this handle wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import apsw
import msgspec

from twophp.core.errors import StoreError
from twophp.core.intent import Intent
from twophp.core.records import Instant, Key
from twophp.kernel.journal import Link, Writer
from twophp.kernel.overlay import Slot
from twophp.stores.clock import mint_uuid
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row

_encode: Final = msgspec.json.Encoder().encode
_STATES_OF_INTENTS: Final = sql("states_of_intents")

GENERATION: Final = 8_192  # keys; two generations are kept, so memory does not grow with what is stored


class JournalHead(NamedTuple):
    """The last line of the journal and its hash, the time of the last write, and the next id."""

    seq: int
    hash: bytes
    at: Instant
    next_id: int


def read_head(connection: apsw.Connection) -> JournalHead:
    """The head as this connection sees it. Without a head the end of the journal is unknown: nothing can be added."""
    row: Row | None = connection.execute(sql("read_head")).fetchone()
    if row is None:
        message = f"{connection.filename}: the head of the journal is gone; restore the database from its backup"
        raise StoreError(message, code="store_corrupt")
    return JournalHead(*row)


class RecordCache:
    """A bounded cache of slots by every key their records hold, in two generations, and the head of the journal.

    A batch works on ``slots`` itself. If it fails, the cache is emptied, so nothing has to be undone.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._version = -1
        self.slots: dict[Key, Slot] = {}
        self._old: dict[Key, Slot] = {}
        self._doubted: dict[Key, Slot] = {}
        self._head: JournalHead | None = None
        self._name = mint_uuid()
        self._writer = Writer()
        self._writer_is_known = True
        self.has_settings = False  # The database holds the service's name and the ledger's GUID.

    def refresh(self) -> bool:
        """Whether another connection has written. Call it inside the write transaction, where no other can write."""
        version = self._connection.execute("PRAGMA data_version").get
        if version != self._version:
            self._doubt()
            is_first, self._version = self._version == -1, version
            return not is_first
        if len(self.slots) > GENERATION:
            self._old, self.slots = self.slots, {}
        return False

    def has(self, key: Key) -> bool:
        """Whether the record under ``key`` is in ``slots``; it is brought there from the older generation."""
        if key in self.slots:
            return True
        slot = self._old.get(key)
        if slot is None:
            return False
        for held in slot.keys:
            self.slots[held] = self._old.pop(held)
        return True

    def ask_again(self, keys: Iterable[Key]) -> None:
        """Keep those of the doubted intents under ``keys`` whose rows are unchanged, and forget the others.

        An intent that was read since then has a slot. A second slot would outlive the first when that is dropped.
        """
        doubted = self._doubted
        asked = {slot.id: slot for key in keys if (slot := doubted.get(key)) is not None and not self.has(key)}
        if not asked:
            return
        for slot in asked.values():
            for held in slot.keys:
                doubted.pop(held, None)
        for id_, *state in self._connection.execute(_STATES_OF_INTENTS, (_encode(list(asked)).decode(),)):
            slot = asked[id_]
            intent = slot.record
            assert isinstance(intent, Intent), "only intents are kept"
            if state == [intent.server_correlation_id, intent.version, intent.phase, intent.fence]:
                self.slots.update(dict.fromkeys(slot.keys, slot))

    @property
    def has_doubts(self) -> bool:
        """Whether intents are cached that another handle may have changed and that were not checked since."""
        return bool(self._doubted)

    def _doubt(self) -> None:
        """Put every cached intent in doubt, for another handle has written. What does not fit is read anew."""
        if len(self._doubted) > GENERATION:
            self._doubted = {}
        for known in (self._old, self.slots):
            self._doubted.update((key, slot) for key, slot in known.items() if isinstance(slot.record, Intent))
        self.slots, self._old, self._head = {}, {}, None

    def head(self) -> JournalHead:
        """The head of the journal. Call it inside the write transaction, after ``refresh``."""
        return self._head or read_head(self._connection)

    def writer(self) -> Writer:
        """This handle as a writer of the journal. After a batch that failed, its row may be missing."""
        if not self._writer_is_known:
            links: int | None = self._connection.execute(sql("read_writer"), (self._writer.id, self._name)).get
            self._writer = Writer() if links is None else Writer(self._writer.id, links)
            self._writer_is_known = True
        return self._writer

    def linked(self, link: Link) -> Row:
        """Note that this handle has added a link, and return its row with the new count."""
        self._writer = Writer(link.writer, link.seq)
        return link.writer, self._name, link.seq, link.id, link.hash

    def flushed(self, slots: Iterable[Slot], head: JournalHead) -> None:
        """Note that these slots are durable, and that the journal now ends at ``head``."""
        self._head = head
        for slot in slots:
            slot.stored, slot.entry_is_new = slot.record.version, False
            slot.entry = slot.seals = None

    def forget(self) -> None:
        """Empty the cache."""
        self.slots, self._old, self._doubted, self._head = {}, {}, {}, None
        self._writer_is_known = False
