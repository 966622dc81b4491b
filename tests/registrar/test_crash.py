"""RP-06: a process that is killed between its inserts and its commit, or right after, and what resolve then says."""

from __future__ import annotations

import os
import signal

import msgspec
import pytest

from tests.registrar.scene import Scene
from tests.registrar.test_race import Victim
from twophp.core.errors import StoreUnavailable
from twophp.registrar import State, VerifyStatus

KILLED = -9


@pytest.mark.req("REG-RP-06", "REG-3-01", "REG-3-08", "REG-S1", "A-96", "A-99", "T3-11")
def test_RP_06_killed_between_insert_and_commit_nothing_is_there(durable: Scene) -> None:  # noqa: N802
    request = durable.asks()
    before = durable.rows()
    assert Victim(durable, request, "before_commit").death() == KILLED
    assert durable.rows() == before
    # Forbidden: issuing it again without recovery. Recovery says ABSENT, and then the same key is issued again.
    resolved = durable.registrar.resolve("lrk-1")
    assert (resolved.code, resolved.state, resolved.result) == ("ABSENT", State.S0, None)
    again = durable.registrar.register(msgspec.structs.replace(request, attempt_id="a-2"))
    assert (again.code, durable.effects()) == ("registered", 1)


@pytest.mark.req("REG-RP-06", "REG-3-09", "REG-S2", "A-92", "A-96")
def test_RP_06_killed_after_the_commit_everything_is_there(durable: Scene) -> None:  # noqa: N802
    request = durable.asks()
    assert Victim(durable, request, "after_commit").death() == KILLED
    assert durable.rows()["registrar_verification"] == 0
    found = durable.registrar.find("lrk-1")
    assert found is not None
    assert found.verify_status is VerifyStatus.PENDING
    resolved = durable.registrar.resolve("lrk-1")
    assert (resolved.code, resolved.state) == ("CONSUMED", State.CLOSED)  # Verified before the caller is answered.
    again = durable.registrar.register(msgspec.structs.replace(request, attempt_id="a-2"))
    assert (again.code, again.result) == ("REPLAY_ATTEMPT_NO_BYPASS", resolved.result)
    assert durable.effects() == 1


@pytest.mark.req("REG-RP-06", "REG-S1", "A-96")
def test_after_resolve_said_absent_a_late_commit_of_the_old_attempt_loses(durable: Scene) -> None:
    late = Victim(durable, durable.asks(), "waiting")
    assert late.has_looked()
    assert durable.registrar.resolve("lrk-1").code == "ABSENT"
    late.go_on()
    decision = late.decision()
    assert (decision.code, decision.admitted, decision.state) == ("attempt_fenced", False, State.S0)
    assert durable.effects() == 0
    assert durable.registrar.register(durable.asks(attempt_id="a-2")).admitted


@pytest.mark.req("REG-RP-06", "REG-S1", "A-96", "A-88")
def test_after_resolve_and_a_new_attempt_the_old_one_reads_the_winners_result(durable: Scene) -> None:
    request = durable.asks()
    late = Victim(durable, request, "waiting")
    assert late.has_looked()
    assert durable.registrar.resolve("lrk-1").code == "ABSENT"
    winner = durable.registrar.register(msgspec.structs.replace(request, attempt_id="a-2"))
    late.go_on()
    decision = late.decision()
    assert (decision.code, decision.state, decision.result) == ("ATTEMPT_COLLISION", State.S4, winner.result)
    assert durable.effects() == 1


@pytest.mark.req("A-96")
def test_resolve_fences_every_time_it_is_asked(scene: Scene) -> None:
    for _ in range(3):
        assert scene.registrar.resolve("lrk-1").code == "ABSENT"
    _, first = scene.registered()
    for _ in range(2):
        assert scene.registrar.resolve("lrk-1").result == first


def test_a_forked_child_is_told_to_open_its_own(filed: Scene) -> None:
    child = os.fork()
    if not child:
        os._exit(_as_a_child(filed))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    filed.registered()


def _as_a_child(scene: Scene) -> int:
    signal.alarm(30)  # Ends a child that waits for a thread of its parent.
    try:
        scene.registrar.status()
    except StoreUnavailable as error:
        scene.close()
        return 0 if error.code == "forked" else 1
    return 2
