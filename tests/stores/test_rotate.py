"""Rotation loses nothing: not when it is killed, not under traffic, not when rows were tampered with."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stores.orders import T0, HandClock, everything_opens, orders, payload_of, raw, response_of
from twophp.core.errors import ConfigError
from twophp.stores.keys import RETIRE_GRACE_MS, begin_rotation
from twophp.stores.ring_file import RingFile
from twophp.stores.sqlite import SQLiteStore, rotate
from twophp.stores.sqlite.reading import holds_seals, rows_by_key
from twophp.stores.sqlite.verify import verify
from twophp.stores.vault import AesGcmVault, KeyRing

ROOT = Path(__file__).parents[2]
ORDERS = range(10)
PARTS = 2 * len(ORDERS)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotate, "PAGE_ROWS", 4)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    async def fill() -> None:
        async with orders(path) as service:
            for n in ORDERS:
                await service.take(n)

    path = tmp_path / "orders.db"
    asyncio.run(fill())
    return path


def ring_of(path: Path, now: int = T0) -> RingFile:
    return RingFile.beside(str(path), clock=HandClock(now))


def run(path: Path, keys: RingFile | KeyRing | None = None, progress: rotate.Progress | None = None) -> rotate.Rotation:
    async def scenario() -> rotate.Rotation:
        async with SQLiteStore(str(path), clock=HandClock()) as store:
            return await rotate.rotate(store, keys or ring_of(path), progress=progress)

    return asyncio.run(scenario())


@pytest.mark.req("A-62")
def test_everything_is_sealed_with_the_new_key_and_opens(database: Path) -> None:
    ring, seen = ring_of(database), []
    old = ring.load().active
    done = run(database, progress=lambda *so_far: seen.append(so_far))
    assert (done.minted, done.resealed, done.complete) == (True, PARTS, True)
    assert done.active == ring.load().active != old
    assert rows_by_key(str(database)) == {done.active: PARTS}
    assert seen == [(n, PARTS) for n in range(0, PARTS + 1, 4)]
    assert not ring.load().rotating
    assert asyncio.run(everything_opens(database, ORDERS))
    assert verify(str(database)).holds


def test_the_next_rotation_mints_again_and_an_unfinished_one_goes_on(database: Path) -> None:
    first, second = run(database), run(database)
    assert first.active != second.active
    begun = ring_of(database).edit(begin_rotation)
    third = run(database)
    assert (third.active, third.minted, third.resealed) == (begun.active, False, PARTS)
    assert len(ring_of(database).load().keys) == 4
    assert asyncio.run(everything_opens(database, ORDERS))


@pytest.mark.req("A-62")
@pytest.mark.parametrize("pages", [0, 1, 3, 5])
def test_a_killed_rotation_goes_on_and_loses_nothing(database: Path, pages: int) -> None:
    command = [sys.executable, "-m", "tests.stores.rotating", str(database), str(pages)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603
        assert child.stdout is not None
        reports = [child.stdout.readline() for _ in range(pages + 1)]
        child.send_signal(signal.SIGKILL)
    assert reports[-1] == f"{4 * pages} {PARTS}\n"
    assert child.returncode == -signal.SIGKILL
    stored = ring_of(database).load()
    assert stored.rotating
    assert rows_by_key(str(database)).get(stored.active, 0) == 4 * pages
    assert asyncio.run(everything_opens(database, ORDERS))  # Half way, too.
    done = run(database)
    assert (done.active, done.minted, done.resealed) == (stored.active, False, PARTS - 4 * pages)
    assert rows_by_key(str(database)) == {stored.active: PARTS}
    assert len(ring_of(database).load().keys) == 2
    assert asyncio.run(everything_opens(database, ORDERS))


def test_traffic_goes_on_during_a_rotation(database: Path) -> None:
    """New orders are taken between any two pages; one service knows of the new key, the other does not."""
    more = range(100, 120)

    async def scenario() -> rotate.Rotation:
        ring = ring_of(database)
        lagging = AesGcmVault(ring.ring())
        async with (
            orders(database) as service,
            orders(database, vault=lagging) as old_service,
            SQLiteStore(str(database), clock=HandClock()) as store,
        ):
            fresh = iter(more)
            traffic = []

            def progress(_done: int, _total: int) -> None:
                for taker in (service, old_service):
                    n = next(fresh, None)
                    if n is not None:
                        traffic.append(asyncio.create_task(taker.take(n)))

            done = await rotate.rotate(store, ring, progress=progress)
            await asyncio.gather(*traffic)
            for n in fresh:
                await service.take(n)
            return done

    done = asyncio.run(scenario())
    assert done.minted
    assert asyncio.run(everything_opens(database, ORDERS))
    assert asyncio.run(everything_opens(database, more))
    assert verify(str(database)).holds
    assert run(database).complete
    assert asyncio.run(everything_opens(database, more))


def test_a_service_that_keeps_sealing_with_the_old_key_is_told_of(database: Path) -> None:
    """It seals one more payload before every pass is over, so that no pass finds nothing."""

    async def scenario() -> rotate.Rotation:
        lagging = AesGcmVault(ring_of(database).ring())
        async with orders(database, vault=lagging) as service, SQLiteStore(str(database), clock=HandClock()) as store:
            real, number = store.transact, iter(range(100, 1000))

            async def transact(*args: Any) -> Any:
                answer = await real(*args)
                await service.register(next(number))
                return answer

            store.transact = transact  # type: ignore[method-assign, assignment]
            return await rotate.rotate(store, ring_of(database))

    done = asyncio.run(scenario())
    assert done.left > 0
    assert not done.complete
    assert ring_of(database).load().rotating
    assert (run(database).minted, ring_of(database).load().rotating) == (False, False)


def test_a_part_that_changes_under_the_rotation_is_not_overwritten(database: Path) -> None:
    async def scenario() -> None:
        async with orders(database) as service, SQLiteStore(str(database), clock=HandClock()) as store:
            sealed = service.vault.seal(b"newer", context=b"anywhere")
            real, pages = store.transact, 0

            async def transact(*args: Any) -> Any:
                nonlocal pages
                pages += 1
                if pages == 1:  # Between reading and writing: one part is replaced, one is destroyed.
                    raw(database, "UPDATE intent SET payload = ? WHERE id = 1", sealed)
                    raw(database, "UPDATE intent SET response = NULL WHERE id = 1")
                return await real(*args)

            store.transact = transact  # type: ignore[method-assign, assignment]
            await rotate.rotate(store, ring_of(database))

        assert raw(database, "SELECT part, sealed FROM sealed_part WHERE record = 1") == [("payload", sealed)]

    asyncio.run(scenario())


@pytest.mark.req("A-62")
def test_what_does_not_open_is_named_and_left_alone(database: Path) -> None:
    raw(database, "UPDATE intent SET payload = CAST(payload || x'00' AS BLOB) WHERE id = 3")
    raw(database, "UPDATE intent SET response = x'00' WHERE id = 4")
    raw(database, "UPDATE intent SET payload = CAST(x'01026161' || payload AS BLOB) WHERE id = 5")
    before = raw(database, "SELECT sealed FROM sealed_part WHERE record BETWEEN 3 AND 5 ORDER BY record, part")
    done = run(database)
    named = [(failed.subject, failed.part, failed.code) for failed in done.unopened]
    expected = [("s2", "payload", "tampered"), ("s3", "response", "tampered"), ("s4", "payload", "key_missing")]
    assert named == expected
    assert (done.unopened_count, done.resealed, done.complete) == (3, PARTS - 3, False)
    after = raw(database, "SELECT sealed FROM sealed_part WHERE record BETWEEN 3 AND 5 ORDER BY record, part")
    assert [new == old for old, new in zip(before, after, strict=True)] == [True, False, False, True, True, False]
    assert run(database).minted, "what never opens must not keep a rotation from ending"


def test_old_keys_retire_once_no_row_needs_them(database: Path) -> None:
    old = ring_of(database).load().active
    raw(database, "UPDATE intent SET payload = CAST(payload || x'00' AS BLOB) WHERE id = 3")
    active = run(database).active
    late = ring_of(database, T0 + RETIRE_GRACE_MS)
    assert rotate.retire_keys(str(database), late) == ()
    raw(database, "UPDATE intent SET payload = NULL WHERE id = 3")
    assert rotate.retire_keys(str(database), ring_of(database)) == ()  # Too soon.
    assert rotate.retire_keys(str(database), late) == (old,)
    assert [key.name for key in late.load().keys] == [active]
    assert asyncio.run(everything_opens(database, range(3, 10)))


def test_a_given_ring_seals_with_its_first_key_and_is_not_changed(database: Path) -> None:
    stored = ring_of(database).load()
    given = KeyRing({"mine": b"k" * 32, **stored.ring().keys}, "mine")
    done = run(database, given)
    assert (done.active, done.minted, done.resealed) == ("mine", False, PARTS)
    assert ring_of(database).load() == stored
    assert rows_by_key(str(database)) == {"mine": PARTS}


def test_large_payloads_make_small_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotate, "PAGE_BYTES", 100)
    path, pages = tmp_path / "orders.db", []

    async def fill() -> None:
        async with orders(path) as service:
            for n in range(3):
                await service.register(n, b"x" * 200)

    asyncio.run(fill())
    run(path, progress=lambda done, _total: pages.append(done))
    assert pages == [0, 1, 2, 3]


def test_an_empty_database_has_nothing_to_do_and_one_without_a_service_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"

    async def make() -> None:
        async with orders(path):
            pass

    asyncio.run(make())
    assert not holds_seals(str(path))
    assert run(path).complete
    raw(path, "DELETE FROM meta")
    raw(path, "INSERT INTO seal VALUES (1, 'payload', x'00')")
    assert holds_seals(str(path))
    with pytest.raises(ConfigError) as refused:
        run(path)
    assert refused.value.code == "no_service"


def test_the_words_are_the_same_before_and_after(database: Path) -> None:
    async def words() -> list[tuple[bytes | None, bytes | None]]:
        async with orders(database) as service:
            found = [await service.find(n) for n in ORDERS]
            return [(await service.intents.payload(i), await service.intents.response(i)) for i in found]

    before = asyncio.run(words())
    run(database)
    assert asyncio.run(words()) == before == [(payload_of(n), response_of(n)) for n in ORDERS]
