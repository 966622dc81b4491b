"""The end of a service in good order: what runs comes to its end, what hangs is left behind, nothing is begun."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.asgi.crashed import POLICY, left_by_a_crash
from tests.asgi.driver import SERVER, STATE, Orders, Seen, answer, serving
from twophp.asgi.messages import Send
from twophp.asgi.settings import Reconciled
from twophp.core.intent import Intent

pytestmark = pytest.mark.anyio

PATIENCE_S = 10  # What takes longer than this has got stuck.


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
