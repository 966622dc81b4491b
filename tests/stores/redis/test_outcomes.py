"""What is known after a connection was lost: nothing was written, or nobody can tell and opening anew finds out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from redis import exceptions as said

from tests.redis import Server
from tests.stores.redis.asking import ask, keys_of, send
from twophp.core.errors import CommitUnknown, StorePoisoned, StoreUnavailable
from twophp.core.intent import Intent, Phase, by_logical_key
from twophp.core.quota import Usage, by_principal
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Put, Records
from twophp.stores import group_commit
from twophp.stores.redis import RedisStore, layout
from twophp.stores.redis.verify import verify
from twophp.stores.testing.scene import confirm, pair_of, read, register, sealed, settle, verified_journal

pytestmark = pytest.mark.anyio
CALLERS = 16
PAYLOAD = {"payload": sealed(b"payload")}
ENOUGH = 200


@pytest.mark.req("A-42")
async def test_a_connection_that_ended_while_nothing_was_under_way_is_replaced(ledger: str) -> None:
    """The server was restarted, or somebody ended all connections: the next change is written all the same."""
    async with RedisStore(ledger) as store:
        intent = await register(store, arrived_at=store.now())
        await send(ledger, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await send(ledger, "SCRIPT", "FLUSH")
        assert (await confirm(store, intent)).phase is Phase.PROCESSING


@pytest.mark.req("A-42", "P-6-a")
@pytest.mark.parametrize("is_written", [True, False])
async def test_a_lost_answer_is_unknown_until_the_store_was_opened_anew(
    ledger: str, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """And what comes later from the old writer finds its row closed."""
    async with RedisStore(ledger) as store:
        intent = await register(store, arrived_at=store.now(), seals=PAYLOAD)  # type: ignore[arg-type]
        server, late = store._writers_own, []
        run = server.run

        async def cut(name: str, *arguments: Any) -> Any:
            if name != "commit":
                return await run(name, *arguments)
            if is_written:
                await run(name, *arguments)
            else:
                late.append(arguments)
            raise said.ConnectionError("the network is cut")

        monkeypatch.setattr(server, "run", cut)
        with pytest.raises(CommitUnknown):
            await confirm(store, intent)
        with pytest.raises(StorePoisoned):
            await read(store, pair_of(intent))
        monkeypatch.setattr(server, "run", run)
        await store.reopen()
        for arguments in late:
            assert await run("commit", *arguments) == 1, "the message that was under way comes too late"
        found = await read(store, pair_of(intent))
        assert found.phase is (Phase.PROCESSING if is_written else Phase.WAITING_CONFIRM)
        running = found if is_written else await confirm(store, found)
        await settle(store, running, seals={"response": sealed(b"answer")})
        assert len(await verified_journal(store)) == 3
    assert (await verify(ledger)).findings == ()


class Load:
    """Callers that register until they are told to stop. Each does what the engine does about an error."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._ends = False
        self._grew = asyncio.Event()
        self.acknowledged: list[Intent] = []
        self.unknown = 0

    async def caller(self, name: str) -> None:
        number = 0
        while not self._ends:
            number += 1
            try:
                facts: dict[str, Any] = {"arrived_at": self._store.now(), "seals": PAYLOAD}
                intent = await register(self._store, f"{name}-{number}", **facts)
                self.acknowledged.append(intent)
                self._grew.set()
            except CommitUnknown:
                self.unknown += 1
            except StoreUnavailable:
                await asyncio.sleep(0)
            except StorePoisoned:
                try:
                    await self._store.reopen()
                except StoreUnavailable:
                    await asyncio.sleep(0)

    async def until(self, count: int) -> None:
        """Until so many more were acknowledged."""
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            self._grew.clear()
            await self._grew.wait()

    def end(self) -> None:
        self._ends = True


@pytest.mark.req("P-6-a", "P-9.1-a", "A-42")
async def test_nothing_acknowledged_is_lost_when_the_server_is_killed(server: Server) -> None:
    async with RedisStore(server.url) as store:
        load = Load(store)
        callers = [asyncio.create_task(load.caller(str(number))) for number in range(CALLERS)]
        async with asyncio.timeout(120):
            for _time in range(3):
                await load.until(ENOUGH)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            await load.until(ENOUGH)
        load.end()
        await asyncio.gather(*callers)
        for intent in load.acknowledged:
            assert await read(store, by_logical_key("alice", intent.client_correlation_id)) == intent
        there = len(await verified_journal(store))
        assert len(load.acknowledged) <= there <= len(load.acknowledged) + load.unknown
    assert (await verify(server.url)).findings == ()


@pytest.mark.req("A-29")
async def test_the_servers_time_counts(ledger: str) -> None:
    """Whatever the machine's clock says; and it never runs backwards, whoever wrote last."""
    async with RedisStore(ledger) as here, RedisStore(ledger) as there:
        seconds, micros = await send(ledger, "TIME")
        at = int(seconds) * 1_000 + int(micros) // 1_000
        assert abs(here.now() - at) < 5_000
        assert abs(here.now() - there.now()) < 1_000
        row = layout.writer_in(await ask(ledger, "HGET", "writer", 2))
        ahead = replace(row, at=at + 7_200_000)
        await ask(ledger, "HSET", "writer", 2, layout.writer_value(ahead))
    async with RedisStore(ledger) as later:
        assert later.now() >= ahead.at


@pytest.mark.req("A-33")
async def test_whoever_waits_hears_of_another_replicas_answer(ledger: str) -> None:
    async with RedisStore(ledger) as here, RedisStore(ledger) as there:
        intent = await confirm(here, await register(here, arrived_at=here.now()))
        await there.news_of("nobody's", 0)  # It listens from here on.
        async with asyncio.timeout(30):
            while (await send(ledger, "PUBSUB", "NUMSUB", keys_of(ledger, "news")))[1] == 0:
                pass
        waits = asyncio.create_task(there.news_of(intent.server_correlation_id, 600))
        await asyncio.sleep(0)
        await settle(here, intent)
        async with asyncio.timeout(30):
            await waits
        assert (await read(there, pair_of(intent))).phase is Phase.COMMITTED


@pytest.mark.req("A-108")
async def test_large_payloads_that_come_together_are_written_apart(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is one message; each half of it is written by itself, down to a single change of any size."""
    monkeypatch.setattr(group_commit, "MOST_BYTES", 1_000)
    async with RedisStore(ledger) as store:
        payloads = [sealed(bytes(600) + str(number).encode()) for number in range(8)]
        made = await asyncio.gather(
            *(
                register(store, str(number), arrived_at=store.now(), seals={"payload": payload})
                for number, payload in enumerate(payloads)
            )
        )
        assert [await store.unseal(pair_of(intent), "payload") for intent in made] == payloads
        assert await ask(ledger, "ZCARD", "places") == len(payloads)


@pytest.mark.req("A-33", "A-52")
async def test_a_count_that_all_replicas_change_loses_nothing(ledger: str) -> None:
    """Each batch is decided again on what the others have left, as often as it takes."""
    key, each = by_principal("alice"), 200

    def one_more(records: Records) -> Change:
        found: Usage | None = records.get(key)
        count, version = (0, 0) if found is None else (found.open_intents, found.version)
        return Change(answer=None, puts=(Put(record=Usage("alice", count + 1, 1, version + 1)),))

    async def count_up(store: RedisStore) -> None:
        for _time in range(each):
            await store.transact(AdHocCommand((key,), one_more))

    async with RedisStore(ledger) as one, RedisStore(ledger) as two, RedisStore(ledger) as three:
        await asyncio.gather(*(count_up(store) for store in (one, two, three)))
        assert (await read(one, key)).open_intents == 3 * each
