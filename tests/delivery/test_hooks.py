"""Compensation hooks: one job for each hook and transition, delivered at least once."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.delivery.outboxes import GUARD_S, POLICY, SERVICE, VAULT, WRITER, Desk, Receiver, Site, registration
from tests.delivery.tls_server import Authority, serving
from twophp.core.errors import ConfigError
from twophp.core.intent import Intent, Mode
from twophp.core.intent_commands import Confirm, Settle
from twophp.core.job import DEFAULT_TRIES, JOB, Job, State, by_job_id
from twophp.delivery import hooks as module
from twophp.delivery.callbacks import signed_post
from twophp.delivery.egress import Lookups, Rules
from twophp.delivery.hooks import HOOKS, Hooks, PhaseEvent, hook_deliverer
from twophp.delivery.outbox import Outbox
from twophp.delivery.webhooks import Secret, verify
from twophp.engine.intents import Intents
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change
from twophp.stores.memory import MemoryStore
from twophp.stores.testing.scene import T0, HandClock

pytestmark = pytest.mark.anyio

NAME = "hooks.example.com"
SECRETS = (Secret(bytes(32)),)
PHASES = ("WAITING_CONFIRM", "PROCESSING", "COMMITTED", "FAILED", "TTL_EXPIRED", "ABANDONED")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Service:
    """Intents whose every transition is followed by hooks."""

    def __init__(self, hooks: Hooks, send: Any = None, **facts: Any) -> None:
        self.clock = HandClock()
        self.store = MemoryStore(clock=self.clock)
        deliver = {"hook": hook_deliverer(hooks, send)}
        self.outbox = Outbox(self.store, VAULT, SERVICE, **({"deliver": deliver} | facts))
        self.intents = Intents(self.store, VAULT, WRITER, follow=self.outbox.follow(hooks.letters))

    async def register(self, name: str = "1", mode: Mode = Mode.STANDARD) -> Intent:
        decision = await self.intents.register(registration(name, mode=mode), b"payload", POLICY)
        assert decision.intent is not None
        return decision.intent

    async def confirm(self, intent: Intent) -> Intent:
        command = Confirm(
            client_correlation_id=intent.client_correlation_id,
            server_correlation_id=intent.server_correlation_id,
            principal="alice",
            path="/orders",
            arrived_at=T0,
            owner="worker",
        )
        decision = await self.intents.confirm(command, POLICY)
        assert decision.intent is not None
        return decision.intent

    async def settle(self, intent: Intent, *, succeeded: bool) -> None:
        command = Settle(fence=intent.fence, succeeded=succeeded, status=200 if succeeded else 500, resource_id="o-1")
        await self.intents.settle(intent, command, b"answer", POLICY)

    async def fail(self, name: str = "1") -> None:
        await self.settle(await self.confirm(await self.register(name)), succeeded=False)

    async def sweep_at(self, now: int) -> None:
        self.clock.now = now
        await self.intents.sweep(lambda _intent: POLICY, "sweeper", before=now + 1)

    async def jobs(self) -> list[Job]:
        keys = await self.store.due(JOB, self.clock.now * 2, 1000)
        found = await self.store.read(keys)
        return sorted(found, key=lambda job: str(job.job_id))

    async def job(self, job_id: str) -> Job:
        key = by_job_id(job_id)
        job = await self.store.transact(AdHocCommand((key,), lambda records: Change(answer=records.get(key))))
        assert isinstance(job, Job)
        return job

    async def deliver(self) -> None:
        while await self.outbox.visit():
            if self.outbox._attempts:
                await asyncio.wait(set(self.outbox._attempts))


def noting(hooks: Hooks, *phases: str, name: str = "note") -> list[PhaseEvent]:
    seen: list[PhaseEvent] = []

    @hooks.on_phase(*phases, name=name)
    async def note(event: PhaseEvent) -> None:
        seen.append(event)

    return seen


# One job for each hook and transition.


@pytest.mark.req("P-9.3-c")
async def test_each_transition_is_one_job_for_each_hook_that_waits_for_it() -> None:
    hooks = Hooks()
    noting(hooks, *PHASES, name="all")
    noting(hooks, "FAILED", "TTL_EXPIRED", name="some")
    service = Service(hooks)
    done, failed = await service.register("done"), await service.register("failed")
    auto, late = await service.register("auto", Mode.AUTO_CONFIRM), await service.register("late")
    await service.settle(await service.confirm(done), succeeded=True)
    await service.settle(await service.confirm(failed), succeeded=False)
    await service.settle(auto, succeeded=True)
    await service.sweep_at(late.abandoned_at)  # No sweep ran in between: two steps, one change.
    assert [job.job_id for job in await service.jobs()] == sorted(
        [
            *(f"server-done/all/{phase}" for phase in ("WAITING_CONFIRM", "PROCESSING", "COMMITTED")),
            *(f"server-failed/all/{phase}" for phase in ("WAITING_CONFIRM", "PROCESSING", "FAILED")),
            "server-failed/some/FAILED",
            *(f"server-auto/all/{phase}" for phase in ("WAITING_CONFIRM", "PROCESSING", "COMMITTED")),
            *(f"server-late/all/{phase}" for phase in ("WAITING_CONFIRM", "TTL_EXPIRED", "ABANDONED")),
            "server-late/some/TTL_EXPIRED",
        ]
    )


@pytest.mark.req("P-9.3-c")
async def test_what_is_no_transition_owes_nothing() -> None:
    """Replays, heartbeats, recoveries, purges and forgetting."""
    hooks = Hooks()
    noting(hooks, *PHASES)
    service = Service(hooks)
    intent = await service.confirm(await service.register())
    await service.confirm(intent)
    await service.register()
    await service.intents.renew(intent, POLICY)
    assert intent.lease_until is not None
    await service.sweep_at(intent.lease_until)
    recovered = await service.intents.look("client-1", "server-1")
    assert recovered is not None
    assert recovered.fence == 2
    for _ in range(2):
        await service.settle(recovered, succeeded=False)
    jobs = [job.job_id for job in await service.jobs()]
    assert jobs == [f"server-1/note/{phase}" for phase in ("FAILED", "PROCESSING", "WAITING_CONFIRM")]
    await service.deliver()
    await service.sweep_at(service.clock.now + POLICY.payload_retention_ms)
    await service.sweep_at(service.clock.now + POLICY.horizon_ms)
    assert await service.intents.look("client-1", "server-1") is None
    assert {job.state for job in await service.jobs()} == {State.DELIVERED}


@pytest.mark.req("P-9.3-c")
async def test_a_crowd_of_settlements_is_one_call() -> None:
    hooks = Hooks()
    seen = noting(hooks, "FAILED")
    service = Service(hooks)
    intent = await service.confirm(await service.register())
    await asyncio.gather(*(service.settle(intent, succeeded=False) for _ in range(50)))
    await service.deliver()
    await service.deliver()
    assert len(seen) == 1


async def test_the_event_says_what_happened() -> None:
    hooks = Hooks()
    seen = noting(hooks, "FAILED", "TTL_EXPIRED")
    service = Service(hooks)
    await service.fail()
    late = await service.register("2")
    await service.sweep_at(late.deadline_at + 7)
    await service.deliver()
    assert seen == [
        PhaseEvent(
            client_correlation_id="client-1",
            server_correlation_id="server-1",
            phase="FAILED",
            endpoint="orders/orders",
            at=T0,
            resource_id="o-1",
        ),
        PhaseEvent(
            client_correlation_id="client-2",
            server_correlation_id="server-2",
            phase="TTL_EXPIRED",
            endpoint="orders/orders",
            at=late.deadline_at,
        ),
    ]
    assert seen[0].id == "server-1:FAILED"


# At least once.


@pytest.mark.req("P-9.3-c")
async def test_a_hook_that_raises_is_called_again_with_the_same_event() -> None:
    hooks, seen = Hooks(), []

    @hooks.on_phase("FAILED", name="release")
    async def release(event: PhaseEvent) -> None:
        seen.append(event)
        if len(seen) < 3:
            raise LookupError("not yet")

    service = Service(hooks)
    await service.fail()
    for attempt in (1, 2, 3):
        await service.deliver()
        assert len(seen) == attempt
        service.clock.now += DEFAULT_TRIES.within_ms
    assert len(set(map(str, seen))) == 1
    assert (await service.job("server-1/release/FAILED")).state is State.DELIVERED


async def test_a_hook_is_called_after_a_restart_and_one_that_is_gone_is_missed() -> None:
    before, after = Hooks(), Hooks()
    noting(before, "FAILED", name="kept")
    noting(before, "FAILED", name="gone")
    service = Service(before)
    await service.fail()
    seen = noting(after, "FAILED", name="kept")
    service.outbox = Outbox(service.store, VAULT, SERVICE, deliver={"hook": hook_deliverer(after)})
    await service.deliver()
    assert [event.phase for event in seen] == ["FAILED"]
    assert (await service.job("server-1/gone/FAILED")).last_error == "hook_unknown"


async def test_hooks_of_one_transition_do_not_hinder_each_other() -> None:
    hooks = Hooks()

    @hooks.on_phase("FAILED", name="broken")
    async def broken(_event: PhaseEvent) -> None:
        raise LookupError("always")

    seen = noting(hooks, "FAILED")
    service = Service(hooks)
    await service.fail()
    await service.deliver()
    assert len(seen) == 1
    assert (await service.job("server-1/broken/FAILED")).last_error == "error"


# The kinds of hooks.


async def test_a_plain_function_runs_in_a_thread_and_anything_that_awaits_on_the_loop() -> None:
    hooks, threads = Hooks(), {}

    @hooks.on_phase("FAILED", name="plain")
    def plain(_event: PhaseEvent) -> None:
        threads["plain"] = threading.current_thread()

    async def slow(key: str, _event: PhaseEvent) -> None:
        threads[key] = threading.current_thread()

    class Object:
        async def __call__(self, _event: PhaseEvent) -> None:
            threads["object"] = threading.current_thread()

    hooks.on_phase("FAILED", name="partial")(functools.partial(slow, "partial"))
    hooks.on_phase("FAILED", name="object")(Object())
    service = Service(hooks)
    await service.fail()
    await service.deliver()
    main = threading.current_thread()
    assert threads["plain"].name.startswith("twophp-hook")
    assert (threads["partial"], threads["object"]) == (main, main)
    assert {job.state for job in await service.jobs()} == {State.DELIVERED}


@pytest.mark.req("A-66")
async def test_a_webhook_is_signed_and_goes_through_the_gate(tmp_path: Path) -> None:
    async def loopback(_host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    authority, site, hooks = Authority(), Site(500, 204), Hooks()
    local = Rules(allow_insecure_loopback=True)
    tls: ssl.SSLContext = authority.server(tmp_path, NAME)
    async with serving(site.behaviour(), tls) as port:
        hooks.webhook(f"https://{NAME}:{port}/failed", phases=["FAILED"], name="shop.failed")
        hooks.webhook("https://169.254.169.254/", phases=["FAILED"], name="inwards")
        service = Service(hooks, signed_post(local, SECRETS, authority.trusted(), Lookups(loopback)))
        await service.fail()
        await service.deliver()
        now = service.clock.now = T0 + DEFAULT_TRIES.first_delay_ms
        await service.deliver()
    (_, first), (fields, body) = site.requests
    assert first == body
    assert msgspec.json.decode(body, type=PhaseEvent).phase == "FAILED"
    assert verify(fields, body, secrets=SECRETS, now=now).startswith("server-1:FAILED:")
    assert (await service.job("server-1/shop.failed/FAILED")).state is State.DELIVERED
    assert (await service.job("server-1/inwards/FAILED")).last_error == "address"


async def test_a_webhook_without_a_way_out_waits_for_one() -> None:
    hooks = Hooks()
    hooks.webhook(f"https://{NAME}/", phases=["FAILED"], name="out")
    service = Service(hooks)
    await service.fail()
    await service.deliver()
    assert (await service.job("server-1/out/FAILED")).last_error == "no_egress"


READ = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
SECRET = "import os, sys; sys.exit(7 if any(name.startswith('TWOPHP_') for name in os.environ) else 0)"


async def test_a_command_gets_the_event_and_no_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHP_KEYS", "secret")
    hooks, path = Hooks(), tmp_path / "event; $(touch x).json"
    hooks.command([sys.executable, "-c", READ, str(path)], phases=["FAILED"], name="read")
    hooks.command([sys.executable, "-c", SECRET], phases=["FAILED"], name="secret")
    hooks.command([sys.executable, "-c", "import sys; sys.exit(3)"], phases=["FAILED"], name="exit")
    hooks.command([str(tmp_path / "nothing")], phases=["FAILED"], name="nothing")
    service = Service(hooks)
    await service.fail()
    await service.deliver()
    event = msgspec.json.decode(path.read_bytes(), type=PhaseEvent)
    assert event.id == "server-1:FAILED"
    found = {job.name: (job.state, job.last_error) for job in await service.jobs()}
    assert found == {
        "read": (State.DELIVERED, ""),
        "secret": (State.DELIVERED, ""),
        "exit": (State.PENDING, "exit_3"),
        "nothing": (State.PENDING, "error"),
    }


HANG = (
    "import os, sys, time; pipe = os.open(sys.argv[1], os.O_WRONLY); os.fork(); os.write(pipe, b'x'); time.sleep(600)"
)


async def test_a_command_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    """Both processes hold the write end of the pipe: it ends only when both have."""
    hooks, pipe = Hooks(), tmp_path / "pipe"
    os.mkfifo(pipe)
    said = asyncio.StreamReader()
    reading = os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb")
    hooks.command([sys.executable, "-c", HANG, str(pipe)], phases=["FAILED"], name="hang", timeout_s=0.5)
    service = Service(hooks)
    await service.fail()
    async with asyncio.timeout(GUARD_S):
        await service.deliver()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(said), reading)
        assert set(await said.read()) <= set(b"x")
    transport.close()
    assert (await service.job("server-1/hang/FAILED")).last_error == "timeout"


# Names and registries.


def test_names_come_from_what_they_name() -> None:
    hooks = Hooks()

    @hooks.on_phase("FAILED")
    def release(_event: PhaseEvent) -> None: ...

    assert hooks.find(f"{__name__}.test_names_come_from_what_they_name.release") is not None
    hooks.webhook("https://a.example/", phases=["FAILED"])
    hooks.webhook("https://b.example/", phases=["FAILED"])
    hooks.command(["a", "b"], phases=["FAILED"])
    hooks.command(["ab"], phases=["FAILED"])
    assert len(hooks._hooks) == 5


@pytest.mark.parametrize("phases", [(), ("failed",), ("ABSENT",), ("FAILED", "GONE")])
def test_a_hook_waits_for_phases_that_there_are(phases: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="WAITING_CONFIRM"):
        Hooks().on_phase(*phases, name="x")(print)


def test_hooks_that_cannot_work_are_refused() -> None:
    hooks = Hooks()
    wrong: Any = 5
    hooks.on_phase("FAILED", name="x")(print)
    for bad in (
        lambda: hooks.on_phase("FAILED", name="x")(print),
        lambda: hooks.on_phase("FAILED", name="a/b")(print),
        lambda: hooks.on_phase("FAILED")(lambda _event: None),
        lambda: hooks.command("rm -rf", phases=["FAILED"]),
        lambda: hooks.command([], phases=["FAILED"]),
        lambda: hooks.webhook("https://a.example/", phases="FAILED"),
        lambda: hooks.webhook("https://a.example/", phases=wrong),
        lambda: hooks.webhook("https://a.example/", phases=[wrong]),
        lambda: hooks.on_phase(["FAILED"], name="y")(print),  # type: ignore[arg-type]
        lambda: hooks.on_phase("FAILED", name=wrong)(print),
        lambda: hooks.on_phase("FAILED", name="y")(wrong),
        lambda: hooks.command([wrong], phases=["FAILED"]),
        lambda: hooks.webhook(wrong, phases=["FAILED"]),
    ):
        with pytest.raises(ConfigError) as refusal:
            bad()
        assert refusal.value.code == "bad_hook"


def test_a_decorator_without_its_phases_is_refused_and_swallows_no_function() -> None:
    def release(_event: PhaseEvent) -> None: ...

    decorate: Any = Hooks().on_phase
    with pytest.raises(ConfigError, match="Say which phases") as refusal:
        decorate(release)
    assert refusal.value.code == "bad_hook"


def test_the_modules_decorator_registers_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HOOKS, "_hooks", {})

    @module.on_phase("FAILED", name="x")
    def hook(_event: PhaseEvent) -> None: ...

    assert HOOKS.find("x") is not None


async def test_without_hooks_nothing_follows() -> None:
    desk = Desk(Receiver())
    decision, _ = await desk.owe()
    assert Hooks().letters(decision) == []
