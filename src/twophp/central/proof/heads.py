"""Signing tree heads as rows arrive, beside the path of the batches: one a second at most, and when somebody asks."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final

from twophp.central.ports import SignedHead
from twophp.central.stores.store import CentralStore
from twophp.core.errors import TwoPHPError
from twophp.identity.notes import Signer
from twophp.ports import Clock

log: Final = logging.getLogger("twophp.central")

EVERY_S: Final = 1.0


class Heads:
    """What this process signs. ``last`` is what a service is given with its acknowledgements."""

    def __init__(self, store: CentralStore, signer: Signer, clock: Clock) -> None:
        self.public = signer.public
        self.last: SignedHead | None = None
        self.is_forked = False
        self._store = store
        self._signer = signer
        self._clock = clock
        self._news = asyncio.Event()

    def arrived(self) -> None:
        """Rows have arrived."""
        self._news.set()

    async def sign(self) -> SignedHead:
        """The head of everything that is here; raises Refused if that does not continue what was signed before."""
        self.last = await self._store.sign_head(self._clock(), self._signer)
        return self.last

    async def given(self, seen: int) -> dict[str, Any] | None:
        """For a writer that has a head of so many leaves: the newest that was signed, and the proof of its promise.

        None before one is signed. One that is smaller than what the writer has is told as well: it shows a roll-back.
        """
        if self.last is None or self.last.size < seen:  # Another process of this ledger may have signed a later one.
            self.last = await self._store.latest_head()
        last = self.last
        if last is None:
            return None
        path = await self._store.consistency(seen, last.size) if seen <= last.size else []
        return {"note": last.note, "key": str(self.public), "path": [part.hex() for part in path]}

    async def run(self, stopping: asyncio.Event) -> None:
        """Sign what arrives until it is time to stop."""
        self._news.set()
        while not stopping.is_set():
            await self._news.wait()
            self._news.clear()
            try:
                await self.sign()
                self.is_forked = False
            except TwoPHPError as error:
                if not self.is_forked:
                    log.error("no tree head is signed: %s", error)  # noqa: TRY400 - Its words say all there is.
                self.is_forked = True
            except Exception:  # What nobody thought of must not end the signing.
                log.exception("no tree head is signed")
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await stopping.wait()
