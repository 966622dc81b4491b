"""The PostgreSQL store: records, ledger, sealed parts and journal in one schema, shared by any number of replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from twophp.core.entry import LEDGER_ID, LedgerEntry, restamped_line
from twophp.core.errors import StoreOverloaded
from twophp.core.intent import INTENT
from twophp.core.obligation import Obligation, by_id
from twophp.core.records import Instant, Key, Sealed
from twophp.kernel.commands import AdHocCommand, MakeChange
from twophp.kernel.journal import Link
from twophp.kernel.overlay import Slots
from twophp.ports import (
    Change,
    Clock,
    JournalLine,
    Obligations,
    Part,
    Question,
    Records,
    Statement,
    Synced,
    Tally,
)
from twophp.stores.clock import mint_uuid, system_clock
from twophp.stores.group_commit import BATCH_LIMIT, QUEUE_CAPACITY
from twophp.stores.handle import Handle
from twophp.stores.postgres import driver, opening
from twophp.stores.postgres.batch import load
from twophp.stores.postgres.journal import history, join, lines_after, links_after
from twophp.stores.postgres.kinds import KIND_OF_TABLE
from twophp.stores.postgres.lent import Lending, LentTransaction
from twophp.stores.postgres.news import News
from twophp.stores.postgres.questions import asked, obligations_asked
from twophp.stores.postgres.script import Script
from twophp.stores.postgres.supply import Supply
from twophp.stores.postgres.text import kept, kept_values, plain
from twophp.stores.postgres.writer import Writer
from twophp.stores.sqlite.table import Row
from twophp.stores.sqlite.tables import entry_of
from twophp.stores.tasks import in_a_task

RESTAMPED_AT_A_TIME: Final = 500


class PostgresStore(Handle[Writer]):
    """A ``Store`` over one schema. Use it from one event loop, as a context manager or after ``open``."""

    takes_statements: Final = True
    _as: tuple[str, ...] = ()  # Statements by which each batch says whose it is.

    def __init__(
        self,
        url: str,
        *,
        clock: Clock = system_clock,
        capacity: int = QUEUE_CAPACITY,
        batch_limit: int = BATCH_LIMIT,
    ) -> None:
        """Nothing is opened here. Unless ``clock`` is injected, time is the database's."""
        self._place = driver.place_of(url)
        self._script = Script(self._place.schema)
        self._supply = Supply(clock)
        super().__init__(self._supply.time)
        self._capacity = capacity
        self._batch_limit = batch_limit
        self._name = mint_uuid()
        self._pool: Any = None
        self._news: News
        self._lending: Lending
        self._is_pooled = False
        self._reopening = asyncio.Lock()

    async def open(self) -> None:
        """Connect, refuse what would not be durable, migrate, and prove that a write is. All of it or nothing."""
        self._refuse_if_closed()
        async with driver.in_our_words():
            pool, self._is_pooled = await driver.open_pool(self._place)
            try:
                async with pool.acquire() as connection:
                    await opening.stop_older_handles(connection, self._script)
                    async with connection.transaction():
                        await opening.insist_on_durability(connection, self._script)
                        await opening.migrate(connection, self._script)
                        await opening.insist_on_whole_copy(connection, self._script)
                        begins = ("begin_pooled" if self._is_pooled else "begin", *self._as)
                        self._script.begin = ";".join(map(self._script.named, begins))
                        news = News(pool, self._script, is_pooled=self._is_pooled)
                        writer = await self._new_writer(pool, connection, news)
            except BaseException:
                with suppress(*driver.THEIRS):
                    await pool.close()
                raise
        self._pool, self._writer, self._news = pool, writer, news
        self._lending = Lending(pool, self._script, self._supply.time, news, (writer.chain.id, self._name))

    async def _new_writer(self, pool: Any, connection: Any, news: News) -> Writer:
        chain, at = await opening.begin_writer(connection, self._script, self._name)
        await self._supply.look(connection, self._script.named("clock_and_ids"), 1)
        self._supply.time.reach(at)
        script, supply = self._script, self._supply
        return Writer(pool, script, supply, chain, news, capacity=self._capacity, batch_limit=self._batch_limit)

    async def read(self, keys: Sequence[Key]) -> Sequence[Any]:
        """See ``Store.read``. Takes no lock: a commit is seen once it is durable."""
        self._opened.refuse_if_unsure()
        slots = await self._slots(keys)
        return [None if (slot := slots.get(key)) is None else slot.record for key in keys]

    def own_transaction(self, source: object) -> LentTransaction:
        """See ``JoinsTransactions.own_transaction``."""
        self._opened  # noqa: B018 - it raises if there is none.
        return LentTransaction(self._lending, source, self._slots)

    async def _slots(self, keys: Sequence[Key]) -> Slots:
        slots: Slots = {}
        async with self._reading(is_one=len({key.by for key in keys}) == 1) as connection:
            await load(connection, self._script, keys, slots, locks=False)
        return slots

    async def news_of(self, correlation_id: str, longest_s: float) -> None:
        """See ``Heralds.news_of``."""
        self._refuse_if_closed()
        await self._news.wait(correlation_id, longest_s)

    async def due(self, kind: str, before: Instant, limit: int) -> Sequence[Key]:
        """See ``Store.due``: a range of an index. What another replica's batch holds it attends to: that is skipped."""
        identity = KIND_OF_TABLE[kind].table.identity
        return await self._ask(f"{kind}s_due", (before, limit), lambda row: Key(identity, row))

    async def unseal(self, key: Key, part: Part) -> Sealed | None:
        """See ``Store.unseal``."""
        found = await self._ask(f"seal_of_{_kind_of(key)}", (*key.values, part), lambda row: row[0])
        return Sealed(found[0]) if found and found[0] is not None else None

    async def history(self, key: Key) -> Sequence[JournalLine]:
        """See ``Store.history``."""
        async with self._joined() as connection:
            name = self._script.named(f"last_line_of_{_kind_of(key)}")
            found = await connection.fetchrow(name, *kept_values(key.values))
            return [] if found is None else await history(connection, self._script, *found)

    async def journal(self, after: int, limit: int) -> Sequence[JournalLine]:
        """The whole journal, a page at a time."""
        async with self._joined() as connection:
            return await lines_after(connection, self._script, after, limit)

    async def links(self, after: int, limit: int) -> Sequence[Link]:
        """The links of the joined journal after this line."""
        async with self._joined() as connection:
            return await links_after(connection, self._script, after, limit)

    async def changes(self, limit: int) -> Sequence[LedgerEntry]:
        """See ``Store.changes``."""
        return await self._ask("entries_unsynced", (limit,), entry_of)

    async def synced(self, entries: Sequence[LedgerEntry], at: Instant) -> None:
        """See ``Store.synced``."""
        await self.transact(MakeChange(Change(answer=None, synced=(Synced(entries, at),))))

    async def purgeable(self, before: Instant, limit: int) -> Sequence[LedgerEntry]:
        """See ``Store.purgeable``."""
        return await self._ask("entries_outlived", (before, limit), entry_of)

    async def entries(self, question: Question) -> Sequence[LedgerEntry]:
        """See ``Store.entries``."""
        return await self._ask(*asked(question), entry_of)

    async def obligations(self, wanted: Obligations) -> Sequence[Obligation]:
        """See ``Store.obligations``."""
        return await self._ask(*obligations_asked(wanted), KIND_OF_TABLE["obligation"].table.record)

    async def reserved(self) -> int:
        """See ``Store.reserved``."""
        found: list[int] = await self._ask("count_reserved", (), lambda row: row[0])
        return found[0]

    async def settled(self, before: Instant, limit: int) -> Sequence[Key]:
        """See ``Store.settled``: a range of an index."""
        return await self._ask("obligations_settled", (before, limit), lambda row: by_id(row[0]))

    async def tally(self, since: Instant = 0) -> Sequence[Tally]:
        """See ``Store.tally``."""
        return await self._ask("tally_obligations", (since,), lambda row: Tally(*row))

    async def get_or_set_meta(self, name: str, value: str) -> str:
        """The setting kept under ``name``; ``value`` becomes it if there is none yet."""
        found = await self._ask("read_meta", (name,), lambda row: row[0])
        if not found:
            async with self._reading(is_one=True) as connection:
                await connection.execute(self._script.named("keep_meta"), [kept(name)], [kept(value)])
            found = await self._ask("read_meta", (name,), lambda row: row[0])  # Somebody may have been quicker.
        return str(found[0])

    async def set_meta(self, name: str, value: str) -> None:
        """See ``Store.set_meta``."""
        async with self._reading(is_one=True) as connection:
            await connection.execute(self._script.named("replace_meta"), kept(name), kept(value))

    async def prove(self) -> None:
        """See ``Store.prove``: a change without a line moves this writer's row."""
        await self.transact(
            MakeChange(Change(answer=None, statements=(Statement(sql=self._script.named("nothing"), rows=[()]),)))
        )

    async def reassign_ledger_id(self, issued: str) -> None:
        """See ``Store.reassign_ledger_id``: the rows a bounded number at a time, the setting with its line last."""
        restamp, done = self._script.named("restamp_entries"), ""
        while done != "UPDATE 0":
            async with self._reading(is_one=True) as connection:
                done = await connection.execute(restamp, kept(issued), RESTAMPED_AT_A_TIME)
        before = await self._ask("read_meta", (LEDGER_ID,), lambda row: row[0])
        keep = Statement(sql=self._script.named("replace_meta"), rows=[(LEDGER_ID, kept(issued))])

        def change(records: Records) -> Change:
            line = restamped_line(before[0] if before else "", issued, records.now)
            return Change(answer=None, journal=(line,), statements=(keep,))

        await self.transact(AdHocCommand((), change))

    async def reopen(self) -> None:
        """See ``Store.reopen``. A commit of unknown outcome is over before the old writer's row can be closed."""
        broken = self._opened
        async with self._reopening:
            self._refuse_if_closed()
            if self._writer is not broken:
                return
            broken.stop("it is being opened anew")
            await broken.close()
            async with driver.in_our_words(), self._pool.acquire(timeout=driver.CONNECT_S) as connection:
                await opening.insist_on_durability(connection, self._script)
                await opening.close_writer(connection, self._script, broken.chain)
                self._writer = await self._new_writer(self._pool, connection, self._news)

    async def close(self) -> None:
        """See ``Store.close``."""
        self._is_closed = True
        if self._writer is not None:
            await self._writer.close()
        if self._pool is not None:
            await self._news.close()
            await driver.close_pool(self._pool)

    # Looking. ---------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _reading(self, *, is_one: bool) -> AsyncIterator[Any]:
        """A connection. More than one statement sees one moment; behind a pooler, one alone needs a transaction too."""
        self._opened  # noqa: B018 - it raises if there is none.
        await in_a_task()
        async with driver.in_our_words():
            try:
                connection = await self._pool.acquire(timeout=driver.CONNECT_S)
            except TimeoutError as error:
                raise StoreOverloaded("all connections to the database are busy") from error
            try:
                if is_one and not self._is_pooled:
                    yield connection
                else:
                    async with connection.transaction(isolation="read_committed" if is_one else "repeatable_read"):
                        yield connection
            finally:
                await self._pool.release(connection)

    @asynccontextmanager
    async def _joined(self) -> AsyncIterator[Any]:
        """The same, after every link that is durable by now has found its place in the joined journal."""
        async with self._reading(is_one=True) as connection:
            if not await connection.fetchval(self._script.named("is_joined")):
                async with connection.transaction():
                    await join(connection, self._script)
            yield connection

    async def _ask(self, name: str, bindings: tuple[Any, ...], shape: Callable[[Row], Any]) -> list[Any]:
        values = [kept_values(value) if isinstance(value, list) else value for value in kept_values(bindings)]
        async with self._reading(is_one=True) as connection:
            rows = await connection.fetch(self._script.named(name), *values)
        return [shape(plain(row)) for row in rows]


def _kind_of(key: Key) -> str:
    kind = key.by.partition(".")[0]
    assert kind == INTENT or KIND_OF_TABLE[kind].table.identity == key.by, "a part or a history is asked by identity"
    return kind
