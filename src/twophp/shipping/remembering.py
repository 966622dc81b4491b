"""The central ledger's heads as one of its writers remembers them: a history that is rewritten breaks their word.

With its acknowledgements the central ledger gives its newest signed head, and the proof that it continues the one that
the service was given last. The service keeps it in its own database. A head that does not continue it, or that another
key has signed, is complained of: a counted condition in the log, and kept for ``twophp doctor`` with both notes as
evidence. The first key that is seen is believed, unless a setting says which one is.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from twophp.core.errors import Refused, TwoPHPError
from twophp.identity import notes
from twophp.observability.conditions import Conditions
from twophp.ports import Maintenance

log: Final = logging.getLogger("twophp.ship")

HEAD: Final = "central_head"
"""The setting under which the last head is kept."""
ALARM: Final = "central_alarm"
"""The setting under which the first broken promise is kept."""


class GivenHead(msgspec.Struct, frozen=True):
    """What stands beside the acknowledgements: a signed note, who says to have signed it, and the consistency proof."""

    note: str
    key: str
    path: list[str] = []


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The last head that held, and the key that is believed."""

    key: str = ""
    note: str = ""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """A promise that was broken: both notes, which the central ledger has signed."""

    what: str = ""
    message: str = ""
    seen: str = ""
    now: str = ""


class Remembering:
    """What one ledger remembers of its central ledger."""

    def __init__(self, store: Maintenance, believed: str | None = None) -> None:
        self.broken = 0
        self._store = store
        self._believed = believed
        self._conditions = Conditions(log)
        self._kept: Kept | None = None

    async def size(self) -> int:
        """Of the last head: what the next one has to continue."""
        kept = await self._recalled()
        return notes.read(kept.note).size if kept.note else 0

    async def look(self, given: GivenHead) -> None:
        """Compare what was given with what is remembered; remember it if it holds."""
        kept = await self._recalled()
        try:
            public = notes.PublicKey.parse(self._believed or kept.key or given.key)
            now = notes.head_of(given.note, public)
            path = [bytes.fromhex(part) for part in given.path]
        except (TwoPHPError, ValueError) as error:
            await self._complain(kept, given, "bad_signature", str(error))
            return
        last = notes.read(kept.note) if kept.note else None
        broken = None if last is None else notes.broken_promise(last, now, path)
        if last is not None and broken is not None:
            message = f"head {now.number}, of {now.size} leaves, does not continue head {last.number}, of {last.size}"
            await self._complain(kept, given, broken, message)
        elif last is None or now.number > last.number:
            self._kept = Kept(key=str(public), note=given.note)
            await self._store.set_meta(HEAD, msgspec.json.encode(self._kept).decode())

    async def _recalled(self) -> Kept:
        if self._kept is None:
            said = await self._store.get_or_set_meta(HEAD, "{}")
            self._kept = msgspec.json.decode(said, type=Kept)
        return self._kept

    async def _complain(self, kept: Kept, given: GivenHead, what: str, message: str) -> None:
        self.broken += 1
        error = Refused(message, code=what)
        self._conditions.known(logging.ERROR, "the central ledger's history is not what we were told", error=error)
        alarm = Alarm(what=what, message=message, seen=kept.note, now=given.note)
        await self._store.get_or_set_meta(ALARM, msgspec.json.encode(alarm).decode())
