"""Every line of the outbox about an intent's job names both of its ids, also when other things have failed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.delivery.outboxes import POLICY, VAULT, WRITER, Desk, Receiver, registration
from twophp.core.errors import DeliveryFailed, StoreUnavailable
from twophp.core.intent import Intent
from twophp.core.job import DEFAULT_TRIES, Tries
from twophp.core.obligation import Obligation, State
from twophp.core.records import Instant
from twophp.delivery.callbacks import callback_letter
from twophp.delivery.hooks import Hooks
from twophp.delivery.outbox import OutboxMessage
from twophp.engine.intents import Intents
from twophp.engine.obligations.effects import letter_for
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change
from twophp.stores.memory import MemoryStore
from twophp.stores.testing.scene import HandClock

pytestmark = pytest.mark.anyio

ONCE = Tries(attempts=1)
BOTH = {"client_correlation_id": "client-1", "server_correlation_id": "server-1"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Failing(MemoryStore):
    """A store that fails, by the names of what it fails at."""

    fails: frozenset[str] = frozenset()

    def _may(self, what: str) -> None:
        if what in self.fails:
            raise StoreUnavailable("not now")

    async def transact(self, *args: Any) -> Any:
        self._may("transact")
        return await super().transact(*args)

    async def entries(self, *args: Any) -> Any:
        self._may("entries")
        return await super().entries(*args)

    async def unseal(self, *args: Any) -> Any:
        self._may("unseal")
        return await super().unseal(*args)


def a_desk(receiver: Receiver, **facts: Any) -> tuple[Desk, Failing]:
    clock = HandClock()
    store = Failing(clock=clock)
    return Desk(receiver, store, clock, **facts), store


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, str]]]:
    """What was said by the outbox, and about whom."""
    records = [record for record in caplog.records if record.name == "twophp.outbox"]
    return [(r.getMessage(), {name: vars(r)[name] for name in BOTH if name in vars(r)}) for r in records]


async def test_a_failed_attempt_and_a_dead_job_are_told_with_both_ids(caplog: pytest.LogCaptureFixture) -> None:
    desk, _store = a_desk(receiver := Receiver(), tries=ONCE)
    receiver.errors = [DeliveryFailed("no", reason="status", status=503)]
    decision, owed = await desk.owe()
    await owed.start(decision)
    await desk.idle()
    assert told(caplog) == [
        ("job server-1/callback: attempt 1 failed: status_503", BOTH),
        ("job server-1/callback is dead after 1 attempts: status_503", BOTH),
    ]


async def test_a_callback_knows_its_ids_though_the_store_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    desk, store = a_desk(receiver := Receiver())

    def letter(intent: Intent, _now: Instant) -> OutboxMessage:
        client_id = intent.client_correlation_id
        server_id, url = intent.server_correlation_id, "https://a.example/"
        return callback_letter(server_id, url, b"{}", client_correlation_id=client_id)

    owed = desk.outbox.owing(letter)
    decision = await desk.intents.register(registration(), b"payload", POLICY, follow=owed)
    receiver.open.clear()  # So that the attempt ends when nothing can be read or written any more.
    await owed.start(decision)
    store.fails = frozenset({"transact", "entries", "unseal"})
    receiver.open.set()
    await desk.idle()
    assert told(caplog) == [("job server-1/callback: attempt 1 ended and could not be noted: store_unavailable", BOTH)]


async def test_a_hook_knows_its_ids_though_the_store_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    desk, store = a_desk(receiver := Receiver())
    hooks = Hooks()
    hooks.on_phase("PROCESSING", name="note")(lambda _event: None)
    intents = Intents(desk.store, VAULT, WRITER, follow=desk.outbox.follow(hooks.letters))
    await intents.register(registration(), b"payload", POLICY)
    receiver.errors, store.fails = [RuntimeError("no")], frozenset({"entries"})
    await desk.deliver_due()
    assert told(caplog) == [("job server-1/note/PROCESSING: attempt 1 failed: error", BOTH)]
    assert "RuntimeError: no" in caplog.text, "the hook's author must see where it failed"


async def test_a_job_that_nobody_ended_is_told_dead_with_both_ids(caplog: pytest.LogCaptureFixture) -> None:
    desk, _store = a_desk(receiver := Receiver(), tries=ONCE)
    receiver.open.clear()
    decision, owed = await desk.owe()
    await owed.start(decision)
    await desk.outbox.close(0)
    desk.clock.now += DEFAULT_TRIES.lease_ms
    await Desk(receiver, desk.store, desk.clock, tries=ONCE).deliver_due()
    assert told(caplog) == [("job server-1/callback is dead after 1 attempts: lease_expired", BOTH)]


@pytest.mark.parametrize(("silent", "known"), [(set(), BOTH), ({"entries", "unseal"}, {"server_correlation_id"})])
async def test_a_job_that_cannot_be_attended_to_is_told_with_what_is_known(
    silent: set[str], known: Any, caplog: pytest.LogCaptureFixture
) -> None:
    desk, store = a_desk(Receiver())
    await desk.owe()
    desk.clock.now += DEFAULT_TRIES.lease_ms
    store.fails = frozenset({"transact", *silent})
    await desk.outbox.visit()
    about = {name: BOTH[name] for name in known}
    assert told(caplog) == [("job server-1/callback cannot be attended to: store_unavailable", about)]


@pytest.mark.parametrize(("intent", "about"), [("server-1", BOTH), ("", {})])
async def test_what_an_obligation_owes_is_told_with_the_ids_of_its_intent(
    intent: str, about: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    desk, _store = a_desk(receiver := Receiver())
    desk.outbox._deliver = {"effect": receiver}
    await desk.intents.register(registration(), b"payload", POLICY)
    settled = Obligation("o-1", "publish", "k", "t-1", intent, desk.clock.now, 30_000, State.COMMITTED)
    put = desk.outbox.put_for(letter_for(settled, b""), desk.clock.now)
    await desk.store.transact(AdHocCommand((), lambda _records: Change(answer=None, puts=(put,))))
    receiver.errors = [RuntimeError("no")]
    await desk.deliver_due()
    assert told(caplog) == [("job o-1/effect: attempt 1 failed: error", about)]
