"""What a handler reserves is settled with its intent: all committed with COMMITTED, all rolled back with FAILED."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.asgi.driver import SERVER, Orders, Seen, Service, answer, serving
from tests.delivery.outboxes import until
from tests.obligations.scene import GUARD_S, Scene, Sink
from twophp import Policy, current_intent
from twophp.asgi import obligation_rules
from twophp.asgi.messages import Send
from twophp.asgi.server import Server
from twophp.core.errors import CommitUnknown, Refused, StoreError, StoreOverloaded, StoreUnavailable
from twophp.core.obligation import Decision, Obligation, Rollback, State
from twophp.engine.obligations.bound import BoundObligations
from twophp.engine.obligations.changes import ObligationCommand
from twophp.obligations import ObligationError
from twophp.ports import Obligations
from twophp.stores.sqlite.verify import verify

pytestmark = pytest.mark.anyio

Does = Callable[[BoundObligations], Awaitable[None]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def store(scene: Scene) -> str:
    return scene.url


def doing(does: Does, status: int = 201) -> Orders:
    async def behave(_app: Orders, _seen: Seen, send: Send) -> None:
        intent = current_intent()
        assert intent is not None
        await does(intent.obligations)
        await answer(send, status)

    return Orders(behave)


async def reserve_two(obligations: BoundObligations) -> None:
    await obligations.reserve("publish", {"key": "a"})
    await obligations.reserve("revoke", {"key": "b"}, "trace-b", timeout_secs=5)


async def found(service: Service) -> list[Obligation]:
    """Oldest first."""
    return list(await service.server.store.obligations(Obligations()))[::-1]


async def ends(service: Service) -> list[tuple[str, str]]:
    return [(one.key, one.state.value) for one in await found(service)]


@pytest.mark.req("A-79", "A-81", "A-80", "OBL-INV-3")
async def test_committed_commits_every_one_of_them(store: str) -> None:
    async with serving(doing(reserve_two), store=store) as service:
        registered, confirmed = await service.both()
        assert confirmed.status == 200
        one, two = await found(service)
        assert (one.state, two.state) == (State.COMMITTED, State.COMMITTED)
        assert {one.intent, two.intent} == {registered.get(SERVER)}
        assert (one.trace_id, two.trace_id) == (registered.get(SERVER), "trace-b")
        assert (one.timeout_ms, two.timeout_ms) == (30_000, 5_000)
        assert one.settled_at == two.settled_at


@pytest.mark.req("A-80", "OBL-RBK-2")
@pytest.mark.parametrize("how", ["refuses", "raises"])
async def test_failed_rolls_all_of_them_back(store: str, how: str) -> None:
    release = Sink()

    async def does(obligations: BoundObligations) -> None:
        await reserve_two(obligations)
        if how == "raises":
            raise ZeroDivisionError

    rules = obligation_rules(releases={"publish": release})
    async with serving(doing(does, 422), store=store, obligations=rules) as service:
        registered, _confirmed = await service.both()
        assert await service.phase(registered.get(SERVER)) == "FAILED"
        assert await ends(service) == [("a", "RolledBack"), ("b", "RolledBack")]
        await asyncio.to_thread(release.wait_for, 1)
        assert [effect.payload for effect in release.seen] == [{"key": "a"}]


@pytest.mark.req("A-72", "OBL-RSV-4", "OBL-CMT-2")
async def test_effects_are_visible_once_the_intent_is_committed_and_not_before(store: str) -> None:
    sink, orders = Sink(), Orders()

    async def does(obligations: BoundObligations) -> None:
        await reserve_two(obligations)
        orders.entered.set()
        await orders.may_go_on.wait()

    orders.behave = doing(does).behave
    async with serving(orders, store=store, obligations=obligation_rules(effects={"publish": sink})) as service:
        handshake = asyncio.create_task(service.both())
        await orders.entered.wait()
        assert await ends(service) == [("a", "Reserved"), ("b", "Reserved")]
        assert sink.attempts == 0
        orders.may_go_on.set()
        registered, _confirmed = await handshake
        await asyncio.to_thread(sink.wait_for, 1)
        assert [(effect.key, effect.intent) for effect in sink.seen] == [("a", registered.get(SERVER))]


@pytest.mark.req("A-81", "OBL-INV-2", "OBL-ERR-4")
@pytest.mark.parametrize("how", ["overdue", "scanned", "released from outside"])
async def test_an_intent_is_not_committed_without_all_of_them(store: str, how: str) -> None:
    orders = Orders()

    async def does(obligations: BoundObligations) -> None:
        await reserve_two(obligations)
        if how == "released from outside":
            (last,) = await service.server.store.obligations(Obligations(key="b"))
            held = service.server.obligations
            await held.make(held.settling(last.obligation_id, Rollback(trace_id="t")))
            return
        service.clock.now += 5_000
        if how == "scanned":
            await service.server.scan()

    orders.behave = doing(does).behave
    async with serving(orders, store=store) as service:
        registered, confirmed = await service.both()
        assert await service.phase(registered.get(SERVER)) == "FAILED"
        assert confirmed.status >= 500
        assert await ends(service) == [("a", "RolledBack"), ("b", "RolledBack")]


async def test_one_may_be_given_up_before_the_end(store: str) -> None:
    async def does(obligations: BoundObligations) -> None:
        oid = await obligations.reserve("publish", {"key": "a"})
        await obligations.reserve("publish", {"key": "b"})
        await obligations.rollback(oid)
        await obligations.reserve("publish", {"key": "a"})

    async with serving(doing(does), store=store) as service:
        await service.both()
        assert await ends(service) == [("a", "RolledBack"), ("b", "Committed"), ("a", "Committed")]


async def test_a_refused_reserve_is_the_handlers_business(store: str) -> None:
    async def does(obligations: BoundObligations) -> None:
        await obligations.reserve("publish", {"key": "a"})
        with pytest.raises(ObligationError):
            await obligations.reserve("publish", {"key": "a"})
        with pytest.raises(ValueError, match="other"):
            await obligations.reserve("other")

    async with serving(doing(does), store=store) as service:
        _registered, confirmed = await service.both()
        assert confirmed.status == 200
        assert await ends(service) == [("a", "Committed")]


async def test_a_handler_in_a_thread_reserves_too(store: str) -> None:
    def blocking(obligations: BoundObligations) -> None:
        first = obligations.blocking.reserve("publish", {"key": "a"})
        obligations.blocking.reserve("publish", {"key": "b"})
        obligations.blocking.rollback(first)
        asyncio.run(obligations.reserve("publish", {"key": "c"}))  # A loop of the thread's own.

    async def does(obligations: BoundObligations) -> None:
        await asyncio.to_thread(blocking, obligations)

    async with serving(doing(does), store=store) as service:
        await service.both()
        assert await ends(service) == [("a", "RolledBack"), ("b", "Committed"), ("c", "Committed")]


@pytest.mark.parametrize("asked_before", [True, False])
async def test_once_it_has_answered_a_handler_binds_nothing_more(store: str, asked_before: bool) -> None:
    refusals: list[str] = []
    over = asyncio.Event()

    async def behave(_app: Orders, _seen: Seen, send: Send) -> None:
        intent = current_intent()
        assert intent is not None
        if asked_before:
            await intent.obligations.reserve("publish", {"key": "a"})
        await answer(send)
        for _ in range(50):  # The settling has begun by now, or is done.
            await asyncio.sleep(0)
        try:
            await intent.obligations.reserve("publish", {"key": "late"})
        except Refused as error:
            refusals.append(error.code)
        over.set()

    async with serving(Orders(behave), store=store) as service:
        await service.both()
        await over.wait()
        assert refusals == ["intent_not_running"]
        assert await ends(service) == ([("a", "Committed")] if asked_before else [])


async def test_outside_a_handshake_there_is_nothing_to_bind_to() -> None:
    assert current_intent() is None


# Crashes: another process takes over what this one has begun.


async def reserve_for_long(obligations: BoundObligations) -> None:
    await obligations.reserve("publish", {"key": "c"}, timeout_secs=3_600)


async def crashed(
    path: Path,
    then: Callable[[Service, Service], Awaitable[None]],
    servers: list[Server],
    reserves: Does = reserve_two,
    **settings: Any,
) -> None:
    """A handler that reserves and is never heard of again, and a second process whose clock is ahead."""
    orders = Orders()

    async def behave(app: Orders, _seen: Seen, send: Send) -> None:
        intent = current_intent()
        assert intent is not None
        if app.runs == 1:
            await reserves(intent.obligations)
            app.entered.set()
            await app.may_go_on.wait()
            try:
                await intent.obligations.reserve("publish", {"key": "zombie"})
            except Refused as error:
                refusals.append(error.code)
        await answer(send)

    orders.behave = behave
    refusals: list[str] = []
    policies = settings.pop("policies", {"POST /orders": Policy.standard(mode="async")})
    url = f"sqlite:///{path}"
    async with serving(orders, store=url, policies=policies) as first:
        await first.both()
        await orders.entered.wait()
        first.server.store.owners.release(first.server.owner)  # As the kernel does when a process dies.
        other = Orders(doing(reserve_two).behave)
        async with serving(other, store=url, policies=policies, **settings) as second:
            second.clock.now += 31_000
            servers.append(await second.middleware.open())
            await second.middleware.start()
            async with asyncio.timeout(GUARD_S):
                await until(lambda: _is_settled(second))  # The sweep of its start is at it.
            await then(first, second)
        orders.may_go_on.set()
        await first.server.executions.drain(30)
        assert refusals == ["intent_not_running"]
    assert verify(str(path)).holds


async def _is_settled(service: Service) -> bool:
    return (await service.rows())[0].outcome is not None


@pytest.mark.req("A-34", "A-80", "OBL-OV-2")
async def test_whoever_recovers_an_intent_as_failed_rolls_them_back(tmp_path: Path) -> None:
    async def then(first: Service, second: Service) -> None:
        (row,) = await first.rows()
        assert row.phase == "FAILED"
        assert await ends(second) == [("a", "RolledBack"), ("b", "RolledBack")]

    await crashed(tmp_path / "shop.db", then, [])


@pytest.mark.req("A-34")
@pytest.mark.parametrize("scanned", [False, True])
async def test_what_was_done_without_all_of_them_is_not_called_committed(tmp_path: Path, scanned: bool) -> None:
    servers: list[Server] = []

    async def was_done(_intent: object) -> tuple[str, str | None]:
        if scanned:
            await servers[-1].scan()
        return "COMMITTED", "42"

    async def then(first: Service, second: Service) -> None:
        (row,) = await first.rows()
        assert row.phase == "FAILED"  # The one with five seconds was overdue, so not all of it is true.
        assert await ends(second) == [("a", "RolledBack"), ("b", "RolledBack")]

    await crashed(tmp_path / "shop.db", then, servers, reconcile=was_done)


@pytest.mark.req("A-34")
async def test_what_was_done_with_all_of_them_commits_them(tmp_path: Path) -> None:
    async def was_done(_intent: object) -> tuple[str, str | None]:
        return "COMMITTED", "42"

    async def then(first: Service, second: Service) -> None:
        (row,) = await first.rows()
        assert row.phase == "COMMITTED"
        assert await ends(second) == [("c", "Committed")]

    await crashed(tmp_path / "shop.db", then, [], reserves=reserve_for_long, reconcile=was_done)


@pytest.mark.req("A-34")
async def test_a_second_run_finds_its_keys_free(tmp_path: Path) -> None:
    async def then(first: Service, second: Service) -> None:
        (row,) = await first.rows()
        assert row.phase == "COMMITTED"
        assert await ends(second) == [
            ("a", "RolledBack"),
            ("b", "RolledBack"),
            ("a", "Committed"),
            ("b", "Committed"),
        ]

    policies = {"POST /orders": Policy.standard(mode="async", on_crash="rerun")}
    await crashed(tmp_path / "shop.db", then, [], policies=policies)


async def test_a_service_that_reserves_nothing_writes_nothing_about_obligations() -> None:
    async with serving() as service:
        await service.both()
        await service.server.scan()
        assert await service.server.store.tally() == []
        lines = await service.server.store.journal(0, 1_000)
        assert {line.event.kind for line in lines} == {"intent"}


async def test_the_middleware_counts_them() -> None:
    registry = CollectorRegistry()
    async with serving(doing(reserve_two), metrics=registry) as service:
        await service.both()
    labels = {"service": "shop", "flow": "publish", "state": "Committed", "resolution": "caller"}
    assert registry.get_sample_value("twophp_obligations_total", labels) == 1


async def test_budgets_hold_for_what_handlers_reserve(store: str) -> None:
    async def does(obligations: BoundObligations) -> None:
        await obligations.reserve("publish", {"key": "a"})
        with pytest.raises(Refused) as error:
            await obligations.reserve("publish", {"key": "b"})
        assert error.value.code == "flow_budget_exhausted"

    async with serving(doing(does), store=store, obligations=obligation_rules(flow_budget=1)) as service:
        for name in ("c-1", "c-2"):
            _registered, confirmed = await service.both(name)
            assert confirmed.status == 200
        assert await ends(service) == [("a", "Committed"), ("a", "Committed")]


@pytest.mark.req("A-80", "A-42")
@pytest.mark.parametrize(
    ("trouble", "is_written"),
    [
        (StoreUnavailable("the disk is full", code="disk_full"), False),
        (StoreOverloaded("too many"), False),
        (CommitUnknown("who knows"), False),
        (CommitUnknown("who knows"), True),
    ],
)
async def test_a_reserve_that_failed_is_settled_only_if_it_was_written(
    store: str, trouble: StoreError, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler makes it again; what was never written must not keep its intent from being committed."""

    async def does(obligations: BoundObligations) -> None:
        make = obligations._obligations.make

        async def failing(wanted: ObligationCommand) -> Decision:
            if is_written:
                await make(wanted)
            raise trouble

        monkeypatch.setattr(obligations._obligations, "make", failing)
        with pytest.raises(type(trouble)):
            await obligations.reserve("publish", {"key": "a"}, key="first")
        monkeypatch.undo()
        await obligations.reserve("publish", {"key": "a"}, key="again")

    async with serving(doing(does), store=store) as service:
        _registered, confirmed = await service.both()
        assert confirmed.status == 200
        written = [("first", "Committed")] if is_written else []
        assert await ends(service) == [*written, ("again", "Committed")]


@pytest.mark.req("A-80", "A-42")
async def test_a_reserve_of_a_task_that_was_cancelled_is_settled_only_if_it_was_written(tmp_path: Path) -> None:
    async def does(obligations: BoundObligations) -> None:
        for turns in range(6):  # Before it was handed to the store, while it waits there, and when it was written.
            task = asyncio.ensure_future(obligations.reserve("publish", {"key": str(turns)}))
            for _turn in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

    async with serving(doing(does), store=f"sqlite:///{tmp_path}/shop.db") as service:
        _registered, confirmed = await service.both()
        assert confirmed.status == 200
        assert {state for _key, state in await ends(service)} == {"Committed"}
