"""What is sealed opens where it belongs and nowhere else, and cannot be read from the files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.profile import STEADY
from tests.stores.orders import CANARY, HandClock, orders, payload_of, raw, raw_bytes
from twophp.core.errors import ConfigError, KeyMissing, Tampered
from twophp.core.identity import seal_context
from twophp.core.records import Sealed
from twophp.stores.vault import AesGcmVault, KeyRing, key_name

RING = KeyRing({"new": bytes(range(32)), "old": bytes(32)}, "new")
VAULT = AesGcmVault(RING)
OLD = AesGcmVault(KeyRing({"old": bytes(32)}, "old"))
CONTEXT = seal_context("orders", "s1", "payload")

words = st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=20)
contexts = st.builds(seal_context, words, words, st.sampled_from(["payload", "response"]))


def does_not_open(sealed: bytes, context: bytes) -> bool:
    with pytest.raises((Tampered, KeyMissing)):
        VAULT.open(Sealed(sealed), context=context)
    return True


@pytest.mark.req("A-62", "P-13.4-a")
@given(st.binary(max_size=200), contexts)
@STEADY
def test_what_was_sealed_opens_and_is_not_to_be_seen(plain: bytes, context: bytes) -> None:
    sealed = VAULT.seal(plain, context=context)
    assert VAULT.open(sealed, context=context) == plain
    assert len(plain) < 4 or sealed.find(plain) < 0
    assert VAULT.seal(plain, context=context) != sealed


@pytest.mark.req("A-62")
def test_no_flipped_bit_opens() -> None:
    sealed = VAULT.seal(CANARY, context=CONTEXT)
    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        assert does_not_open(bytes(flipped), CONTEXT), bit


@pytest.mark.req("A-62")
@given(st.data(), st.binary(max_size=100), contexts)
@STEADY
def test_nothing_opens_once_it_was_changed(data: st.DataObject, plain: bytes, context: bytes) -> None:
    sealed = VAULT.seal(plain, context=context)
    at = data.draw(st.integers(0, 8 * len(sealed) - 1))
    flipped = bytearray(sealed)
    flipped[at // 8] ^= 1 << at % 8
    assert does_not_open(bytes(flipped), context)
    assert does_not_open(sealed[: data.draw(st.integers(0, len(sealed) - 1))], context)
    assert does_not_open(sealed + data.draw(st.binary(min_size=1, max_size=5)), context)


@pytest.mark.req("A-62")
@given(st.binary(max_size=50), contexts, contexts)
@STEADY
def test_nothing_opens_in_another_place(plain: bytes, here: bytes, there: bytes) -> None:
    sealed = VAULT.seal(plain, context=here)
    assert here == there or does_not_open(sealed, there)


@given(st.binary(max_size=300))
@STEADY
def test_no_bytes_at_all_open_by_chance(junk: bytes) -> None:
    assert does_not_open(junk, CONTEXT)


@pytest.mark.req("A-62")
def test_every_key_of_the_ring_opens_and_the_active_one_seals() -> None:
    sealed = OLD.seal(b"x", context=CONTEXT)
    assert VAULT.open(sealed, context=CONTEXT) == b"x"
    assert key_name(VAULT.seal(b"x", context=CONTEXT)) == b"new"
    with pytest.raises(KeyMissing, match="'new'"):
        OLD.open(VAULT.seal(b"x", context=CONTEXT), context=CONTEXT)


def test_a_missing_key_is_looked_for_once_in_a_newer_ring() -> None:
    asked: list[KeyRing | None] = [None, RING, None]
    vault = AesGcmVault(KeyRing({"old": bytes(32)}, "old"), lambda: asked.pop(0), seconds=lambda: 0)
    assert key_name(vault.seal(b"x", context=CONTEXT)) == b"old"
    assert vault.open(VAULT.seal(b"y", context=CONTEXT), context=CONTEXT) == b"y"
    stranger = AesGcmVault(KeyRing({"no": bytes(32)}, "no")).seal(b"", context=CONTEXT)
    with pytest.raises(KeyMissing):
        vault.open(stranger, context=CONTEXT)
    assert key_name(vault.seal(b"x", context=CONTEXT)) == b"new"
    assert asked == []


def test_a_newer_ring_is_looked_for_once_a_second() -> None:
    clock, looked = HandClock(0), []

    def reload() -> None:
        looked.append(clock.now)

    vault = AesGcmVault(RING, reload, seconds=lambda: clock.now / 10)
    for clock.now in (0, 9, 10, 11, 19, 20):
        vault.seal(b"", context=CONTEXT)
    assert looked == [0, 10, 20]


@pytest.mark.parametrize(
    ("keys", "active"), [({"a": bytes(32)}, "b"), ({"a": bytes(16)}, "a"), ({"": bytes(32)}, ""), ({}, "a")]
)
def test_a_ring_that_cannot_work_is_refused(keys: dict[str, bytes], active: str) -> None:
    with pytest.raises(ConfigError) as refused:
        KeyRing(keys, active)
    assert refused.value.code == "bad_key_ring"


@pytest.mark.req("P-13.4-a", "P-9.8-14")
def test_no_byte_of_a_payload_or_an_answer_is_in_the_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with orders(tmp_path / "orders.db") as service:
            for n in range(5):
                await service.take(n)
            assert (tmp_path / "orders.db-wal").stat().st_size > 0
            assert CANARY not in raw_bytes(tmp_path)  # While the log still holds everything, ...
            [*_, entry] = await service.store.changes(10)
            assert entry.payload_ref == f"vault:{entry.server_correlation_id}/payload"
        assert CANARY not in raw_bytes(tmp_path)  # ... and after it was folded into the database.

    asyncio.run(scenario())


@pytest.mark.req("A-62")
def test_rows_that_were_swapped_are_never_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"

    async def fill() -> None:
        async with orders(path) as service:
            for n in (1, 2):
                await service.take(n)

    async def look() -> None:
        async with orders(path) as service:
            for n in (1, 2):
                with pytest.raises(Tampered):
                    await service.intents.payload(await service.find(n))
            assert await service.intents.response(await service.find(1)) is not None

    asyncio.run(fill())
    [(one,), (two,)] = raw(path, "SELECT payload FROM intent ORDER BY id")
    for old, new in ((one, b"aside"), (two, one), (b"aside", two)):
        raw(path, "UPDATE intent SET payload = ? WHERE payload = ?", new, old)
    asyncio.run(look())


def test_a_flipped_bit_in_the_database_is_never_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"

    async def scenario() -> None:
        async with orders(path) as service:
            intent = await service.register(1)
            assert await service.intents.payload(intent) == payload_of(1)
            [(sealed,)] = raw(path, "SELECT payload FROM intent")
            assert isinstance(sealed, bytes)
            raw(path, "UPDATE intent SET payload = ?", sealed[:-1] + bytes([sealed[-1] ^ 1]))
            with pytest.raises(Tampered):
                await service.intents.payload(intent)

    asyncio.run(scenario())
