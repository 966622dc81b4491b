"""What is owed is delivered at least once, begins before the handler, and never makes a request wait."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from tests.delivery.outboxes import GUARD_S, POLICY, QUICK, SERVICE, VAULT, Desk, Receiver, registration, until
from twophp.core import job as jobs
from twophp.core.errors import ConfigError, DeliveryFailed, EgressRefused, StoreUnavailable, Tampered
from twophp.core.identity import seal_context
from twophp.core.job import DEFAULT_TRIES, JOB, State, by_job_id
from twophp.delivery.callbacks import Call, callback_letter
from twophp.delivery.outbox import Delivery, Outbox, code_of, spread
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Find, Put
from twophp.stores.memory import MemoryStore
from twophp.stores.sqlite import SQLiteStore, rotate
from twophp.stores.testing.scene import T0, HandClock
from twophp.stores.vault import AesGcmVault, KeyRing
from twophp.wire.callback import decode

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
CROWD = 100


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# Before the handler, and without holding it up.


@pytest.mark.req("P-5.5.1-d", "P-5.5.3-c", "P-5.5.3-d", "P-5.5.3-e", "A-38")
async def test_commit_then_attempt_then_handler_for_a_hundred_at_once(tmp_path: Path) -> None:
    """The deliverer sees what another process would see of the file, and no delivery ends before all handlers have."""
    clock, path = HandClock(), str(tmp_path / "orders.db")
    order: list[tuple[str, str]] = []
    handlers_done = asyncio.Event()

    async def deliver(delivery: Delivery) -> None:
        assert state_on_disk(path, delivery.job) == ("PROCESSING", "RUNNING")
        order.append(("attempt", delivery.job.subject))
        await handlers_done.wait()

    async def request(desk: Desk, name: str) -> None:
        decision, owed = await desk.owe(name)
        assert await owed.start(decision)
        order.append(("handler", f"server-{name}"))

    async with SQLiteStore(path, clock=clock) as store, asyncio.timeout(GUARD_S):
        desk = Desk(deliver, store, clock)
        await asyncio.gather(*(request(desk, str(number)) for number in range(CROWD)))
        assert desk.outbox.attempts_count == CROWD  # Not one of them waits for another's end.
        handlers_done.set()
        await desk.idle()
        for number in range(CROWD):
            name = f"server-{number}"
            assert order.index(("attempt", name)) < order.index(("handler", name))
            assert (await desk.job(name)).state is State.DELIVERED
    assert len(order) == 2 * CROWD


def state_on_disk(path: str, job: jobs.Job) -> tuple[str, str]:
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    statement = "SELECT phase, state FROM intent, job WHERE server_correlation_id = subject AND job_id = ?"
    (found,) = connection.execute(statement, (job.job_id,)).fetchall()
    connection.close()
    return str(found[0]), str(found[1])


@pytest.mark.req("P-5.5.3-c", "A-38")
async def test_nothing_is_written_or_read_between_the_commit_and_the_attempt() -> None:
    calls: list[str] = []

    class Watched(MemoryStore):
        async def transact(self, *args: Any) -> Any:
            answer = await super().transact(*args)
            calls.append("commit")
            return answer

        async def unseal(self, *_args: Any) -> Any:
            raise AssertionError("what was just sealed is at hand")

    async def deliver(_delivery: Delivery) -> None:
        calls.append("attempt")

    clock = HandClock()
    desk = Desk(deliver, Watched(clock=clock), clock)
    decision, owed = await desk.owe()
    await owed.start(decision)
    assert calls[:2] == ["commit", "attempt"]
    await desk.idle()


@pytest.mark.req("P-5.5.1-e", "P-5.5.3-e", "A-38")
async def test_a_request_that_goes_away_takes_no_callback_with_it() -> None:
    receiver = Receiver()
    receiver.open.clear()
    desk = Desk(receiver)
    decision, owed = await desk.owe()
    request = asyncio.create_task(owed.start(decision, barrier="sent", within_s=GUARD_S))
    await until(receiver.is_visited)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    receiver.open.set()
    await desk.idle()
    assert (await desk.job()).state is State.DELIVERED


@pytest.mark.req("P-5.5.4-a", "P-5.5.4-b", "P-5.5.4-c", "P-5.5.4-d", "P-5.5.4-e", "P-5.5.4-f")
async def test_the_payload_is_the_drafts_and_stamped_with_the_transition() -> None:
    desk = Desk(receiver := Receiver())
    desk.clock.now = T0 + 5
    decision, owed = await desk.owe()
    await owed.start(decision)
    call = msgspec.msgpack.decode(receiver.seen[0].payload, type=Call)
    assert set(msgspec.json.decode(call.body)) == {
        "server_correlation_id",
        "client_correlation_id",
        "phase_state",
        "ponr_crossed",
        "callback_timestamp",
    }
    said = decode(call.body)
    assert (said.server_correlation_id, said.client_correlation_id) == ("server-1", "client-1")
    line, *_ = await desk.store.history(by_job_id("server-1/callback"))
    assert said.dispatched_at == line.event.at == T0 + 5
    await desk.idle()


async def test_a_replay_owes_nothing() -> None:
    desk = Desk(receiver := Receiver())
    await (await desk.owe())[1].start((await desk.owe())[0])
    decision, owed = await desk.owe()
    assert not decision.changed
    assert not await owed.start(decision)
    assert receiver.seen == []
    assert len(await desk.store.due(JOB, T0 + DEFAULT_TRIES.lease_ms + 1, 10)) == 1


async def test_a_decision_that_was_made_again_counts_as_it_was_made_last() -> None:
    """The first time the batch failed; the second time another request had registered it."""
    desk = Desk(receiver := Receiver())
    decision, owed = await desk.owe()
    replay = msgspec.structs.replace(decision, changed=False)
    assert not await owed.start(replay)
    recovery = msgspec.structs.replace(decision.steps[-1], before="PROCESSING", event="recovered")
    assert owed(msgspec.structs.replace(decision, steps=(recovery,))) == ()
    assert not await owed.start(decision)
    assert receiver.seen == []


async def test_a_full_outbox_says_so_before_anybody_promises_more() -> None:
    receiver = Receiver()
    receiver.open.clear()
    desk = Desk(receiver, capacity=1)
    assert not desk.outbox.is_full
    decision, owed = await desk.owe()
    await owed.start(decision)
    assert desk.outbox.is_full
    receiver.open.set()
    await desk.idle()
    assert not desk.outbox.is_full
    with pytest.raises(ConfigError):
        Desk(receiver, capacity=0)


# Again and again.


@pytest.mark.req("A-39")
async def test_what_fails_is_tried_again_with_the_same_bytes_until_it_is_dead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk(receiver := Receiver(), jitter=lambda _job: 0.5)
    receiver.errors = [DeliveryFailed("no", reason="status", status=503) for _ in range(DEFAULT_TRIES.attempts)]
    decision, owed = await desk.owe()
    await owed.start(decision)
    await desk.idle()
    for failed in range(1, DEFAULT_TRIES.attempts):
        job = await desk.job()
        assert (job.state, job.attempts, job.last_error) == (State.PENDING, failed, "status_503")
        assert job.due_at == desk.clock.now + DEFAULT_TRIES.delay_ms(failed, 0.5)
        await desk.deliver_due()
        assert len(receiver.seen) == failed  # Not before its time.
        await desk.next_due()
    job = await desk.job()
    assert (job.state, job.attempts) == (State.DEAD, len(receiver.seen)) == (State.DEAD, 5)
    assert len({delivery.payload for delivery in receiver.seen}) == 1
    assert desk.clock.now - T0 <= 600_000
    assert await desk.store.unseal(by_job_id(job.job_id), "payload") is not None  # For people to look at.
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "job server-1/callback is dead after 5 attempts: status_503"
    ]


@pytest.mark.req("A-39")
async def test_what_was_delivered_is_not_delivered_again_and_not_kept() -> None:
    desk = Desk(receiver := Receiver())
    receiver.errors = [ConnectionError("once")]
    decision, owed = await desk.owe()
    await owed.start(decision)
    await desk.idle()
    assert (await desk.job()).last_error == "error"
    await desk.next_due()
    assert (await desk.job()).state is State.DELIVERED
    assert await desk.store.unseal(by_job_id("server-1/callback"), "payload") is None
    await desk.next_due()  # Time to forget.
    assert len(receiver.seen) == 2
    assert await desk.store.due(JOB, desk.clock.now * 2, 10) == []


@pytest.mark.req("A-38", "A-39")
@pytest.mark.parametrize("where", ["before_attempt", "in_attempt"])
async def test_a_killed_process_owes_what_it_owed(where: str, tmp_path: Path) -> None:
    """SIGKILL between commit and attempt, or between the attempt and its note: the next process delivers the same."""
    path, clock = str(tmp_path / "orders.db"), HandClock()
    command = [sys.executable, "-m", "tests.delivery.crashing", path, where]
    victim = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert victim.returncode == -9, victim.stderr
    said = victim.stdout.split()
    assert said[0] == "durable"
    async with SQLiteStore(path, clock=clock) as store:
        desk = Desk(receiver := Receiver(), store, clock)
        (row,) = await store.entries(Find("server-1"))
        assert row.phase == "PROCESSING"
        await desk.deliver_due()
        assert receiver.seen == []  # The process that had the job may still be alive.
        clock.now = T0 + DEFAULT_TRIES.lease_ms
        await desk.deliver_due()
        (delivery,) = receiver.seen
        acknowledgement = decode(msgspec.msgpack.decode(delivery.payload, type=Call).body)
        assert acknowledgement.dispatched_at == T0  # A historical fact.
        assert [delivery.payload.hex()] * (len(said) - 1) == said[1:]
        assert ((await desk.job()).state, (await desk.job()).attempts) == (State.DELIVERED, 2)


async def test_an_end_that_cannot_be_noted_is_an_attempt_that_is_made_again() -> None:
    class Failing(MemoryStore):
        fails = False

        async def transact(self, *args: Any) -> Any:
            if self.fails:
                raise StoreUnavailable("not now")
            return await super().transact(*args)

    clock = HandClock()
    desk = Desk(receiver := Receiver(), store := Failing(clock=clock), clock)
    decision, owed = await desk.owe()
    store.fails = True
    await owed.start(decision)
    await desk.idle()
    clock.now += DEFAULT_TRIES.lease_ms
    await desk.deliver_due()  # It is due, and cannot be taken over.
    assert len(receiver.seen) == 1
    store.fails = False
    await desk.deliver_due()
    assert [delivery.job.attempts for delivery in receiver.seen] == [1, 2]
    assert len({delivery.payload for delivery in receiver.seen}) == 1
    assert (await desk.job()).state is State.DELIVERED


async def test_an_attempt_that_takes_too_long_is_cut_off() -> None:
    receiver = Receiver()
    receiver.open.clear()
    desk = Desk(receiver, tries=QUICK)
    decision, owed = await desk.owe()
    await owed.start(decision)
    await desk.idle()
    assert ((await desk.job()).state, (await desk.job()).last_error) == (State.PENDING, "timeout")


async def test_a_payload_that_was_tampered_with_is_not_delivered() -> None:
    desk = Desk(receiver := Receiver())
    await desk.put("server-1", "server-2")
    first, second = by_job_id("server-1/callback"), by_job_id("server-2/callback")
    stolen = await desk.store.unseal(first, "payload")
    assert stolen is not None

    def swap(records: Any) -> Change:
        job = records.get(second)
        moved = msgspec.structs.replace(job, version=job.version + 1)
        return Change(answer=None, puts=(Put(record=moved, seals={"payload": stolen}),))

    await desk.store.transact(AdHocCommand((second,), swap))
    await desk.outbox.visit()
    await desk.idle()
    assert receiver.ids == ["server-1/callback"]
    assert (await desk.job("server-2")).last_error == "tampered"


async def test_work_that_nobody_delivers_waits_for_somebody_who_does() -> None:
    desk = Desk(Receiver(), deliver={})
    await desk.put("server-1")
    await desk.deliver_due()
    assert (await desk.job()).last_error == "no_deliverer"


# Odds and ends.


def test_jitter_is_a_fraction_that_differs_between_jobs_and_attempts() -> None:
    job = jobs.Job("s1/callback", "callback", "s1", "", T0)
    found = {
        spread(msgspec.structs.replace(job, job_id=f"s{number}/callback", attempts=attempt))
        for number in range(20)
        for attempt in (1, 2)
    }
    assert len(found) == 40
    assert all(0 <= fraction <= 1 for fraction in found)
    assert max(found) - min(found) > 0.5


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DeliveryFailed("the secret", reason="status", status=500), "status_500"),
        (DeliveryFailed("the secret", reason="unreachable"), "unreachable"),
        (EgressRefused("the secret", reason="address"), "address"),
        (Tampered("the secret"), "tampered"),
        (TimeoutError("the secret"), "timeout"),
        (ValueError("the secret"), "error"),
    ],
)
def test_of_an_error_one_word_is_kept(error: Exception, code: str) -> None:
    assert code_of(error) == code


async def test_the_payload_is_sealed_for_its_job_and_survives_a_rotation(tmp_path: Path) -> None:
    clock = HandClock()
    async with SQLiteStore(str(tmp_path / "orders.db"), clock=clock) as store:
        desk = Desk(Receiver(), store, clock)
        await store.get_or_set_meta("service", SERVICE)
        await desk.put("server-1")
        ring = KeyRing({"k": bytes(32), "new": bytes(range(32))}, "new")
        done = await rotate.rotate(store, ring)
        assert (done.complete, done.resealed) == (True, 1)
        vault = AesGcmVault(KeyRing({"new": bytes(range(32))}, "new"))
        found = await store.unseal(by_job_id("server-1/callback"), "payload")
        assert found is not None
        plain = vault.open(found, context=seal_context(SERVICE, "server-1/callback", "payload"))
        assert plain == callback_letter("server-1", "https://hooks.example.com/", b"{}").payload


async def test_letters_follow_a_decision_in_its_own_change() -> None:
    desk = Desk(receiver := Receiver())
    follow = desk.outbox.follow(lambda _decision: [callback_letter("x", "https://hooks.example.com/", b"{}")])
    await desk.intents.register(registration(), b"payload", POLICY, follow=follow)
    assert (await desk.job("x")).state is State.PENDING
    await desk.deliver_due()
    assert receiver.ids == ["x/callback"]


async def test_an_outbox_needs_room_for_one() -> None:
    with pytest.raises(ConfigError):
        Outbox(MemoryStore(), VAULT, SERVICE, deliver={}, concurrency=0)
