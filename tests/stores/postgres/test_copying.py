"""``twophp store copy``: the copied ledger answers as the first one did, and half a copy serves nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from tests.registrar.scene import Scene
from tests.stores.orders import T0, HandClock, Orders, find, orders, payload_of, response_of
from tests.stores.schemas import Schema
from twophp.cli import main
from twophp.core.errors import ConfigError, StoreError, StoreUnavailable
from twophp.core.intent import Phase, by_pair
from twophp.engine.intents import Intents
from twophp.obligations import ObligationTracker
from twophp.registrar import Registrar
from twophp.stores.postgres import PostgresStore, copy_sources, copying
from twophp.stores.postgres.copying import Target, copy
from twophp.stores.postgres.verify import verify
from twophp.stores.testing.scene import read
from twophp.stores.urls import open_vault
from twophp.storing.reopening import open_ledger

pytestmark = pytest.mark.anyio
SETTLED, WAITING = range(1, 8), range(8, 12)
LARGE = bytes(100_000)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(copy_sources, "LINKS_AT_ONCE", 2)


def silent(_done: int, _total: int) -> None:
    """Nobody watches."""


async def filled(path: Path) -> str:
    """Orders in every phase, one of them with a payload that is too large for its row, and a registration."""
    async with orders(path) as service:
        for n in SETTLED:
            await service.take(n)
        for n in WAITING:
            await service.register(n, LARGE if n == WAITING[0] else None)
        await service.confirm(WAITING[1])
    scene = await asyncio.to_thread(registered, f"sqlite:///{path}")
    await asyncio.to_thread(scene.close)
    return f"sqlite:///{path}"


def registered(url: str) -> Scene:
    scene = Scene(url)
    scene.registrar.open_gate("board-7")
    scene.registrar.resolve("lrk-9")
    scene.registered(run_id="run-\0-1")
    return scene


async def phases(store: PostgresStore) -> list[Phase]:
    return [(await find(cast("Any", store), n)).phase for n in (*SETTLED, *WAITING)]


@pytest.mark.req("A-52", "A-30")
async def test_a_copy_answers_as_its_original_did(schema: Schema, tmp_path: Path) -> None:
    """What was executed is not executed again; what waits goes on; sealed parts open with the same ring."""
    url = await filled(tmp_path / "orders.db")
    told: list[tuple[int, int]] = []
    done = await copy(url, schema.url, progress=lambda now, total: told.append((now, total)))
    assert not done.resumed
    assert told[-1][0] == told[-1][1] == done.rows + done.lines
    clock = HandClock(T0 + 1_000)
    async with PostgresStore(schema.url, clock=clock) as store:
        assert await phases(store) == [Phase.COMMITTED] * 7 + [
            *(Phase.WAITING_CONFIRM, Phase.PROCESSING, Phase.WAITING_CONFIRM, Phase.WAITING_CONFIRM)
        ]
        vault = open_vault(url)
        intents = Intents(store, vault, await open_ledger(store, "orders", lambda: "never"))
        for n in SETTLED:
            intent = await find(cast("Any", store), n)
            assert (await intents.payload(intent), await intents.response(intent)) == (payload_of(n), response_of(n))
        assert await intents.payload(await find(cast("Any", store), WAITING[0])) == LARGE
        service = Orders(cast("Any", store), vault, intents, clock)
        assert (await service.settle(WAITING[2])).phase is Phase.COMMITTED
        assert len(await store.history(by_pair("c1", "s1"))) == 3
    scene = await asyncio.to_thread(Registrar, schema.url)
    assert (await asyncio.to_thread(scene.resolve, "lrk-1")).code == "CONSUMED"
    await asyncio.to_thread(scene.close)
    assert (await verify(schema.url)).findings == ()


class Broken(Exception):
    """The power went."""


@pytest.mark.req("A-52")
async def test_an_interrupted_copy_goes_on_and_serves_nobody_before_its_end(
    schema: Schema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends after every page in turn, before and after the page is durable."""
    url = await filled(tmp_path / "orders.db")
    for verb in ("add_lines", "add_rows", "reached", "finish"):
        _break_in_turn(monkeypatch, verb)
    attempts = 0
    while True:
        attempts += 1
        try:
            done = await copy(url, schema.url, progress=silent)
            break
        except Broken:
            with pytest.raises(StoreUnavailable) as refusal:
                await PostgresStore(schema.url).open()
            assert refusal.value.code == "copy_unfinished"
    assert attempts > 20
    assert done.resumed
    async with PostgresStore(schema.url) as store:
        assert (await read(store, by_pair("c1", "s1"))).phase is Phase.COMMITTED


def _break_in_turn(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """Each call of it fails twice: before it has done anything, and after it has."""
    real: Any = getattr(Target, verb)
    before: set[str] = set()

    async def breaking(self: Target, *arguments: Any) -> None:
        at = f"{self.mark.table} {self.mark.after} {arguments[0] if arguments and verb != 'add_lines' else ''}"
        if at not in before:
            before.add(at)
            raise Broken
        await real(self, *arguments)
        if f"{at} done" not in before and verb not in ("reached", "finish"):
            before.add(f"{at} done")
            raise Broken

    monkeypatch.setattr(Target, verb, breaking)


@pytest.mark.req("A-52")
async def test_a_source_that_has_changed_is_noticed(
    schema: Schema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "orders.db"
    url = await filled(path)
    real: Any = Target.add_rows

    async def meanwhile(self: Target, *arguments: Any) -> None:
        monkeypatch.setattr(Target, "add_rows", real)
        async with orders(path) as service:
            await service.register(99)
        await real(self, *arguments)

    monkeypatch.setattr(Target, "add_rows", meanwhile)
    for _again in range(2):
        with pytest.raises((StoreError, ConfigError)) as refusal:
            await copy(url, schema.url, progress=silent)
        assert refusal.value.code == "source_changed"


@pytest.mark.req("A-52")
async def test_what_was_changed_on_its_way_is_noticed(
    schema: Schema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a column that no line of the journal is about."""
    url = await filled(tmp_path / "orders.db")
    real: Any = Target.add_rows

    async def forging(self: Target, table: str, columns: Any, rows: Sequence[tuple[Any, ...]]) -> None:
        names = [one.name for one in columns]
        if table == "registrar_nonce":
            place = names.index("valid_until")
            rows = [(*row[:place], row[place] + 1, *row[place + 1 :]) for row in rows]
        await real(self, table, columns, rows)

    monkeypatch.setattr(Target, "add_rows", forging)
    with pytest.raises(StoreError, match="a row of registrar_nonce") as refusal:
        await copy(url, schema.url, progress=silent)
    assert refusal.value.code == "copy_differs"


@pytest.mark.req("A-52")
async def test_from_one_schema_to_another(schema: Schema, tmp_path: Path) -> None:
    """Whose journal has several writers. A ledger that is not empty is no target."""
    await copy(await filled(tmp_path / "orders.db"), schema.url, progress=silent)
    clock = HandClock(T0 + 1_000)
    async with PostgresStore(schema.url, clock=clock) as here:
        vault = open_vault(f"sqlite:///{tmp_path}/orders.db")
        intents = Intents(here, vault, await open_ledger(here, "orders", lambda: "never"))
        await Orders(cast("Any", here), vault, intents, clock).settle(WAITING[2])
    other = f"{schema.url}_copy"
    command = ["store", "copy", schema.url, other, "--json"]
    done = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["lines"] > len(SETTLED) * 3
    async with PostgresStore(other) as there:
        assert (await phases(there))[-2:] == [Phase.COMMITTED, Phase.WAITING_CONFIRM]
        assert len(await there.history(by_pair(f"c{WAITING[2]}", f"s{WAITING[2]}"))) == 3
    again = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert (again.exit_code, again.stderr.split(":")[0]) == (2, "error[store_not_empty]")
    await schema.run(f"DROP SCHEMA {schema.name}_copy CASCADE")


async def test_obligations_move_as_well(schema: Schema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/effects.db"

    def reserve() -> tuple[str, str]:
        with ObligationTracker(url, scan_interval_secs=None) as tracker:
            done = tracker.reserve("publish", {"key": "k1"}, "t")
            tracker.commit(done, "t")
            return done, tracker.reserve("publish", {"key": "k2"}, "t")

    def look(done: str, left: str) -> tuple[str, Any]:
        with ObligationTracker(schema.url, scan_interval_secs=None) as tracker:
            tracker.rollback(left, "t")
            return str(tracker.get(done).state), tracker.payload(done)

    ids = await asyncio.to_thread(reserve)
    await copy(url, schema.url, progress=silent)
    ring = json.loads((tmp_path / "effects.db.keys").read_text())
    monkeypatch.setenv("TWOPHP_KEYS", ",".join(f"{key['name']}:{key['key']}" for key in ring["keys"]))
    assert await asyncio.to_thread(look, *ids) == ("Committed", {"key": "k1"})


@pytest.mark.parametrize(("source", "target"), [("memory:", ""), ("sqlite:///nowhere.db", ""), ("", "sqlite:///x.db")])
async def test_what_cannot_be_copied_is_refused_by_name(schema: Schema, source: str, target: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        await copy(source or schema.url, target or schema.url, progress=silent)
    assert refusal.value.code in ("unknown_store", "no_such_database")
