"""What counts, from when, and until when: over every way through an intent's life."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.faults.handshake import POLICY
from tests.quotas.counting import T0, Service, counted_and_open
from twophp.core.errors import ConfigError
from twophp.core.intent import Intent, Mode, Phase, by_pair
from twophp.core.intent_commands import Settle
from twophp.core.machine import Goto, Replay
from twophp.core.phase import IntentDecision
from twophp.core.quota import EXCEEDED, Quota, by_principal
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.sql import migrations

Scene = Callable[["Stage"], Awaitable[None]]


class Stage:
    """A store whose clock is set by hand, and the counts beside what there is."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.now = T0
        self.store = SQLiteStore(path, clock=lambda: self.now)

    def service(self, quota: Quota | None) -> Service:
        return Service(self.store, quota)

    def counted(self) -> dict[str, tuple[int, int]]:
        """What the counts say, having seen that it is what there is."""
        counted, there = counted_and_open(self.path)
        assert counted == there
        return {who: (intents, size) for who, intents, size in counted}


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scene], None]:
    def play(scene: Scene) -> None:
        async def run() -> None:
            stage = Stage(f"{tmp_path}/shop.db")
            async with stage.store:
                await scene(stage)

        asyncio.run(run())

    return play


def made(decision: IntentDecision) -> Intent:
    assert decision.intent is not None
    return decision.intent


Play = Callable[[Scene], None]


def test_one_too_many_is_refused_and_nothing_is_written(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        service = stage.service(Quota(open_intents=2))
        for name in ("1", "2"):
            assert isinstance((await service.register(name)).verdict, Goto)
        refused = await service.register("3")
        assert (refused.verdict, refused.intent, refused.changed) == (EXCEEDED, None, False)
        assert await service.intents.look("client-3", "server-3") is None
        assert isinstance((await service.register("3", principal="bob")).verdict, Goto)  # Another's quota.
        assert stage.counted() == {"alice": (2, 20), "bob": (1, 10)}

    play(scene)


@pytest.mark.req("T2-7")
def test_whoever_follows_a_redirect_is_counted_and_refused_like_everybody(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        service = stage.service(Quota(open_intents=2))
        for name in ("1", "2"):
            sent = made(await service.confirm(made(await service.register(name))))
            moved = Settle(fence=sent.fence, succeeded=False, status=307)
            await service.intents.settle(sent, moved, b"elsewhere", POLICY)
        await service.register("3")

        async def follow(name: str) -> IntentDecision:
            fresh = f"server-{name}-there"
            return await service.register(
                name, follows=f"server-{name}", replay_key="there", server_correlation_id=fresh
            )

        assert isinstance((await follow("1")).verdict, Goto)
        assert (await follow("2")).verdict is EXCEEDED
        assert stage.counted() == {"alice": (2, 20)}
        left = await service.intents.look("client-2", "server-2")
        assert left is not None
        assert left.phase is Phase.FAILED

    play(scene)


def test_bytes_count_as_well(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        service = stage.service(Quota(open_bytes=25))
        verdicts = [(await service.register(name)).verdict for name in "123"]
        assert verdicts[2] is EXCEEDED
        assert stage.counted() == {"alice": (2, 20)}

    play(scene)


@pytest.mark.req("T2-1")
def test_a_known_id_is_never_refused_for_a_quota(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        service = stage.service(Quota(open_intents=1))
        first = made(await service.register("1"))
        assert (await service.register("2")).verdict is EXCEEDED
        assert isinstance((await service.register("1")).verdict, Replay)
        running = made(await service.confirm(first))
        assert isinstance((await service.register("1")).verdict, Replay)
        await service.settle(running)
        await service.register("2")
        again = await service.register("1")  # Settled, and somebody else has taken the room.
        assert isinstance(again.verdict, Replay)
        assert stage.counted() == {"alice": (1, 10)}

    play(scene)


@pytest.mark.parametrize("succeeded", [True, False])
def test_room_is_made_by_settling(play: Play, succeeded: bool) -> None:
    async def scene(stage: Stage) -> None:
        service = stage.service(Quota(open_intents=1))
        for name in "123":
            running = made(await service.confirm(made(await service.register(name))))
            assert stage.counted() == {"alice": (1, 10)}
            await service.settle(running, succeeded=succeeded)
            await service.settle(running, succeeded=succeeded)  # Said twice, it counts once.
            assert stage.counted() == {}

    play(scene)


@pytest.mark.req("P-5.4-d", "P-2-e", "A-21")
def test_room_is_made_at_the_deadline_whatever_the_grace(play: Play) -> None:
    """Made at the end of the grace, it would tell a client how long that is."""

    async def scene(stage: Stage) -> None:
        service = stage.service(Quota(open_intents=1))
        intent = made(await service.register("1"))
        stage.now = intent.deadline_at
        [expired] = await service.sweep(stage.now)
        assert made(expired).phase is Phase.TTL_EXPIRED
        assert stage.counted() == {}
        assert isinstance((await service.register("2", stage.now)).verdict, Goto)

    play(scene)


def test_a_ledger_that_counted_the_expired_is_counted_anew(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        service = stage.service(Quota(open_intents=5))
        intent = made(await service.register("1"))
        await service.register("2", principal="bob")
        await service.register("3", at=T0 + 10_000)
        stage.now = intent.deadline_at
        await service.sweep(stage.now)
        await stage.store.close()
        with closing(apsw.Connection(stage.path)) as before:  # As schema 7 had it.
            before.execute("UPDATE quota SET open_intents = 2, open_bytes = 20 WHERE principal = 'alice'")
            before.execute("INSERT INTO quota VALUES (99, 'bob', 1, 10, 1)")
            before.execute(dict(migrations())[8])
        assert stage.counted() == {"alice": (1, 10)}

    play(scene)


def test_a_late_confirm_counts_again_and_is_not_refused_for_it(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        service = stage.service(Quota(open_intents=1))
        intent = made(await service.register("1"))
        stage.now = intent.deadline_at
        await service.sweep(stage.now)
        assert isinstance((await service.register("2", stage.now)).verdict, Goto)
        running = made(await service.confirm(intent, intent.deadline_at - 1))  # It arrived in time, and waited.
        assert stage.counted() == {"alice": (2, 20)}
        await service.settle(running)
        assert stage.counted() == {"alice": (1, 10)}

    play(scene)


def test_whoever_comes_too_late_ends_it_as_the_sweeper_would(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        service = stage.service(Quota(open_intents=5))
        by_confirm, by_replay = made(await service.register("1")), made(await service.register("2"))
        stage.now = by_confirm.abandoned_at
        assert (await service.confirm(by_confirm, stage.now)).code == "ttl_expired"
        assert stage.counted() == {"alice": (1, 10)}
        assert (await service.register("2", stage.now)).code == "ttl_expired"
        assert stage.counted() == {}
        assert (await service.intents.look("client-2", by_replay.server_correlation_id)) is not None

    play(scene)


def test_what_a_crash_left_running_counts_until_it_is_recovered(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        service = stage.service(Quota(open_intents=1))
        running = made(await service.confirm(made(await service.register("1"))))
        stage.now += POLICY.lease_ms
        [recovered] = await service.sweep(stage.now)
        assert stage.counted() == {"alice": (1, 10)}
        assert (await service.settle(running)).code == "fence_lost"
        assert stage.counted() == {"alice": (1, 10)}
        await service.settle(made(recovered), succeeded=False)
        assert stage.counted() == {}

    play(scene)


@pytest.mark.req("A-37")
def test_plain_requests_are_not_counted_and_whatever_opted_in_is(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        service = stage.service(Quota(open_intents=1))
        auto = made(await service.register("1", mode=Mode.AUTO_CONFIRM))
        assert (await service.register("2", mode=Mode.AUTO_CONFIRM)).verdict is EXCEEDED
        assert (await service.register("3", mode=Mode.TRANSPARENT)).verdict is EXCEEDED
        assert isinstance((await service.register("4", mode=Mode.TRANSPARENT, is_plain=True)).verdict, Goto)
        assert stage.counted() == {"alice": (1, 10)}
        await service.settle(auto)
        assert stage.counted() == {}

    play(scene)


def test_a_quota_may_come_and_go_while_intents_are_open(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        with_one, without = stage.service(Quota(open_intents=5)), stage.service(None)
        uncounted, counted = made(await without.register("1")), made(await with_one.register("2"))
        assert stage.counted() == {"alice": (1, 10)}
        await with_one.settle(made(await with_one.confirm(uncounted)))  # It never counted, so nothing is given back.
        assert stage.counted() == {"alice": (1, 10)}
        await without.settle(made(await without.confirm(counted)))  # It did, and is given back all the same.
        assert stage.counted() == {}

    play(scene)


def test_a_count_that_somebody_deleted_stops_nobody(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        service = stage.service(Quota(open_intents=5))
        running = made(await service.confirm(made(await service.register("1"))))
        key = by_principal("alice")
        await stage.store.transact(AdHocCommand((key,), lambda _records: Change(answer=None, drops=(key,))))
        assert made(await service.settle(running)).phase is Phase.COMMITTED

    play(scene)


@pytest.mark.parametrize("seed", range(12))
def test_along_any_walk_what_is_counted_is_what_is_open(play: Play, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - a walk that can be repeated

    async def scene(stage: Stage) -> None:
        quotas = [stage.service(quota) for quota in (Quota(open_intents=6), Quota(open_bytes=40), None)]
        alive: list[Intent] = []
        for number in range(120):
            service = dice.choice(quotas)
            stage.now += dice.choice((0, 1, 1_000, 9_000))
            match dice.randrange(5):
                case 0 | 1:
                    name, who = str(dice.randrange(number + 1)), dice.choice(("alice", "bob"))
                    decision = await service.register(name, stage.now, who, mode=dice.choice(list(Mode)))
                    alive.extend([decision.intent] if decision.intent else [])
                case 2 if alive:
                    await service.confirm(dice.choice(alive), stage.now)
                case 3 if alive:
                    chosen = dice.choice(alive)
                    found = await service.intents.look(*by_pair(*_ids(chosen)).values)
                    if found is not None:
                        await service.settle(found, succeeded=dice.random() < 0.5)
                case _:
                    await service.sweep(stage.now)
            stage.counted()

    play(scene)


def _ids(intent: Intent) -> tuple[str, str]:
    return intent.client_correlation_id, intent.server_correlation_id


@pytest.mark.parametrize("bad", [{"open_intents": 0}, {"open_bytes": 0}])
def test_a_quota_that_admits_nothing_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Quota(**bad)
