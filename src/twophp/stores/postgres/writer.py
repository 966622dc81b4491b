"""One batch in a transaction, over a connection that may be lost at any moment.

What another replica's batch holds is waited for; whoever was slower to make a record is decided again on what is there
then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from twophp.core.errors import CommitUnknown, StoreError, StorePoisoned, StoreUnavailable, TwoPHPError
from twophp.kernel.apply import Outcome
from twophp.ports import Command
from twophp.stores.chains import Chain
from twophp.stores.clock import steady_seconds
from twophp.stores.group_commit import BATCH_LIMIT, QUEUE_CAPACITY, GroupCommit
from twophp.stores.postgres import driver
from twophp.stores.postgres.batch import Batch, TransactionEnded
from twophp.stores.postgres.news import News
from twophp.stores.postgres.opening import insist_on_durability
from twophp.stores.postgres.script import Script
from twophp.stores.postgres.supply import Supply

TRIES: Final = 8
"""So often a batch that met others is decided again, before each of its halves is by itself."""
MEETINGS: Final = 3
"""The same where a key was taken: what is decided on it once more seldom takes it again."""
PAUSE_S: Final = 0.002
UNEVEN: Final = 5


class Writer(GroupCommit):
    """The writer of one handle."""

    def __init__(
        self,
        pool: Any,
        script: Script,
        supply: Supply,
        chain: Chain,
        news: News,
        *,
        capacity: int = QUEUE_CAPACITY,
        batch_limit: int = BATCH_LIMIT,
        seconds: Callable[[], float] = steady_seconds,
    ) -> None:
        super().__init__(capacity=capacity, batch_limit=batch_limit, seconds=seconds)
        self._pool = pool
        self._script = script
        self._supply = supply
        self.chain = chain
        self._news = news
        self._connection: Any = None
        self._has_settings = False
        self._has_begun = False  # Whether the latest attempt has come so far.

    async def _written(self, commands: Sequence[Command]) -> list[Outcome]:
        """See ``GroupCommit._written``; who met others is decided again, and a lost session is replaced."""
        error: Exception = StoreUnavailable("it was not tried")
        has_reconnected = False
        for attempt in range(TRIES):
            try:
                return await self._attempt(commands)
            except Exception as raised:  # noqa: BLE001 - which it is tells what comes next.
                error = raised
            if isinstance(error, CommitUnknown | StorePoisoned):
                break
            if driver.may_be_decided_again(error) and attempt < (MEETINGS if driver.is_taken(error) else TRIES):
                if attempt:
                    await asyncio.sleep(
                        PAUSE_S * (attempt + self.chain.id % UNEVEN)
                    )  # So that two do not meet for ever.
            elif (self._is_cut_off() or driver.is_cut(error)) and not has_reconnected:
                has_reconnected = True  # COMMIT was not sent, so nothing was written; an idle session may have ended.
            else:
                break
        raise error

    def _is_everybodys(self, error: Exception) -> bool:
        return not self._has_begun or self._is_cut_off() or driver.is_outage(error)

    def _for_a_caller(self, error: Exception) -> TwoPHPError:
        ours = driver.translate(error)
        return type(ours)(ours.message, code=ours.code)

    async def _attempt(self, commands: Sequence[Command]) -> list[Outcome]:
        self._has_begun = False
        connection = await self._connected()
        batch = Batch(connection, self._script, self._supply, self.chain, has_settings=self._has_settings)
        try:
            await self._begin(connection)
            outcomes = await batch.run(commands)
        except BaseException as error:
            await self._undo(error)
            if isinstance(error, TransactionEnded):
                raise self._ended_by_a_statement(error, len(commands)) from error
            if isinstance(error, Exception) and driver.is_of_the_chain(error, self._script.schema):
                message = f"somebody has written in this writer's name: {error}; open the database anew"
                self._poison = StorePoisoned(message)
                raise self._poison from error
            if isinstance(error, StorePoisoned):
                self._poison = error
            raise
        if not batch.changed:
            await self._roll_back(connection)
            return outcomes
        await self._commit(connection)
        self.chain, self._has_settings = batch.chain, batch.has_settings
        self._news.tell(batch.ended)
        return outcomes

    def _ended_by_a_statement(self, error: TransactionEnded, waiting: int) -> StoreError:
        """The handle stops, for some of the batch may be durable. Whoever shared it has to look."""
        self._poison = StorePoisoned("a caller's statement has ended the transaction; open the database anew")
        if waiting == 1:
            return StoreError(error.message, code=error.code)
        return CommitUnknown("a caller's statement has ended the batch's transaction, which may be durable in part")

    async def _begin(self, connection: Any) -> None:
        try:
            await connection.execute(self._script.begin)
        except driver.THEIRS as error:
            if driver.is_standby(error):
                raise StoreUnavailable("the database can only be read", code="store_read_only") from error
            raise
        self._has_begun = True

    def _is_cut_off(self) -> bool:
        return self._connection is None or driver.is_gone(self._connection)

    async def _commit(self, connection: Any) -> None:
        """Make it durable, and know what it means if that fails."""
        commit = self._script.named("commit")
        try:
            said = await connection.execute(commit)
        except driver.THEIRS as error:
            if driver.is_certain(error) and not driver.is_gone(connection):
                raise  # What was deferred until now has refused it.
            self._poison = StorePoisoned(f"a commit failed: {error}; open the database anew")
            await self._let_go()
            message = f"the commit failed and may still have happened: {error}"
            raise CommitUnknown(message) from error
        if said != commit:  # It was rolled back.
            raise StoreError(f"the database did not commit, but said {said}", code="bad_change")

    async def _connected(self) -> Any:
        if self._connection is not None and driver.is_gone(self._connection):
            await self._let_go()
        if self._connection is None:
            connection = await self._pool.acquire(timeout=driver.CONNECT_S)
            try:  # It may be another server by now, or one that was set up anew.
                async with connection.transaction():
                    await insist_on_durability(connection, self._script)
            except BaseException:
                connection.terminate()
                with suppress(*driver.THEIRS):
                    await self._pool.release(connection)
                raise
            self._connection = connection
        return self._connection

    async def _undo(self, error: BaseException) -> None:
        """The server rolls back what is lost with its session, so a session that is in doubt is ended."""
        connection = self._connection
        if driver.is_gone(connection):
            await self._let_go()
        elif driver.is_cut(error) or not isinstance(error, Exception):
            connection.terminate()
            await self._let_go()
        else:
            await self._roll_back(connection)

    async def _roll_back(self, connection: Any) -> None:
        """What is lost with its connection is rolled back by the server."""
        with suppress(*driver.THEIRS):
            await connection.execute(self._script.named("rollback"))

    async def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*driver.THEIRS):
                await self._pool.release(connection)
