"""What was changed in Redis behind the store is found, as in a file; also while the service goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace

from tests.stores.redis.asking import ask, keys_of, send
from twophp.core.errors import SchemaMismatch
from twophp.core.intent import Phase
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change
from twophp.stores.redis import RedisStore, layout
from twophp.stores.redis.verify import verify
from twophp.stores.sqlite.verify import ProvenHead
from twophp.stores.testing.scene import confirm, finish, pair_of, register, reserve, sealed, settle

pytestmark = pytest.mark.anyio
PAYLOAD: Final[dict[str, Any]] = {"seals": {"payload": sealed(b"payload")}}
ANSWER: Final[dict[str, Any]] = {"seals": {"response": sealed(b"answer")}}
SETTLED: Final = 1
"""The id of the intent that was settled: it came first."""


async def filled(url: str) -> None:
    """Two writers at once, one intent handed from one to the other, one forgotten, and many that are open."""
    async with RedisStore(url) as here, RedisStore(url) as there:
        first = await register(here, arrived_at=here.now(), **PAYLOAD)
        await settle(here, await confirm(there, first), **ANSWER)
        stores = (here, there)
        opens = (register(stores[n % 2], f"more {n}", arrived_at=here.now(), **PAYLOAD) for n in range(20))
        await asyncio.gather(*opens)
        await reserve(here, "o", "k")
        await finish(there, "o")


@pytest.mark.req("A-47", "A-52")
async def test_the_chains_of_all_writers_hold_as_one(ledger: str) -> None:
    await filled(ledger)
    told: list[tuple[int, int]] = []
    report = await verify(ledger, progress=lambda done, total: told.append((done, total)))
    assert (report.findings, report.lines, report.records) == ((), 3 + 20 + 2, 1 + 20 + 1)
    assert told[-1][0] == told[-1][1]
    async with RedisStore(ledger) as store:
        await register(store, "later", arrived_at=store.now(), **PAYLOAD)
    assert (await verify(ledger, expect=report.head)).findings == ()
    forged = ProvenHead(report.head.seq, bytes(32))
    assert [one.what for one in (await verify(ledger, expect=forged)).findings] == ["other_history"]


async def _edit(url: str, **facts: Any) -> None:
    slot, has_row = layout.slot_of(SETTLED, await ask(url, "HGET", "record", SETTLED))
    slot.record = replace(slot.record, **facts)  # type: ignore[type-var]
    await ask(url, "HSET", "record", SETTLED, layout.record_value(slot, has_row=has_row))


async def _set_back(url: str) -> None:
    await _edit(url, phase=Phase.WAITING_CONFIRM)


async def _move(url: str) -> None:
    await _edit(url, path="/other")


async def _say_another_outcome(url: str) -> None:
    await _edit(url, resource_id="other")


async def _destroy_the_answer(url: str) -> None:
    (name,) = await send(url, "KEYS", keys_of(url, "response:*"))
    await send(url, "DEL", name)


async def _forget(url: str) -> None:
    await ask(url, "HDEL", "record", SETTLED)


async def _edit_a_row(url: str) -> None:
    entry, line = layout.entry_in(SETTLED, await ask(url, "HGET", "entry", SETTLED))
    edited = replace(entry, service_endpoint="elsewhere")
    await ask(url, "HSET", "entry", SETTLED, layout.entry_value(edited, line))


async def _delete_a_row(url: str) -> None:
    await ask(url, "HDEL", "entry", SETTLED)


async def _edit_a_line(url: str) -> None:
    name = (await ask(url, "ZRANGE", "places", 0, 0))[0]
    link = layout.link_in(await ask(url, "HGET", "link", name))
    edited = replace(link, lines=link.lines.replace(b"WAITING", b"LAITING"))
    await ask(url, "HSET", "link", name, layout.link_value(edited))


async def _cut_the_end(url: str) -> None:
    name = (await ask(url, "ZRANGE", "places", -1, -1))[0]
    await ask(url, "ZREM", "places", name)
    await ask(url, "HDEL", "link", name)


async def _delete_a_writer(url: str) -> None:
    await ask(url, "HDEL", "writer", 1)


async def _spoil(url: str) -> None:
    await ask(url, "HSET", "record", SETTLED, b"1 2 3 " + msgspec.json.encode(["intent", "no intent"]))


HARM: Final[list[tuple[Callable[[str], Awaitable[None]], set[str]]]] = [
    (_set_back, {"record_differs", "entry_differs"}),
    (_move, {"record_differs"}),
    (_say_another_outcome, {"record_differs"}),
    (_destroy_the_answer, {"seal_missing"}),
    (_forget, {"record_missing"}),
    (_edit_a_row, {"entry_differs"}),
    (_delete_a_row, {"entry_missing"}),
    (_edit_a_line, {"edited_line"}),
    (_cut_the_end, {"truncated", "record_differs"}),
    (_delete_a_writer, {"rewritten_head"}),
    (_spoil, {"record_differs"}),
]


@pytest.mark.req("A-47")
@pytest.mark.parametrize(("harm", "expected"), HARM)
async def test_harm_is_found(ledger: str, harm: Callable[[str], Awaitable[None]], expected: set[str]) -> None:
    await filled(ledger)
    await verify(ledger)
    await harm(ledger)
    found = {one.what for one in (await verify(ledger)).findings}
    assert found
    assert found <= expected


@pytest.mark.req("A-47")
async def test_a_forgotten_record_is_not_missed(ledger: str) -> None:
    async with RedisStore(ledger) as store:
        intent = await register(store, arrived_at=store.now(), **PAYLOAD)
        intent = await settle(store, await confirm(store, intent), **ANSWER)
        forgotten = msgspec.structs.replace(
            (await store.history(pair_of(intent)))[-1].event, event="forgotten", before="COMMITTED", after="ABSENT"
        )
        change = Change(answer=None, drops=(pair_of(intent),), journal=(forgotten,))
        await store.transact(AdHocCommand((pair_of(intent),), lambda _records: change))
    assert (await verify(ledger)).findings == ()


@pytest.mark.req("A-47", "A-52")
async def test_a_service_may_go_on_meanwhile(ledger: str) -> None:
    """What does not fit because it has changed is looked at once more."""
    async with RedisStore(ledger) as store:
        ends = False

        async def keep_busy(name: str) -> None:
            number = 0
            while not ends:
                number += 1
                intent = await register(store, f"{name} {number}", arrived_at=store.now(), **PAYLOAD)
                await settle(store, await confirm(store, intent), **ANSWER)

        callers = [asyncio.create_task(keep_busy(str(number))) for number in range(8)]
        for _time in range(3):
            assert (await verify(ledger)).findings == ()
        ends = True
        await asyncio.gather(*callers)
    report = await verify(ledger)
    assert report.findings == ()
    assert report.lines > report.records


async def test_where_no_ledger_is_nothing_is_verified(ledger: str) -> None:
    with pytest.raises(SchemaMismatch) as refusal:
        await verify(ledger)
    assert refusal.value.code == "schema_too_old"
