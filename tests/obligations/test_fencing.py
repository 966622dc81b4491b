"""Fencing tokens: one holder, numbers that only rise, and no say for a former holder."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.obligations.processes import run_workers
from tests.obligations.scene import T0, TIMEOUT_MS, Scene, codes, lines_of, refused
from twophp.core.errors import CommitUnknown, ConfigError
from twophp.kernel.commands import MakeChange
from twophp.obligations import ObligationError, ObligationTracker, StaleToken, State, Statement
from twophp.ports import Change


def is_stale(tracker: ObligationTracker, resource: str, number: int) -> bool:
    try:
        tracker.check(resource, number)
    except StaleToken as error:
        return error.code == "stale_token"
    return False


@pytest.mark.req("OBL-FLOW-5")
def test_a_token_holds_its_resource_until_it_is_released(tracker: ObligationTracker) -> None:
    token = tracker.acquire("printer", "t")
    assert (token.resource, token.number, token.held_until) == ("printer", 1, T0 + TIMEOUT_MS)
    tracker.check("printer", 1)
    with refused("ERR_OBL_DUPLICATE_RESERVE"):
        tracker.acquire("printer", "t")
    assert tracker.acquire("scanner", "t").number == 1
    tracker.release(token, "t")
    assert is_stale(tracker, "printer", 1)
    assert tracker.acquire("printer", "t").number == 2
    assert tracker.get(token.obligation_id).state is State.COMMITTED
    assert lines_of(tracker, token.obligation_id)[0].token == 1


@pytest.mark.req("OBL-FLOW-5", "OBL-INV-2")
def test_whoever_held_it_too_long_is_out_though_nobody_else_came(scene: Scene, tracker: ObligationTracker) -> None:
    token = tracker.acquire("printer", "t", timeout_secs=2)
    scene.clock.now += 1_999
    tracker.check("printer", token.number)
    scene.clock.now += 1
    assert is_stale(tracker, "printer", token.number)
    with refused("ERR_OBL_LEAK_TIMEOUT"):
        tracker.release(token, "t")


@pytest.mark.req("OBL-FLOW-5")
def test_a_stale_holder_is_refused_once_another_has_the_resource(scene: Scene, tracker: ObligationTracker) -> None:
    old = tracker.acquire("printer", "t")
    scene.clock.now += TIMEOUT_MS
    new = tracker.acquire("printer", "t")
    assert new.number == old.number + 1
    assert is_stale(tracker, "printer", old.number)
    tracker.check("printer", new.number)
    with refused("ERR_OBL_ALREADY_ROLLED_BACK"):
        tracker.release(old, "t")
    tracker.check("printer", new.number)
    assert codes(tracker) == ["OBL-001", "OBL-004", "OBL-001"]


def test_a_rolled_back_token_is_stale_and_numbers_still_rise(tracker: ObligationTracker) -> None:
    token = tracker.acquire("printer", "t")
    tracker.rollback(token.obligation_id, "t")
    assert is_stale(tracker, "printer", token.number)
    assert is_stale(tracker, "printer", 99)
    assert is_stale(tracker, "nobody's", 1)
    assert tracker.acquire("printer", "t").number == 2
    with pytest.raises(ConfigError):
        tracker.acquire("", "t")


@pytest.fixture
def durable(tmp_path: Path) -> Scene:
    return Scene("sqlite", tmp_path)


@pytest.mark.req("OBL-FLOW-5")
def test_numbers_rise_over_restarts(durable: Scene) -> None:
    numbers = []
    for _ in range(3):
        with durable.tracker() as tracker:
            token = tracker.acquire("printer", "t")
            numbers.append(token.number)
            tracker.release(token, "t")
    assert numbers == [1, 2, 3]


def test_the_database_itself_lets_no_token_fall(durable: Scene) -> None:
    with durable.tracker() as tracker:
        tracker.release(tracker.acquire("printer", "t"), "t")
    connection = apsw.Connection(str(durable.path))
    for statement in ("UPDATE fence SET token = 1", "UPDATE fence SET token = 0", "DELETE FROM fence"):
        with pytest.raises(apsw.ConstraintError, match="only rises"):
            connection.execute(statement)
    connection.close()


@pytest.mark.req("OBL-FLOW-5", "OBL-INV-3")
def test_a_late_writer_writes_nothing(durable: Scene) -> None:
    with durable.tracker() as tracker:
        connection = apsw.Connection(str(durable.path))
        connection.execute("CREATE TABLE page (text TEXT)")
        write = Statement(sql="INSERT INTO page VALUES (?)", rows=[("mine",)])
        late = tracker.acquire("printer", "t")
        durable.clock.now += TIMEOUT_MS
        tracker.release(tracker.acquire("printer", "t"), "t", apply=write)
        with pytest.raises(ObligationError):
            tracker.release(late, "t", apply=write)
        assert connection.execute("SELECT count(*) FROM page").get == 1
        connection.close()


@pytest.mark.req("OBL-FLOW-5")
def test_of_many_threads_one_holds_it_and_no_number_is_given_twice(tracker: ObligationTracker) -> None:
    def take(_n: int) -> list[int]:
        taken = []
        for _ in range(20):
            with suppress(ObligationError):
                token = tracker.acquire("printer", "t")
                taken.append(token.number)
                tracker.release(token, "t")
        return taken

    with ThreadPoolExecutor(8) as pool:
        taken = [number for numbers in pool.map(take, range(8)) for number in numbers]
    assert taken
    assert sorted(taken) == list(range(1, len(taken) + 1))
    assert {line.code for line in tracker.audit()} == {"OBL-001", "OBL-002"}


@pytest.mark.req("OBL-FLOW-5")
def test_of_many_processes_one_holds_it_and_no_number_is_given_twice(durable: Scene) -> None:
    taken = [int(line) for output in run_workers(durable.path, "fence", seeds=(1, 2, 3)) for line in output.split()]
    assert len(taken) >= 3
    assert sorted(taken) == list(range(1, len(taken) + 1))


@pytest.mark.req("OBL-FLOW-5", "A-42")
def test_a_token_whose_commit_nobody_could_tell_of_is_found_again(
    tracker: ObligationTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker.release(tracker.acquire("printer", "t"), "t")
    store = tracker._runtime.store
    real = store.transact

    async def durable_and_unknown(*args: Any) -> Any:
        monkeypatch.setattr(store, "transact", real)
        await real(*args)
        raise CommitUnknown("the line went dead")

    monkeypatch.setattr(store, "transact", durable_and_unknown)
    monkeypatch.setattr(store, "reopen", lambda: real(MakeChange(Change(answer=None))))
    token = tracker.acquire("printer", "t")
    assert token.number == 2
    tracker.check("printer", token.number)
    tracker.release(token, "t")
