"""Our own connectors go through obligations: without a committed one nothing leaves."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from tests.delivery.outboxes import POLICY, SERVICE, VAULT, WRITER, Desk, Receiver, registration
from twophp.core.intent import Mode
from twophp.core.job import DEFAULT_TRIES, Enqueue, Job, decide
from twophp.core.obligation import Obligation, State, by_id
from twophp.delivery.callbacks import Call, callback_deliverer, callback_letter, signed_post
from twophp.delivery.egress import Lookups, Rules, system_resolver
from twophp.delivery.hooks import Hooks, hook_deliverer
from twophp.delivery.outbox import Delivery, Outbox
from twophp.engine.intents import Intents
from twophp.kernel.commands import AdHocCommand
from twophp.obligations import ObligationError
from twophp.ports import Change, Store
from twophp.stores.memory import MemoryStore
from twophp.stores.testing.scene import T0, HandClock, verified_journal

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def obligation(store: Store, oid: str) -> Any:
    return await store.transact(AdHocCommand((by_id(oid),), lambda records: Change(answer=records.get(by_id(oid)))))


def delivery(work: Any, shown: Obligation | None) -> Delivery:
    job = decide(None, Enqueue(job_id="j", work=work, subject="s", name="release_stock"), T0, DEFAULT_TRIES).job
    assert isinstance(job, Job)
    return Delivery(job=job, payload=b"", now=T0, sent=lambda: None, obligation=shown)


RESERVED = Obligation("j", "callback", "", "t", "", T0, 1, State.RESERVED, 1)


@pytest.mark.req("OBL-OV-1")
@pytest.mark.parametrize("shown", [None, RESERVED])
async def test_a_connector_that_is_called_directly_raises(shown: Obligation | None) -> None:
    called: list[object] = []
    hooks = Hooks()
    hooks.on_phase("COMMITTED", name="release_stock")(called.append)
    tls, lookups = ssl.create_default_context(), Lookups(system_resolver)
    send = signed_post(Rules(), (), tls, lookups)
    attempts = [
        callback_deliverer(send)(_with_payload(delivery("callback", shown))),
        hook_deliverer(hooks)(delivery("hook", shown)),
        send("id", Call("https://hooks.example.com/", b"{}"), delivery("callback", shown)),
    ]
    for attempt in attempts:
        with pytest.raises(ObligationError) as error:
            await attempt
        assert error.value.code == "ERR_OBL_NOT_FOUND"
    assert called == []


def _with_payload(one: Delivery) -> Delivery:
    letter = callback_letter("s", "https://hooks.example.com/", b"{}")
    return Delivery(job=one.job, payload=letter.payload, now=one.now, sent=one.sent, obligation=one.obligation)


@pytest.mark.req("OBL-OV-1", "OBL-INV-1", "OBL-INV-5", "A-72")
async def test_a_callback_is_reserved_and_committed_in_the_change_that_owes_it() -> None:
    receiver = Receiver()
    desk = Desk(receiver)
    decision, owed = await desk.owe()
    before = list(desk.store._lines)  # type: ignore[attr-defined]
    assert await owed.start(decision)
    await desk.idle()
    shown = receiver.seen[0].obligation
    assert shown == await obligation(desk.store, "server-1/callback")
    assert shown is not None
    assert (shown.flow, shown.state, shown.intent) == ("callback", State.COMMITTED, "server-1")
    told = [event.event for _id, event in before if event.kind == "obligation"]
    assert told == ["OBL-001", "OBL-002"]
    assert [event.after for _id, event in before if event.kind == "intent"][-1] == "PROCESSING"


@pytest.mark.req("OBL-OV-1")
async def test_a_hook_is_delivered_with_its_obligation_on_every_attempt() -> None:
    receiver, hooks, clock = Receiver(), Hooks(), HandClock()
    receiver.errors = [ConnectionError("away")]
    hooks.on_phase("WAITING_CONFIRM", name="note")(lambda _event: None)
    store = MemoryStore(clock=clock)
    outbox = Outbox(store, VAULT, SERVICE, deliver={"hook": receiver})
    intents = Intents(store, VAULT, WRITER, follow=outbox.follow(hooks.letters))
    await intents.register(registration(mode=Mode.STANDARD), b"payload", POLICY)
    for _ in range(2):
        assert await outbox.visit()
        while outbox.attempts_count:
            await outbox.visit()
        clock.now += 60_000
    shown = [one.obligation for one in receiver.seen]
    assert len(shown) == 2
    assert shown == [await obligation(store, "server-1/note/WAITING_CONFIRM")] * 2
    lines = [line.event.event for line in await verified_journal(store) if line.event.kind == "obligation"]
    assert lines == ["OBL-001", "OBL-002"]


@pytest.mark.req("OBL-OV-1")
async def test_a_job_of_an_earlier_release_gets_its_obligation_before_it_is_delivered() -> None:
    receiver = Receiver()
    desk = Desk(receiver)
    await desk.put("server-1")  # A job alone, as releases without obligations made it.
    assert await obligation(desk.store, "server-1/callback") is None
    await desk.deliver_due()
    assert receiver.seen[0].obligation == await obligation(desk.store, "server-1/callback")


async def test_what_owes_nothing_writes_no_obligation() -> None:
    store = MemoryStore(clock=HandClock())
    outbox = Outbox(store, VAULT, SERVICE, deliver={})
    intents = Intents(store, VAULT, WRITER, follow=outbox.follow(Hooks().letters))
    await intents.register(registration(mode=Mode.STANDARD), b"payload", POLICY)
    assert await store.tally() == []
