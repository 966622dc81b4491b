"""Look-ups are shared out by principal: slow names of one principal delay no other's callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.patience import PATIENCE_S
from twophp.delivery.egress import MOST_EACH, Lookups

pytestmark = pytest.mark.anyio


class SlowNames:
    """A name server that is silent about names that begin with ``slow``, until the test releases it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_busy = asyncio.Event()  # It is asked as many slow names as one principal may.
        self.let_go = asyncio.Event()

    async def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.asked.append(host)
        if host.startswith("slow"):
            if len(self.asked) == MOST_EACH:
                self.is_busy.set()
            await self.let_go.wait()
        return ["93.184.216.34"]


@pytest.mark.req("A-65")
async def test_slow_names_of_one_principal_take_its_own_share_only() -> None:
    names = SlowNames()
    lookups = Lookups(names)
    mallory = [asyncio.create_task(_gathered(lookups, "mallory", f"slow{n}.example")) for n in range(50)]
    await names.is_busy.wait()
    async with asyncio.timeout(PATIENCE_S):
        assert await lookups.of("alice")("client.example", 443) == ["93.184.216.34"]
    assert names.asked == [*(f"slow{n}.example" for n in range(MOST_EACH)), "client.example"]
    names.let_go.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*mallory)
    assert len(names.asked) == 51
    assert not lookups._shares, "nothing is kept of a principal who has nothing under way"


@pytest.mark.req("A-65")
async def test_who_stops_waiting_does_not_make_room_for_more_look_ups() -> None:
    """The thread of the system's resolver goes on; a new one for each attempt would use them all up."""
    names = SlowNames()
    lookups = Lookups(names)
    for number in range(10):
        waiting = asyncio.create_task(_gathered(lookups, "mallory", f"slow{number}.example"))
        await asyncio.sleep(0)
        waiting.cancel()
    for _turn in range(20):
        await asyncio.sleep(0)
    assert len(names.asked) == MOST_EACH
    names.let_go.set()


@pytest.mark.req("A-65")
async def test_who_stops_waiting_for_a_turn_leaves_nothing_behind() -> None:
    """Attempts time out and are made again, with other names: what they wait for must not pile up."""
    names = SlowNames()
    lookups = Lookups(names)
    holding = [asyncio.create_task(_gathered(lookups, "mallory", f"slow{n}.example")) for n in range(MOST_EACH)]
    await names.is_busy.wait()
    before = len(asyncio.all_tasks())
    waiting = [asyncio.create_task(_gathered(lookups, "mallory", f"slow-too{n}.example")) for n in range(100)]
    await asyncio.sleep(0)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert len(asyncio.all_tasks()) == before
    names.let_go.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*holding)
        assert await lookups.of("mallory")("client.example", 443) == ["93.184.216.34"]
    assert not lookups._shares


@pytest.mark.req("A-65")
async def test_one_name_is_looked_up_once_for_all_who_wait_for_it() -> None:
    names = SlowNames()
    lookups = Lookups(names)
    waiting = [asyncio.create_task(_gathered(lookups, "alice", "slow.example")) for _ in range(5)]
    await asyncio.sleep(0)  # All of them wait.
    await asyncio.sleep(0)
    names.let_go.set()
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*waiting) == [["93.184.216.34"]] * 5
    assert names.asked == ["slow.example"]


@pytest.mark.req("A-65")
async def test_a_name_that_nobody_knows_is_an_error_for_all_who_wait() -> None:
    async def nobody(host: str, port: int) -> Sequence[str]:
        raise OSError(host, port)

    lookups = Lookups(nobody)
    found = await asyncio.gather(
        *(lookups.of("alice")("client.example", 443) for _ in range(3)), return_exceptions=True
    )
    assert [type(one) for one in found] == [OSError] * 3


async def _gathered(lookups: Lookups, principal: str, host: str) -> Sequence[str]:
    return await lookups.of(principal)(host, 443)
