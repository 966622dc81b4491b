"""The application's own transaction, and the settlement of one intent in it (ADR 44).

The settlement is a batch of one: it locks what it reads, decides, and writes as every other batch does, on a connection
that is not ours. So there is nothing here but who begins, who commits, and what an error means.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

from twophp.core.errors import CommitUnknown, ConfigError, StoreError, StorePoisoned, TwoPHPError
from twophp.core.records import Key
from twophp.kernel.apply import Failure, Snapshot, look
from twophp.kernel.overlay import Slots
from twophp.ports import NOT_IN_TRANSACTION, Command
from twophp.stores.chains import Chain
from twophp.stores.clock import StoreTime
from twophp.stores.portal import run_sync
from twophp.stores.postgres.batch import Batch, TransactionEnded
from twophp.stores.postgres.lent.chains import LentChains
from twophp.stores.postgres.lent.connection import LentConnection, is_certain, is_constraint, state_of, translated
from twophp.stores.postgres.lent.libraries import lent_connection
from twophp.stores.postgres.news import News
from twophp.stores.postgres.script import Script
from twophp.stores.postgres.supply import Supply

log: Final = logging.getLogger("twophp.store")

SOURCES: Final = 64
"""So many pools and engines are known to be of the right database, each checked when it is first used."""
_NO_PRIVILEGE: Final = "42501"
_FOUND: Final = 10  # The columns of `lent_settle` before those of what was looked for.

T = TypeVar("T")
State: TypeAlias = Literal["new", "open", "committing", "over"]
Load: TypeAlias = Callable[[Sequence[Key]], Awaitable[Slots]]


class Lending:
    """What all transactions of one handle share. Its time is the handle's, and it has ids of its own."""

    def __init__(self, pool: Any, script: Script, time: StoreTime, news: News, writer: tuple[int, str]) -> None:
        self.time = time
        self.script = script
        self.news = news
        self.writer = writer  # Number and name of a row of this handle's: where it can be read, there is our database.
        self.chains = LentChains(pool, script, writer[1])
        self.known: dict[int, object] = {}


class _Ids(Supply):
    """Ids for one settlement, on its own connection. Time needs no look: the handle's writer looks with its batches."""

    def __init__(self, time: StoreTime) -> None:
        self.time = time
        self.last_id = 0
        self._ids: deque[int] = deque()

    async def look(self, connection: Any, statement: str, commands: int) -> None:
        """Nothing is looked up beforehand: most settlements make no record."""


class _Ours:
    """The connection for one batch. Its first look tells whether the transaction is still the one that was begun."""

    def __init__(self, connection: LentConnection, script: Script, number: int | None) -> None:
        self._script = script
        self._number = number
        self._fetch = connection.fetch
        self._is_ours = False
        self.fetchrow = connection.fetchrow

    async def fetch(self, statement: str, *values: Any) -> Sequence[Any]:
        """See ``LentConnection.fetch``."""
        if self._is_ours:
            return await self._fetch(statement, *values)
        rows = await self._fetch(self._script.named("lent_settle").format(find=statement), *values)
        number, is_marked = rows[0][:2]
        self._is_ours = is_marked if self._number is None else number == self._number
        if not self._is_ours:
            raise TransactionEnded("somebody has ended the transaction, which only the settlement may do")
        return [row[_FOUND:] for row in rows if row[_FOUND] is not None]


class LentTransaction:
    """See ``OwnTransaction``."""

    def __init__(self, lending: Lending, source: object, load: Load) -> None:
        self._lending = lending
        self._source = source
        self._load = load
        self._connection: LentConnection = lent_connection(source)
        self.is_blocking = self._connection.is_blocking
        self._state: State = "new"
        self._number: int | None = None
        self._chain: Chain | None = None  # Of a commit whose outcome is unknown.

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """See ``OwnTransaction.run``."""
        return run_sync(coroutine)

    async def begin(self) -> Any:
        """See ``OwnTransaction.begin``."""
        handed, self._number = await self._connection.begin(self._lending.script.named("lent_begin"))
        self._state = "open"
        try:
            if id(self._source) not in self._lending.known:
                await self._insist_on_our_database()
        except BaseException:
            await self.undo()
            raise
        return handed

    async def _insist_on_our_database(self) -> None:
        """Where this handle's own row is, the intent's is as well."""
        script, fetchrow = self._lending.script, self._connection.fetchrow
        try:
            where = await fetchrow(script.named("lent_target"))
            is_there = where is not None and where[1]
            found = await fetchrow(script.named("lent_writer"), *self._lending.writer) if is_there else None
            missing = await fetchrow(script.named("lent_privileges")) if is_there else None
        except Exception as error:
            if state_of(error) != _NO_PRIVILEGE:
                raise
            message = f"the role of your connection may not use the ledger's schema {script.schema}: {error}"
            raise ConfigError(message, code="no_privilege") from error
        if where is not None and where[0] == "on":
            raise ConfigError("your connection can only read; name the primary", code="other_database")
        if found is None or not found[0]:
            message = f"your connection is to another database than the ledger's: no {script.schema} of ours is there"
            raise ConfigError(message, code="other_database")
        if missing is not None and missing[0]:
            message = f"the role of your connection may not write the ledger; in {script.schema} it lacks {missing[0]}"
            raise ConfigError(message, code="no_privilege")
        if len(self._lending.known) >= SOURCES:
            self._lending.known.clear()
        self._lending.known[id(self._source)] = self._source  # Kept, or its number could become another one's.

    async def flush(self) -> None:
        """See ``OwnTransaction.flush``."""
        await self._connection.flush()

    async def undo(self) -> None:
        """See ``OwnTransaction.undo``. An error of it is logged: the server rolls back what it is not told to keep."""
        if self._state not in ("open", "committing"):
            return
        self._state = "over"
        try:
            await self._connection.undo()
        except Exception as error:  # noqa: BLE001 - whatever a library raises.
            log.info("a transaction could not be rolled back, so its session ends: %r", error)

    async def roll_back(self) -> None:
        """See ``OwnTransaction.roll_back``."""
        if self._state == "open":
            await self._in_place(self.undo())

    async def settle(self, command: Command) -> Any:
        """See ``OwnTransaction.settle``."""
        if self._chain is not None:
            return await self._found_out(command, self._chain)
        if self._state != "open":
            raise StoreError("your transaction is over, and nothing happened", code="rolled_back")
        chains = self._lending.chains
        chain = await chains.take()
        ours = _Ours(self._connection, self._lending.script, self._number)
        batch = Batch(ours, self._lending.script, _Ids(self._lending.time), chain, has_settings=True, is_lone=True)
        try:
            answer = await self._in_place(self._attempt(command, batch))
        except _Undone as undone:
            if undone.spoils_chain:
                chains.drop()
            else:
                chains.give_back(chain)
            raise _meaning(undone.why) from undone.why
        except BaseException:  # It is unknown how far the chain has come.
            self._chain = chain
            raise
        chains.give_back(batch.chain if batch.changed else chain)
        self._lending.news.tell(batch.ended)
        return answer

    async def _attempt(self, command: Command, batch: Batch) -> Any:
        """On the lent connection alone: it may be in a thread."""
        try:
            answer = await self._decided(command, batch)
        except Exception as error:
            await self.undo()
            raise _Undone(error, spoils_chain=isinstance(error, StorePoisoned) or is_constraint(error)) from error
        if batch.changed:
            await self._commit()
        else:
            await self.undo()
        return answer

    async def _decided(self, command: Command, batch: Batch) -> Any:
        """Decided and written, not yet committed."""
        [answer] = await batch.run([command])
        if isinstance(answer, Failure):
            raise answer.error
        return answer

    async def _commit(self) -> None:
        self._state = "committing"
        try:
            await self._connection.commit()
        except Exception as error:
            await self.undo()
            if is_certain(error):
                raise _Undone(error) from error
            raise CommitUnknown(f"the commit failed and may still have happened: {error!r}") from error
        self._state = "over"
        try:
            await self._connection.close()
        except Exception:
            log.exception("a connection could not be given back after its commit")

    async def _found_out(self, command: Command, chain: Chain) -> Any:
        """After its chain was closed nothing of it can become durable any more: what is there, is all there is."""
        await self._lending.chains.close(chain)
        slots = await self._load(command.keys)
        [answer] = look(
            Snapshot(slots), [command], self._lending.time.now(), lambda: Failure(_lost()), must_be_there=True
        )
        self._lending.chains.drop()
        self._chain, self._state = None, "over"
        if isinstance(answer, Failure):
            raise answer.error
        return answer

    async def _in_place(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What uses the connection: in a thread, if it blocks."""
        if not self.is_blocking:
            return await coroutine
        return await asyncio.to_thread(run_sync, coroutine)


class _Undone(Exception):
    """Everything was rolled back, because of this."""

    def __init__(self, why: Exception, *, spoils_chain: bool = False) -> None:
        """``spoils_chain``: its row was closed or moved, or a row of ours was refused, perhaps its next link."""
        super().__init__(why)
        self.why = why
        self.spoils_chain = spoils_chain and not isinstance(why, TransactionEnded)


def _lost() -> StoreError:
    return StoreError("the connection was lost before the commit, and nothing happened", code="rolled_back")


def _meaning(why: Exception) -> Exception:
    """What is raised for it. A rule that said no (an obligation, a key that has to be named) speaks for itself."""
    if isinstance(why, TransactionEnded):
        return StoreError(why.message, code=NOT_IN_TRANSACTION)
    if isinstance(why, TwoPHPError) and not isinstance(why, StoreError):
        return why
    return translated(why)
