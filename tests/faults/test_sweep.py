"""Every write, sync, truncation, opening and removal of one handshake fails once, or is the last thing a process did.

Whatever happens, what was acknowledged is there with all its effects, and what was not is there as a whole or not at
all.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults import check
from tests.faults.handshake import STEPS
from tests.faults.rig import Fault, Outcome, Rig

KILL, EIO, ENOSPC, EMFILE = "signal=SIGKILL", "error=EIO", "error=ENOSPC", "error=EMFILE"
# strace counts calls thread by thread. From the start on it strikes each call of the thread that opens and closes; the
# writer's own first calls would come after those, so they are struck from the moment on when the store is open.
PLACES = ("start", "opened")
SWEEPS = [
    *((place, "pwrite64", effect) for place in PLACES for effect in (KILL, EIO, ENOSPC)),
    *((place, "fdatasync", effect) for place in PLACES for effect in (KILL, EIO, ENOSPC)),
    *(("start", "ftruncate", effect) for effect in (KILL, EIO, ENOSPC)),
    *(("start", "openat", effect) for effect in (KILL, EMFILE)),
    *(("start", "unlink", effect) for effect in (KILL, EIO)),
]
ACKNOWLEDGED_BEFORE = 2
LONGEST = 400  # A sweep that has not ended by then never will.


@pytest.fixture(scope="package")
def left_by_a_crash(rig: Rig) -> Path:
    """A database with two acknowledged changes, as a killed process has left it: all of them in its log."""
    database = rig.folder / "crashed" / "ledger.db"
    for outcome in sweep(rig, database, "opened", "pwrite64", KILL, None):
        if outcome.acknowledged == ACKNOWLEDGED_BEFORE:
            return database.parent
    raise AssertionError("never was anything acknowledged")


def sweep(rig: Rig, database: Path, place: str, syscall: str, effect: str, before: Path | None) -> Iterator[Outcome]:
    """One victim after the other, the fault one call later each time, until there is no call left to strike."""
    for when in range(1, LONGEST):
        shutil.rmtree(database.parent, ignore_errors=True)
        if before is None:
            database.parent.mkdir()
        else:
            shutil.copytree(before, database.parent)
        outcome = rig.run(database, fault=Fault(syscall=syscall, effect=effect, when=when), pause=place)
        yield outcome
        if not outcome.struck:
            return
    raise AssertionError("the sweep does not end")


def judge(outcome: Outcome, database: Path, before: int, complaints: str) -> None:
    """The victim got as far as its fault allows, and everything it was told is true, now and after the next crash."""
    found, again = check.version_after_a_crash(database)
    certain = max(before, outcome.acknowledged)
    possible = max(before, min(outcome.acknowledged + 1, len(STEPS)))  # The one in flight may have made it.
    assert certain <= found <= possible, outcome
    assert again == found, outcome
    if outcome.exit == 0:
        assert outcome.said[-1] == "done"
        assert found == len(STEPS)
    else:
        assert outcome.exit == -9, (outcome, complaints)  # A fault has to be survived: only the kill may stop it.


@pytest.mark.req("P-4-d", "P-5.2.2-a", "P-6-a", "P-9.5-a", "P-9.5-b", "A-47")
@pytest.mark.parametrize("left", [0, ACKNOWLEDGED_BEFORE], ids=["new file", "left by a crash"])
@pytest.mark.parametrize(("place", "syscall", "effect"), SWEEPS)
def test_nothing_acknowledged_is_lost_and_nothing_is_half(
    rig: Rig,
    left_by_a_crash: Path,
    tmp_path: Path,
    left: int,
    place: str,
    syscall: str,
    effect: str,
    record_property: Callable[[str, object], None],
) -> None:
    database = tmp_path / "swept" / "ledger.db"
    runs = acknowledged = 0
    for outcome in sweep(rig, database, place, syscall, effect, left_by_a_crash if left else None):
        judge(outcome, database, left, rig.complaints())
        runs += 1
        acknowledged += outcome.acknowledged
    assert runs > 1, "nothing was struck"
    record_property("runs", runs)
    record_property("acknowledged", acknowledged)
