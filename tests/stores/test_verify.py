"""Each kind of tampering is found, with its place; and an untouched database has no finding."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.profile import STEADY
from tests.stores import forging
from tests.stores.forging import head_of
from tests.stores.orders import POLICY, T0, HandClock, orders, raw
from tests.stores.verifying import filled, forgotten, found, messages
from twophp.core.errors import ConfigError, JournalBroken, SchemaMismatch
from twophp.stores.sqlite.verify import ProvenHead, Report, verify
from twophp.storing.bites import RETENTION_MS


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return filled(tmp_path / "orders.db")


@pytest.mark.req("P-9.1-a")
def test_an_untouched_database_holds(database: Path) -> None:
    report = verify(str(database))
    assert report.holds, report.findings
    assert (report.lines, report.records) == (17, 7)
    assert report.head == head_of(database) == ProvenHead.parse(str(report.head))
    report.require()
    assert verify(str(database), expect=report.head).holds


def test_an_empty_database_holds(tmp_path: Path) -> None:
    async def make() -> None:
        async with orders(tmp_path / "orders.db"):
            pass

    asyncio.run(make())
    assert verify(str(tmp_path / "orders.db")).holds


def test_a_database_in_use_holds_at_every_moment(tmp_path: Path) -> None:
    """Renewals, purges and forgetting too: no change that the machine makes by itself is a finding."""

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
    for statement in ("UPDATE link SET lines = '[]' WHERE id = 2", "DELETE FROM link WHERE id = 2"):
        with pytest.raises(apsw.ConstraintError, match="append-only"):
            connection.execute(statement)
    connection.close()
    assert found(database) == []


JOURNAL_COLUMNS = {
    "previous": 0,
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
}


@pytest.mark.parametrize("column", JOURNAL_COLUMNS)
@pytest.mark.parametrize("checksum", [False, True])
def test_an_edited_line_is_found(database: Path, column: str, checksum: bool) -> None:
    forging.edit(database, 5, column, JOURNAL_COLUMNS[column], checksum=checksum)
    what, seq, subject = found(database)[0]
    assert (what, seq) == ("edited_line", 5)
    assert subject == ("s9" if column == "subject" else "s1")
    with pytest.raises(JournalBroken, match="line"):
        verify(str(database)).require()


@pytest.mark.parametrize("column", ["writer", "seq", "count", "at", "next_id", "hash"])
def test_an_edited_link_is_found(database: Path, column: str) -> None:
    raw(database, f"UPDATE link SET {column} = ? WHERE id = 5", b"x" * 32 if column == "hash" else 77)  # noqa: S608
    assert found(database)[0][:2] in {("edited_line", 5), ("edited_line", 6), ("missing_lines", 6)}
    assert not verify(str(database)).holds


def test_an_edited_line_with_a_new_hash_of_its_own_is_found_at_the_next(database: Path) -> None:
    forging.edit(database, 5, "detail", "x", checksum=True)
    before, edited = (forging.link_of(database, number) for number in (4, 5))
    raw(database, "UPDATE link SET hash = ? WHERE id = 5", edited.expected(before.hash))
    assert found(database) == [("edited_line", 6, "s1")]


@pytest.mark.parametrize(("first", "last"), [(1, 1), (5, 5), (5, 9)])
def test_deleted_lines_are_found(database: Path, first: int, last: int) -> None:
    forging.delete(database, first, last)
    assert found(database)[0] == ("missing_lines", first, "")
    message = f"line {first} is missing" if first == last else f"lines {first} to {last} are missing"
    assert message in messages(database)


def test_a_deleted_line_whose_gap_was_closed_is_found(database: Path) -> None:
    forging.delete(database, 5, 5)
    raw(database, "UPDATE link SET id = id - 1 WHERE id > 5")
    raw(database, "UPDATE writer SET link = link - 1")
    assert found(database)[0][:2] == ("edited_line", 5)


def test_swapped_lines_are_found(database: Path) -> None:
    for old, new in ((2, 1000), (3, 2), (1000, 3)):
        raw(database, "UPDATE link SET id = ? WHERE id = ?", new, old)
    assert [finding[:2] for finding in found(database)][:2] == [("edited_line", 2), ("edited_line", 3)]


def test_a_line_that_is_no_text_is_found_and_the_rest_is_read(database: Path) -> None:
    raw(database, "UPDATE link SET lines = CAST(x'ff' AS TEXT) WHERE id = 5")
    forging.edit(database, 8, "detail", "x")
    places = [finding[:2] for finding in found(database)]
    assert [place for place in places if place[0] == "edited_line"] == [("edited_line", 5), ("edited_line", 8)]


def test_a_truncated_tail_is_found(database: Path) -> None:
    forging.delete(database, 16, 17)
    assert ("truncated", 17, "") in found(database)
    assert "the journal ends at line 15" in messages(database)


def test_a_link_removed_at_the_end_is_found(database: Path) -> None:
    forging.delete(database, 17, 17)
    assert ("truncated", 17, "") in found(database)


def test_a_journal_that_is_gone_altogether_is_found(database: Path) -> None:
    raw(database, "DELETE FROM link")
    assert found(database)[0] == ("truncated", 17, "")


def test_a_rewritten_head_is_found(database: Path) -> None:
    raw(database, "UPDATE head SET hash = x'00'")
    assert ("rewritten_head", 0, "") in found(database)
    raw(database, "UPDATE head SET hash = x'', seq = 10")
    assert ("truncated", 1, "") in found(database)


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE writer SET hash = x'00'",
        "UPDATE writer SET link = 16, seq = seq - 1, hash = (SELECT hash FROM link WHERE id = 16)",
        "UPDATE writer SET seq = 1",
        "DELETE FROM writer",
    ],
)
def test_a_writers_row_that_was_changed_or_deleted_is_found(database: Path, tampering: str) -> None:
    raw(database, tampering)
    assert [what for what, _seq, _subject in found(database)] == ["rewritten_head"]


def test_a_truncated_tail_with_a_head_to_match_is_found_by_the_records(database: Path) -> None:
    forging.delete(database, 12, 17)
    forging.rechain(database)
    assert ("record_differs", 11, "s3") in found(database)


def test_a_line_appended_behind_the_last_link_is_found(database: Path) -> None:
    raw(
        database, "INSERT INTO link SELECT 18, writer, seq + 1, count, at, next_id, hash, lines FROM link WHERE id = 17"
    )
    assert found(database)[0][:2] == ("edited_line", 18)
    assert "rewritten_head" in [what for what, _seq, _subject in found(database)]


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """Two writers that take turns; each batch has several lines."""
    path = tmp_path / "orders.db"

    async def fill() -> None:
        async with orders(path) as one, orders(path) as other:
            for start in range(0, 40, 10):
                service = one if start % 20 else other
                await asyncio.gather(*(service.register(n) for n in range(start, start + 10)))

    asyncio.run(fill())
    assert [(link.count, link.seq) for link in forging.links(path)] == [(10, 1), (10, 1), (10, 2), (10, 2)]
    assert len({link.writer for link in forging.links(path)}) == len(raw(path, "SELECT * FROM writer")) == 2
    assert found(path) == []
    return path


@pytest.mark.parametrize("number", [11, 15, 20])
def test_an_edited_line_among_others_of_its_batch_is_named(crowded: Path, number: int) -> None:
    forging.edit(crowded, number, "detail", "x")
    assert [finding[:2] for finding in found(crowded) if finding[0] == "edited_line"] == [("edited_line", number)]


@pytest.mark.parametrize(("first", "last"), [(11, 11), (14, 16), (20, 20)])
def test_lines_cut_out_of_a_batch_are_named(crowded: Path, first: int, last: int) -> None:
    forging.delete(crowded, first, last)
    assert found(crowded)[0] == ("missing_lines", first, "")
    message = f"line {first} is missing" if first == last else f"lines {first} to {last} are missing"
    assert message in messages(crowded)


def test_lines_reordered_within_a_batch_are_named(crowded: Path) -> None:
    link = forging.link_of(crowded, 11)
    lines = forging.lines_of(link)
    lines[3], lines[7] = lines[7], lines[3]
    forging.rewrite(crowded, link, lines)
    assert found(crowded)[0][:2] == ("edited_line", 14)
    assert "line 18 stands where line 14 was" in messages(crowded)


def test_an_edited_line_with_a_checksum_to_match_names_its_batch(crowded: Path) -> None:
    forging.edit(crowded, 15, "detail", "x", checksum=True)
    assert found(crowded)[0][:2] == ("edited_line", 11)
    assert "the link of lines 11 to 20, or the hash before it, was changed" in messages(crowded)


def test_links_swapped_between_writers_are_found(crowded: Path) -> None:
    first, second = (forging.link_of(crowded, number).writer for number in (1, 11))
    raw(crowded, "UPDATE link SET writer = ?1 + ?2 - writer", first, second)
    raw(crowded, "UPDATE writer SET id = ?1 + ?2 - id + 1000", first, second)
    raw(crowded, "UPDATE writer SET id = id - 1000")
    assert [finding[:2] for finding in found(crowded)][:2] == [("edited_line", 1), ("edited_line", 11)]


def test_a_link_taken_out_between_two_writers_is_found(crowded: Path) -> None:
    forging.delete(crowded, 11, 20)
    assert found(crowded)[0] == ("missing_lines", 11, "")


@pytest.mark.parametrize("which", [0, 1])
def test_the_row_of_either_writer_is_missed(crowded: Path, which: int) -> None:
    raw(crowded, "DELETE FROM writer WHERE id = (SELECT id FROM writer ORDER BY id LIMIT 1 OFFSET ?)", which)
    assert [what for what, _seq, _subject in found(crowded)] == ["rewritten_head"]


def test_a_history_rewritten_as_a_whole_is_found_by_a_head_noted_before(database: Path) -> None:
    noted = head_of(database)
    forging.edit(database, 5, "detail", "forged", checksum=True)
    forging.rechain(database)
    assert found(database) == []  # Nothing inside the file can tell.
    assert found(database, noted) == [("other_history", 17, "")]
    forging.delete(database, 17, 17)
    raw(database, "DELETE FROM obligation")
    forging.rechain(database)
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


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("row_version = 99", ("entry_differs", 6, "s1")),
        ("row_version = 0", ("entry_missing", 6, "s1")),
        ("client_hash = client_hash + 1", ("record_differs", 6, "s1")),
        ("who = NULL", ("record_differs", 6, "s1")),
        ("last_line = 5", ("record_differs", 6, "s1")),
        ("last_line = 0", ("record_differs", 6, "s1")),
        ("who = NULL, forgotten = 1", ("record_missing", 4, "s1")),
    ],
)
def test_a_row_that_is_not_where_its_record_has_to_be_is_found(
    database: Path, change: str, expected: tuple[str, int, str]
) -> None:
    raw(database, f"UPDATE intent SET {change} WHERE server_correlation_id = 's1'")  # noqa: S608
    assert found(database) == [expected]


def test_a_ledger_row_that_central_has_seen_is_no_finding(database: Path) -> None:
    raw(database, "UPDATE intent SET sync_timestamp = 1")
    assert found(database) == []


def test_a_record_or_ledger_row_that_is_no_text_is_found(database: Path) -> None:
    raw(database, "UPDATE intent SET path = CAST(x'ff' AS TEXT) WHERE server_correlation_id = 's1'")
    assert found(database) == [("record_differs", None, "")]


@pytest.mark.req("A-59", "A-57")
def test_a_purged_row_is_explained_and_a_row_that_was_taken_away_is_found(database: Path) -> None:
    assert asyncio.run(forgotten(database, s0=T0 - RETENTION_MS, s1=T0 + 3 * POLICY.horizon_ms)) == 1
    left = {row[0] for row in raw(database, "SELECT server_correlation_id FROM entry")}
    assert left == {f"s{n}" for n in range(1, 6)}, "what arrived lately stays, and what never arrived"
    assert found(database) == []
    raw(database, "DELETE FROM intent WHERE server_correlation_id IN ('s1', 's2')")
    assert found(database) == [("entry_missing", 4, "s1"), ("entry_missing", 7, "s2")]


def test_a_ledger_row_out_of_nowhere_and_one_of_the_forgotten_are_checked(database: Path) -> None:
    assert asyncio.run(forgotten(database)) == 0, "nothing was ever sent"
    assert found(database) == []
    raw(database, "UPDATE intent SET phase = 'FAILED' WHERE server_correlation_id = 's1'")
    assert ("entry_differs", "s1") in [(what, subject) for what, _seq, subject in found(database)]
    raw(database, "UPDATE intent SET id = 999, phase = 'COMMITTED' WHERE server_correlation_id = 's1'")
    assert ("entry_missing", 4, "s1") in found(database)
    assert ("entry_differs", None, "s1") in found(database)
    assert "next id is 8, and 999 was given away" in messages(database)


@pytest.mark.parametrize("column", ["principal", "path", "status", "received_at"])
def test_what_lines_bind_of_a_forgotten_intent_is_still_checked(database: Path, column: str) -> None:
    asyncio.run(forgotten(database))
    raw(database, f"UPDATE intent SET {column} = 7 WHERE server_correlation_id = 's1'")  # noqa: S608
    assert [(what, subject) for what, _seq, subject in found(database)] == [("record_differs", "s1")]


def test_a_forgotten_intent_that_was_brought_back_is_found(database: Path) -> None:
    asyncio.run(forgotten(database))
    raw(database, "UPDATE intent SET forgotten = 0, who = 1 WHERE server_correlation_id = 's4'")
    assert "a line says that it was forgotten, and it is there" in messages(database)


# The report.


@given(st.text(max_size=80))
@STEADY
def test_a_head_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ProvenHead.parse(text)
    assert refused.value.code == "bad_head"


def test_many_findings_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"

    async def fill() -> None:
        async with orders(path) as service:
            await asyncio.gather(*(service.register(n) for n in range(300)))

    asyncio.run(fill())
    forging.edit_all(path, "trace_id", "x")
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

    peak(10)  # Everything that is allocated once is allocated now.
    assert peak(3_000) < peak(1_200) + 100_000  # A whole batch is in memory at a time, and has 512 lines at most.


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
