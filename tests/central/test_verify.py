"""``twophp ledger verify`` of a central ledger: what somebody did to its database is named, row by row (ADR 47)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec
import pytest

from tests.central.conftest import schema
from tests.central.rows import row
from tests.central.served import Central, central, outcomes
from tests.central.tampering import Rows, tamper
from tests.cli.running import FOUND, OK, UNUSABLE, document, run
from twophp.central.ports import Leaves
from twophp.central.proof import merkle
from twophp.central.proof.verify import Noted, Verification
from twophp.central.stores.opening import open_central
from twophp.central.stores.sqlite.database import CENTRAL
from twophp.core.entry import LedgerEntry
from twophp.core.errors import ConfigError
from twophp.stores.named_sql import migrations_of

CALLS = 600
SUPERSEDED = 10
"""The first calls have two versions each: leaves 1 to 10 are superseded by 601 to 610."""
SIZE = CALLS + SUPERSEDED


class Tampered:
    """A running central ledger, and somebody who can write its database."""

    def __init__(self, here: Central, url: str, secret: str, guid: str) -> None:
        self.here = here
        self.url = url
        self.secret = secret
        self.guid = guid

    def does(self, statement: str, *values: object) -> Rows:
        return tamper(self.url, statement, *values)

    def rewrites_with_tree(self, sequence: int) -> None:
        """A row, and every hash that follows from it."""
        self.does("UPDATE entry SET transaction_reference = 'forged' WHERE sequence = ?", sequence)
        page = self.leaves(1, 1_024)
        rows = dict(page.newest) | {number: leaf or b"" for number, _by, leaf in page.past}
        tiles = merkle.appended(0, {}, [merkle.hash_of_row(rows[number]) for number in range(1, page.size + 1)])
        for (level, number), hashes in tiles.items():
            self.does("UPDATE tile SET hashes = ? WHERE level = ? AND number = ?", hashes, level, number)

    def push(self, *rows: LedgerEntry) -> None:
        assert set(outcomes(self.here.push(self.secret, rows))) == {"stored"}

    def leaves(self, first: int, count: int) -> Leaves:
        found: Leaves = self.here.do(self.here.state.store.leaves(first, count))
        return found

    def forgets_heads(self) -> None:
        """Whoever rewrites a tree thinks of the heads that were signed."""
        self.does("DELETE FROM head_history")

    def head(self) -> str:
        said = self.here.get("/v1/proofs/head")
        return f"{said['size']}:{said['root']}"

    def found(self, *options: str) -> list[tuple[str, int | None]]:
        """What a verification finds: over the API and of the database, which must say the same."""
        said = []
        for asked in (self.here.url, self.url):
            result = run("ledger", "verify", asked, *options, "--json")
            report = document(result)
            assert report["holds"] is (not report["findings"])
            assert result.exit_code == (OK if report["holds"] else FOUND), result.output
            said.append([(one["what"], one["sequence"]) for one in report["findings"]])
        assert said[0] == said[1]
        return said[0]


@pytest.fixture(params=["sqlite", "postgres"])
def tampered(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tampered]:
    if request.param == "sqlite":
        yield from _served(tmp_path, f"sqlite:///{tmp_path}/central.db", monkeypatch)
        return
    with schema(request.getfixturevalue("postgres_url")) as url:
        yield from _served(tmp_path, url, monkeypatch)


def _served(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tampered]:
    with central(folder, store_url=url) as here:
        secret, guid = here.join("orders")
        monkeypatch.setenv("TWOPHP_OPERATOR_TOKEN", here.token("auditor", "audit"))
        made = Tampered(here, url, secret, guid)
        made.push(*(row(n, guid) for n in range(1, CALLS + 1)))
        made.push(*(row(n, guid, version=2, phase="COMMITTED") for n in range(1, SUPERSEDED + 1)))
        here.do(here.state.heads.sign())
        yield made


@pytest.mark.req("A-57")
def test_every_leaf_has_its_bytes_and_a_ledger_nobody_touched_holds(tampered: Tampered) -> None:
    assert tampered.found() == []
    result = run("ledger", "verify", tampered.here.url, "--expect", tampered.head())
    assert result.exit_code == OK
    assert "holds what it held: 600 rows and 10 older versions hashed" in result.stdout
    assert result.stdout.endswith(f"head {tampered.head()}\n")
    kept = tampered.does("SELECT sequence, superseded_by FROM past ORDER BY sequence")
    assert kept == [(n, CALLS + n) for n in range(1, SUPERSEDED + 1)]


def test_a_rewritten_row_is_named(tampered: Tampered) -> None:
    noted = tampered.head()
    tampered.does("UPDATE entry SET transaction_reference = 'forged' WHERE sequence = 300")
    assert tampered.found() == [("rewritten", 300)]
    assert tampered.found("--expect", noted) == [("rewritten", 300)], "the tree still is what it was"
    said = run("ledger", "verify", tampered.here.url).stdout
    assert "rewritten: the server row of (client-300, server-300) is not what leaf 300 says" in said
    assert "holds what it held" not in said


def test_a_deleted_row_is_named_and_so_is_a_deleted_older_version(tampered: Tampered) -> None:
    tampered.does("DELETE FROM entry WHERE sequence = 257")
    tampered.does("DELETE FROM past WHERE sequence = 3")
    assert tampered.found() == [("removed", 3), ("removed", 257)]


def test_a_whole_page_of_rows_that_is_gone_is_named_row_by_row(tampered: Tampered) -> None:
    tampered.does("DELETE FROM entry WHERE sequence > 256 AND sequence <= 320")
    assert tampered.found() == [("removed", number) for number in range(257, 321)]


COPY = """INSERT INTO entry (sequence, client_correlation_id, server_correlation_id, service_ledger_id,
    service_endpoint, actor, source, target, parent_reference_id, phase, phase_1_timestamp, phase_2_timestamp, ttl_ms,
    outcome, payload_ref, sync_timestamp, transaction_reference, version, mode, client_id_is_proxy, settled_at,
    request_digest, indeterminate)
SELECT ?, client_correlation_id || 'x', server_correlation_id, service_ledger_id, service_endpoint, actor, source,
    target, client_correlation_id || 'x', phase, phase_1_timestamp, phase_2_timestamp, ttl_ms, outcome, payload_ref,
    sync_timestamp, transaction_reference, version, mode, client_id_is_proxy, settled_at, request_digest, indeterminate
FROM entry WHERE sequence = ?"""


def test_a_row_that_was_slipped_in_is_named_wherever_it_stands(tampered: Tampered) -> None:
    tampered.does(COPY, SIZE + 1, 500)  # Behind the tree: the newest that is shown.
    tampered.does(COPY, -7, 501)
    tampered.does(COPY, 5, 502)  # Under a leaf whose row is kept as superseded.
    assert tampered.found() == [("slipped_in", -7), ("rewritten", 5), ("slipped_in", 5), ("slipped_in", SIZE + 1)]


def test_an_older_version_that_is_served_as_the_newest_is_named(tampered: Tampered) -> None:
    """Both versions are what their leaves say; only their places were exchanged."""
    [(older,)] = tampered.does("SELECT leaf FROM past WHERE sequence = 4")
    fields = msgspec.msgpack.decode(older)
    newer = dict(tampered.leaves(513, 256).newest)[604]
    assert fields[16] == 1
    tampered.does(
        "UPDATE entry SET sequence = 4, version = 1, phase = 'WAITING_CONFIRM', outcome = NULL, settled_at = NULL,"
        " phase_2_timestamp = NULL, sync_timestamp = ? WHERE sequence = 604",
        fields[14],
    )
    tampered.does("UPDATE past SET sequence = 604, superseded_by = NULL, leaf = ? WHERE sequence = 4", newer)
    assert tampered.found() == [("superseded", 4), ("superseded", 604)]
    said = run("ledger", "verify", tampered.here.url).stdout
    assert "row 4 is served as the newest, and leaf 604 is a newer version of it" in said


def test_a_tail_that_was_cut_off_with_its_tree_is_found_by_whoever_noted_a_head(tampered: Tampered) -> None:
    early, noted = tampered.leaves(1, 256), tampered.head()
    tampered.forgets_heads()
    rest = merkle.appended(0, {}, [early.hashes[at : at + 32] for at in range(0, 256 * 32, 32)])
    tampered.does("DELETE FROM entry WHERE sequence > 256")
    tampered.does("DELETE FROM tile WHERE level = 0 AND number > 0")
    tampered.does("UPDATE tile SET hashes = ? WHERE level = 1", rest[1, 0])
    tampered.does("UPDATE head SET size = 256")
    assert tampered.found() == [("superseded", number) for number in range(1, 11)], "by what is gone"
    assert ("other_history", None) in tampered.found("--expect", noted)
    tampered.does("DELETE FROM past")
    for number in range(1, 11):
        tampered.does(COPY, number, number + 20)
    assert ("other_history", None) in tampered.found("--expect", noted)


def test_a_head_that_was_set_back_leaves_rows_outside_the_tree(tampered: Tampered) -> None:
    tampered.does("UPDATE head SET size = 609")
    assert tampered.found() == [("slipped_in", 610), ("other_tree", None), ("other_history", None)]


def test_rows_that_were_rewritten_together_with_the_tree_are_found_by_a_noted_head_alone(tampered: Tampered) -> None:
    early, noted = tampered.leaves(1, 256), tampered.head()
    tampered.forgets_heads()
    tampered.rewrites_with_tree(300)
    assert tampered.found() == []
    assert tampered.found("--expect", noted) == [("other_history", None)]
    before = f"256:{merkle.folded(early.hashes).hex()}"
    assert tampered.found("--expect", before) == [], "what came before is as it was"


def test_heads_that_were_kept_say_where_a_tree_was_rewritten(tampered: Tampered) -> None:
    for number in (700, 701, 702):
        tampered.push(row(number, tampered.guid))
        tampered.here.do(tampered.here.state.heads.sign())
    tampered.rewrites_with_tree(SIZE + 2)
    assert tampered.found() == [("other_history", None)]
    said = run("ledger", "verify", tampered.here.url).stdout
    assert f"leaves {SIZE + 2} to {SIZE + 2} are not those of head" in said
    key = tampered.here.get("/v1/heads/key")["key"]
    assert tampered.found("--key", key) == [("other_history", None)]
    tampered.does("UPDATE head_history SET note = 'forged'")
    assert run("ledger", "verify", tampered.here.url, "--key", key).exit_code != OK


def test_tiles_that_do_not_follow_from_the_leaves_are_found(tampered: Tampered) -> None:
    tampered.does("UPDATE tile SET hashes = ? WHERE level = 1", bytes(64))
    assert tampered.found() == [("other_tree", None)]
    tampered.does("DELETE FROM tile WHERE level = 1")
    assert tampered.found() == [("other_tree", None)]
    tampered.does("DELETE FROM tile WHERE level = 0 AND number = 0")
    found = tampered.found()
    assert found[:2] == [("rewritten", 1), ("rewritten", 2)], "no row is what a hash says that is not there"
    assert run("ledger", "verify", tampered.here.url).exit_code == FOUND


# Going on, and what else there is to get right. -----------------------------------------------------------------------


def test_what_is_kept_of_a_verification_has_no_password(tampered: Tampered, tmp_path: Path) -> None:
    state = tmp_path / "verify.state"
    verification = Verification(str(state), "postgresql://auditor:hunter2@db.example/central")
    verification.take(tampered.leaves(1, 256))
    verification.close(forget=False)
    assert b"hunter2" not in b"".join(file.read_bytes() for file in tmp_path.glob("verify.state*"))


def test_a_verification_goes_on_where_it_was_interrupted(tampered: Tampered, tmp_path: Path) -> None:
    """Also when rows that were looked at were superseded in between: that is no finding."""
    here, state = tampered.here, str(tmp_path / "verify.state")
    tampered.does("UPDATE entry SET transaction_reference = 'forged' WHERE sequence = 100")
    first = Verification(state, here.url)
    assert first.take(tampered.leaves(1, 256))
    first.close(forget=False)
    tampered.push(*(row(n, tampered.guid, version=2, phase="COMMITTED") for n in range(200, 250)))
    with pytest.raises(ConfigError, match="another ledger"):
        Verification(state, "https://another.example")
    with pytest.raises(ConfigError, match="other heads"):
        Verification(state, here.url, [Noted(1, bytes(32))])
    report = document(run("ledger", "verify", here.url, "--resume", state, "--json"))
    assert [(one["what"], one["sequence"]) for one in report["findings"]] == [("rewritten", 100)]
    assert report["leaves"] == SIZE + 50
    assert not Path(state).exists(), "a verification that has ended is not gone on with"
    (tmp_path / "other").write_text("what a verification does not keep")
    assert run("ledger", "verify", here.url, "--resume", tmp_path / "other").exit_code == UNUSABLE


def test_versions_of_one_batch_are_kept_as_well(tampered: Tampered) -> None:
    made = [row("many", tampered.guid, version=version, ttl_ms=version) for version in (1, 2, 3)]
    tampered.push(*made, row(11, tampered.guid, version=2), row(11, tampered.guid, version=3, phase="COMMITTED"))
    assert tampered.found() == []
    kept = tampered.does("SELECT sequence, superseded_by FROM past WHERE superseded_by > 610 ORDER BY sequence")
    assert kept == [(11, 614), (611, 612), (612, 613), (614, 615)]


def test_a_page_of_leaves_begins_with_a_tile_and_is_for_readers(tampered: Tampered) -> None:
    here = tampered.here
    assert here.ask("GET", "/v1/proofs/leaves?first=2", role="audit").status_code == 400
    assert here.ask("GET", "/v1/proofs/leaves", secret=tampered.secret).status_code == 403
    answer = here.ask("GET", "/v1/proofs/leaves?first=513", role="audit")
    assert answer.headers["content-type"] == "application/vnd.msgpack"
    page = msgspec.msgpack.decode(answer.content)
    assert (page["first"], page["size"], len(page["hashes"]), len(page["newest"])) == (513, SIZE, 98 * 32, 98)


def test_a_row_is_proven_in_each_of_its_versions(tampered: Tampered) -> None:
    for sequence, version in ((7, 1), (607, 2)):
        proof = tampered.here.get(f"/v1/proofs/inclusion/{sequence}")
        assert proof["row"]["version"] == version


# A database of an older version. --------------------------------------------------------------------------------------


def test_what_was_lost_before_versions_were_kept_is_counted_and_what_is_removed_since_is_named(
    tampered: Tampered,
) -> None:
    """As the migration leaves it behind."""
    tampered.does("UPDATE past SET leaf = NULL, superseded_by = NULL")
    tampered.does("UPDATE head SET kept_from = 605")
    assert tampered.found() == []
    report = document(run("ledger", "verify", tampered.here.url, "--json"))
    assert (report["without_row"], report["rows"], report["past"]) == (SUPERSEDED, CALLS, 0)
    tampered.does("DELETE FROM past WHERE sequence = 2")
    tampered.does("DELETE FROM entry WHERE sequence = 607")
    assert tampered.found() == [("removed", 2), ("removed", 607)]
    tampered.does("INSERT INTO past VALUES (607, NULL, NULL)")
    assert tampered.found() == [("removed", 2), ("removed", 607)], "a note counts below kept_from alone"


def test_a_migration_notes_what_older_versions_have_lost(tmp_path: Path) -> None:
    path = str(tmp_path / "central.db")
    connection = apsw.Connection(path)
    for number, script in migrations_of(CENTRAL.package)[:3]:
        connection.execute(script)
        connection.execute(f"PRAGMA user_version = {number}")
    connection.execute(f"PRAGMA application_id = {CENTRAL.application_id}")
    connection.execute("UPDATE head SET size = 5")
    connection.close()
    assert run("ledger", "verify", path).exit_code == UNUSABLE, "nothing is migrated by looking"

    async def migrate() -> None:
        await (await open_central(f"sqlite:///{path}")).close()

    asyncio.run(migrate())
    connection = apsw.Connection(path)
    assert connection.execute("SELECT sequence, leaf FROM past").fetchall() == [(n, None) for n in range(1, 6)]
    assert connection.execute("SELECT kept_from FROM head").get == 5
    connection.close()
