"""Taking rows in: every version once, in any order, nothing half, and only of their writer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.central.store.conftest import Open
from tests.central.store.scene import (
    FOURTEEN,
    LEDGER,
    T0,
    client_row,
    contents,
    everything,
    order,
    outcomes,
    send,
    send_each_by_its_writer,
    writer,
)
from twophp.central.ports import RowFilter
from twophp.central.proof import merkle
from twophp.central.stores.opening import open_central
from twophp.central.stores.store import CentralStore
from twophp.core.entry import FIELDS, LedgerEntry
from twophp.core.intent import Phase

pytestmark = pytest.mark.anyio


@pytest.mark.req("A-57", "P-9.8-0", "P-9.8-15")
async def test_a_row_is_kept_as_it_was_sent_with_the_time_of_its_arrival(store: CentralStore) -> None:
    sent = client_row(
        service_ledger_id=LEDGER,
        source="örders 支払い",
        transaction_reference="t",
        settled_at=T0 + 9,
        request_digest="d",
    )
    acks = await send(store, sent, at=T0 + 5)
    assert [(ack.outcome, ack.sync_timestamp, ack.version) for ack in acks] == [("stored", T0 + 5, 1)]
    [row] = await everything(store)
    assert row.sequence == 1
    assert row.entry == replace(sent, sync_timestamp=T0 + 5)
    assert set(FIELDS) <= set(type(row.entry).__struct_fields__)


@pytest.mark.req("A-57", "P-9.5-c")
async def test_a_batch_sent_again_is_acknowledged_again_and_changes_nothing(store: CentralStore) -> None:
    rows = [order(number) for number in range(20)]
    first = await send(store, *rows, at=T0)
    before, head = await everything(store), await store.head()
    again = await send(store, *rows, at=T0 + 60_000)
    assert outcomes(first) == ["stored"] * 20
    assert outcomes(again) == ["known"] * 20
    assert {ack.sync_timestamp for ack in again} == {T0}
    assert await everything(store) == before
    assert await store.head() == head


@pytest.mark.req("A-57")
async def test_acks_come_in_the_order_of_the_batch_whatever_became_of_each(store: CentralStore) -> None:
    await send(store, order(1, version=2), order(2), order(3))
    batch = [
        order(9),
        order(1),
        order(2),
        order(3, version=2),
        order(2, ttl_ms=1),
        order(4, target="nobody"),
        order(5, service_ledger_id="another"),
        order(9),
    ]
    acks = await send(store, *batch, at=T0 + 1)
    told = ["stored", "older", "known", "stored", "version_conflict", "broken_rule", "foreign_row", "known"]
    assert outcomes(acks) == told
    assert [ack.client_correlation_id for ack in acks] == [row.client_correlation_id for row in batch]
    assert len(await everything(store)) == 4


@pytest.mark.req("A-57", "P-10.2-d")
async def test_a_newer_version_replaces_the_row_and_moves_it_to_the_end(store: CentralStore) -> None:
    await send(store, order(1, phase=Phase.WAITING_CONFIRM), order(2))
    await send(store, order(1, version=3), at=T0 + 7)
    assert [(row.sequence, row.entry.version) for row in await everything(store)] == [(2, 1), (3, 3)]
    assert [service.rows for service in await store.services()] == [2]


@pytest.mark.req("A-57")
async def test_several_versions_in_one_batch_leave_the_newest_and_a_leaf_each(store: CentralStore) -> None:
    acks = await send(store, order(1, version=1), order(1, version=3), order(1, version=2))
    assert outcomes(acks) == ["stored", "stored", "older"]
    assert [(row.sequence, row.entry.version) for row in await everything(store)] == [(2, 3)]
    assert (await store.head()).size == 2


@pytest.mark.req("A-57")
async def test_a_large_batch_is_one_batch(store: CentralStore) -> None:
    """Known, new and repeated rows far apart: however it is written, every leaf has its row or a newer one."""
    await send(store, *(order(number) for number in range(700, 720)))
    batch = [*(order(number) for number in range(1_500)), order(3, version=2)]
    told = outcomes(await send(store, *batch, at=T0 + 1))
    assert (told.count("stored"), told.count("known")) == (1_481, 20)
    rows, head = await everything(store), await store.head()
    assert (len(rows), head.size) == (1_500, 1_501)
    for row in rows[::50]:
        assert await store.leaf(row.sequence) == merkle.leaf_hash(row.entry)


@pytest.mark.req("A-57")
async def test_one_version_with_two_contents_is_refused_and_alarmed_once(store: CentralStore) -> None:
    await send(store, order(1))
    forged = order(1, transaction_reference="rewritten")
    for _again in range(2):
        [ack] = await send(store, forged, at=T0 + 3)
        assert (ack.outcome, ack.code, ack.sync_timestamp) == ("refused", "version_conflict", None)
    assert await contents(store) == [order(1)]
    [alarm] = await store.alarms()
    assert (alarm.code, alarm.at, alarm.service_ledger_id) == ("version_conflict", T0 + 3, LEDGER)
    assert (alarm.client_correlation_id, alarm.server_correlation_id) == ("client-1", "server-1")


@pytest.mark.req("P-12.4-b", "P-12.4-c")
async def test_a_row_of_another_writer_is_refused_and_alarmed(store: CentralStore) -> None:
    await send(store, order(1))
    [ack] = await send(store, order(1, version=2), ledger="another ledger")
    assert (ack.outcome, ack.code) == ("refused", "foreign_row")
    assert await contents(store) == [order(1)]
    [alarm] = await store.alarms()
    assert (alarm.code, alarm.service_ledger_id) == ("foreign_row", "another ledger")


BROKEN: dict[str, dict[str, Any]] = {
    "target is set": {"target": "somebody"},
    "inbound id as parent": {"parent_reference_id": "elsewhere"},
    "outcome is the final phase": {"outcome": None},
    "one of the six": {"phase": Phase.ABSENT, "outcome": None},
    "ttl_ms": {"ttl_ms": 0},
    "version": {"version": 0},
    "both correlation ids": {"server_correlation_id": ""},
    "endpoint are named": {"service_endpoint": ""},
    "at most 255": {"server_correlation_id": "s" * 256},
    "texts of a row are short": {"transaction_reference": "x" * 10_000},
    "2**53": {"phase_1_timestamp": 2**63},
    "from 0": {"settled_at": -1},
    "character 0": {"source": "orders\0"},
    "is Unicode": {"source": "orders\ud800"},
    "a text is Unicode, without": {"server_correlation_id": "s\0"},
    "a text is Unicode": {"server_correlation_id": "\ud800"},
}


@pytest.mark.req("P-9.8-07b", "P-10.2-e", "P-9.8-0", "A-45")
@pytest.mark.parametrize("rule", BROKEN)
async def test_a_row_that_breaks_a_rule_is_refused_and_the_others_are_not(store: CentralStore, rule: str) -> None:
    acks = await send(store, order(1), replace(order(2), **BROKEN[rule]), order(3))
    assert outcomes(acks) == ["stored", "broken_rule", "stored"]
    assert rule in (acks[1].detail or "")
    assert await contents(store) == [order(1), order(3)]
    assert await store.alarms() == []


@pytest.mark.req("P-9.8-07", "A-49")
async def test_a_client_row_without_a_target_or_with_a_phase_it_cannot_know_is_refused(store: CentralStore) -> None:
    mine = client_row(service_ledger_id=LEDGER)
    rows = [replace(mine, target=None), replace(mine, phase=Phase.ABANDONED, outcome=Phase.ABANDONED)]
    rows.append(replace(mine, parent_reference_id=""))
    assert outcomes(await send(store, *rows)) == ["broken_rule"] * 3


async def test_a_batch_that_cannot_be_written_leaves_nothing_behind(
    store: CentralStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(store, order(1))
    before, head, services = await everything(store), await store.head(), await store.services()
    with monkeypatch.context() as patch:
        patch.setattr(merkle, "appended", _fail)
        with pytest.raises(ValueError, match="disk"):
            await send(store, order(1, version=2), order(2), order(3, service_ledger_id="another"), at=T0 + 1)
    assert (await everything(store), await store.head(), await store.services()) == (before, head, services)
    assert await store.alarms() == []
    assert outcomes(await send(store, order(1, version=2), order(2))) == ["stored", "stored"]


def _fail(*_args: object) -> None:
    raise ValueError("the disk is gone")


@pytest.mark.req("P-9.1-a", "A-59")
async def test_what_was_acknowledged_is_there_after_a_restart(store: CentralStore, lasting: Open) -> None:
    await send_each_by_its_writer(store, FOURTEEN)
    before, head = await everything(store), await store.head()
    await store.close()
    again = await lasting()
    assert await everything(again) == before
    assert await again.head() == head
    assert len(await again.services()) == 8


@pytest.mark.req("A-57", "P-10.2-d")
async def test_two_processes_that_take_up_the_same_rows_make_one_of_each(store: CentralStore, lasting: Open) -> None:
    other = await lasting()
    await writer(store)
    rows = [order(number) for number in range(30)]
    halves = [rows[:20], rows[10:], rows[::-1], [replace(row, version=2) for row in rows[::3]]]
    acks = await asyncio.gather(
        *(send(handle, *half) for half in halves for handle in (store, other)),
    )
    assert {outcome for told in acks for outcome in outcomes(told)} <= {"stored", "known", "older"}
    found = await everything(store)
    assert len(found) == 30
    assert len({row.sequence for row in found}) == 30
    assert sum(outcomes(told).count("stored") for told in acks) == (await store.head()).size


async def test_an_empty_batch_is_a_sign_of_life(store: CentralStore) -> None:
    assert await send(store, at=T0 + 99) == []
    [service] = await store.services()
    assert (service.last_sync_at, service.rows) == (T0 + 99, 0)


VERSIONS = [order(number, version=version) for number in range(3) for version in range(1, 4)]


@pytest.mark.req("A-57", "P-9.5-c")
@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.sampled_from(VERSIONS), max_size=6), max_size=8))
def test_in_whatever_order_and_however_often_the_newest_version_is_what_remains(
    batches: Sequence[Sequence[LedgerEntry]],
) -> None:
    async def run() -> list[LedgerEntry]:
        store = await open_central("memory:")
        for batch in batches:
            await send(store, *batch)
        found = await contents(store)
        page = await store.entries(RowFilter())
        assert len({row.sequence for row in page.rows}) == len(found)
        await store.close()
        return found

    newest: dict[str, LedgerEntry] = {}
    for row in (row for batch in batches for row in batch):
        before = newest.get(row.client_correlation_id, row)
        newest[row.client_correlation_id] = max(before, row, key=lambda row: row.version)
    assert asyncio.run(run()) == [newest[id_] for id_ in sorted(newest)]
