"""Clocks that no step moves, and where ids come from: the system's generator, drawn from many at a time."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from twophp.stores import clock
from twophp.stores.clock import AnchoredClock, StoreTime, mint_uuid, system_clock, wall_clock, wall_of

T0, HOUR_MS, DAY_MS = 1_800_000_000_000, 3_600_000, 86_400_000


class Machine:
    """A machine whose clock can be set, and whose time goes on all the same."""

    def __init__(self) -> None:
        self.wall_ms, self.up_ms = T0, 77

    def passes(self, ms: int) -> None:
        self.wall_ms += ms
        self.up_ms += ms

    def clock(self) -> AnchoredClock:
        return AnchoredClock(lambda: self.wall_ms, lambda: self.up_ms * 1_000_000)


@pytest.mark.req("A-29")
@pytest.mark.parametrize("step_ms", [2 * HOUR_MS, -DAY_MS])
def test_a_step_of_the_wall_clock_does_not_move_time_nor_stop_it(step_ms: int) -> None:
    machine = Machine()
    now = machine.clock()
    machine.passes(5)
    machine.wall_ms += step_ms
    assert now() == T0 + 5
    machine.passes(1_000)
    assert now() == T0 + 1_005
    assert now.wall() == T0 + 1_005 + step_ms


@pytest.mark.req("A-29")
def test_the_clock_of_a_process_is_one_that_no_step_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = system_clock(), wall_clock()
    monkeypatch.setattr(clock, "time_ns", lambda: (real + 2 * HOUR_MS) * 1_000_000)
    assert before <= system_clock() < before + HOUR_MS
    assert wall_of(system_clock)() == real + 2 * HOUR_MS


@pytest.mark.req("A-29")
def test_who_starts_after_the_clock_was_set_back_goes_on_from_what_was_written() -> None:
    machine = Machine()
    machine.wall_ms -= DAY_MS
    time = StoreTime(machine.clock(), T0)
    assert time.now() == T0
    machine.passes(30_000)
    assert time.now() == T0 + 30_000


@pytest.mark.req("A-29")
def test_two_processes_with_different_anchors_agree_once_one_has_written() -> None:
    machine = Machine()
    early = StoreTime(machine.clock())
    machine.wall_ms += 2 * HOUR_MS
    late = StoreTime(machine.clock())
    written_at = late.now()
    assert early.reach(written_at) == written_at == T0 + 2 * HOUR_MS
    machine.passes(1_000)
    assert early.now() == late.now() == written_at + 1_000


@pytest.mark.req("A-29")
def test_how_far_the_wall_clock_is_ahead_changes_only_when_it_is_set() -> None:
    machine = Machine()
    time = StoreTime(machine.clock())
    machine.wall_ms += 3  # Two readings are never of the same moment.
    assert time.wall_ahead_ms() == 0
    machine.wall_ms += 2 * HOUR_MS
    ahead_ms = time.wall_ahead_ms()
    assert ahead_ms == 2 * HOUR_MS + 3
    machine.wall_ms -= 2
    machine.passes(HOUR_MS)
    assert time.wall_ahead_ms() == ahead_ms


UUID_4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.mark.req("P-5.2.2-c", "P-13.1-b", "A-13")
def test_an_id_is_a_uuid_4_and_no_two_are_alike() -> None:
    minted = [mint_uuid() for _ in range(2_000)]
    assert all(UUID_4.fullmatch(one) for one in minted)
    assert len(set(minted)) == len(minted)


def test_no_two_threads_get_the_same() -> None:
    with ThreadPoolExecutor(8) as threads:
        lots = threads.map(lambda _number: [mint_uuid() for _ in range(5_000)], range(8))
        minted = [one for lot in lots for one in lot]
    assert len(set(minted)) == len(minted)


def test_no_child_gets_what_its_parent_has_drawn() -> None:
    mint_uuid()  # Something is in store.
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, "\n".join(mint_uuid() for _ in range(300)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="ascii") as told:
        theirs = set(told.read().split())
    os.waitpid(child, 0)
    assert len(theirs) == 300
    assert not theirs & {mint_uuid() for _ in range(300)}


@pytest.mark.req("A-52")
def test_an_unreadable_counter_of_the_kernel_is_no_error() -> None:
    """Every COMMIT is measured with it: one that is durable would be reported as not written."""
    stat = clock._SchedStat()
    nothing = os.open(os.devnull, os.O_RDONLY)
    if stat._file is not None:
        os.dup2(nothing, stat._file)
    os.close(nothing)
    assert stat.waited_s() == 0.0
