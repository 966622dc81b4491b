"""Concurrent attempts, from threads and from processes: one wins, and the others are told so with its result."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.registrar.scene import Scene
from tests.stores.schemas import Schema
from twophp.registrar import AsyncRegistrar, Decision, Registrar, RegistrationRequest, State

ROOT = Path(__file__).parents[2]
THREADS = 32
PROCESSES = 4


class Victim:
    """An attempt in another process."""

    def __init__(self, scene: Scene, request: RegistrationRequest, when: str) -> None:
        command = [sys.executable, "-m", "tests.registrar.victim", scene.url]
        command += [msgspec.json.encode(request).decode(), when]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(  # noqa: S603
            command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def has_looked(self) -> bool:
        assert self.process.stdout is not None
        return self.process.stdout.readline() == "looked\n"

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def decision(self) -> Decision:
        said, complaints = self.process.communicate()
        assert self.process.returncode == 0, complaints
        return msgspec.json.decode(said, type=Decision)

    def death(self) -> int:
        self.process.communicate()
        return self.process.returncode


def requests(scene: Scene, count: int, *, own_nonces: bool) -> list[RegistrationRequest]:
    first = scene.asks()
    nonces = [scene.nonce() if own_nonces else first.authorization_nonce for _ in range(count)]
    return [
        msgspec.structs.replace(first, attempt_id=f"a-{n}", authorization_nonce=nonce) for n, nonce in enumerate(nonces)
    ]


def one_winner(decisions: list[Decision]) -> None:
    winners = [decision for decision in decisions if decision.admitted]
    losers = [decision for decision in decisions if not decision.admitted]
    assert [(winner.code, winner.state) for winner in winners] == [("registered", State.CLOSED)]
    assert {(loser.code, loser.cause, loser.state) for loser in losers} == {
        ("ATTEMPT_COLLISION", "REPLAY_DUPLICATE", State.S4)
    }
    told = {msgspec.json.encode(decision.result) for decision in decisions}
    assert told == {msgspec.json.encode(winners[0].result)}


@pytest.mark.req("REG-RP-09", "REG-S4", "REG-3-07", "A-88", "T3-9")
@pytest.mark.parametrize("own_nonces", [False, True])
def test_RP_09_of_many_threads_one_wins(durable: Scene, own_nonces: bool) -> None:  # noqa: N802
    """The write lock is held until all of them have called: no thread is late by chance."""
    asked = requests(durable, THREADS, own_nonces=own_nonces)
    called = threading.Semaphore(0)
    crowds = durable.registrar._registrar._crowds
    join = crowds.join

    def joining(key: str) -> Any:
        crowd = join(key)
        called.release()
        return crowd

    crowds.join = joining  # type: ignore[method-assign]
    assert durable.place is not None
    with ThreadPoolExecutor(THREADS) as threads:
        with durable.place.hold():
            answers = [threads.submit(durable.registrar.register, request) for request in asked]
            for _ in asked:
                called.acquire()
        decisions = [answer.result() for answer in answers]
    one_winner(decisions)
    # Forbidden: both commit.
    rows = durable.rows()
    assert [rows[t] for t in ("registrar_consumed", "registrar_registration", "registrar_nonce_use")] == [1, 1, 1]
    assert sorted(durable.registrar.attempts("lrk-1")) == sorted(request.attempt_id for request in asked)


@pytest.mark.req("REG-RP-09", "REG-S4", "REG-3-07", "A-88", "T3-9")
def test_RP_09_of_many_processes_one_wins(durable: Scene) -> None:  # noqa: N802
    victims = [Victim(durable, request, "waiting") for request in requests(durable, PROCESSES, own_nonces=True)]
    assert all(victim.has_looked() for victim in victims)
    for victim in victims:
        victim.go_on()
    one_winner([victim.decision() for victim in victims])
    assert durable.effects() == 1


@pytest.mark.req("REG-RP-09", "A-88", "T3-9")
def test_RP_09_a_loser_with_another_binding_learns_nothing(durable: Scene) -> None:  # noqa: N802
    late = Victim(durable, durable.asks(attempt_id="a-2", run_id="run-2"), "waiting")
    assert late.has_looked()
    durable.registered()
    late.go_on()
    decision = late.decision()
    assert (decision.code, decision.row, decision.result) == ("REPLAY_DUPLICATE", "T3-9", None)


WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE ?"


@pytest.mark.req("A-96", "REG-S1")
def test_resolve_waits_for_an_attempt_that_has_begun_to_write(schema: Schema) -> None:
    """Neither has a row that the other could lock: the key itself is locked. Else resolve would say ABSENT."""
    with closing(Scene(schema.url)) as scene, Registrar(schema.url, clock=scene.clock) as other:
        scene.registrar.open_gate("board-7")
        request = scene.asks()
        place = scene.place
        assert place is not None
        with ThreadPoolExecutor(2) as threads:
            with place.hold():
                attempt = threads.submit(scene.registrar.register, request)
                while not place.query(WAITS, f"%{schema.name}.registrar_consumed%"):
                    pass
                resolved = threads.submit(other.resolve, "lrk-1")
                while not place.query(WAITS, "%pg_advisory_xact_lock%"):
                    assert not resolved.done(), "it answered beside an attempt that is under way"
            assert attempt.result().admitted
            assert resolved.result().code == "CONSUMED"


def test_threads_with_keys_of_their_own_all_win(scene: Scene) -> None:
    asked = [scene.asks(logical_request_key=f"k-{n}", run_id=f"run-{n}") for n in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as threads:
        decisions = list(threads.map(scene.registrar.register, asked))
    assert {decision.code for decision in decisions} == {"registered"}


def test_whoever_comes_after_the_winner_has_not_raced(scene: Scene) -> None:
    first, *others = requests(scene, 4, own_nonces=False)
    assert scene.registrar.register(first).admitted
    with ThreadPoolExecutor(3) as threads:
        decisions = list(threads.map(scene.registrar.register, others))
    assert {decision.code for decision in decisions} == {"REPLAY_ATTEMPT_NO_BYPASS"}


def test_an_attempt_that_is_cancelled_before_it_begins_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with AsyncRegistrar("memory:") as registrar:
            for number in range(100):
                request = RegistrationRequest("RS/1", f"k-{number}", "op", "t", "h", "o", "r", "n", "a")
                attempt = asyncio.ensure_future(registrar.register(request))
                attempt.cancel()
                await asyncio.wait([attempt])
            del attempt
            assert len(registrar._crowds._by_key) == 0

    asyncio.run(main())
