"""The Redis store: records, ledger, sealed parts and journal under one hash tag, shared by any number of replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from twophp.core.entry import LEDGER_ID, LedgerEntry, restamped_line
from twophp.core.errors import ConfigError
from twophp.core.obligation import Obligation, by_id
from twophp.core.records import Instant, Key, Sealed
from twophp.kernel.apply import Failure
from twophp.kernel.commands import AdHocCommand, MakeChange
from twophp.kernel.journal import Link
from twophp.ports import (
    Change,
    Clock,
    JournalLine,
    Obligations,
    Part,
    Question,
    Records,
    Synced,
    Tally,
)
from twophp.stores.clock import mint_uuid, system_clock
from twophp.stores.group_commit import BATCH_LIMIT, QUEUE_CAPACITY
from twophp.stores.handle import Handle
from twophp.stores.redis import driver, layout, opening
from twophp.stores.redis.batch import load, read_rows
from twophp.stores.redis.driver import Server
from twophp.stores.redis.journal import history, join, lines_after, links_after
from twophp.stores.redis.layout import Layout
from twophp.stores.redis.news import News
from twophp.stores.redis.questions import Reader
from twophp.stores.redis.supply import Supply
from twophp.stores.redis.writer import Writer


class RedisStore(Handle[Writer]):
    """A ``Store`` over the keys of one hash tag. Use it from one event loop, as a context manager or after ``open``."""

    takes_statements: Final = False

    def __init__(
        self,
        url: str,
        *,
        clock: Clock = system_clock,
        capacity: int = QUEUE_CAPACITY,
        batch_limit: int = BATCH_LIMIT,
    ) -> None:
        """Nothing is opened here. Unless ``clock`` is injected, time is the server's."""
        self._place = driver.place_of(url)
        self._keys = Layout(self._place.prefix)
        self._supply = Supply(clock)
        super().__init__(self._supply.time)
        self._capacity = capacity
        self._batch_limit = batch_limit
        self._name = mint_uuid()
        self._server = Server(self._place)
        self._writers_own = Server(self._place, connections=1)
        self._reader = Reader(self._server, self._keys)
        self._news = News(self._server, self._keys.of("news"))
        self._reopening = asyncio.Lock()

    async def open(self) -> None:
        """Connect, refuse what would not be durable, and prove that a write is. All of it or nothing."""
        self._refuse_if_closed()
        if not driver.is_installed:
            raise ConfigError("Redis needs twophp[redis]", code="no_driver")
        async with driver.in_our_words():
            try:
                await self._server.connect()
                await self._writers_own.connect()
                await opening.insist_on_durability(self._writers_own)
                await opening.insist_on_format(self._server, self._keys, may_make=True)
                self._writer = await self._new_writer()
            except BaseException:
                with suppress(*driver.THEIRS):
                    await self._disconnect()
                raise

    async def _new_writer(self) -> Writer:
        chain, row, at = await opening.begin_writer(self._server, self._keys, self._name)
        await load(self._writers_own, self._keys, self._supply, (), ids=1)
        self._supply.time.reach(at)
        room = self._capacity, self._batch_limit
        return Writer(self._writers_own, self._keys, self._supply, chain, row, room=room)

    async def read(self, keys: Sequence[Key]) -> Sequence[Any]:
        """See ``Store.read``: one script, so all of them at one moment."""
        self._opened.refuse_if_unsure()
        async with driver.in_our_words():
            loaded = await load(self._server, self._keys, self._supply, keys)
        for failure in loaded.refused.values():
            raise Failure(failure.error).error
        return [None if (slot := loaded.slots.get(key)) is None else slot.record for key in keys]

    async def news_of(self, correlation_id: str, longest_s: float) -> None:
        """See ``Heralds.news_of``."""
        self._refuse_if_closed()
        await self._news.wait(correlation_id, longest_s)

    async def due(self, kind: str, before: Instant, limit: int) -> Sequence[Key]:
        """See ``Store.due``: a range of a sorted set. Sweepers of two replicas may find the same; one of them wins."""
        identity = layout.TABLE_OF_KIND[kind].identity
        how = "-inf", f"({before}", "BYSCORE", "LIMIT", 0, limit
        return [Key(identity, layout.values_in(member)) for member in await self._ask("ZRANGE", f"due:{kind}", *how)]

    async def unseal(self, key: Key, part: Part) -> Sealed | None:
        """See ``Store.unseal``."""
        self._opened  # noqa: B018 - it raises if there is none.
        async with driver.in_our_words():
            found = await self._server.ask("GET", self._keys.part(part, key))
        return None if found is None else Sealed(found)

    async def history(self, key: Key) -> Sequence[JournalLine]:
        """See ``Store.history``."""
        self._opened  # noqa: B018 - it raises if there is none.
        async with driver.in_our_words():
            await join(self._server, self._keys)
            slot = (await load(self._server, self._keys, self._supply, (key,))).slots.get(key)
            return [] if slot is None else await history(self._server, self._keys, slot.id, slot.last_line)

    async def journal(self, after: int, limit: int) -> Sequence[JournalLine]:
        """The whole journal, a page at a time."""
        self._opened  # noqa: B018 - it raises if there is none.
        async with driver.in_our_words():
            await join(self._server, self._keys)
            return await lines_after(self._server, self._keys, after, limit)

    async def links(self, after: int, limit: int) -> Sequence[Link]:
        """The links of the joined journal after this line."""
        self._opened  # noqa: B018 - it raises if there is none.
        async with driver.in_our_words():
            await join(self._server, self._keys)
            return await links_after(self._server, self._keys, after, limit)

    async def changes(self, limit: int) -> Sequence[LedgerEntry]:
        """See ``Store.changes``."""
        async with driver.in_our_words():
            return await self._reader.rows_in("unsynced", float("inf"), limit)

    async def synced(self, entries: Sequence[LedgerEntry], at: Instant) -> None:
        """See ``Store.synced``."""
        await self.transact(MakeChange(Change(answer=None, synced=(Synced(entries, at),))))

    async def purgeable(self, before: Instant, limit: int) -> Sequence[LedgerEntry]:
        """See ``Store.purgeable``."""
        async with driver.in_our_words():
            return await self._reader.rows_in("outlived", before, limit)

    async def entries(self, question: Question) -> Sequence[LedgerEntry]:
        """See ``Store.entries``."""
        async with driver.in_our_words():
            return await self._reader.entries(question)

    async def obligations(self, wanted: Obligations) -> Sequence[Obligation]:
        """See ``Store.obligations``."""
        async with driver.in_our_words():
            return await self._reader.obligations(wanted)

    async def reserved(self) -> int:
        """See ``Store.reserved``: those alone are due."""
        return int(await self._ask("ZCARD", "due:obligation"))

    async def settled(self, before: Instant, limit: int) -> Sequence[Key]:
        """See ``Store.settled``: a range of a sorted set."""
        found = await self._ask("ZRANGE", "settled", "-inf", f"({before}", "BYSCORE", "LIMIT", 0, limit)
        return [by_id(layout.values_in(member)[0]) for member in found]

    async def tally(self, since: Instant = 0) -> Sequence[Tally]:
        """See ``Store.tally``."""
        async with driver.in_our_words():
            return await self._reader.tally(since)

    async def get_or_set_meta(self, name: str, value: str) -> str:
        """The setting kept under ``name``; ``value`` becomes it if there is none yet."""
        await self._ask("HSETNX", "meta", name, value)
        return str((await self._ask("HGET", "meta", name)).decode())

    async def set_meta(self, name: str, value: str) -> None:
        """See ``Store.set_meta``."""
        await self._ask("HSET", "meta", name, value)

    async def prove(self) -> None:
        """See ``Store.prove``: a batch without a change moves this writer's row."""
        await self.transact(MakeChange(Change(answer=None, synced=(Synced((), 0),))))

    async def reassign_ledger_id(self, issued: str) -> None:
        """See ``Store.reassign_ledger_id``: the rows a page at a time, the setting with its line last."""
        before = (await self._ask("HGET", "meta", LEDGER_ID) or b"").decode()
        async with driver.in_our_words():
            async for ids in self._reader.pages_of("rows"):
                while not await self._restamped(ids, issued):
                    pass

        def change(records: Records) -> Change:
            return Change(answer=None, journal=(restamped_line(before, issued, records.now),))

        await self.transact(AdHocCommand((), change))

    async def _restamped(self, ids: Sequence[int], issued: str) -> bool:
        """Whether nobody has changed one of these rows meanwhile."""
        rows = (await read_rows(self._server, self._keys, ids)).values()
        others = [row for row in rows if row.entry.service_ledger_id != issued]
        guards = [("entry", row.id, layout.entry_value(row.entry, row.last_line)) for row in others]
        words: list[Any] = []
        for row in others:
            words += row.id, layout.entry_value(replace(row.entry, service_ledger_id=issued), row.last_line)
        return not words or await opening.commit(self._server, self._keys, guards, ("HSET", "entry", *words))

    async def reopen(self) -> None:
        """See ``Store.reopen``. Whatever is still under way finds the old writer's row closed."""
        broken = self._opened
        async with self._reopening:
            self._refuse_if_closed()
            if self._writer is not broken:
                return
            broken.stop("it is being opened anew")
            await broken.close()
            async with driver.in_our_words():
                await opening.insist_on_durability(self._server)
                await opening.close_writer(self._server, self._keys, broken.chain.id)
                self._writer = await self._new_writer()

    async def close(self) -> None:
        """See ``Store.close``."""
        self._is_closed = True
        if self._writer is not None:
            await self._writer.close()
        await self._news.close()
        await self._disconnect()

    async def _disconnect(self) -> None:
        await self._server.close()
        await self._writers_own.close()

    async def _ask(self, command: str, name: str, *words: Any) -> Any:
        self._opened  # noqa: B018 - it raises if there is none.
        async with driver.in_our_words():
            return await self._server.ask(command, self._keys.of(name), *words)
