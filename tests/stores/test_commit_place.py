"""Where COMMIT runs: decided by what the disk took, without any disk."""

from __future__ import annotations

import pytest

from twophp.stores.sqlite.commit_place import (
    BURST_S,
    FIRST_REST_S,
    LONGEST_REST_S,
    PATIENCE_S,
    SAMPLES,
    SHARE,
    SLOW_S,
    CommitPlace,
)

pytestmark = pytest.mark.req("A-108")

QUICK, BUSY = 0.0003, 0.002


class Disk:
    """A service that commits without end, ``pause`` seconds after each commit, on a disk of a given speed."""

    def __init__(self, pause: float = BUSY) -> None:
        self.place = CommitPlace()
        self.now = 100.0
        self.pause = pause
        self.stalls: list[float] = []  # How long the loop stood, commit by commit.
        self.began = self.now

    def commit(self, *each_took: float) -> list[bool]:
        """Whether each of them ran on the loop."""
        told = []
        for took in each_took:
            on_loop = self.place.is_on_loop(self.now)
            self.now += took
            self.place.took(self.now, took, on_loop=on_loop)
            if on_loop:
                self.stalls.append(took)
            told.append(on_loop)
            self.now += self.pause
        return told

    def go_on(self, seconds: float, took: float) -> list[bool]:
        until, told = self.now + seconds, []
        while self.now < until:
            told += self.commit(took)
        return told


def on_the_loop(pause: float = BUSY) -> Disk:
    disk = Disk(pause)
    disk.commit(*[QUICK] * SAMPLES)
    assert disk.commit(QUICK) == [True]
    return disk


def test_a_new_writer_measures_the_disk_in_the_thread_first() -> None:
    disk = Disk()
    assert disk.commit(*[QUICK] * (SAMPLES + 1)) == [False] * SAMPLES + [True]


def test_on_a_quick_disk_commits_stay_on_the_loop() -> None:
    assert all(on_the_loop().go_on(60, QUICK))


@pytest.mark.parametrize("took", [0.005, 0.02, 0.1])
def test_a_disk_that_is_slow_from_the_start_never_stops_the_loop(took: float) -> None:
    assert not any(Disk().go_on(60, took))


@pytest.mark.parametrize("took", [0.005, 0.02, 0.1])
def test_a_disk_that_becomes_slow_stops_the_loop_no_longer_than_patience_and_one_commit(took: float) -> None:
    disk = on_the_loop()
    disk.go_on(60, QUICK)
    disk.stalls.clear()
    disk.go_on(60, took)
    beyond = sum(stall - SLOW_S for stall in disk.stalls)
    assert PATIENCE_S < beyond <= PATIENCE_S + took
    assert disk.commit(took) == [False]


def test_one_slow_commit_among_quick_ones_changes_nothing() -> None:
    disk = on_the_loop()
    for _second in range(60):
        assert disk.commit(0.010) == [True]
        assert all(disk.go_on(1.0, QUICK))


def test_one_commit_longer_than_patience_sends_the_next_to_the_thread() -> None:
    disk = on_the_loop()
    assert disk.commit(SLOW_S + PATIENCE_S + 0.001, QUICK) == [True, False]


def test_the_loop_commits_again_once_the_disk_was_quick_for_a_while() -> None:
    disk = on_the_loop()
    disk.go_on(30, QUICK)
    disk.commit(0.1)
    assert not any(disk.go_on(FIRST_REST_S * 0.9, QUICK))
    assert any(disk.go_on(FIRST_REST_S * 0.2, QUICK))


def test_a_disk_that_is_neither_quick_nor_slow_does_not_bring_commits_back_to_the_loop() -> None:
    """1.5 ms would be borne on the loop, and is no reason to go there."""
    disk = on_the_loop()
    disk.commit(0.1)
    assert not any(disk.go_on(60, 0.0015))


def test_samples_that_waited_for_the_interpreter_do_not_make_a_quick_disk_slow() -> None:
    disk = Disk()
    disk.commit(*[QUICK, 0.005] * SAMPLES)
    assert disk.commit(QUICK) == [False], "half of them are not most of them"
    disk.commit(QUICK, QUICK, 0.005, QUICK, QUICK, 0.005, QUICK)
    assert disk.commit(QUICK) == [True]


def test_a_disk_that_is_quick_and_slow_in_turns_stops_the_loop_once_a_minute() -> None:
    disk = on_the_loop()
    for _spell in range(40):  # Slow as soon as the loop commits again.
        disk.stalls.clear()
        while not disk.commit(QUICK)[0]:
            pass
        disk.commit(0.1)
    began = disk.now
    while not disk.commit(QUICK)[0]:
        pass
    assert disk.now - began == pytest.approx(LONGEST_REST_S, rel=0.01)


def test_after_a_long_quick_spell_the_rest_is_short_again() -> None:
    disk = on_the_loop()
    for _spell in range(4):
        while not disk.commit(QUICK)[0]:
            pass
        disk.commit(0.1)
    disk.go_on(600, QUICK)
    disk.commit(0.1)
    assert any(disk.go_on(FIRST_REST_S * 1.1, QUICK))


def test_commits_one_after_the_other_leave_the_loop_its_share_of_the_time() -> None:
    """Each is short, but nothing else would run: what is above the share goes to the thread."""
    disk = on_the_loop(pause=0.0001)
    began = disk.now
    disk.stalls.clear()
    told = disk.go_on(10, 0.0015)
    assert any(told)
    assert not all(told)
    assert sum(disk.stalls) <= SHARE * (disk.now - began) + BURST_S + 0.0015


def test_a_clock_that_stands_still_divides_by_nothing_and_frees_nothing() -> None:
    place = CommitPlace()
    for _commit in range(SAMPLES):
        place.took(1.0, QUICK, on_loop=False)
    assert place.is_on_loop(1.0)
    place.took(1.0, BURST_S + 0.001, on_loop=True)
    assert not place.is_on_loop(1.0)
