"""The client's side: a call is durable with its ledger row, is due when no driver has it, and exists once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from twophp.core import call_machine as machine
from twophp.core.call import CALL, IN_LEDGER, Call, Stage, by_client_id
from twophp.core.call_commands import Command, GiveUp, Note, Opening, Renew, ServerReply, Tick
from twophp.core.call_machine import DEFAULT_CARE
from twophp.core.entry import client_entry
from twophp.core.errors import StoreError
from twophp.core.intent import Mode, Phase
from twophp.core.records import Sealed
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Find, Part, Put, Records, Stalled, WholeStore
from twophp.stores.testing.capability import DURABLE, SHARED, needs, shows
from twophp.stores.testing.scene import (
    EVERYTHING,
    NO_SEALS,
    T0,
    WRITER,
    AuditableStore,
    HandClock,
    OpenStore,
    read,
    register,
    sealed,
    verified_journal,
    write,
)
from twophp.stores.testing.scene import (
    Stage as TestStage,
)

KEY = by_client_id("client-1")


def opening(name: str = "1", **facts: Any) -> Opening:
    """What a call is, with ids made from ``name``."""
    known: dict[str, Any] = {
        "client_correlation_id": f"client-{name}",
        "parent_reference_id": f"client-{name}",
        "method": "POST",
        "url": "https://stock.internal/items",
        "meant": "what was meant",
        "target": "stock",
        "service_endpoint": "stock/items",
        "mode": Mode.STANDARD,
        "sent_at": T0,
        "owner": "driver",
    }
    return Opening(**(known | facts))


def registered(name: str = "1", **facts: Any) -> ServerReply:
    """The answer to its Phase 1."""
    return ServerReply(
        phase=Phase.WAITING_CONFIRM,
        by="phase_1",
        at=T0,
        opening=opening(name, **facts),
        server_correlation_id=f"server-{name}",
        ttl_ms=30_000,
        confirm_by=T0 + 29_400,
    )


def ended(phase: Phase = Phase.COMMITTED) -> ServerReply:
    """The answer to its Phase 2."""
    return ServerReply(phase=phase, by="phase_2", at=T0 + 1, status=200, resource_id="item-1", status_url="/jobs/1")


def call_put(decision: machine.CallDecision, seals: Mapping[Part, Sealed | None] = NO_SEALS) -> Put:
    """What a decision makes durable."""
    call = decision.call
    assert call is not None
    has_row = bool(decision.steps) and call.stage in IN_LEDGER
    entry = client_entry(call, WRITER) if has_row else None
    return Put(record=call, entry=entry, journal=decision.steps, seals=seals)


async def take(
    store: WholeStore, command: Command, name: str = "1", payload: bytes | None = None
) -> machine.CallDecision:
    """Take ``command`` to a call."""
    key = by_client_id(f"client-{name}")

    def change(records: Records) -> Change:
        decision = machine.decide(records.get(key), command, records.now)
        if not decision.changed or decision.call is None:
            return Change(answer=decision)
        if decision.call.stage is Stage.ABSENT:
            return Change(answer=decision, drops=(key,), journal=decision.steps)
        seals: Mapping[Part, Sealed | None] = NO_SEALS if payload is None else {"payload": sealed(payload)}
        return Change(answer=decision, puts=(call_put(decision, seals),))

    decision: machine.CallDecision = await store.transact(AdHocCommand((key,), change))
    return decision


class CallContract(TestStage):
    """Calls are records like all others."""

    @shows("P-5.2.3-a", "P-9.8-07", "A-47")
    async def test_a_call_and_its_row_come_back_with_every_field(self, store: AuditableStore) -> None:
        """In every version, nulls included; one row, kept up to date in place."""
        for command in (registered(), ended()):
            decision = await take(store, command)
            assert isinstance(decision.call, Call)
            assert await read(store, KEY) == decision.call
            (row,) = await store.entries(Find("client-1"))
            assert row == client_entry(decision.call, WRITER)
        events = [line.event.event for line in await store.history(KEY)]
        assert events == ["WAITING_CONFIRM", "COMMITTED"]

    @shows("P-10.2-d", "A-47")
    async def test_both_sides_of_one_call_may_be_in_one_ledger(self, store: AuditableStore) -> None:
        """A service that calls itself: an intent and a call with the same two ids, and a row of each."""
        await register(store)
        await take(store, registered())
        assert [row.actor for row in await store.entries(Find("client-1"))] == ["server", "client"]

    @shows("A-43")
    async def test_a_noted_call_has_its_request_and_no_row(self, store: AuditableStore) -> None:
        """The row comes with the server's id, at version 1, although the record's version is higher by then."""
        await take(store, Note(opening=opening(mode=Mode.AUTO_CONFIRM)), payload=b"request")
        await take(store, Renew(fence=1))
        assert await store.entries(Find("client-1")) == []
        assert await store.unseal(KEY, "payload") == b"request"
        told = ServerReply(phase=Phase.PROCESSING, by="callback", at=T0, server_correlation_id="server-1", ttl_ms=1)
        decision = await take(store, told)
        (row,) = await store.entries(Find("client-1"))
        assert decision.call is not None
        assert (row.version, decision.call.version) == (1, 3)

    async def test_a_call_is_due_when_its_lease_has_ended(self, store: AuditableStore, clock: HandClock) -> None:
        """Most overdue first, and not while a driver renews its lease."""
        await take(store, registered("1"))
        clock.now += 1_000
        await take(store, registered("2"), "2")
        lease_end = T0 + DEFAULT_CARE.lease_ms
        assert await store.due(CALL, lease_end, EVERYTHING) == []
        assert await store.due(CALL, lease_end + 1, EVERYTHING) == [KEY]
        assert await store.due(CALL, lease_end + 1_001, EVERYTHING) == [KEY, by_client_id("client-2")]
        assert (await take(store, Renew(fence=1))).changed
        assert await store.due(CALL, lease_end + 1_001, 1) != [], "the other call is still due"
        assert (await store.due(CALL, lease_end + 1, EVERYTHING)) == []

    @shows("A-49", "P-10.4-d")
    async def test_an_open_call_is_stalled_and_an_ended_one_is_not(self, store: AuditableStore) -> None:
        """The draft's question, of both actors."""
        await take(store, registered())
        assert [row.actor for row in await store.entries(Stalled())] == ["client"]
        await take(store, ended())
        assert await store.entries(Stalled()) == []

    @shows("A-49")
    async def test_a_call_that_was_given_up_waits_for_its_deadline(
        self, store: AuditableStore, clock: HandClock
    ) -> None:
        """Until then its row says what was told last; then it is due, and the visit ends it."""
        await take(store, registered())
        await take(store, GiveUp(fence=1, late=False))
        (row,) = await store.entries(Find("client-1"))
        assert (row.phase, row.outcome) == (Phase.WAITING_CONFIRM, None)
        deadline = T0 + 29_400
        assert await store.due(CALL, deadline, EVERYTHING) == []
        clock.now = deadline
        assert await store.due(CALL, deadline + 1, EVERYTHING) == [KEY]
        decision = await take(store, Tick(owner="other"))
        assert await read(store, KEY) == decision.call
        (row,) = await store.entries(Find("client-1"))
        assert (row.phase, row.outcome, row.settled_at) == (Phase.TTL_EXPIRED, Phase.TTL_EXPIRED, deadline)
        stages = [line.event.after for line in await store.history(KEY)]
        assert stages == ["WAITING_CONFIRM", "GIVEN_UP", "TTL_EXPIRED"]

    async def test_an_id_is_used_for_one_call(self, store: AuditableStore) -> None:
        """A command that did not read the id is refused, and nothing is left of the attempt."""
        await take(store, registered())
        lines = await verified_journal(store)
        with pytest.raises(StoreError) as refusal:
            await write(store, call_put(machine.decide(None, registered(), T0)))
        assert refusal.value.code in {"constraint", "bad_change"}
        assert await verified_journal(store) == lines

    async def test_a_forgotten_call_leaves_its_row(self, store: AuditableStore, clock: HandClock) -> None:
        """The ledger does not forget."""
        await take(store, registered())
        await take(store, ended())
        clock.now += DEFAULT_CARE.kept_ms
        await take(store, Tick(owner="other"))
        assert await read(store, KEY) is None
        (row,) = await store.entries(Find("client-1"))
        assert row.phase is Phase.COMMITTED
        assert (await verified_journal(store))[-1].event.event == "forgotten"

    @needs(SHARED)
    async def test_of_two_that_come_by_one_takes_it_over(self, open_store: OpenStore, clock: HandClock) -> None:
        """Also when each has a handle of its own."""
        async with open_store(clock) as one, open_store(clock) as other:
            await take(one, registered())
            clock.now += DEFAULT_CARE.lease_ms
            first, second = await take(one, Tick(owner="one")), await take(other, Tick(owner="other"))
            assert (first.changed, second.changed) == (True, False)

    @needs(DURABLE)
    @shows("P-5.2.3-a", "A-43")
    async def test_a_call_survives_a_restart(self, open_store: OpenStore, clock: HandClock) -> None:
        """With its lease, its fence and its sealed request."""
        async with open_store(clock) as store:
            decision = await take(store, Note(opening=opening()), payload=b"request")
        async with open_store(clock) as store:
            assert await read(store, KEY) == decision.call
            assert await store.unseal(KEY, "payload") == b"request"
            assert await store.due(CALL, T0 + DEFAULT_CARE.lease_ms + 1, EVERYTHING) == [KEY]
