"""The draft's questions to a ledger (§10.4), asked of its own worked example: seven calls, fourteen rows."""

from __future__ import annotations

from typing import Final

from twophp.core.entry import Actor, LedgerEntry
from twophp.core.intent import Phase
from twophp.ports import Calls, Find, Initiated, Stalled, Tail, Tree
from twophp.stores.testing.capability import shows
from twophp.stores.testing.scene import (
    T0,
    AuditableStore,
    HandClock,
    Stage,
    attend,
    client_row,
    confirm,
    note,
    register,
    settle,
)

# Caller, callee, number of the call, number of the call that the caller was serving (draft §10.3).
CALLS: Final = (
    ("client", "serviceA", 1, 1),  # The root anchors itself.
    ("serviceA", "serviceB1", 2, 1),
    ("serviceA", "serviceB2", 3, 1),
    ("serviceA", "serviceB3", 4, 1),
    ("serviceB1", "serviceC1", 5, 2),
    ("serviceB2", "serviceD1", 6, 3),
    ("serviceB3", "serviceE1", 7, 4),
)
ROWS: Final = tuple(f"P-10.3-E{number:02}" for number in range(1, 15))


def row_of(call: tuple[str, str, int, int], actor: Actor) -> LedgerEntry:
    """One side of one call."""
    caller, callee, number, parent = call
    is_client = actor == "client"
    return client_row(
        client_correlation_id=f"client-corr-id{number}",
        server_correlation_id=f"server-corr-id{number}",
        service_endpoint=f"{callee}/orders",
        actor=actor,
        source=caller if is_client else callee,
        target=callee if is_client else None,
        parent_reference_id=f"client-corr-id{parent if is_client else number}",
    )


FOURTEEN: Final = tuple(row_of(call, actor) for call in CALLS for actor in ("client", "server"))


async def told(store: AuditableStore) -> AuditableStore:
    """The fourteen rows E01 to E14, and a call that has nothing to do with them."""
    for row in FOURTEEN:
        await note(store, row)
    await note(store, client_row(parent_reference_id="client-9"))
    return store


class QuestionContract(Stage):
    """Tree, initiated, stalled, find, tail."""

    @shows("P-10.4-a", "A-53", "P-10.3-a", "P-10.3-b", "P-10.3-c", *ROWS)
    async def test_the_tree_has_fourteen_rows(self, store: AuditableStore) -> None:
        """Below the root, and none of another tree; rows that are their own parents neither end it nor loop."""
        await told(store)
        assert tuple(await store.entries(Tree("client-corr-id1"))) == FOURTEEN

    @shows("P-10.4-a")
    async def test_a_branch_is_a_tree(self, store: AuditableStore) -> None:
        """B1's call: itself and what was called below it."""
        await told(store)
        branch = [row for row in FOURTEEN if row.client_correlation_id[-1] in "25"]
        assert list(await store.entries(Tree("client-corr-id2"))) == branch
        assert await store.entries(Tree("client-corr-id8")) == []

    @shows("A-53")
    async def test_a_loop_of_parents_ends(self, store: AuditableStore) -> None:
        """No correct service writes one, and no reader may hang on one."""
        rows = [
            client_row(client_correlation_id=mine, server_correlation_id=f"server-{mine}", parent_reference_id=parent)
            for mine, parent in (("a", "b"), ("b", "c"), ("c", "a"))
        ]
        for row in rows:
            await note(store, row)
        assert list(await store.entries(Tree("a"))) == rows

    @shows("P-10.4-b")
    async def test_what_a_service_initiated(self, store: AuditableStore) -> None:
        """E03, E05 and E07: its rows as a client, and not the one as a server."""
        await told(store)
        assert list(await store.entries(Initiated("serviceA"))) == [FOURTEEN[2], FOURTEEN[4], FOURTEEN[6]]
        assert await store.entries(Initiated("serviceE1")) == []

    @shows("P-10.4-c")
    async def test_find_by_either_id(self, store: AuditableStore) -> None:
        """Both sides of the call, whichever id is known."""
        await told(store)
        assert tuple(await store.entries(Find("client-corr-id3"))) == FOURTEEN[4:6]
        assert tuple(await store.entries(Find("server-corr-id3"))) == FOURTEEN[4:6]
        assert await store.entries(Find("corr-id3")) == []

    @shows("P-10.4-c")
    async def test_the_rows_of_some_calls(self, store: AuditableStore) -> None:
        """By the client's ids alone, each row once, and nothing of what was called below."""
        await told(store)
        ids = ("client-corr-id7", "client-corr-id2", "client-corr-id2", "server-corr-id3", "nobody's")
        assert tuple(await store.entries(Calls(ids))) == FOURTEEN[2:4] + FOURTEEN[12:14]
        assert await store.entries(Calls(())) == []

    @shows("P-10.4-d", "A-54")
    async def test_what_stalled(self, store: AuditableStore, clock: HandClock) -> None:
        """Waiting or expired, the oldest first; what is running only if asked for, and only past its lease."""
        expired = await register(store, "expired", arrived_at=T0 + 2)
        waiting = await register(store, "waiting", arrived_at=T0 + 1, requested_ttl_ms=120_000)
        running = await confirm(store, await register(store, "running"))
        await settle(store, await confirm(store, await register(store, "settled")))
        clock.now = expired.deadline_at
        await attend(store, expired)
        stalled = [(row.server_correlation_id, row.phase) for row in await store.entries(Stalled())]
        assert stalled == [
            (waiting.server_correlation_id, Phase.WAITING_CONFIRM),
            (expired.server_correlation_id, Phase.TTL_EXPIRED),
        ]
        assert running.lease_until is not None
        alive = await store.entries(Stalled(lease_ended_by=running.lease_until - 1))
        assert [row.server_correlation_id for row in alive] == [server_id for server_id, _ in stalled]
        silent = [row.server_correlation_id for row in await store.entries(Stalled(running.lease_until))]
        assert silent == [running.server_correlation_id, *(server_id for server_id, _ in stalled)]

    @shows("P-10.4-d")
    async def test_what_was_abandoned_is_no_longer_stalled(self, store: AuditableStore, clock: HandClock) -> None:
        """Nothing is left to do about it."""
        intent = await register(store)
        clock.now = intent.abandoned_at
        await attend(store, intent)
        assert await store.entries(Stalled(lease_ended_by=clock.now)) == []

    async def test_the_newest_rows_first(self, store: AuditableStore) -> None:
        """As many as were asked for."""
        await told(store)
        newest = await store.entries(Tail(3))
        assert [row.client_correlation_id for row in newest] == ["client-9", "client-corr-id7", "client-corr-id7"]
        assert len(await store.entries(Tail())) == len(FOURTEEN) + 1
