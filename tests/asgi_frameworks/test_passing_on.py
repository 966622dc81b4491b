"""What is not ours is handed on as it is: the same objects, the same order, the same failures."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from tests.asgi_frameworks.serving import options
from twophp import Policy, TwoPHPError
from twophp.asgi import TwoPhaseMiddleware
from twophp.asgi.settings import Options, Settings
from twophp.core.entry import Writer
from twophp.core.intent import Mode
from twophp.core.intent_commands import Confirm, Register
from twophp.engine.exchange import StoredRequest, encode
from twophp.engine.intents import Intents
from twophp.stores.clock import mint_uuid
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.urls import open_vault
from twophp.storing.reopening import open_ledger

HTTP: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/orders",
    "raw_path": b"/orders",
    "query_string": b"",
}
OPT_IN = (b"dtt-2php-enabled", b"true")
PASSED_ON: dict[str, dict[str, Any]] = {
    "plain": HTTP | {"headers": []},
    "said no": HTTP | {"headers": [(b"dtt-2php-enabled", b"false")]},
    "not enrolled": HTTP | {"path": "/other", "raw_path": b"/other", "headers": [OPT_IN]},
    "a read": HTTP | {"method": "GET", "headers": [OPT_IN]},
    "options": HTTP | {"method": "OPTIONS", "path": "/other", "raw_path": b"/other", "headers": [OPT_IN]},
    "websocket": {"type": "websocket", "path": "/orders", "headers": [OPT_IN]},
    "a scope of tomorrow": {"type": "carrier-pigeon"},
}


class Noting:
    """An application that notes what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls.append((scope, receive, send))


async def receive() -> dict[str, Any]:
    raise AssertionError("the middleware read a request that is not its own")


async def send(_message: Any) -> None:
    raise AssertionError("the middleware answered a request that is not its own")


@pytest.mark.req("P-11-a", "P-11-c", "P-5.1-c", "P-12.1-a", "A-15")
@pytest.mark.parametrize("name", PASSED_ON)
def test_the_application_gets_the_very_same_objects(name: str, tmp_path: Path) -> None:
    scope = PASSED_ON[name]
    copy = dict(scope)

    async def call() -> list[tuple[Any, Any, Any]]:
        app = Noting()
        policies = {"POST /orders": Policy.standard()}
        middleware = TwoPhaseMiddleware(app, **options(tmp_path, policies=policies))
        await middleware(scope, receive, send)
        await middleware.stop()
        return app.calls

    [(got_scope, got_receive, got_send)] = asyncio.run(call())
    assert got_scope is scope
    assert got_receive is receive
    assert got_send is send
    assert scope == copy


class Server:
    """The server's end of a lifespan: tells the application what happens and notes what it says."""

    def __init__(self, told: list[str]) -> None:
        self.told = told
        self._events = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive(self) -> dict[str, Any]:
        return {"type": next(self._events)}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.told.append(message["type"])


def lived(app: Any, folder: Path, told: list[str], **settings: Any) -> list[str]:
    """Everything said during a lifespan, in order."""

    async def live() -> None:
        server = Server(told)
        middleware = TwoPhaseMiddleware(app, **options(folder, **settings))
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        await middleware(scope, server.receive, server.send)

    asyncio.run(live())
    return told


@pytest.mark.req("P-11-a")
def test_ours_opens_before_the_application_starts_and_closes_after_it_stopped(tmp_path: Path) -> None:
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["db"] = "open"  # What the application keeps there for its handlers.
        for event in ("startup", "shutdown"):
            await receive()
            told.append(f"{event}, ledger open: {(tmp_path / 'orders.db-wal').exists()}")
            await send({"type": f"lifespan.{event}.complete"})
            told.append(f"after {event}, ledger open: {(tmp_path / 'orders.db-wal').exists()}")

    assert lived(app, tmp_path, told) == [
        "startup, ledger open: True",
        "lifespan.startup.complete",
        "after startup, ledger open: True",
        "shutdown, ledger open: True",
        "lifespan.shutdown.complete",
        "after shutdown, ledger open: False",
    ]


@pytest.mark.req("A-34")
def test_what_a_crash_left_is_run_again_only_when_the_application_has_started(tmp_path: Path) -> None:
    """A handler needs what its application opens at start-up, also when it is run again."""
    policy = Policy.standard(on_crash="rerun", processing_timeout_ms=1_000, lease_ms=1_000)
    database = f"{tmp_path}/orders.db"

    async def crash() -> None:
        async with SQLiteStore(database, clock=lambda: 1_000) as store:
            await open_ledger(store, "orders", mint_uuid)
            vault = open_vault(f"sqlite:///{database}")
            intents = Intents(store, vault, Writer(source="orders", service_ledger_id="l"))
            ids: dict[str, Any] = {
                "client_correlation_id": "c",
                "server_correlation_id": "s",
                "principal": "p",
                "path": "/orders",
            }
            register = Register(
                **ids, replay_key="r", mode=Mode.STANDARD, service_endpoint="orders/orders", arrived_at=1_000
            )
            await intents.register(register, encode(StoredRequest("POST", "/orders", b"/orders", b"", (), b"")), policy)
            assert (await intents.confirm(Confirm(**ids, arrived_at=1_000, owner="died"), policy)).changed

    asyncio.run(crash())
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            told.append("run again")
            ran.set()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await receive()
        for _turn in range(100):  # It takes a while to start.
            await asyncio.sleep(0)
        told.append("started")
        await send({"type": "lifespan.startup.complete"})
        await ran.wait()
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    ran = asyncio.Event()
    lived(app, tmp_path, told, policies={"*": policy})
    assert told == ["started", "lifespan.startup.complete", "run again", "lifespan.shutdown.complete"]


async def raises_at_lifespan(_scope: Any, _receive: Any, _send: Any) -> None:
    raise ValueError("only http")


async def returns_at_lifespan(_scope: Any, _receive: Any, _send: Any) -> None:
    return


@pytest.mark.req("P-11-a")
def test_a_lifespan_that_returns_without_a_word_is_served_all_the_same(tmp_path: Path) -> None:
    assert lived(returns_at_lifespan, tmp_path, []) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.req("P-11-a")
def test_a_lifespan_that_raises_before_it_receives_is_the_servers_to_judge(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(ValueError, match="only http"):
        lived(raises_at_lifespan, tmp_path, told)
    assert told == []
    assert not (tmp_path / "orders.db-wal").exists()


@pytest.mark.req("P-11-a")
@pytest.mark.parametrize("raises", [False, True], ids=["says so", "says so and raises"])
def test_a_failing_start_up_is_told_as_it_is_and_nothing_stays_open(raises: bool, tmp_path: Path) -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})
        if raises:  # As Starlette does.
            raise RuntimeError("no database")

    told: list[str] = []
    if raises:
        with pytest.raises(RuntimeError, match="no database"):
            lived(app, tmp_path, told)
    else:
        lived(app, tmp_path, told)
    assert told == ["lifespan.startup.failed"]
    assert not (tmp_path / "orders.db-wal").exists()


@pytest.mark.req("P-11-a")
def test_a_start_up_that_only_raises_is_the_servers_to_judge(tmp_path: Path) -> None:
    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        raise RuntimeError("no database")

    told: list[str] = []
    with pytest.raises(RuntimeError, match="no database"):
        lived(app, tmp_path, told)
    assert told == []
    assert not (tmp_path / "orders.db-wal").exists()


@pytest.mark.req("P-11-a")
@pytest.mark.parametrize("raises", [False, True], ids=["says so", "says so and raises"])
def test_a_failing_shutdown_is_told_as_it_is_and_nothing_stays_open(raises: bool, tmp_path: Path) -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.failed", "message": "stuck"})
        if raises:
            raise RuntimeError("stuck")

    told: list[str] = []
    if raises:
        with pytest.raises(RuntimeError, match="stuck"):
            lived(app, tmp_path, told)
    else:
        lived(app, tmp_path, told)
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.failed"]
    assert not (tmp_path / "orders.db-wal").exists()


def test_a_ledger_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    app = Noting()
    told: list[str] = []
    with pytest.raises(TwoPHPError):  # After it has said so: a test client waits for nothing else.
        lived(app, tmp_path, told, store=f"sqlite:///{tmp_path}/no/such/folder/orders.db")
    assert told == ["lifespan.startup.failed"]
    assert app.calls == []


def test_every_setting_is_a_keyword_that_type_checkers_know() -> None:
    made_by_us = {"service", "identify", "endpoints", "proxies", "stored_headers", "methods"}
    assert set(Options.__annotations__) == set(Settings.__struct_fields__) - made_by_us
