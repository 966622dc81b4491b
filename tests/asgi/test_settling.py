"""A handler that has answered is settled, with anything that it said beside its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import pytest

from tests.asgi.crashed import confirmed_by_the_dead, swept
from tests.asgi.driver import MESSAGE, RESOURCE, SERVER, STATE, Orders, Seen, answer, serving
from tests.asgi.test_transactions import ADD, rows, shopping
from twophp import KeyRing, Policy, current_intent
from twophp.asgi.messages import Send
from twophp.core.errors import ConfigError, StorePoisoned
from twophp.engine.current import RunningIntent
from twophp.engine.exchange import StoredResponse
from twophp.engine.running import Settled
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.verify import verify
from twophp.stores.sqlite.writer import Writer

OLD, NEW = KeyRing({"old": b"o" * 32}, active="old"), KeyRing({"new": b"n" * 32}, active="new")

pytestmark = pytest.mark.anyio


def running() -> RunningIntent:
    intent = current_intent()
    assert intent is not None
    return intent


@pytest.mark.req("A-05")
async def test_a_number_names_a_resource_as_well_as_a_text() -> None:
    async def numbered(_app: Orders, _seen: Seen, send: Send) -> None:
        running().created(42)
        await answer(send)

    async with serving(Orders(numbered)) as service:
        _registered, done = await service.both()
        assert (done.get(STATE), done.get(RESOURCE)) == ("COMMITTED", "42")


@pytest.mark.req("A-05")
@pytest.mark.parametrize("name", [None, 4.2, b"42", UUID(int=42), ["42"]])
async def test_what_cannot_name_a_resource_is_refused_in_the_handler(name: Any) -> None:
    told: list[str] = []

    async def naming(_app: Orders, _seen: Seen, send: Send) -> None:
        try:
            running().created(name)
        except ConfigError as error:
            told.append(error.code)
        await answer(send)

    async with serving(Orders(naming)) as service:
        _registered, done = await service.both()
        assert (told, done.get(STATE), done.get(RESOURCE)) == (["bad_resource_id"], "COMMITTED", "7")


async def sealed_with_both(store: str) -> None:
    """As after a rotation whose old key was thrown away too early: the ring is the right one, but for a key."""
    async with serving(store=store, keys=KeyRing(OLD.keys | NEW.keys, active="new")) as service:
        await service.register("c-2")


@pytest.mark.req("A-62", "A-34")
async def test_a_request_that_cannot_be_opened_does_not_run_and_says_so_at_once(tmp_path: Path) -> None:
    """As with a ring that lacks its key: to wait for a lease would only make it look as if something might have run."""
    store = f"sqlite:///{tmp_path}/shop.db"
    async with serving(store=store, keys=OLD) as before:
        registered = await before.register()
    await sealed_with_both(store)
    async with serving(store=store, keys=NEW) as service:
        done = await service.confirm(registered)
        assert (done.status, done.get(STATE), service.orders.runs) == (500, "FAILED", 0)
        assert b"indeterminate" not in done.body
        assert await service.confirm(registered) == done


def raises(response: StoredResponse) -> str | None:
    raise KeyError(response.status)


@pytest.mark.req("A-05")
@pytest.mark.parametrize(
    ("extract", "found"), [(raises, None), (lambda _response: 7, "7"), (lambda _response: b"7", None)]
)
async def test_an_extractor_that_errs_costs_no_outcome(extract: Any, found: str | None) -> None:
    async def plain(_app: Orders, _seen: Seen, send: Send) -> None:
        await answer(send, headers={})

    async with serving(Orders(plain), resource_id=extract) as service:
        registered, done = await service.both()
        assert (done.status, done.get(STATE)) == (200, "COMMITTED")
        assert done.get(RESOURCE) == (found or registered.get(SERVER))


@pytest.mark.req("A-05")
@pytest.mark.parametrize(("name", "found"), [(42, "42"), (b"42", "7")])
async def test_a_name_of_another_kind_that_was_set_by_hand_costs_no_outcome(name: Any, found: str) -> None:
    async def naming(_app: Orders, _seen: Seen, send: Send) -> None:
        running().resource_id = name
        await answer(send)

    async with serving(Orders(naming)) as service:
        _registered, done = await service.both()
        assert (done.get(STATE), done.get(RESOURCE)) == ("COMMITTED", found)


@pytest.mark.req("A-108", "A-34")
@pytest.mark.parametrize("goes_on", [False, True])
async def test_what_cannot_be_written_fails_once_and_for_good(goes_on: bool, tmp_path: Path) -> None:
    """Left to recovery it would be met again, by an endpoint that runs again without end."""

    async def erring(app: Orders, _seen: Seen, send: Send) -> None:
        async with running().transaction() as tx:
            tx.execute(ADD, ("one", "a"))
        status: Any = "201"
        await answer(send, status)
        if goes_on:
            await app.may_go_on.wait()

    async with shopping(tmp_path, erring) as service:
        service.handlers_go_on = True
        registered, failed = await service.both()
        assert (failed.status, failed.get(STATE), failed.get(MESSAGE)) == (500, "FAILED", "Processing failed.")
        assert await service.confirm(registered) == failed
        assert (rows(tmp_path), service.orders.runs) == (0, 1)


@pytest.mark.req("A-34", "A-108")
@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("tx-1", "tx-1"),
        (4711, "4711"),
        (2**70, str(2**70)),
        (UUID(int=1), str(UUID(int=1))),
        (object(), None),
        ({"a": 1}, None),
        ("\ud800", None),
    ],
)
async def test_a_reference_is_kept_as_a_text_and_never_costs_the_outcome(said: Any, kept: str, tmp_path: Path) -> None:
    async def referring(_app: Orders, _seen: Seen, send: Send) -> None:
        running().transaction_reference = said
        await answer(send)

    async with serving(Orders(referring), store=f"sqlite:///{tmp_path}/shop.db") as service:
        _registered, done = await service.both()
        assert (done.status, done.get(STATE)) == (200, "COMMITTED")
        [row] = await service.rows()
        assert row.transaction_reference == kept
    assert verify(f"{tmp_path}/shop.db").holds


@pytest.mark.req("A-34")
async def test_who_took_over_and_cannot_open_the_request_does_not_say_that_nothing_ran(tmp_path: Path) -> None:
    """The owner before may have done all of it, so the answer must not ask the client to try again."""
    store, again = f"sqlite:///{tmp_path}/shop.db", {"POST /orders": Policy.standard(on_crash="rerun")}
    async with serving(store=store, policies=again, keys=OLD) as before:
        registered = await before.register()
        await confirmed_by_the_dead(before, registered.get(SERVER) or "")
    await sealed_with_both(store)
    async with serving(store=store, policies=again, keys=NEW) as service:
        await service.middleware.open()
        service.clock.now += 60_000
        await swept(service)
        done = await service.confirm(registered)
        assert (done.status, done.get(STATE), done.get(MESSAGE)) == (500, "FAILED", "Outcome indeterminate.")
        assert service.orders.runs == 0


@pytest.mark.req("A-34")
async def test_who_stumbles_after_the_commit_answers_what_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as service:
        registered = await service.register()
        executions = service.server.executions
        remember = executions.remember
        stumbled: list[Settled] = []

        def stumbling(settled: Settled) -> Settled:
            if not stumbled:
                stumbled.append(settled)
                raise ZeroDivisionError
            return remember(settled)

        monkeypatch.setattr(executions, "remember", stumbling)
        done = await service.confirm(registered)
        assert (done.status, done.get(STATE), len(stumbled)) == (200, "COMMITTED", 1)


@pytest.mark.req("A-108", "A-42")
@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_a_disk_that_fails_a_few_times_costs_no_outcome(
    failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, left = Writer._sync, 0

    def failing(self: Writer) -> None:
        nonlocal left
        if left:
            left -= 1
            raise apsw.IOError("an fsync failed")
        sync(self)

    async def sells(_app: Orders, _seen: Seen, send: Send) -> None:
        nonlocal left
        async with running().transaction() as tx:
            tx.execute(ADD, ("1", "tea"))
        left = failures
        await answer(send)

    async with shopping(tmp_path, sells) as service:
        registered = await service.register()
        monkeypatch.setattr(Writer, "_sync", failing)
        assert (await service.confirm(registered)).get(STATE) == "COMMITTED"
    assert rows(tmp_path) == 1


async def test_a_status_read_opens_a_store_that_has_stopped(tmp_path: Path) -> None:
    async with shopping(tmp_path) as service:
        registered, _done = await service.both()
        store = service.server.store
        assert isinstance(store, SQLiteStore)
        store._writer._poison = StorePoisoned("a commit failed")
        assert (await service.read(registered.get(SERVER) or "")).get(STATE) == "COMMITTED"
