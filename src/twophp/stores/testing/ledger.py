"""The ledger: one row per call and side, kept up to date in place, with the history beside it."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import asdict, replace

from twophp.core.entry import FIELDS, LEDGER_ID, LedgerEntry, purged_line, server_entry
from twophp.core.errors import StoreError
from twophp.core.intent import Phase, by_pair
from twophp.core.obligation import Commit, by_id, decide
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Find, Purge, Records, Synced, Tail
from twophp.stores.testing.capability import shows
from twophp.stores.testing.scene import (
    EVERYTHING,
    T0,
    WRITER,
    AuditableStore,
    Stage,
    carrier,
    client_row,
    confirm,
    note,
    obligation_change,
    pair_of,
    read,
    register,
    reserve,
    sealed,
    settle,
    verified_journal,
    write,
)

BROKEN: Final[list[dict[str, Any]]] = [
    {"target": None},  # A client's row names a target ...
    {"actor": "server"},  # ... a server's row has none ...
    {"actor": "server", "target": None},  # ... and its parent is the inbound id.
    {"actor": "nobody"},
    {"ttl_ms": 0},
    {"version": 0},
    {"outcome": Phase.WAITING_CONFIRM},
]


EVERYTHING_SINCE: Final = T0 + 10**12


async def _forget(store: AuditableStore, name: str) -> None:
    key = by_pair(f"client-{name}", f"server-{name}")
    await store.transact(AdHocCommand((key,), lambda _records: Change(answer=None, drops=(key,))))


async def purge(store: AuditableStore, *rows: LedgerEntry) -> None:
    """Ask for these to be forgotten."""
    purges = tuple(Purge(row, purged_line(row, store.now())) for row in rows)
    await store.transact(AdHocCommand((), lambda _records: Change(answer=None, purges=purges)))


class LedgerContract(Stage):
    """Rows, journal, and the feed for the central ledger."""

    @shows("P-9.8-0", "P-9.1-b")
    async def test_a_row_comes_back_with_every_field(self, store: AuditableStore) -> None:
        """Server rows and client rows, nulls included."""
        intent = await settle(store, await confirm(store, await register(store)))
        await note(store, client_row())
        (server,) = await store.entries(Find("server-1"))
        (client,) = await store.entries(Find("server-9"))
        assert (server, client) == (server_entry(intent, WRITER), client_row())
        assert list(asdict(client))[: len(FIELDS)] == list(FIELDS)

    @shows("A-47", "P-10.2-a")
    async def test_a_row_is_updated_in_place_and_history_is_kept(self, store: AuditableStore) -> None:
        """After each transition the row says what is, and the journal what was."""
        intent = await register(store)
        for step, phase in ((confirm, Phase.PROCESSING), (settle, Phase.COMMITTED)):
            intent = await step(store, intent)
            (row,) = await store.entries(Find("server-1"))
            assert (row.phase, row.version) == (phase, intent.version)
        before_after = [(line.event.before, line.event.after) for line in await store.history(pair_of(intent))]
        assert before_after == [
            ("ABSENT", "WAITING_CONFIRM"),
            ("WAITING_CONFIRM", "PROCESSING"),
            ("PROCESSING", "COMMITTED"),
        ]

    @shows("A-47", "P-10.2-d")
    async def test_both_sides_of_one_call_may_be_in_one_ledger(self, store: AuditableStore) -> None:
        """A service that calls itself has two rows for the pair, one per actor, and no third."""
        await register(store)
        client = client_row(client_correlation_id="client-1", server_correlation_id="server-1")
        await note(store, client)
        assert {row.actor for row in await store.entries(Find("client-1"))} == {"client", "server"}
        put = carrier("another", client_row())
        with pytest.raises(StoreError):
            await write(store, replace(put, entry=client))
        assert len(await store.entries(Find("client-1"))) == 1 + 1

    @shows("P-9.8-05", "P-9.8-07", "P-9.8-07b", "P-10.2-e")
    @pytest.mark.parametrize("facts", BROKEN, ids=str)
    async def test_a_row_that_breaks_a_rule_is_refused(self, store: AuditableStore, facts: dict[str, Any]) -> None:
        """With the record that brought it."""
        with pytest.raises(StoreError):
            await note(store, client_row(**facts))
        assert await store.entries(Tail()) == []
        assert await verified_journal(store) == []

    async def test_a_row_changes_only_with_a_line_of_history(self, store: AuditableStore) -> None:
        """The journal is what the central ledger is fed from; a silent change would never arrive."""
        put = carrier("silent", client_row())
        with pytest.raises(StoreError):
            await write(store, replace(put, journal=()))
        assert await store.entries(Tail()) == []

    async def test_a_row_that_is_not_there_cannot_change(self, store: AuditableStore) -> None:
        """A later version of nothing is a mistake, and not to be swallowed."""
        put = carrier("late", client_row())
        with pytest.raises(StoreError):
            await write(store, replace(put, entry=client_row(version=2)))
        assert await store.entries(Tail()) == []
        assert await verified_journal(store) == []

    @shows("P-9.8-14")
    async def test_no_row_and_no_line_holds_a_payload(self, store: AuditableStore) -> None:
        """A row points at it."""
        canary = b"canary-in-a-payload"
        intent = await register(store, seals={"payload": sealed(canary)})
        (row,) = await store.entries(Find("server-1"))
        assert row.payload_ref == "vault:server-1/payload"
        seen = repr((row, await store.changes(10), await verified_journal(store), intent))
        assert canary.decode() not in seen

    @shows("A-57")
    async def test_the_feed_has_every_row_once_oldest_first(self, store: AuditableStore) -> None:
        """In its newest version, and as many as were asked for."""
        names = ["1", "2", "3"]
        for name in names:
            await confirm(store, await register(store, name))
        await reserve(store, "no row")
        rows = await store.changes(EVERYTHING)
        assert [(row.client_correlation_id, row.phase) for row in rows] == [
            (f"client-{name}", Phase.PROCESSING) for name in names
        ]
        assert await store.changes(2) == rows[:2]

    @shows("A-57")
    async def test_what_the_central_ledger_has_is_not_fed_again(self, store: AuditableStore) -> None:
        """The row notes when it arrived there."""
        for name in ("1", "2"):
            await register(store, name)
        first, second = await store.changes(10)
        await store.synced([first], T0 + 5)
        assert await store.changes(10) == [second]
        assert await store.entries(Find("server-1")) == [replace(first, sync_timestamp=T0 + 5)]
        await store.synced([second], T0 + 6)
        assert await store.changes(10) == []

    @shows("A-57")
    async def test_a_newer_version_is_fed_again(self, store: AuditableStore) -> None:
        """It clears the time of arrival, for this version has not arrived."""
        intent = await register(store)
        await store.synced(await store.changes(10), T0 + 5)
        await confirm(store, intent)
        (row,) = await store.changes(10)
        assert (row.version, row.sync_timestamp) == (2, None)

    @shows("A-57")
    async def test_an_acknowledgement_counts_for_its_version_alone(self, store: AuditableStore) -> None:
        """The row moved on while the batch was under way."""
        intent = await register(store)
        shipped = await store.changes(10)
        await confirm(store, intent)
        await store.synced(shipped, T0 + 5)
        (row,) = await store.changes(10)
        assert (row.version, row.phase, row.sync_timestamp) == (2, Phase.PROCESSING, None)

    @shows("A-57", "OBL-OV-1")
    async def test_rows_are_marked_with_the_rest_of_a_change_or_not_at_all(self, store: AuditableStore) -> None:
        """The shipment that brought them is settled by the same change."""
        await register(store)
        await reserve(store, "shipment")
        arrived = (Synced(await store.changes(10), T0 + 5),)
        key = by_id("shipment")

        def commit(records: Records, *, version: int) -> Change:
            change = obligation_change(decide(records.get(key), Commit(trace_id="t"), records.now))
            record = replace(change.puts[0].record, version=version)  # type: ignore[type-var]
            return replace(change, synced=arrived, puts=(replace(change.puts[0], record=record),))

        with pytest.raises(StoreError):
            await store.transact(AdHocCommand((key,), lambda records: commit(records, version=7)))
        assert len(await store.changes(10)) == 1
        await store.transact(AdHocCommand((key,), lambda records: commit(records, version=2)))
        assert await store.changes(10) == []
        assert (await read(store, key)).state == "Committed"

    @shows("A-59", "A-57")
    async def test_a_row_is_purged_once_it_arrived_and_its_record_is_gone(self, store: AuditableStore) -> None:
        """It leaves a line; what was not sent stays, and so does what may still be asked for."""
        for name in ("1", "2", "3"):
            await settle(store, await confirm(store, await register(store, name)))
        first, _second, third = await store.changes(10)
        await store.synced([first, third], T0 + 5)
        for name in ("1", "2"):
            await _forget(store, name)
        assert await store.purgeable(T0 + 5, 10) == []
        outlived = await store.purgeable(T0 + 6, 10)
        assert [row.client_correlation_id for row in outlived] == ["client-1"]
        before = len(await verified_journal(store))
        await purge(store, *await store.entries(Tail()))
        assert {row.client_correlation_id for row in await store.entries(Tail())} == {"client-2", "client-3"}
        lines = (await verified_journal(store))[before:]
        assert [(line.event.kind, line.event.subject, line.event.event) for line in lines] == [
            ("entry", "server-1", "purged")
        ]
        assert await store.purgeable(EVERYTHING_SINCE, 10) == []
        assert [row.client_correlation_id for row in await store.changes(10)] == ["client-2"]

    @shows("A-59", "A-57")
    async def test_a_row_that_was_marked_again_is_not_purged(self, store: AuditableStore) -> None:
        """What was looked at is purged, or nothing; the oldest first, and as many as were asked for."""
        for name in ("1", "2"):
            await settle(store, await confirm(store, await register(store, name)))
        first, second = await store.changes(10)
        await store.synced([second], T0 + 5)
        await store.synced([first], T0 + 6)
        for name in ("1", "2"):
            await _forget(store, name)
        (outlived,) = await store.purgeable(EVERYTHING_SINCE, 1)
        assert outlived.client_correlation_id == "client-2"
        await store.synced([outlived], T0 + 7)
        await purge(store, outlived)
        assert len(await store.entries(Tail())) == len([first, second])

    @shows("A-59")
    async def test_another_guid_is_the_ledgers_own_in_every_row_and_for_good(self, store: AuditableStore) -> None:
        """What the rows say else stays, and whether they were sent."""
        assert await store.get_or_set_meta(LEDGER_ID, "claimed") == "claimed"
        for name in ("1", "2"):
            await register(store, name)
        first, second = await store.changes(10)
        await store.synced([first], T0 + 5)
        await store.reassign_ledger_id("issued")
        assert await store.changes(10) == [replace(second, service_ledger_id="issued")]
        assert {row.service_ledger_id for row in await store.entries(Tail())} == {"issued"}
        assert await store.get_or_set_meta(LEDGER_ID, "another") == "issued"
        line = (await verified_journal(store))[-1].event
        assert (line.event, line.before, line.after) == ("restamped", "claimed", "issued")

    async def test_acknowledging_unknown_rows_does_nothing(self, store: AuditableStore) -> None:
        """Nor does an empty acknowledgement."""
        await register(store)
        await store.synced([client_row()], T0)
        await store.synced([], T0)
        assert len(await store.changes(10)) == 1

    async def test_the_journal_is_one_chain(self, store: AuditableStore) -> None:
        """Over all records, without gaps, readable in pages."""
        for name in ("1", "2"):
            await settle(store, await confirm(store, await register(store, name)))
            await reserve(store, name, name)
        lines = await verified_journal(store)
        assert [line.event.subject for line in lines] == ["server-1"] * 3 + ["1"] + ["server-2"] * 3 + ["2"]
        assert [*await store.journal(0, 3), *await store.journal(3, 3), *await store.journal(6, 3)] == lines
        assert await store.journal(len(lines), 3) == []

    async def test_a_record_has_a_history_of_its_own(self, store: AuditableStore) -> None:
        """Found among all others, oldest first."""
        intents = [await register(store, name) for name in ("1", "2")]
        confirmed = [await confirm(store, intent) for intent in intents]
        for intent in confirmed:
            history = await store.history(pair_of(intent))
            assert [line.event.after for line in history] == ["WAITING_CONFIRM", "PROCESSING"]
            assert {line.event.subject for line in history} == {intent.server_correlation_id}

    async def test_the_first_value_of_a_setting_is_kept(self, store: AuditableStore) -> None:
        """Every later caller gets that value."""
        assert await store.get_or_set_meta("service_ledger_id", "first") == "first"
        assert await store.get_or_set_meta("service_ledger_id", "second") == "first"
        assert await store.get_or_set_meta("another", "") == ""

    async def test_a_setting_that_may_change_has_its_last_value(self, store: AuditableStore) -> None:
        """Whether or not there was one before."""
        await store.set_meta("seen", "first")
        await store.set_meta("seen", "second")
        assert await store.get_or_set_meta("seen", "never") == "second"
        assert await read(store, pair_of(await register(store))) is not None
