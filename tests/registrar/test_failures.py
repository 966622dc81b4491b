"""RP-01 to RP-10: what is answered, and that the forbidden fail-open cannot happen.

Each answer is shown on every store. Where the fail-open would be a second row, the database itself is asked for it by
a connection that may write: it refuses, even where the rules above it would not.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import apsw
import msgspec
import pytest

from tests.registrar.scene import MINUTE, YEAR, Scene, short
from tests.registrar.tables import IU_ROUTE_ATTEMPT, make
from twophp.core.errors import Refused
from twophp.registrar import Registrar, Registration, State, evaluate_surface
from twophp.stores.sqlite.registrar import as_registrar


def refuses_again(scene: Scene, **changes: Any) -> bool:
    """Whether the database refuses; memory has no other way in than the store's, which the rules' tests show."""
    if scene.place is None:
        return True
    with scene.place.refusing_twice():
        scene.place.insert_again(changes)
    return scene.effects() == 1


@pytest.mark.req("REG-RP-01", "REG-1-06", "REG-1-13", "REG-1-11", "T3-2")
def test_RP_01_a_new_attempt_does_not_bypass_the_key(scene: Scene) -> None:  # noqa: N802
    request, first = scene.registered()
    again = scene.registrar.register(msgspec.structs.replace(request, attempt_id="a-2"))
    assert short(again) == ("REPLAY_ATTEMPT_NO_BYPASS", False)
    assert (again.result, again.prior, again.state) == (first, first, State.CLOSED)
    assert scene.registrar.attempts("lrk-1") == ["a-1", "a-2"]
    # Forbidden: accepting because the attempt differs.
    assert scene.effects() == 1
    assert refuses_again(scene, attempt_id="a-3", authorization_nonce="n", replay_key="r", run_id="x")


@pytest.mark.req("REG-RP-02", "REG-1-06", "REG-1-10", "REG-1-17", "A-87", "A-91", "T3-4", "T3-8")
def test_RP_02_a_fresh_nonce_does_not_buy_the_same_effect_again(scene: Scene) -> None:  # noqa: N802
    request, first = scene.registered()
    fresh = scene.nonce()
    again = scene.registrar.register(msgspec.structs.replace(request, authorization_nonce=fresh, attempt_id="a-2"))
    assert (short(again), again.prior) == (("REPLAY_DUPLICATE", False), first)
    elsewhere = scene.registrar.register(scene.asks(logical_request_key="lrk-2", authorization_nonce=fresh))
    assert (short(elsewhere), elsewhere.result) == (("REPLAY_DUPLICATE", False), None)
    # Forbidden: freshness re-authorising. The nonce was not even touched: it still buys what it is good for.
    assert (scene.effects(), scene.effects("lrk-2")) == (1, 0)
    assert refuses_again(scene, logical_request_key="lrk-3", authorization_nonce="n", replay_key="r")  # The effect.
    assert refuses_again(scene, logical_request_key="lrk-3", authorization_nonce="n", effect_run_id="x")  # replay_key.
    other = scene.asks(logical_request_key="lrk-2", authorization_nonce=fresh, run_id="run-2")
    assert scene.registrar.register(other).admitted


@pytest.mark.req("REG-RP-03", "REG-1-07", "REG-1-09", "A-86", "A-90", "T3-6")
def test_RP_03_a_consumed_nonce_is_refused(scene: Scene) -> None:  # noqa: N802
    request, _ = scene.registered()
    nonce = request.authorization_nonce
    other = scene.asks(logical_request_key="lrk-2", run_id="run-2", authorization_nonce=nonce)
    assert short(scene.registrar.register(other)) == ("REPLAY_NONCE_CONSUMED", False)
    # Forbidden: accepting it. Its use has a row of its own, and a constraint of its own.
    assert scene.effects("lrk-2") == 0
    changed = {"logical_request_key": "lrk-2", "replay_key": "r", "run_id": "x", "effect_run_id": "x"}
    assert refuses_again(scene, **changed)
    if scene.url != "memory:":
        assert scene.query("SELECT used_for FROM registrar_nonce_use WHERE authorization_nonce = ?", nonce) == (
            "registration"
        )


@pytest.mark.req("REG-RP-04", "REG-1-08", "REG-3-05", "A-99", "T3-7")
def test_RP_04_a_nonce_without_its_envelope_or_window_is_refused(scene: Scene) -> None:  # noqa: N802
    early = scene.nonce(valid_after_secs=30)
    strangers = scene.nonce("owner-2")
    before = None if scene.url == "memory:" else scene.rows()
    for nonce in ("made up", early, strangers):
        decision = scene.registrar.register(scene.asks(authorization_nonce=nonce))
        assert (*short(decision), decision.state) == ("NONCE_UNBOUND", False, State.S0)
    # Forbidden: a free-floating nonce. Nothing was consumed but a line of the audit each.
    assert scene.effects() == 0
    if before is not None:
        assert scene.rows() == before | {"registrar_audit": before["registrar_audit"] + 3}
    scene.clock.now += 30_000
    late = scene.asks(authorization_nonce=early)
    scene.clock.now += MINUTE
    assert scene.registrar.register(late).code == "NONCE_UNBOUND"
    scene.clock.now -= 1
    in_time = scene.nonce(secs=0.002)
    scene.clock.now += 1
    assert scene.registrar.register(scene.asks(authorization_nonce=in_time)).admitted  # the key was never used.


@pytest.mark.req("REG-RP-04", "REG-1-09")
def test_RP_04_the_database_knows_every_nonce_that_was_used(filed: Scene) -> None:  # noqa: N802
    filed.registered()
    with closing(apsw.Connection(filed.path)) as connection:
        as_registrar(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO registrar_nonce_use VALUES (NULL, 'floating', 'lrk-1', 'registration', 1)")
        with pytest.raises(apsw.ConstraintError, match="FOREIGN KEY"):
            connection.execute("COMMIT")


@pytest.mark.req("REG-RP-05", "REG-1-03", "REG-3-04", "REG-S2", "A-87", "T3-2")
def test_RP_05_an_exact_retry_returns_the_durable_prior_result(scene: Scene) -> None:  # noqa: N802
    request, first = scene.registered()
    for _ in range(3):
        scene.clock.now += 1
        retry = scene.registrar.register(request)
        assert (short(retry), retry.state) == (("prior_result", False), State.CLOSED)
        assert msgspec.json.encode(retry.result) == msgspec.json.encode(first)
    # Forbidden: a second effect. And a retry is no failure.
    assert scene.effects() == 1
    assert refuses_again(scene)
    assert scene.registrar.audit() == []


# RP-06 takes a real crash: test_crash.py. RP-09 takes a real race: test_race.py.


@pytest.mark.req("REG-RP-07", "REG-S3", "REG-3-12", "REG-3-13", "REG-3-14", "REG-3-15", "A-98")
def test_RP_07_after_a_failed_verification_compensation_is_all_there_is(scene: Scene) -> None:  # noqa: N802
    rejecting = Scene(scene.elsewhere(), verifier=lambda _row: False)
    with closing(rejecting):
        rejecting.registrar.open_gate("board-7")
        request = rejecting.asks()
        decision = rejecting.registrar.register(request)
        assert (decision.code, decision.admitted, decision.state) == ("verify_failed", True, State.S3)
        fresh = msgspec.structs.replace(request, authorization_nonce=rejecting.nonce(), attempt_id="a-2")
        for again, code in ((request, "prior_result"), (fresh, "REPLAY_DUPLICATE")):
            answer = rejecting.registrar.register(again)
            assert (*short(answer), answer.state) == (code, False, State.S3)
        assert rejecting.registrar.resolve("lrk-1").state is State.S3
        done = rejecting.registrar.compensate("lrk-1", rejecting.nonce(), attempt_id="c-1")
        assert (done.code, done.admitted, done.state) == ("compensated", True, State.S3)
        # Forbidden: recreating it under a new nonce. A compensation is no registration, and the key stays consumed.
        assert not isinstance(done.result, Registration)
        assert rejecting.effects() == 1
        assert rejecting.registrar.register(rejecting.asks(attempt_id="a-3")).code == "REPLAY_DUPLICATE"
        assert refuses_again(rejecting, authorization_nonce="n")


@pytest.mark.req("REG-RP-08", "REG-4-01", "REG-4-02", "REG-4-04", "REG-4-05", "REG-4-06", "A-89", "T3-3", "T3-5")
def test_RP_08_a_stale_request_is_inadmissible_and_the_key_still_blocked(scene: Scene) -> None:  # noqa: N802
    window = {"issued_at": scene.clock.now, "valid_until": scene.clock.now + MINUTE}
    request, first = scene.registered(**window)
    for age in (MINUTE, YEAR, 40 * YEAR):
        scene.clock.now += age
        stale = scene.registrar.register(request)
        assert (short(stale), stale.prior) == (("REPLAY_STALE_ROW", False), first)
        # Forbidden: that staleness erases what was consumed. A renewed window and a fresh nonce change nothing.
        renewed = msgspec.structs.replace(request, issued_at=scene.clock.now, valid_until=None)
        assert scene.registrar.register(renewed).prior == first
        fresh = msgspec.structs.replace(renewed, authorization_nonce=scene.nonce())
        assert short(scene.registrar.register(fresh)) == ("REPLAY_DUPLICATE", False)
        assert scene.registrar.resolve("lrk-1").result == first
    assert scene.effects() == 1
    never = scene.asks(logical_request_key="lrk-2", run_id="run-2", valid_until=scene.clock.now)
    assert (scene.registrar.register(never).code, scene.effects("lrk-2")) == ("REPLAY_STALE_ROW", 0)


@pytest.mark.req("REG-RP-10", "REG-2-06", "REG-7-02", "REG-7-03", "REG-7-05", "T3-0")
def test_RP_10_an_attempt_ledger_is_no_replay_store(filed: Scene) -> None:  # noqa: N802
    make(filed.path, IU_ROUTE_ATTEMPT)
    assert evaluate_surface(filed.url, "iu_route_attempt").code == "REPLAY_SURFACE_NOT_FIT"
    request = filed.asks()
    with Registrar(filed.url, surface="iu_route_attempt") as misled:
        # Forbidden: treating it as single-use. The gate that was open is shut, for every process.
        with pytest.raises(Refused, match="iu_route_attempt is not proven fit") as caught:
            misled.open_gate("board-7")
        assert caught.value.code == "REPLAY_SURFACE_NOT_FIT"
        decision = misled.register(request)
        assert (decision.code, decision.cause) == ("REGISTRATION_HOLD", "REPLAY_SURFACE_NOT_FIT")
        assert (misled.status().gate, misled.status().registration_can_proceed) == ("REGISTRATION_HOLD", "NO")
    assert filed.registrar.register(request).code == "REGISTRATION_HOLD"
    assert (filed.effects(), filed.query("SELECT count(*) FROM iu_route_attempt")) == (0, 0)


@pytest.mark.req("REG-1-01", "REG-1-02", "REG-1-05", "REG-1-12", "A-85", "A-86", "A-91")
def test_the_database_refuses_a_second_row_on_each_axis_by_itself(durable: Scene) -> None:
    """A row that changes all but one axis is refused for that one; a row that changes all is let in."""
    durable.registered()
    assert durable.place is not None
    axes: dict[str, dict[str, str]] = {
        "key": {"logical_request_key": "k"},
        "replay": {"replay_key": "r"},
        "nonce": {"authorization_nonce": "n"},
        "effect": {"canonical_target": "t"},
    }
    for left in axes:
        changes = {name: value for axis, part in axes.items() if axis != left for name, value in part.items()}
        with durable.place.refusing_twice():
            durable.place.insert_again(changes)
    durable.place.insert_again({name: value for part in axes.values() for name, value in part.items()})
