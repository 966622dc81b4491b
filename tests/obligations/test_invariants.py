"""The six invariants, each a property of what random interleavings of threads and of processes leave behind."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from tests.obligations.processes import run_workers, start_worker
from tests.obligations.scene import HandClock, Sink
from tests.obligations.walk import Remains, effects_file, make_table, remains_of, walk_in_threads
from twophp.obligations import ObligationTracker, as_json_line, check_chain
from twophp.stores.clock import system_clock
from twophp.stores.sqlite.verify import verify

SEEDS = (1, 2, 3)
RUNS = [
    *(("threads on memory", seed) for seed in SEEDS),
    *(("threads on bare memory", seed) for seed in SEEDS),
    *(("threads on sqlite", seed) for seed in SEEDS),
    ("processes", 4),
    ("killed processes", 5),
]
INTERVAL_S = 0.05


def threads_on(url: str, seed: int, path: Path | None, *, shows: bool = True) -> Remains:
    """With effects to show, calls go through a loop; without, on memory, each thread is on its own."""
    clock, lock = HandClock(), threading.Lock()
    sink = Sink() if shows else None

    def pass_time() -> None:
        with lock:
            clock.now += 7

    with ObligationTracker(
        url,
        clock=clock,
        effects={"publish": sink} if sink else None,
        leak_timeout_secs=INTERVAL_S,
        scan_interval_secs=INTERVAL_S,
    ) as tracker:
        if path is not None:
            make_table(path)
        walk_in_threads(tracker, seed, pass_time)
        return remains_of(tracker, sink, [], path)


def processes_on(path: Path, seed: int, *, killed: bool) -> Remains:
    url = f"sqlite:///{path}"
    ObligationTracker(url, scan_interval_secs=None).close()
    make_table(path)
    seeds = [10 * seed + number for number in range(3)]
    if killed:
        victims = [start_worker(path, "walk", seed) for seed in seeds]
        for victim in victims:
            assert victim.stdout is not None
            victim.stdout.readline()  # It is in the middle of its walk.
            victim.kill()
            victim.communicate()
    else:
        run_workers(path, "walk", seeds)
    shown = effects_file(path).read_text().split() if effects_file(path).exists() else []
    sink = Sink()

    def later() -> int:
        """So late that every lease and every timeout of a dead process has ended."""
        return system_clock() + 3_600_000

    with ObligationTracker(url, scan_interval_secs=5, clock=later, effects={"publish": sink}) as tracker:
        return remains_of(tracker, sink, shown, path)


@pytest.fixture(scope="module", params=RUNS, ids=lambda run: f"{run[0]} {run[1]}")
def remains(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Remains:
    kind, seed = request.param
    path = tmp_path_factory.mktemp("walk") / "effects.db"
    if kind == "threads on memory":
        return threads_on("memory:", seed, None)
    if kind == "threads on bare memory":
        return threads_on("memory:", seed, None, shows=False)
    if kind == "threads on sqlite":
        found = threads_on(f"sqlite:///{path}", seed, path)
    else:
        found = processes_on(path, seed, killed=kind == "killed processes")
    assert verify(str(path)).holds
    return found


def test_the_walk_went_everywhere(remains: Remains) -> None:
    """A walk that saw no leak, no commit or no duplicate would show nothing."""
    assert {line.code for line in remains.audit} >= {"OBL-001", "OBL-002", "OBL-003", "OBL-004", "OBL-005"}
    assert remains.effects or remains.effects is None


@pytest.mark.req("OBL-INV-1", "OBL-OV-2")
def test_INV_OBL_TWO_PHASE(remains: Remains) -> None:  # noqa: N802 - the contract's own name
    """Every visible effect was reserved first, and is Committed."""
    reserved = {line.obligation_id for line in remains.audit if line.code == "OBL-001"}
    for oid in remains.effects or ():
        assert oid in reserved
        assert remains.obligations[oid].state == "Committed"


@pytest.mark.req("OBL-INV-2", "A-73", "OBL-OV-2")
def test_INV_OBL_NO_LEAK(remains: Remains) -> None:  # noqa: N802
    """After a scan no obligation is Reserved at or over the timeout, and none was ever committed that late."""
    for one in remains.obligations.values():
        if one.state == "Reserved":
            assert remains.now - one.reserved_at < one.timeout_ms
        if one.state == "Committed":
            assert one.settled_at is not None
            assert one.settled_at - one.reserved_at < one.timeout_ms


@pytest.mark.req("OBL-INV-3", "A-72", "OBL-OV-2")
def test_INV_OBL_ATOMIC_COMMIT(remains: Remains) -> None:  # noqa: N802
    """Committed, the business row and the effect: all three or none."""
    committed = {oid for oid, one in remains.obligations.items() if one.state == "Committed"}
    if remains.effects is not None:
        assert set(remains.effects) == {oid for oid in committed if remains.obligations[oid].flow == "publish"}
    if remains.applied is not None:
        assert sorted(remains.applied) == sorted(committed)


@pytest.mark.req("OBL-INV-4", "A-70", "OBL-SM-1")
def test_INV_OBL_ROLLBACK_SAFE(remains: Remains) -> None:  # noqa: N802
    """However often it was rolled back, and by whom, there is one end and one line about it."""
    ends = [line.obligation_id for line in remains.audit if line.after in {"Committed", "RolledBack"}]
    assert len(ends) == len(set(ends))
    settled = {oid for oid, one in remains.obligations.items() if one.state != "Reserved"}
    assert set(ends) == settled


@pytest.mark.req("OBL-INV-5", "OBL-SM-1")
def test_INV_OBL_AUDIT_COMPLETE(remains: Remains) -> None:  # noqa: N802
    """The audit log alone reproduces every state, by edges that the contract has."""
    states: dict[str, str] = {}
    for line in remains.audit:
        if line.code != "OBL-005":
            assert states.get(line.obligation_id, "Absent") == line.before
            assert line.before in {"Absent", "Reserved"}
            states[line.obligation_id] = line.after
    assert states == {oid: one.state.value for oid, one in remains.obligations.items()}
    assert check_chain(as_json_line(line) for line in remains.audit) == len(remains.audit)


@pytest.mark.req("OBL-INV-6", "OBL-LEAK-6", "OBL-LEAK-7")
def test_INV_OBL_SCAN_PERIODIC(remains: Remains) -> None:  # noqa: N802
    """The scan ran by itself, again and again, and none leaked twice although other processes scanned."""
    scans = [line for line in remains.audit if line.code == "OBL-005"]
    assert len([scan for scan in scans if not scan.trace_id]) >= 1
    told = [re.fullmatch(r"scanned=(\d+) leaked=(\d+)", scan.detail) for scan in scans]
    leaks = [line.obligation_id for line in remains.audit if line.code == "OBL-004"]
    assert len(leaks) == len(set(leaks))
    assert sum(int(found[2]) for found in told if found is not None) <= len(leaks)
    assert all(found is not None for found in told)
