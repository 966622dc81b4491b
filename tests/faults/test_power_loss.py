"""The power goes at any moment: what was acknowledged was synced, and so it is there when the power comes back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults import check
from tests.faults.disk import Disk, Survives
from tests.faults.handshake import STEPS
from tests.faults.rig import Fault, Rig

# Which of the pages that nobody has synced reach the disk all the same.
LUCK: dict[str, Survives] = {
    "none": lambda _page: False,
    "all": lambda _page: True,
    "even": lambda page: page % 2 == 0,
    "odd": lambda page: page % 2 == 1,
}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    folder = tmp_path / "real"
    folder.mkdir()
    return folder / "ledger.db"


def cut_everywhere(disk: Disk, log: Path, left: Path, survives: Survives, acknowledged: int = 0) -> int:
    """Cut the power before every sync and after every word, look at what is left, and return how often."""
    cuts = steps = 0
    for event in disk.replay(log):
        steps += event.startswith("ack ")
        acknowledged = max(acknowledged, steps)
        shutil.rmtree(left, ignore_errors=True)
        left.mkdir()
        disk.cut_the_power(left, survives)
        found = check.version_in(left / "ledger.db")
        assert acknowledged <= found <= min(acknowledged + 1, len(STEPS)), event
        cuts += 1
    return cuts


@pytest.mark.req("P-6-a", "P-9.1-a", "P-9.5-a")
@pytest.mark.parametrize("luck", LUCK)
def test_what_was_acknowledged_survives_a_power_cut(rig: Rig, database: Path, tmp_path: Path, luck: str) -> None:
    disk = Disk(database.parent)
    outcome = rig.run(database, trace=tmp_path / "log.txt")
    assert outcome.acknowledged == len(STEPS)
    cuts = cut_everywhere(disk, tmp_path / "log.txt", tmp_path / "left", LUCK[luck])
    assert disk.looks_like(database.parent)
    assert cuts > 2 * len(STEPS)


@pytest.mark.parametrize("luck", LUCK)
@pytest.mark.parametrize("number", range(1, len(STEPS) + 1))
def test_what_a_failed_sync_left_in_memory_takes_nothing_with_it(
    rig: Rig, database: Path, tmp_path: Path, luck: str, number: int
) -> None:
    """A sync fails, the process dies, and its heir finds the unsynced commit in the log and goes on from there.

    Those pages are clean to the kernel and not on the disk. Nothing that the heir acknowledges may depend on them.
    """
    check.version_in(database)
    disks: list[Disk] = []
    fault = Fault(syscall="fdatasync", effect="error=EIO", when=number)
    first = rig.run(
        database,
        fault=fault,
        pause="opened",
        when_unknown="die",
        trace=tmp_path / "first.txt",
        at_pause=lambda: disks.append(Disk(database.parent)),
    )
    heir = rig.run(database, trace=tmp_path / "heir.txt")
    assert (first.exit, heir.acknowledged) == (-9, len(STEPS))
    (disk,) = disks
    assert cut_everywhere(disk, tmp_path / "first.txt", tmp_path / "left", LUCK[luck])
    assert cut_everywhere(disk, tmp_path / "heir.txt", tmp_path / "left", LUCK[luck], first.acknowledged)
    assert disk.looks_like(database.parent)
