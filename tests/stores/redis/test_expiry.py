"""A payload that nobody may confirm any more goes by itself; nothing else ever does."""

from __future__ import annotations

from typing import Final

import pytest

from tests.stores.redis.asking import keys_of, send
from twophp.core.intent import Intent, Phase
from twophp.stores.redis import RedisStore
from twophp.stores.redis.layout import SLACK_MS
from twophp.stores.testing.scene import POLICY, attend, confirm, pair_of, read, register, sealed, settle

pytestmark = pytest.mark.anyio
LIVES_ON: Final = -1
A_MINUTE: Final = 60_000
PAYLOAD: Final = {"payload": sealed(b"payload")}
ANSWER: Final = {"response": sealed(b"answer")}


async def left_ms(url: str, part: str) -> int:
    """How long a sealed part still lives; there is one intent in this ledger."""
    (name,) = await send(url, "KEYS", keys_of(url, f"{part}:*").replace("[", "\\["))
    return int(await send(url, "PTTL", name))


async def everything_else_stays(url: str) -> None:
    for name in await send(url, "KEYS", keys_of(url, "*")):
        if b":payload:" not in name:
            assert await send(url, "PTTL", name) == LIVES_ON, name


@pytest.mark.req("A-84", "P-12.2-b", "A-83")
async def test_a_payload_expires_when_nobody_may_confirm_it_any_more(ledger: str) -> None:
    async with RedisStore(ledger) as store:
        intent = await register(store, arrived_at=store.now(), seals=PAYLOAD)  # type: ignore[arg-type]
        least = intent.ttl_ms + intent.delta_ms
        assert least - A_MINUTE < await left_ms(ledger, "payload") - SLACK_MS <= least
        running = await confirm(store, intent)
        assert await left_ms(ledger, "payload") == LIVES_ON, "whoever executes it needs it"
        await settle(store, running, seals=ANSWER)  # type: ignore[arg-type]
        kept = POLICY.payload_retention_ms
        assert kept - A_MINUTE < await left_ms(ledger, "payload") - SLACK_MS <= kept
        assert await left_ms(ledger, "response") == LIVES_ON
        await everything_else_stays(ledger)


@pytest.mark.req("A-84", "A-83", "P-7-f")
async def test_the_tombstone_outlives_its_payload(ledger: str) -> None:
    """Redis has destroyed it before a sweep came by; the id is used up all the same."""
    now = [1_700_000_000_000]
    async with RedisStore(ledger, clock=lambda: now[0]) as store:
        intent: Intent = await register(store, arrived_at=now[0], seals=PAYLOAD)  # type: ignore[arg-type]
        (name,) = await send(ledger, "KEYS", keys_of(ledger, "payload:*"))
        await send(ledger, "PEXPIRE", name, 0)
        now[0] = intent.abandoned_at
        assert await store.unseal(pair_of(intent), "payload") is None
        await attend(store, intent, seals={"payload": None})
        assert (await read(store, pair_of(intent))).phase is Phase.ABANDONED
        await everything_else_stays(ledger)
