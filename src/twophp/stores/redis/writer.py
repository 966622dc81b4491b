"""One batch after the other: a trip to read and a trip to write, over a connection that may be lost at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from twophp.core.errors import CommitUnknown, StorePoisoned, StoreUnavailable, TwoPHPError
from twophp.kernel.apply import Outcome
from twophp.ports import Command
from twophp.stores.chains import Chain
from twophp.stores.group_commit import BATCH_LIMIT, QUEUE_CAPACITY, GroupCommit
from twophp.stores.redis import driver
from twophp.stores.redis.batch import Batch, Meeting
from twophp.stores.redis.driver import Server
from twophp.stores.redis.layout import Layout, WriterRow
from twophp.stores.redis.opening import insist_on_durability
from twophp.stores.redis.supply import Supply

TRIES: Final = 64
"""So often a batch that met others is decided again. One of those that meet always gets through."""
AT_ONCE: Final = 4
"""So many of them at once, and then after a pause that differs from the others'."""
PAUSE_S: Final = 0.001
UNEVEN: Final = 7


class Writer(GroupCommit):
    """The writer of one handle."""

    def __init__(
        self,
        server: Server,
        keys: Layout,
        supply: Supply,
        chain: Chain,
        row: WriterRow,
        *,
        room: tuple[int, int] = (QUEUE_CAPACITY, BATCH_LIMIT),
    ) -> None:
        super().__init__(capacity=room[0], batch_limit=room[1])
        self._server = server
        self._keys = keys
        self._supply = supply
        self.chain = chain
        self.row = row

    async def _written(self, commands: Sequence[Command]) -> list[Outcome]:
        """See ``GroupCommit._written``; who met others is decided again, and a lost connection is replaced."""
        noticed: set[bytes] = set()
        has_reconnected = False
        for attempt in range(TRIES):
            try:
                return await self._attempt(commands, noticed)
            except Meeting:
                if attempt >= AT_ONCE:
                    await asyncio.sleep(PAUSE_S * (attempt * self.chain.id % UNEVEN))  # No two meet for ever.
            except driver.THEIRS as error:
                if not driver.is_cut(error) or has_reconnected:
                    raise
                has_reconnected = True  # Nothing was sent to be written; the server may have been restarted.
        raise StoreUnavailable("others change the same records all the time", code="store_busy")

    async def _attempt(self, commands: Sequence[Command], noticed: set[bytes]) -> list[Outcome]:
        batch = Batch(self._server, self._keys, self._supply, self.chain, self.row)
        answers, writes = await batch.decide(commands, noticed)
        if self._server.is_new:
            try:
                await insist_on_durability(self._server)
            except BaseException:
                self._server.is_new = True
                raise
        if writes:
            await self._commit(batch, noticed)
        return answers

    async def _commit(self, batch: Batch, noticed: set[bytes]) -> None:
        """Make it durable, and know what it means if that fails."""
        try:
            await batch.commit()
            if self._server.is_new:  # It went over a connection that was made for it: to whom, is looked at now.
                await insist_on_durability(self._server)
        except Meeting:
            noticed |= batch.taken
            raise
        except StorePoisoned as error:
            self._poison = error
            raise
        except BaseException as error:
            if isinstance(error, Exception) and driver.is_certain(error):
                raise
            self._poison = StorePoisoned(f"a commit failed: {error}; open the database anew")
            message = f"the commit failed and may still have happened: {error}"
            raise CommitUnknown(message) from error
        self.chain, self.row = batch.chain, batch.row

    def _is_everybodys(self, error: Exception) -> bool:
        return isinstance(error, (*driver.THEIRS, StoreUnavailable))

    def _for_a_caller(self, error: Exception) -> TwoPHPError:
        ours = driver.translate(error)
        return type(ours)(ours.message, code=ours.code)

    async def _let_go(self) -> None:
        """The connection is the store's."""
