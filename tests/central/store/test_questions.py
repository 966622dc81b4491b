"""The draft's four questions (§10.4), search, the live feed, export and the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from tests.central.store.scene import (
    FOURTEEN,
    LEDGER,
    T0,
    client_row,
    contents,
    everything,
    order,
    send,
    send_each_by_its_writer,
    server_row,
)
from twophp.central.ports import Row, RowFilter, Sla
from twophp.central.stores.postgres import PostgresCentral
from twophp.central.stores.sqlite import SqliteCentral
from twophp.central.stores.sqlite.database import SQL
from twophp.central.stores.store import CentralStore
from twophp.core.calltree import call_tree
from twophp.core.entry import LedgerEntry
from twophp.core.errors import Refused
from twophp.core.intent import Mode, Phase
from twophp.core.pairing import Verdict, pair_up

pytestmark = pytest.mark.anyio

DAY_MS = 86_400_000
MEMBERS = sorted({id_ for row in FOURTEEN for id_ in (row.client_correlation_id, row.server_correlation_id)})


def sent(rows: Sequence[Row]) -> list[LedgerEntry]:
    return [replace(row.entry, sync_timestamp=None) for row in rows]


async def test_the_databases_are_the_ones_that_were_asked_for(store: CentralStore, url: str) -> None:
    assert isinstance(store, PostgresCentral if url.startswith("postgresql") else SqliteCentral)


@pytest.mark.req("P-10.4-a", "P-10.1-a", "P-10.1-b", "A-53", "A-50", "P-9.4-d")
async def test_the_whole_tree_is_found_from_any_member(store: CentralStore) -> None:
    await send_each_by_its_writer(store, FOURTEEN)
    await send(store, *(order(number) for number in range(50)))  # Calls of another tree.
    for member in MEMBERS:
        rows = sent(await store.tree(member))
        assert len(rows) == 14
        assert call_tree(rows, member).rows() == FOURTEEN


@pytest.mark.req("A-53")
async def test_a_tree_ends_though_rows_point_at_each_other_and_has_no_more_rows_than_asked(store: CentralStore) -> None:
    around = [
        client_row("client-a", parent="client-b", service_ledger_id=LEDGER),
        client_row("client-b", parent="client-a", service_ledger_id=LEDGER),
    ]
    await send(store, *around)
    assert sent(await store.tree("client-a")) == around
    assert await store.tree("nobody") == []
    await send_each_by_its_writer(store, FOURTEEN)
    assert len(await store.tree("client-corr-id1", limit=5)) == 5


@pytest.mark.req("A-48", "A-53")
async def test_calls_made_for_one_that_has_no_row_are_found_by_it(store: CentralStore) -> None:
    child = client_row("client-2", parent="client-1", service_ledger_id=LEDGER)
    await send(store, child)
    assert sent(await store.tree("client-1")) == [child]
    assert sent(await store.tree("server-2")) == [child]


@pytest.mark.req("P-10.4-b", "P-9.4-d")
async def test_what_a_service_initiated(store: CentralStore) -> None:
    await send_each_by_its_writer(store, FOURTEEN)
    page = await store.entries(RowFilter(source="serviceA", actor="client"))
    assert sent(page.rows)[::-1] == [FOURTEEN[2], FOURTEEN[4], FOURTEEN[6]]


@pytest.mark.req("P-10.4-c", "P-9.1-c", "P-9.4-d")
async def test_dual_registration_is_told_from_the_rows_of_the_pairs(store: CentralStore) -> None:
    await send_each_by_its_writer(store, FOURTEEN[:-1])
    wanted = sorted({(row.client_correlation_id, row.server_correlation_id) for row in FOURTEEN})
    rows = await store.of_pairs([*wanted, ("client-corr-id1", "server-corr-id2"), wanted[0]])
    assert len(rows) == 13
    verdicts = [pair.verdict for pair in pair_up(sent(rows))]
    assert sorted(verdicts) == [Verdict.CLIENT_ONLY] + [Verdict.PAIRED] * 6


@pytest.mark.req("P-10.4-d", "P-9.4-d", "A-54")
async def test_what_stalled(store: CentralStore) -> None:
    phases = list(Phase)[1:]
    await send(store, *(order(number, phase=phase) for number, phase in enumerate(phases)))
    stalled = frozenset({Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED})
    assert {row.entry.phase for row in (await store.entries(RowFilter(phases=stalled))).rows} == stalled
    running = await store.entries(RowFilter(phases=frozenset({Phase.PROCESSING})))
    assert [row.entry.phase for row in running.rows] == [Phase.PROCESSING]
    ended = await store.entries(RowFilter(phases=frozenset({Phase.COMMITTED, Phase.TTL_EXPIRED})))
    assert [row.entry.phase for row in ended.rows] == [Phase.TTL_EXPIRED, Phase.COMMITTED]


QUESTIONS: dict[str, dict[str, Any]] = {
    "initiated": {"source": "serviceA", "actor": "client"},
    "indeterminate": {"indeterminate": True},
    "stalled": {"phases": frozenset({Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED})},
    "either id": {"correlation_id": "client-1"},
}


async def plan(store: SqliteCentral, statement: str, values: tuple[Any, ...]) -> list[str]:
    def ask(connection: apsw.Connection) -> list[str]:
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]

    return await store._database.read(ask)


@pytest.mark.req("P-9.4-d")
async def test_the_drafts_questions_are_answered_from_indexes() -> None:
    """SQLite says how it would find the rows: never one by one through the whole table."""
    store = SqliteCentral(None)
    plans = {"tree": ("tree", ("client-1", 100)), "pairs": ("of_pairs", ("[]",))}
    asked = {name: (SQL[statement], values) for name, (statement, values) in plans.items()}
    for name, wanted in QUESTIONS.items():
        statement, values = store._filtered("entries", RowFilter(**wanted), None)
        asked[name] = (statement, (*values, 100))
    for name, (statement, values) in asked.items():
        steps = await plan(store, statement, values)
        assert any("INDEX entry_" in step or "SEARCH spot USING INTEGER PRIMARY KEY" in step for step in steps), name
        assert [step for step in steps if step.startswith("SCAN entry") and "INDEX" not in step] == [], name
        assert [step for step in steps if "AUTOMATIC" in step] == [], name
    await store.close()


WANTED: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["E14", "E13", "E12", "E11", "E10", "E09", "E08", "E07", "E06", "E05", "E04", "E03", "E02", "E01"]),
    ({"correlation_id": "client-corr-id4"}, ["E08", "E07"]),
    ({"correlation_id": "server-corr-id4"}, ["E08", "E07"]),
    ({"service_ledger_id": "ledger of serviceB1"}, ["E09", "E04"]),
    ({"source": "serviceB1"}, ["E09", "E04"]),
    ({"source": "serviceB1", "actor": "server"}, ["E04"]),
    ({"target": "serviceB1"}, ["E03"]),
    ({"service_endpoint": "serviceB1/orders"}, ["E04", "E03"]),
    ({"actor": "client", "correlation_id": "client-corr-id4"}, ["E07"]),
    ({"since": T0 + 5, "until": T0 + 7}, ["E06", "E05"]),
    ({"since": T0 + 5, "source": "serviceA"}, ["E07", "E05"]),
    ({"source": "nobody"}, []),
    ({"indeterminate": True}, []),
    ({"indeterminate": False, "target": "serviceB1"}, ["E03"]),
]


@pytest.mark.parametrize(("wanted", "names"), WANTED)
async def test_rows_are_found_by_what_is_asked(store: CentralStore, wanted: dict[str, Any], names: list[str]) -> None:
    rows = [replace(row, phase_1_timestamp=T0 + number) for number, row in enumerate(FOURTEEN, 1)]
    for row in rows:
        await send(store, row, ledger=row.service_ledger_id)
    page = await store.entries(RowFilter(**wanted))
    assert [f"E{rows.index(entry) + 1:02}" for entry in sent(page.rows)] == names
    exported = [row async for chunk in store.export(RowFilter(**wanted)) for row in chunk]
    assert exported == list(reversed(page.rows))


async def test_pages_follow_each_other_while_rows_arrive(store: CentralStore) -> None:
    await send(store, *(order(number) for number in range(25)))
    seen: list[int] = []
    cursor = None
    for _page in range(3):
        page = await store.entries(RowFilter(source="orders"), cursor=cursor, limit=10)
        seen += [row.sequence for row in page.rows]
        cursor = page.cursor
        await send(store, order(100 + len(seen)))
    assert seen == list(range(25, 0, -1))
    assert cursor is None


@pytest.mark.parametrize("cursor", ["", "-1", "x", "1.5", "٣", "9" * 30, "1\0"])
async def test_a_cursor_that_no_page_gave_out_is_refused(store: CentralStore, cursor: str) -> None:
    with pytest.raises(Refused) as refused:
        await store.entries(RowFilter(), cursor=cursor)
    assert refused.value.code == "bad_cursor"


@pytest.mark.parametrize("id_", ["x\0y", "\ud800", "'; DROP TABLE entry; --", "", "x" * 10_000])
async def test_whatever_is_asked_for_is_not_found(store: CentralStore, id_: str) -> None:
    await send(store, order(1))
    assert (await store.entries(RowFilter(correlation_id=id_, source=id_))).rows == []
    assert await store.tree(id_) == []
    assert await store.of_pairs([(id_, id_)]) == []
    assert [chunk async for chunk in store.export(RowFilter(target=id_))] == []


async def test_numbers_that_no_database_has_are_asked_about_in_vain(store: CentralStore) -> None:
    await send(store, order(1))
    assert await store.after(2**70, 10) == []
    assert (await store.entries(RowFilter(since=2**70))).rows == []
    assert len((await store.entries(RowFilter(until=2**70, since=-(2**70)))).rows) == 1
    assert await store.leaf(2**70) is None
    assert len(await store.sla(-(2**70), 2**70)) == 1


async def test_the_feed_tells_what_arrived_since(store: CentralStore) -> None:
    await send(store, order(1), order(2), order(3))
    assert [row.sequence for row in await store.after(0, 2)] == [1, 2]
    seen = (await store.head()).size
    await send(store, order(2, version=2), order(4))
    assert [(row.sequence, row.entry.client_correlation_id) for row in await store.after(seen, 10)] == [
        (4, "client-2"),
        (5, "client-4"),
    ]


async def test_an_export_is_of_one_moment_and_comes_in_pieces(store: CentralStore) -> None:
    await send(store, *(order(number) for number in range(2_500)))
    chunks = []
    async for chunk in store.export(RowFilter()):
        chunks.append(chunk)
        await send(store, order(9_000 + len(chunks)), order(2_400, version=1 + len(chunks)))
    assert [len(chunk) for chunk in chunks] == [1_000, 1_000, 500]
    assert [row.sequence for chunk in chunks for row in chunk] == list(range(1, 2_501))
    assert len(await everything(store)) == 2_503


async def test_an_export_that_nobody_reads_to_its_end_lets_go(store: CentralStore) -> None:
    await send(store, *(order(number) for number in range(1_200)))
    for _again in range(20):
        export = store.export(RowFilter())
        assert len(await anext(export)) == 1_000
        await export.aclose()
    assert len(await contents(store)) == 1_200


# The report. ----------------------------------------------------------------------------------------------------------


def measured(number: int, random: Random) -> LedgerEntry:
    phase = random.choice(list(Phase)[1:])
    mode = random.choice([Mode.STANDARD, Mode.STANDARD, Mode.ASYNC, Mode.AUTO_CONFIRM])
    began = T0 + random.randrange(3 * DAY_MS)
    waits = mode in (Mode.STANDARD, Mode.ASYNC) and phase in (Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED)
    confirmed = began + random.randrange(500) if waits else None
    ended = None if phase in (Phase.WAITING_CONFIRM, Phase.PROCESSING) else (confirmed or began) + random.randrange(90)
    endpoint = f"orders/{random.choice('ab')}"
    return order(
        number,
        phase=phase,
        mode=mode,
        phase_1_timestamp=began,
        phase_2_timestamp=confirmed,
        settled_at=ended,
        service_endpoint=endpoint,
        indeterminate=phase is Phase.FAILED and random.random() < 0.3,
    )


def ranked(values: Sequence[int], share: float) -> int | None:
    """The nearest rank: the smallest value that so large a share does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def expected(day: str, endpoint: str, rows: Sequence[LedgerEntry]) -> Sla:
    confirm = [row.phase_2_timestamp - row.phase_1_timestamp for row in rows if row.phase_2_timestamp is not None]
    done = [row for row in rows if row.phase in (Phase.COMMITTED, Phase.FAILED) and not row.indeterminate]
    settle = [row.settled_at - row.phase_2_timestamp for row in done if row.phase_2_timestamp and row.settled_at]
    over = [row for row in rows if row.mode is not Mode.AUTO_CONFIRM and row.phase is not Phase.WAITING_CONFIRM]
    count = {phase: sum(row.phase is phase for row in rows) for phase in Phase}
    return Sla(
        day=day,
        service_endpoint=endpoint,
        calls=len(rows),
        committed=count[Phase.COMMITTED],
        failed=sum(row.phase is Phase.FAILED and not row.indeterminate for row in rows),
        indeterminate=sum(row.indeterminate for row in rows),
        ttl_expired=count[Phase.TTL_EXPIRED],
        abandoned=count[Phase.ABANDONED],
        open=count[Phase.WAITING_CONFIRM] + count[Phase.PROCESSING],
        confirmation_rate=sum(row.phase_2_timestamp is not None for row in over) / len(over) if over else None,
        confirm_p50_ms=ranked(confirm, 0.5),
        confirm_p95_ms=ranked(confirm, 0.95),
        confirm_p99_ms=ranked(confirm, 0.99),
        settle_p50_ms=ranked(settle, 0.5),
        settle_p95_ms=ranked(settle, 0.95),
        settle_p99_ms=ranked(settle, 0.99),
    )


async def test_the_report_counts_and_ranks_by_day_and_endpoint(store: CentralStore) -> None:
    random = Random(7)  # noqa: S311
    rows = [measured(number, random) for number in range(400)]
    await send(store, *rows)
    await send(store, client_row(service_ledger_id=LEDGER))  # The server's word alone counts.
    until = T0 + 2 * DAY_MS
    report = await store.sla(T0, until)
    assert len(report) == 4
    for found in report:
        since = T0 + (int(found.day[-2:]) - 1) * DAY_MS
        of_day = [row for row in rows if since <= row.phase_1_timestamp < min(until, since + DAY_MS)]
        mine = [row for row in of_day if row.service_endpoint == found.service_endpoint]
        wanted = expected(found.day, found.service_endpoint, mine)
        assert replace(found, confirmation_rate=None) == replace(wanted, confirmation_rate=None)
        assert found.confirmation_rate == pytest.approx(wanted.confirmation_rate)


async def test_where_nothing_can_be_measured_nothing_is_said(store: CentralStore) -> None:
    await send(store, order(1, phase=Phase.WAITING_CONFIRM, phase_2_timestamp=None))
    [found] = await store.sla(T0, T0 + DAY_MS)
    assert (found.day, found.calls, found.open, found.confirmation_rate) == ("2026-01-01", 1, 1, None)
    assert (found.confirm_p50_ms, found.settle_p99_ms) == (None, None)
    assert await store.sla(T0 - DAY_MS, T0) == []


async def test_activity_is_told_in_steps(store: CentralStore) -> None:
    rows = [
        order(1, phase_1_timestamp=T0, phase_2_timestamp=T0 + 10, settled_at=T0 + 30),
        order(2, phase_1_timestamp=T0 + 59_999, phase=Phase.TTL_EXPIRED, phase_2_timestamp=None),
        order(3, phase_1_timestamp=T0 + 120_000, phase=Phase.PROCESSING, phase_2_timestamp=T0 + 120_004),
    ]
    await send(store, *rows, server_row("client-9", service_ledger_id=LEDGER, phase_1_timestamp=T0 + 999_999))
    first, second = await store.activity(T0, T0 + 180_000, 60_000)
    assert (first.at, first.committed, first.ttl_expired, first.confirm_p50_ms, first.settle_p99_ms) == (
        T0,
        1,
        1,
        10,
        20,
    )
    assert (second.at, second.open, second.confirm_p95_ms, second.settle_p50_ms) == (T0 + 120_000, 1, 4, None)
