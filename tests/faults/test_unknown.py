"""A commit that failed: what the caller hears, what this handle does from then on, and that the truth never changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.faults import check
from tests.faults.handshake import STEPS
from tests.faults.rig import Fault, Rig

EIO, ENOSPC = "error=EIO", "error=ENOSPC"
SYNCS = range(1, len(STEPS) + 1)  # One for each step.


def fail_the_sync(number: int) -> Fault:
    return Fault(syscall="fdatasync", effect=EIO, when=number)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def reader(database: Path) -> Iterator[apsw.Connection]:
    """Somebody in the middle of a long read, so that nobody can start the log afresh."""
    assert check.version_in(database) == 0
    connection = apsw.Connection(str(database))
    connection.execute("CREATE TABLE theirs (x)")
    connection.execute("BEGIN")
    assert connection.execute("SELECT count(*) FROM intent").get == 0
    yield connection
    connection.close()


@pytest.mark.parametrize("number", SYNCS)
def test_a_failed_sync_is_unknown_poisons_the_handle_and_is_found_out(rig: Rig, database: Path, number: int) -> None:
    outcome = rig.run(database, fault=fail_the_sync(number), pause="opened")
    done, step = number - 1, STEPS[number - 1]
    assert (
        outcome.said
        == [
            *(f"ack {earlier}" for earlier in STEPS[:done]),
            f"error {step} commit_unknown",
            f"poisoned {step}",
            f"found {step} {done}",  # This handle was the last on the file, so it could start the log afresh.
            *(f"ack {later}" for later in STEPS[done:]),
            "done",
        ]
    )
    assert check.version_in(database) == len(STEPS)


@pytest.mark.parametrize("number", [1, 2, 5, 9, 17])
def test_a_full_disk_refuses_writes_nothing_and_is_over_when_there_is_room(
    rig: Rig, database: Path, number: int
) -> None:
    outcome = rig.run(database, fault=Fault(syscall="pwrite64", effect=ENOSPC, when=number), pause="opened")
    assert outcome.said == ["error register disk_full", "ack register", "ack confirm", "ack settle", "done"]


@pytest.mark.parametrize("number", SYNCS)
def test_the_answer_after_an_unknown_commit_and_a_crash_never_changes(rig: Rig, database: Path, number: int) -> None:
    """The process dies with its log as it is. Whoever opens the file decides, and the next crash cannot undo it."""
    outcome = rig.run(database, fault=fail_the_sync(number), pause="opened", when_unknown="die")
    assert (outcome.said[-1].split()[-1], outcome.exit) == ("commit_unknown", -9)
    found, again = check.version_after_a_crash(database)
    assert found in {outcome.acknowledged, outcome.acknowledged + 1}
    assert again == found
    assert check.version_in(database) == found


@pytest.mark.parametrize("number", SYNCS)
def test_the_answer_after_reopening_never_changes_while_others_read(
    rig: Rig, database: Path, reader: apsw.Connection, number: int
) -> None:
    """The failed commit still lies at the end of the log, whole, for a recovery to find; reopening has to fence it."""
    outcome = rig.run(database, fault=fail_the_sync(number), pause="opened", when_unknown="look")
    assert (outcome.found, outcome.exit) == (outcome.acknowledged, -9), rig.complaints()
    assert check.version_in(check.copied(database, "crashed")) == outcome.found
    assert reader.execute("SELECT count(*) FROM intent").get == 0  # It has been reading all the while.
