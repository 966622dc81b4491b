"""Each kind of tampering is found, with its place; and nothing is found where nobody tampered."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.profile import STEADY
from tests.stores.orders import POLICY, T0, HandClock, orders, raw
from tests.stores.verifying import filled, forgotten, found, messages
from twophp.core.errors import ConfigError, JournalBroken, SchemaMismatch
from twophp.core.records import JournalEvent
from twophp.engine.retention import RETENTION_MS
from twophp.kernel.journal import GENESIS, link
from twophp.stores.sqlite.verify import Head, Report, verify


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return filled(tmp_path / "orders.db")


def head_of(path: Path) -> Head:
    [(seq, digest)] = raw(path, "SELECT seq, hash FROM head")
    assert isinstance(seq, int)
    assert isinstance(digest, bytes)
    return Head(seq, digest)


def rechain(path: Path, start: int = 1) -> None:
    """What a careful forger does: every hash from ``start`` on computed anew, and the head."""
    digest = GENESIS
    for (seq, *_), row in zip(raw(path, "SELECT seq FROM journal ORDER BY seq"), lines(path), strict=True):
        if isinstance(seq, int) and seq >= start:
            digest = link(digest, seq, row[1], JournalEvent(*row[2:-1]))
            raw(path, "UPDATE journal SET hash = ? WHERE seq = ?", digest, seq)
        else:
            digest = row[-1]
    raw(path, "UPDATE head SET hash = ?, seq = (SELECT max(seq) FROM journal)", digest)


def lines(path: Path) -> list[tuple[Any, ...]]:
    return raw(path, "SELECT * FROM journal ORDER BY seq")


@pytest.mark.req("P-9.1-a")
def test_an_untouched_database_holds(database: Path) -> None:
    report = verify(str(database))
    assert report.holds, report.findings
    assert (report.lines, report.records) == (17, 7)
    assert report.head == head_of(database) == Head.parse(str(report.head))
    report.require()
    assert verify(str(database), expect=report.head).holds


def test_an_empty_database_holds(tmp_path: Path) -> None:
    async def make() -> None:
        async with orders(tmp_path / "orders.db"):
            pass

    asyncio.run(make())
    assert verify(str(tmp_path / "orders.db")).holds


def test_a_database_in_use_holds_at_every_moment(tmp_path: Path) -> None:
    """Renewals, purges and forgetting too: whatever the machine does by itself is no finding."""

    async def scenario() -> None:
        clock, path = HandClock(), tmp_path / "orders.db"
        async with orders(path, clock=clock) as service:

            async def verified() -> Report:
                return await asyncio.to_thread(verify, str(path))

            await service.register(1)
            intent = await service.confirm(1)
            assert (await service.intents.renew(intent, POLICY)).changed
            assert (await verified()).holds
            await service.settle(1)
            await service.register(2)
            for wait_ms in (POLICY.ttl_ms, POLICY.delta_ms, POLICY.payload_retention_ms, POLICY.horizon_ms):
                clock.now += wait_ms
                await service.sweep()
                report = await verified()
                assert report.holds, report.findings
            assert report.records == 0  # Both were forgotten; their ledger rows and lines remain.

    asyncio.run(scenario())


# Lines.


def test_the_journal_cannot_be_changed_by_a_plain_connection(database: Path) -> None:
    connection = apsw.Connection(str(database))
    for statement in ("UPDATE journal SET detail = 'x' WHERE seq = 2", "DELETE FROM journal WHERE seq = 2"):
        with pytest.raises(apsw.ConstraintError, match="append-only"):
            connection.execute(statement)
    connection.close()
    assert found(database) == []


JOURNAL_COLUMNS = {
    "record": 99,
    "kind": "obligation",
    "subject": "s9",
    "event": "FAILED",
    "before": "FAILED",
    "at": 1,
    "observed_at": 1,
    "fence": 9,
    "trace_id": "x",
    "detail": "x",
    "hash": b"x" * 32,
}


@pytest.mark.parametrize("column", JOURNAL_COLUMNS)
def test_an_edited_line_is_found(database: Path, column: str) -> None:
    raw(database, f"UPDATE journal SET {column} = ? WHERE seq = 5", JOURNAL_COLUMNS[column])  # noqa: S608
    what, seq, subject = found(database)[0]
    assert (what, seq) == ("edited_line", 5)
    assert subject == ("s9" if column == "subject" else "s1")
    assert "expected hash" in messages(database)
    with pytest.raises(JournalBroken, match="line 5"):
        verify(str(database)).require()


def test_an_edited_line_with_a_new_hash_of_its_own_is_found_at_the_next(database: Path) -> None:
    [(_, before), *_] = raw(database, "SELECT seq, hash FROM journal WHERE seq = 4")
    raw(database, "UPDATE journal SET detail = 'x' WHERE seq = 5")
    row = lines(database)[4]
    assert isinstance(before, bytes)
    raw(database, "UPDATE journal SET hash = ? WHERE seq = 5", link(before, 5, row[1], JournalEvent(*row[2:-1])))
    assert found(database) == [("edited_line", 6, "s1")]


@pytest.mark.parametrize(("first", "last"), [(1, 1), (5, 5), (5, 9)])
def test_deleted_lines_are_found(database: Path, first: int, last: int) -> None:
    raw(database, "DELETE FROM journal WHERE seq BETWEEN ? AND ?", first, last)
    assert found(database)[0] == ("missing_lines", first, "")
    message = f"line {first} is missing" if first == last else f"lines {first} to {last} are missing"
    assert message in messages(database)


def test_a_deleted_line_whose_gap_was_closed_is_found(database: Path) -> None:
    raw(database, "DELETE FROM journal WHERE seq = 5")
    raw(database, "UPDATE journal SET seq = seq - 1 WHERE seq > 5")
    raw(database, "UPDATE head SET seq = seq - 1")
    assert found(database)[0][:2] == ("edited_line", 5)


def test_swapped_lines_are_found(database: Path) -> None:
    for old, new in ((2, 1000), (3, 2), (1000, 3)):
        raw(database, "UPDATE journal SET seq = ? WHERE seq = ?", new, old)
    assert [finding[:2] for finding in found(database)][:2] == [("edited_line", 2), ("edited_line", 3)]


def test_a_line_that_is_no_text_is_found_and_the_rest_is_read(database: Path) -> None:
    raw(database, "UPDATE journal SET detail = CAST(x'ff' AS TEXT) WHERE seq = 5")
    raw(database, "UPDATE journal SET detail = 'x' WHERE seq = 8")
    assert [finding[:2] for finding in found(database)] == [("edited_line", 5), ("edited_line", 8)]


def test_a_truncated_tail_is_found(database: Path) -> None:
    raw(database, "DELETE FROM journal WHERE seq > 15")
    assert ("truncated", 16, "") in found(database)
    assert "ends at line 15; its head says that there are 17" in messages(database)


def test_a_journal_that_is_gone_altogether_is_found(database: Path) -> None:
    raw(database, "DELETE FROM journal")
    assert found(database)[0] == ("truncated", 1, "")


def test_a_rewritten_head_is_found(database: Path) -> None:
    raw(database, "UPDATE head SET hash = x'00'")
    assert found(database) == [("rewritten_head", 17, "")]
    raw(database, "UPDATE head SET seq = 10")
    assert found(database) == [("rewritten_head", 11, "")]


def test_a_truncated_tail_with_a_head_to_match_is_found_by_the_records(database: Path) -> None:
    raw(database, "DELETE FROM journal WHERE seq > 11")
    rechain(database, 12)
    assert ("record_differs", 11, "s3") in found(database)


def test_a_line_appended_behind_the_head_is_found(database: Path) -> None:
    raw(database, "INSERT INTO journal SELECT 18, record, kind, subject, event, before, after, at, observed_at, fence,"
        " trace_id, detail, hash FROM journal WHERE seq = 17")  # fmt: skip
    assert ("rewritten_head", 18, "") in found(database)


def test_a_history_rewritten_as_a_whole_is_found_by_a_head_noted_before(database: Path) -> None:
    noted = head_of(database)
    raw(database, "UPDATE journal SET detail = 'forged' WHERE seq = 5")
    rechain(database)
    assert found(database) == []  # Nothing inside the file can tell.
    assert found(database, noted) == [("other_history", 17, "")]
    raw(database, "DELETE FROM journal WHERE seq = 17")
    raw(database, "DELETE FROM obligation")
    rechain(database)
    assert found(database, noted) == [("other_history", 17, "")]


def test_a_head_noted_before_is_still_passed_through_later(database: Path) -> None:
    noted = head_of(database)

    async def go_on() -> None:
        async with orders(database, clock=HandClock(T0 + POLICY.ttl_ms + POLICY.delta_ms)) as service:
            await service.take(9)

    asyncio.run(go_on())
    assert head_of(database) != noted
    assert found(database, noted) == []


# Records and ledger rows.


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("phase = 'FAILED'", "phase is FAILED, expected COMMITTED, as line 6 says"),
        ("server_correlation_id = 'sX'", "id is sX, expected s1, as line 6 says"),
        ("fence = 7", "fence is 7, expected 1, as line 6 says"),
        ("phase = 'NONSENSE'", "cannot be read"),
    ],
)
def test_a_record_that_is_not_what_the_journal_says_is_found(database: Path, change: str, expected: str) -> None:
    raw(database, f"UPDATE intent SET {change} WHERE server_correlation_id = 's1'")  # noqa: S608
    assert found(database)[0][:2] == ("record_differs", 6)
    assert expected in messages(database)


def test_an_obligation_that_is_not_what_the_journal_says_is_found(database: Path) -> None:
    raw(database, "UPDATE obligation SET state = 'Committed'")
    assert found(database) == [("record_differs", 17, "o1")]
    assert "state is Committed, expected Reserved, as line 17 says" in messages(database)


def test_a_record_out_of_nowhere_is_found(database: Path) -> None:
    raw(database, "UPDATE intent SET id = 99 WHERE server_correlation_id = 's1'")
    kinds = found(database)
    assert ("record_differs", None, "s1") in kinds
    assert ("record_missing", 4, "s1") in kinds


@pytest.mark.parametrize(("table", "seq", "subject"), [("intent", 1, "s0"), ("obligation", 17, "o1")])
def test_a_deleted_record_is_found(database: Path, table: str, seq: int, subject: str) -> None:
    raw(database, f"DELETE FROM {table} WHERE id = (SELECT min(id) FROM {table})")  # noqa: S608
    assert found(database) == [("record_missing", seq, subject)]


ENTRY_COLUMNS = {
    "client_correlation_id": "cX",
    "server_correlation_id": "sX",
    "service_ledger_id": "another",
    "service_endpoint": "elsewhere",
    "actor": "client",
    "source": "payments",
    "target": "x",
    "parent_reference_id": "x",
    "phase": "FAILED",
    "phase_1_timestamp": 1,
    "phase_2_timestamp": None,
    "ttl_ms": 1,
    "outcome": "FAILED",
    "payload_ref": "elsewhere",
    "transaction_reference": "x",
    "mode": "async",
    "client_id_is_proxy": 1,
    "version": 99,
    "settled_at": 1,
    "request_digest": "another",
    "indeterminate": 1,
}


@pytest.mark.parametrize("column", ENTRY_COLUMNS)
def test_a_ledger_row_that_is_not_what_its_record_says_is_found(database: Path, column: str) -> None:
    raw(database, f"UPDATE entry SET {column} = ? WHERE server_correlation_id = 's1'", ENTRY_COLUMNS[column])  # noqa: S608
    assert found(database) == [("entry_differs", 6, "s1")]
    assert f"ledger row of intent s1: {column} is " in messages(database)


def test_a_ledger_row_that_central_has_seen_is_no_finding(database: Path) -> None:
    raw(database, "UPDATE entry SET sync_timestamp = 1")
    assert found(database) == []


def test_a_ledger_row_with_a_phase_that_is_none_is_found(database: Path) -> None:
    raw(database, "UPDATE entry SET phase = 'NONSENSE' WHERE server_correlation_id = 's1'")
    assert found(database) == [("entry_differs", 6, "s1")]


def test_a_record_or_ledger_row_that_is_no_text_is_found(database: Path) -> None:
    raw(database, "UPDATE intent SET path = CAST(x'ff' AS TEXT) WHERE server_correlation_id = 's1'")
    assert found(database) == [("record_differs", None, "")]


def test_a_deleted_ledger_row_is_found(database: Path) -> None:
    raw(database, "DELETE FROM entry WHERE server_correlation_id = 's1'")
    assert found(database) == [("entry_missing", 6, "s1")]


@pytest.mark.req("A-59", "A-57")
def test_a_purged_row_is_explained_and_a_row_that_was_taken_away_is_found(database: Path) -> None:
    assert asyncio.run(forgotten(database, s0=T0 - RETENTION_MS, s1=T0 + 3 * POLICY.horizon_ms)) == 1
    left = {row[0] for row in raw(database, "SELECT server_correlation_id FROM entry")}
    assert left == {f"s{n}" for n in range(1, 6)}, "what arrived lately stays, and what never arrived"
    assert found(database) == []
    raw(database, "DELETE FROM entry WHERE server_correlation_id IN ('s1', 's2')")
    assert found(database) == [("entry_missing", 4, "s1"), ("entry_missing", 7, "s2")]


def test_a_ledger_row_out_of_nowhere_and_one_of_the_forgotten_are_checked(database: Path) -> None:
    assert asyncio.run(forgotten(database)) == 0, "nothing was ever sent"
    assert found(database) == []
    raw(database, "UPDATE entry SET phase = 'FAILED' WHERE server_correlation_id = 's1'")
    [(what, _, subject)] = found(database)
    assert (what, subject) == ("entry_differs", "s1")
    raw(database, "UPDATE entry SET id = 999, phase = 'COMMITTED' WHERE server_correlation_id = 's1'")
    assert found(database)[1:] == [("entry_missing", 4, "s1"), ("entry_differs", None, "s1")]
    assert "the head's next id is 8, and 999 was given away" in messages(database)


# The report.


@given(st.text(max_size=80))
@STEADY
def test_a_head_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Head.parse(text)
    assert refused.value.code == "bad_head"


def test_many_findings_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"

    async def fill() -> None:
        async with orders(path) as service:
            await asyncio.gather(*(service.register(n) for n in range(300)))

    asyncio.run(fill())
    raw(path, "UPDATE journal SET trace_id = 'x'")
    report = verify(str(path))
    assert (report.findings_count, len(report.findings)) == (300, 100)


def test_progress_reaches_its_end_and_memory_does_not_grow(tmp_path: Path) -> None:
    def peak(orders_count: int) -> int:
        path = tmp_path / f"{orders_count}.db"

        async def fill() -> None:
            async with orders(path) as service:
                await asyncio.gather(*(service.register(n) for n in range(orders_count)))

        asyncio.run(fill())
        seen: list[tuple[int, int]] = []
        verify(str(path), progress=lambda *so_far: seen.append(so_far))
        assert seen[0] == (0, 2 * orders_count)
        assert seen[-1] == (2 * orders_count, 2 * orders_count)
        assert seen == sorted(seen)
        tracemalloc.start()
        assert verify(str(path)).holds
        peaked = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peaked

    peak(10)  # Whatever is made once is made by now.
    assert peak(3_000) < peak(300) + 100_000


def test_what_is_not_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with pytest.raises(ConfigError) as missing:
        verify(str(path))
    assert missing.value.code == "no_such_database"
    assert not path.exists()
    raw(path, "CREATE TABLE theirs (x)")
    with pytest.raises(SchemaMismatch) as foreign:
        verify(str(path))
    assert foreign.value.code == "foreign_database"


@pytest.mark.parametrize(("version", "remedy"), [(99, "upgrade"), (0, "migrates")])
def test_another_schema_is_refused(database: Path, version: int, remedy: str) -> None:
    raw(database, f"PRAGMA user_version = {version}")
    with pytest.raises(SchemaMismatch, match=remedy):
        verify(str(database))
