"""The end of a service in good order: what runs comes to its end, what hangs is left behind, nothing is begun."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.asgi.crashed import POLICY, left_by_a_crash, swept
from tests.asgi.driver import (
    CLIENT,
    ENABLED,
    SERVER,
    STATE,
    Clock,
    Exchange,
    Orders,
    Reply,
    Seen,
    Service,
    a_scope,
    answer,
    held,
    serving,
)
from tests.patience import PATIENCE_S
from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware
from twophp.asgi.messages import App, Message, Receive, Scope, Send
from twophp.asgi.settings import Reconciled
from twophp.core.intent import Intent
from twophp.stores.sqlite.store import SQLiteStore

pytestmark = pytest.mark.anyio


class Stuck:
    """Something that never ends by itself, and notes when it is cut off."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.was_cut_off = False

    async def __call__(self, *_given: object) -> tuple[Reconciled, str | None]:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cut_off = True
            raise
        raise AssertionError


@pytest.mark.req("A-34")
async def test_who_never_answers_about_a_crash_does_not_hold_up_the_end(tmp_path: Path) -> None:
    store, stuck = f"sqlite:///{tmp_path}/shop.db", Stuck()

    async def reconcile(intent: Intent) -> tuple[Reconciled, str | None]:
        return await stuck(intent)

    policies = {"POST /orders": POLICY}
    async with serving(store=store, policies=policies, reconcile=reconcile, drain_timeout_s=0.05) as service:
        registered = await left_by_a_crash(service)
        await service.server.sweep()
        await stuck.begun.wait()
        async with asyncio.timeout(PATIENCE_S):
            await service.middleware.stop()
        assert stuck.was_cut_off
    async with serving(store=store, policies=policies) as service:
        await service.middleware.start()
        assert await service.phase(registered.get(SERVER)) == "PROCESSING"


async def answers_and_goes_on(app: Orders, _seen: Seen, send: Send) -> None:
    """A handler with something left to do when it has answered, as a framework's background task is."""
    await answer(send)
    await app.may_go_on.wait()
    app.entered.set()


@pytest.mark.req("A-107")
async def test_what_a_handler_does_after_its_answer_is_waited_for(store: str) -> None:
    orders = Orders(behave=answers_and_goes_on)
    async with serving(orders, store=store) as service:
        service.handlers_go_on = True
        _registered, done = await service.both()
        assert (done.status, done.get(STATE)) == (200, "COMMITTED")
        asyncio.get_running_loop().call_later(0.1, orders.may_go_on.set)
        await service.middleware.stop()
        assert orders.entered.is_set()


async def test_what_a_handler_does_after_its_answer_is_not_waited_for_without_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    orders = Orders(behave=answers_and_goes_on)
    async with serving(orders, drain_timeout_s=0.05) as service:
        service.handlers_go_on = True
        await service.both()
        async with asyncio.timeout(PATIENCE_S):
            await service.middleware.stop()
        assert not orders.entered.is_set()
    assert "1 handlers were still running" in caplog.text


async def test_a_visit_that_never_ends_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck()
    async with serving(drain_timeout_s=0.05) as service:
        server = await service.middleware.open()
        monkeypatch.setattr(server, "purge", stuck)
        await service.middleware.start()
        await stuck.begun.wait()
        async with asyncio.timeout(PATIENCE_S):
            await service.middleware.stop()
    assert stuck.was_cut_off


@pytest.mark.req("A-107")
async def test_new_work_is_refused_while_the_old_comes_to_its_end(store: str) -> None:
    orders = Orders(behave=held)
    async with serving(orders, store=store) as service:
        registered = await service.register()
        waiting = await service.register("c-2")
        confirming = asyncio.create_task(service.confirm(registered))
        await orders.entered.wait()
        begun = asyncio.Event()

        async def stop() -> None:
            begun.set()
            await service.middleware.stop()

        stopping = asyncio.create_task(stop())
        await begun.wait()
        for reply in (await service.register("c-3"), await service.confirm(waiting, "c-2")):
            refused(reply)
        orders.may_go_on.set()
        await stopping
        done = await confirming
        assert (done.status, done.get(STATE), orders.runs) == (200, "COMMITTED", 1)


@pytest.mark.req("A-34", "A-107")
async def test_what_a_store_confirms_while_it_closes_is_not_taken_over_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, close = Orders(behave=held), SQLiteStore.close
    async with serving(orders, store=f"sqlite:///{tmp_path}/shop.db", drain_timeout_s=0.05) as service:
        registered = await service.register()
        server, busy = service.server, apsw.Connection(f"{tmp_path}/shop.db")
        busy.execute("BEGIN IMMEDIATE")

        async def free_and_close(store: SQLiteStore) -> None:
            busy.close()
            await close(store)

        monkeypatch.setattr(SQLiteStore, "close", free_and_close)
        confirming = asyncio.create_task(service.confirm(registered))
        async with asyncio.timeout(PATIENCE_S):
            while not server.executions.crossing:  # noqa: ASYNC110 - the store has it, and no event for it.
                await asyncio.sleep(0)
            await service.middleware.stop()
            await orders.entered.wait()
            assert server.store.owners.state(server.owner) == "alive"
            left = server.executions.left()
            orders.may_go_on.set()
            assert b'"not_settled"' in (await confirming).body
            await asyncio.wait(left)
        assert (server.store.owners.state(server.owner), orders.runs) == ("dead", 1)


async def test_after_the_end_nothing_is_opened_again(store: str) -> None:
    async with serving(store=store, management_token="t" * 32) as service:
        registered = await service.register()
        await service.middleware.stop()
        refused(await service.register("c-2"))
        refused(await service.confirm(registered))
        refused(await service.read(registered.get(SERVER) or ""))
        assert (await service.request("GET", "/_2php/ledger")).status == 503
        assert service.middleware._server is None
        assert service.orders.runs == 0


@pytest.mark.req("A-37")
async def test_plain_requests_are_served_after_the_end_without_being_recorded(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store=store, policies=Policy.standard(transparent=True)) as service:
        await service.middleware.start()
        await service.middleware.stop()
        plain = await service.request("POST", "/orders", {}, b"{}")
        assert (plain.status, plain.ours(), service.orders.runs) == (201, {}, 1)
        assert service.middleware._server is None
    assert (
        "a plain request was served without being recorded: [store_unavailable] the service is shutting down"
        in caplog.text
    )


async def test_a_request_that_is_being_read_at_the_end_is_still_registered(store: str) -> None:
    reading, may_arrive = asyncio.Event(), asyncio.Event()
    exchange = Exchange(b"{}")

    async def slow() -> Message:
        reading.set()
        await may_arrive.wait()
        return await exchange.receive()

    async with serving(store=store) as service:
        scope = a_scope("POST", "/orders", {**ENABLED, CLIENT: "c-1"})
        registering = asyncio.ensure_future(service.app(scope, slow, exchange.send))
        await reading.wait()
        asyncio.get_running_loop().call_later(0.1, may_arrive.set)
        await service.middleware.stop()
        await registering
        assert (exchange.reply().status, exchange.reply().get(STATE)) == (200, "WAITING_CONFIRM")


async def test_who_never_sends_its_request_does_not_hold_up_the_end() -> None:
    reading = asyncio.Event()

    async def never() -> Message:
        reading.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(drain_timeout_s=0.05) as service:
        scope = a_scope("POST", "/orders", {**ENABLED, CLIENT: "c-1"})
        registering = asyncio.ensure_future(service.app(scope, never, Exchange(b"").send))
        await reading.wait()
        async with asyncio.timeout(PATIENCE_S):
            await service.middleware.stop()
        registering.cancel()


async def test_what_is_started_again_works_again(tmp_path: Path) -> None:
    async with serving(app=with_a_lifespan(Orders()), store=f"sqlite:///{tmp_path}/shop.db") as service:
        registered = None
        for client_id in ("c-1", "c-2"):
            life = await alive(service)
            if registered is not None:
                assert (await service.confirm(registered)).status == 200
            registered, done = await service.both(client_id)
            assert (done.status, done.get(STATE)) == (200, "COMMITTED")
            await life.end()
            refused(await service.register("c-3"))


@pytest.mark.parametrize("when", ["starting", "running"])
async def test_a_server_that_goes_on_without_the_applications_lifespan_is_served(when: str) -> None:
    """As uvicorn does, unless ``--lifespan on`` makes it insist on them."""
    orders = Orders()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await orders(scope, receive, send)
            return
        await receive()
        if when == "running":
            await send({"type": "lifespan.startup.complete"})
        raise RuntimeError("no lifespan")

    async with serving(app=app) as service:
        with pytest.raises(RuntimeError, match="no lifespan"):
            await (await alive(service)).over
        assert (await service.both())[1].get(STATE) == "COMMITTED"


@pytest.mark.parametrize("knows_lifespans", [True, False])
async def test_a_lifespan_that_is_cut_off_leaves_nothing_open(knows_lifespans: bool) -> None:
    app = with_a_lifespan(Orders()) if knows_lifespans else Orders()
    async with serving(app=app) as service:
        life = await alive(service)
        assert service.middleware._server is not None
        life.over.cancel()
        with pytest.raises(asyncio.CancelledError):
            await life.over
        assert service.middleware._server is None


async def test_an_application_that_exits_while_it_starts_leaves_nothing_open() -> None:
    """Who serves on all the same has a service whose sweeps and deliveries begin with the first request."""
    orders = Orders()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await orders(scope, receive, send)
            return
        await receive()
        raise SystemExit("not configured")

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(_message: Message) -> None:
        """Takes a message and drops it."""

    async with serving(app=app) as service:
        with pytest.raises(SystemExit, match="not configured"):
            await service.app({"type": "lifespan"}, receive, send)
        assert service.middleware._server is None
        assert (await service.both())[1].get(STATE) == "COMMITTED"
        assert service.server._loops


def test_first_requests_that_come_together_are_served_on_every_loop(tmp_path: Path) -> None:
    middleware = TwoPhaseMiddleware(
        Orders(), service="shop", store=f"sqlite:///{tmp_path}/shop.db", identify=anonymous, policies=Policy.standard()
    )

    async def together(loop: str) -> list[Any]:
        service = Service(middleware, Orders(), middleware, Clock())
        await middleware.open()
        await middleware._close()  # As after a lifespan that failed: the next request starts us.
        replies = await asyncio.gather(*(service.register(f"{loop}-{number}") for number in range(4)))
        await middleware.stop()
        return [reply.status for reply in replies]

    assert [asyncio.run(together(loop)) for loop in "ab"] == [[200] * 4] * 2


async def test_an_application_that_says_nothing_at_its_end_does_not_hold_up_ours() -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()

    async with serving(app=app) as service:
        life = await alive(service)
        await life.end()
        assert life.told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert service.middleware._server is None


@pytest.mark.req("A-34")
async def test_what_a_crash_left_is_not_run_again_by_who_is_about_to_end(tmp_path: Path) -> None:
    """Its outcome could not be written any more; the next process to start runs it, once."""
    store = f"sqlite:///{tmp_path}/shop.db"
    again = {"POST /orders": Policy.standard(on_crash="rerun")}
    async with serving(store=store, policies=again) as ending:
        registered = await left_by_a_crash(ending)
        await ending.server.sweep()  # It was taken over, and its recovery has begun.
        await ending.middleware.stop()
        assert ending.orders.runs == 0
    async with serving(store=store, policies=again) as next_one:
        await next_one.middleware.start()
        next_one.clock.now = ending.clock.now + 60_000
        await swept(next_one)
        assert (await next_one.confirm(registered)).get(STATE) == "COMMITTED"
        assert next_one.orders.runs == 1


def refused(reply: Reply) -> None:
    """Nothing was begun, and the answer says when to try again: by then there is another process, or a new lifespan."""
    assert reply.status == 503
    assert reply.get("content-type") == "application/problem+json"
    assert json.loads(reply.body)["code"] == "store_unavailable"
    assert reply.get("retry-after") == "1"


def with_a_lifespan(orders: Orders) -> App:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await orders(scope, receive, send)
            return
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    return app


class Life:
    """One lifespan as a server lives it: a start-up, and a shutdown when the test says so."""

    def __init__(self, app: App) -> None:
        self.told: list[str] = []
        self.is_up = asyncio.Event()
        self._events: asyncio.Queue[str] = asyncio.Queue()
        self._events.put_nowait("lifespan.startup")
        self.over = asyncio.ensure_future(app({"type": "lifespan", "state": {}}, self._receive, self._send))
        self.over.add_done_callback(lambda _over: self.is_up.set())

    async def end(self) -> None:
        self._events.put_nowait("lifespan.shutdown")
        async with asyncio.timeout(PATIENCE_S):
            await self.over

    async def _receive(self) -> Message:
        return {"type": await self._events.get()}

    async def _send(self, message: Message) -> None:
        self.told.append(message["type"])
        self.is_up.set()


async def alive(service: Service) -> Life:
    life = Life(service.app)
    await life.is_up.wait()
    return life
