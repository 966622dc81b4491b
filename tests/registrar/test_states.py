"""S0 to S4, the verifier, the audit, the gate: what is durable when, and who says so."""

from __future__ import annotations

import asyncio
import gc
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from tests.core import intents
from tests.registrar.scene import KEPT, MINUTE, OWNER, Scene, short, sqlite_url
from twophp.core import phase, registration
from twophp.core.errors import ConfigError, Refused, StoreError, StorePoisoned, StoreUnavailable
from twophp.core.registrar import Readback
from twophp.core.surface import report_surface
from twophp.registrar import AsyncRegistrar, Registrar, RegistrationRequest, State, VerifyStatus, opening
from twophp.registrar.witness import Witness


def parts(scene: Scene) -> Any:
    """The registrar's inside, for tests that break it on purpose."""
    return scene.registrar._registrar._opened


# S0 and T3's order.


@pytest.mark.req("REG-S0", "REG-3-03", "T3-4")
def test_a_consumed_key_with_a_junk_nonce_is_a_duplicate_and_never_unbound(scene: Scene) -> None:
    _, first = scene.registered()
    junk = scene.registrar.register(scene.asks(authorization_nonce="junk"))
    assert (short(junk), junk.prior) == (("REPLAY_DUPLICATE", False), first)


@pytest.mark.req("REG-1-04", "A-90", "A-91", "T3-1")
@pytest.mark.parametrize("field", ["canonical_operation", "canonical_target", "deployed_artifact_hash", "run_id"])
def test_a_known_key_with_another_binding_learns_nothing(scene: Scene, field: str) -> None:
    request, _ = scene.registered()
    other = msgspec.structs.replace(request, **{field: "another"})
    decision = scene.registrar.register(other)
    assert short(decision) == ("REPLAY_DUPLICATE", False)
    assert (decision.state, decision.result, decision.prior) == (None, None, None)


@pytest.mark.req("A-91")
def test_the_run_belongs_to_the_effect_unless_the_database_is_strict(tmp_path: Path) -> None:
    with closing(Scene(sqlite_url(tmp_path), strict_effect_identity=True)) as strict:
        strict.registrar.open_gate("board-7")
        strict.registered()
        other_run = strict.asks(logical_request_key="lrk-2", run_id="run-2")
        assert strict.registrar.register(other_run).code == "REPLAY_DUPLICATE"
        with pytest.raises(ConfigError, match="without run_id") as caught:
            Registrar(strict.url, strict_effect_identity=False)
        assert caught.value.code == "other_effect_identity"
        with Registrar(strict.url, clock=strict.clock) as adopting:
            again = strict.asks(logical_request_key="lrk-3", run_id="run-3")
            assert adopting.register(again).code == "REPLAY_DUPLICATE"


@pytest.mark.req("A-85", "A-100", "REG-3-05")
@pytest.mark.parametrize("value", ["", None, "\ud800"])
def test_an_incomplete_request_is_refused_and_noted(scene: Scene, value: Any) -> None:
    decision = scene.registrar.register(scene.asks(run_id=value))
    assert short(decision) == ("incomplete_binding", False)
    assert scene.registrar.register(scene.asks(logical_request_key=value)).code == "incomplete_binding"
    assert [line.code for line in scene.registrar.audit()] == ["incomplete_binding"] * 2


# One transaction.


@pytest.mark.req("REG-3-01", "REG-3-06", "REG-3-09", "REG-S2", "REG-1-01", "REG-1-09", "A-86", "A-97")
def test_consume_row_inert_row_and_nonce_are_durable_together(durable: Scene) -> None:
    before = durable.rows()
    request, result = durable.registered()
    after = durable.rows()
    grown = {table: after[table] - before[table] for table in KEPT}
    assert grown == {
        "registrar_nonce": 1,
        "registrar_consumed": 1,
        "registrar_registration": 1,
        "registrar_nonce_use": 1,
        "registrar_verification": 1,
        "registrar_compensation": 0,
        "registrar_audit": 0,  # success needs no audit.
    }
    assert durable.query("SELECT status FROM registrar_registration") == "draft"
    with Registrar(durable.url) as reopened:
        assert reopened.find("lrk-1") == result
        assert reopened.register(request).prior == result


@pytest.mark.req("REG-3-02", "REG-3-08", "REG-S1", "A-93", "A-99", "T3-11")
@pytest.mark.parametrize("table", ["registrar_registration", "registrar_nonce_use"])
def test_a_later_insert_that_fails_takes_the_consume_row_with_it(filed: Scene, table: str) -> None:
    request = filed.asks()
    with closing(apsw.Connection(filed.path)) as connection:
        connection.execute(f"CREATE TRIGGER broken BEFORE INSERT ON {table} BEGIN SELECT raise(ABORT, 'broken'); END")
    before = filed.rows()
    with pytest.raises(StoreError, match="broken"):
        filed.registrar.register(request)
    assert filed.rows() == before
    with closing(apsw.Connection(filed.path)) as connection:
        connection.execute("DROP TRIGGER broken")
    assert filed.registrar.resolve("lrk-1").code == "ABSENT"
    assert filed.registrar.register(request).admitted  # key and nonce are as they were.


@pytest.mark.req("REG-S1", "REG-3-08", "A-96", "T3-11")
@pytest.mark.parametrize(
    ("error", "code"),
    [(apsw.FullError("database or disk is full"), "commit_failed"), (apsw.IOError("disk I/O error"), "commit_unknown")],
)
def test_a_commit_that_fails_shows_nothing_and_sends_to_resolve(filed: Scene, error: apsw.Error, code: str) -> None:
    request = filed.asks()
    writer = parts(filed).store._writer
    real = writer._connection

    class Failing:
        """The connection, but for its next COMMIT."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def execute(self, statement: str, *rest: Any) -> Any:
            if statement.startswith("COMMIT"):
                writer._connection = real
                raise error
            return real.execute(statement, *rest)

    writer._connection = Failing()
    decision = filed.registrar.register(request)
    assert (*short(decision), decision.state, decision.result) == (code, False, State.S1, None)
    assert [line.code for line in filed.registrar.audit("lrk-1")] == [code]
    resolved = filed.registrar.resolve("lrk-1")
    assert (resolved.code, resolved.state) == ("ABSENT", State.S0)
    assert filed.registrar.register(request).admitted


@pytest.mark.req("REG-S1", "A-93")
@pytest.mark.parametrize("part", ["store", "audit"])
def test_a_registrar_recovers_by_itself_from_a_commit_that_nobody_could_tell_of(durable: Scene, part: str) -> None:
    """The next caller has nothing to resolve: the nonce, verdict or line was another caller's."""
    getattr(parts(durable), part)._writer._poison = StorePoisoned("a commit failed; open it anew")
    request = durable.asks()
    assert durable.registrar.register(durable.asks(authorization_nonce="junk")).code == "NONCE_UNBOUND"
    assert [line.code for line in durable.registrar.audit()] == ["NONCE_UNBOUND"]
    assert durable.registrar.register(request).admitted


# The verifier.


@pytest.mark.req("REG-3-10", "REG-3-11", "A-92")
def test_the_verifier_reads_back_once_after_the_commit_with_its_own_connection(filed: Scene) -> None:
    opened = parts(filed)
    witness: Witness = opened.witness
    seen: list[tuple[str, int]] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(witness, name)

        async def readback(self, key: str) -> Readback:
            seen.append((key, filed.effects(key)))  # A third connection sees the row: it is committed.
            return await witness.readback(key)

    opened.witness = Watched()
    filed.registered()
    assert seen == [("lrk-1", 1)]
    assert witness._connection is not opened.store._connection  # type: ignore[attr-defined]
    with pytest.raises(apsw.ReadOnlyError):
        witness._connection.execute("UPDATE head SET at = 1")  # type: ignore[attr-defined]
    filed.registrar.register(filed.asks())
    assert len(seen) == 1  # What has its verdict is not asked about again.


@pytest.mark.req("A-92", "REG-3-10")
def test_an_error_of_the_verifier_leaves_pending_and_never_passes(url: str) -> None:
    moods: list[Any] = [RuntimeError("the reader is away"), SystemExit("it goes, too"), True]

    def moody(_row: Any) -> bool:
        mood = moods.pop(0)
        if isinstance(mood, BaseException):
            raise mood
        return bool(mood)

    with closing(Scene(url, verifier=moody)) as scene:
        scene.registrar.open_gate("board-7")
        request = scene.asks()
        first = scene.registrar.register(request)
        assert (first.code, first.admitted, first.state) == ("registered", True, State.S2)
        assert scene.rows()["registrar_verification"] == 0
        retry = scene.registrar.register(request)
        assert (retry.code, retry.state) == ("prior_result", State.S2)
        assert scene.registrar.resolve("lrk-1").state is State.CLOSED
        assert scene.registrar.register(request).state is State.CLOSED


@pytest.mark.req("A-92", "REG-S3", "REG-3-12")
def test_what_has_no_verdict_is_verified_at_start_up(url: str) -> None:
    with closing(Scene(url, verifier=lambda _row: 1 / 0 > 0)) as scene:  # It can only raise.
        scene.registrar.open_gate("board-7")
        for n in (1, 2):
            scene.registrar.register(scene.asks(logical_request_key=f"lrk-{n}", run_id=f"run-{n}"))
        assert scene.rows()["registrar_verification"] == 0
        scene.tampering("UPDATE registrar_registration SET replay_key = 'forged' WHERE logical_request_key = 'lrk-2'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twophp.registrar.flow.examine_own", _never_fit)
        with Registrar(url) as reopened:
            found = {n: reopened.find(f"lrk-{n}") for n in (1, 2)}
    assert {n: row.verify_status for n, row in found.items() if row} == {1: VerifyStatus.PASS, 2: VerifyStatus.FAIL}


async def _never_fit(_parts: Any, table: str) -> Any:
    """The tampered file's fitness is not what is shown here."""
    return report_surface(table, {})


@pytest.mark.req("A-98", "REG-3-14", "REG-3-15")
def test_compensation_takes_its_own_nonce_and_happens_once(url: str) -> None:
    with closing(Scene(url, verifier=lambda _row: False)) as scene:
        scene.registrar.open_gate("board-7")
        request = scene.asks()
        scene.registrar.register(request)
        before = scene.rows()
        compensate = scene.registrar.compensate
        assert compensate("lrk-9", scene.nonce()).code == "not_consumed"
        assert compensate("lrk-1", request.authorization_nonce).code == "REPLAY_NONCE_CONSUMED"
        assert compensate("lrk-1", "made up").code == "NONCE_UNBOUND"
        assert compensate("lrk-1", scene.nonce("owner-2")).code == "NONCE_UNBOUND"
        nonce = scene.nonce()
        first = compensate("lrk-1", nonce, attempt_id="c-1")
        assert first.result is not None
        assert (first.code, first.result.verify_status) == ("compensated", VerifyStatus.PASS)
        repeat = compensate("lrk-1", nonce, attempt_id="c-2")
        assert (repeat.code, repeat.prior) == ("prior_result", first.result)
        assert compensate("lrk-1", scene.nonce()).code == "REPLAY_DUPLICATE"
        after = scene.rows()
        assert [after[t] - before[t] for t in ("registrar_compensation", "registrar_nonce_use")] == [1, 1]
        assert [after[t] - before[t] for t in ("registrar_consumed", "registrar_registration")] == [0, 0]
        assert [row.attempt_id for row in scene.registrar.compensations("lrk-1")] == ["c-1"]


@pytest.mark.req("A-98")
def test_what_was_not_rejected_is_not_compensated(scene: Scene) -> None:
    scene.registered()
    assert scene.registrar.compensate("lrk-1", scene.nonce()).code == "not_compensable"


# The audit.


@pytest.mark.req("A-93", "REG-6-f", "REG-1-11")
def test_a_refusal_is_noted_with_ids_and_digests_and_no_credential(filed: Scene) -> None:
    request, _ = filed.registered()
    fresh = filed.nonce()
    filed.registrar.register(msgspec.structs.replace(request, authorization_nonce=fresh, attempt_id="a-2"))
    (line,) = filed.registrar.audit("lrk-1")
    assert (line.code, line.row, line.attempt_id, line.replay_key) == (
        "REPLAY_DUPLICATE",
        "T3-4",
        "a-2",
        request.replay_key,
    )
    assert fresh not in str(line)
    assert parts(filed).audit._connection is not parts(filed).store._connection
    with closing(apsw.Connection(filed.path)) as connection:
        for change in ("UPDATE registrar_audit SET code = 'fine'", "DELETE FROM registrar_audit"):
            with pytest.raises(apsw.ConstraintError, match="append-only"):
                connection.execute(change)


@pytest.mark.req("A-93")
def test_a_refusal_that_cannot_be_noted_fails_the_call(filed: Scene) -> None:
    with closing(apsw.Connection(filed.path)) as connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON registrar_audit BEGIN SELECT raise(ABORT, 'no'); END")
    # The schema changed, so the surface is proven anew, and its audit cannot be written: hold, before anything else.
    assert filed.registrar.register(filed.asks(authorization_nonce="junk")).code == "REGISTRATION_HOLD"
    filed.registrar._registrar._proven_schema = asyncio.run(parts(filed).witness.schema())
    filed.registrar._registrar._report = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncRegistrar, "_is_fit", _fit)
        patch.setattr("twophp.registrar.changes._is_open", lambda _records: True)
        with pytest.raises(StoreError, match="NONCE_UNBOUND, and its audit could not be written") as caught:
            filed.registrar.register(filed.asks(authorization_nonce="junk"))
    assert caught.value.code == "audit_failed"


async def _fit(_self: AsyncRegistrar) -> bool:
    return True


# The gate.


@pytest.mark.req("REG-7-01", "REG-7-05", "REG-7-06", "A-94", "T3-0")
def test_under_hold_every_call_is_refused_and_nothing_is_written(url: str) -> None:
    with closing(Scene(url)) as scene:
        status = scene.registrar.status()
        assert (status.gate, status.registration_can_proceed) == ("REGISTRATION_HOLD", "NO")
        assert status.domain_status == "REPLAY_DOMAIN_READY_AS_CRITERIA"  # Fit alone opens nothing.
        request = scene.asks()
        before = scene.rows()
        for again in (request, scene.asks(authorization_nonce="junk")):
            decision = scene.registrar.register(again)
            assert (*short(decision), decision.result) == ("REGISTRATION_HOLD", False, None)
        assert scene.registrar.resolve("lrk-1").code == "ABSENT"
        assert scene.registrar.compensate("lrk-1", request.authorization_nonce).code == "REGISTRATION_HOLD"
        assert scene.rows() == before
        for nobody in ("", " "):
            with pytest.raises(Refused, match="name the authority"):
                scene.registrar.open_gate(nobody)
        assert scene.registrar.open_gate("board-7").can_proceed
        assert scene.registrar.register(request).admitted


@pytest.mark.req("A-94", "REG-7-01", "REG-7-05")
def test_a_surface_that_loses_its_fitness_closes_the_gate_for_everybody(durable: Scene) -> None:
    durable.registered()
    with Registrar(durable.url) as other:
        assert other.status().can_proceed
        durable.tampering()  # The triggers are gone.
        held = other.register(durable.asks(logical_request_key="lrk-2", run_id="run-2"))
        assert (held.code, held.cause) == ("REGISTRATION_HOLD", "REPLAY_SURFACE_NOT_FIT")
        status = other.status()
        assert status.domain_status == "REPLAY_DOMAIN_FAIL_CLOSED_UNTIL_SURFACE_FIT_PROVEN"
        assert "e" in status.failed_criteria
    assert not durable.registrar.status().can_proceed
    assert durable.effects("lrk-2") == 0


@pytest.mark.req("A-94")
def test_the_gate_stays_as_it_was_left_and_can_be_held(filed: Scene) -> None:
    with Registrar(filed.url) as other:
        assert other.status().authority_ref == "board-7"
        assert other.hold("audit under way").gate == "REGISTRATION_HOLD"
    assert filed.registrar.register(filed.asks()).code == "REGISTRATION_HOLD"
    assert filed.registrar.status().reason == "audit under way"
    events = filed.query("SELECT group_concat(event || ' ' || detail, '; ') FROM journal WHERE kind = 'gate'")
    assert events == "opened board-7; held audit under way"


def test_an_attempt_that_began_before_the_gate_changed_loses(durable: Scene) -> None:
    request = durable.asks()
    opened = parts(durable)
    witness: Witness = opened.witness

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(witness, name)

        async def look(self, key: str) -> Any:
            look = await witness.look(key)
            opened.witness = witness
            await durable.registrar._registrar.hold("for a moment")
            await durable.registrar._registrar.open_gate("board-8")
            return look

    opened.witness = Slow()
    assert durable.registrar.register(request).code == "attempt_fenced"
    assert durable.registrar.register(request).admitted


# The horizon, and one rule set.


@pytest.mark.req("REG-4-03", "REG-4-06", "A-83", "A-84")
def test_no_verb_takes_a_consumed_record_back(scene: Scene) -> None:
    request, first = scene.registered()
    verbs = {name for name in dir(scene.registrar) if not name.startswith("_")}
    assert verbs == {
        *("attempts", "audit", "check", "close", "compensate", "compensations", "find", "hold", "issue_nonce"),
        *("open_gate", "probe", "register", "resolve", "status"),
    }
    scene.clock.now += 1_000 * 365 * 24 * 60 * MINUTE
    scene.registrar.check()
    for kind in ("intent", "obligation", "job"):  # What sweepers ask: nothing of the registrar's is ever due.
        assert scene.registrar._portal.run(parts(scene).store.due(kind, scene.clock.now, 10)) == []
    assert scene.registrar.resolve("lrk-1").result == first
    assert not scene.registrar.register(request).admitted


@pytest.mark.req("A-82")
def test_phase_1_of_2php_compares_bindings_by_the_registrars_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    assert phase.compare_bindings is registration.compare_bindings  # type: ignore[attr-defined]
    asked: list[tuple[str | None, str]] = []
    real = registration.compare_bindings

    def counting(prior: str | None, presented: str) -> Any:
        asked.append((prior, presented))
        return real(prior, presented)

    monkeypatch.setattr(phase, "compare_bindings", counting)
    waiting = intents.waiting()
    phase.decide(waiting, intents.register(replay_key="another"), waiting.received_at, intents.REJECT)
    assert asked == [(waiting.replay_key, "another")]


# Odds and ends of the public face.


def test_a_nonce_needs_an_envelope_and_a_window(scene: Scene) -> None:
    wrong: list[Any] = [("", 60), (5, 60), ("\ud800", 60), (OWNER, 0), (OWNER, -1), (OWNER, "60"), (OWNER, True)]
    for owner, secs in (*wrong, (OWNER, math.inf), (OWNER, math.nan), (OWNER, 1e30)):
        with pytest.raises(ConfigError) as caught:
            scene.nonce(owner, secs)
        assert caught.value.code == "bad_nonce"


@pytest.mark.parametrize(
    "wrong", [{"issued_at": "yesterday"}, {"valid_until": True}, {"logical_request_key": ["k"]}], ids=str
)
def test_a_request_that_cannot_be_judged_is_refused_and_noted(scene: Scene, wrong: dict[str, Any]) -> None:
    assert short(scene.registrar.register(scene.asks(**wrong))) == ("incomplete_binding", False)
    assert [line.code for line in scene.registrar.audit()] == ["incomplete_binding"]


def test_an_authority_is_named_by_a_text(scene: Scene) -> None:
    for authority in ("", " ", 5, None, "\ud800"):
        with pytest.raises(Refused) as caught:
            scene.registrar.open_gate(authority)  # type: ignore[arg-type]
        assert caught.value.code == "REGISTRATION_HOLD"


@pytest.mark.parametrize(
    "wrong", [{"surface": 5}, {"strict_effect_identity": "no"}, {"verifier": 5}, {"clock": 5}, {"mint": 5}], ids=str
)
def test_an_option_of_the_wrong_kind_is_refused_by_its_name(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=(*wrong,)[0]) as caught:
        Registrar(sqlite_url(tmp_path), **wrong)
    assert (caught.value.code, list(tmp_path.iterdir())) == ("bad_setting", [])


def test_a_closed_registrar_says_so(tmp_path: Path) -> None:
    scene = Scene(sqlite_url(tmp_path))
    scene.close()
    scene.close()
    with pytest.raises(StoreUnavailable):
        scene.registrar.status()


def test_what_cannot_be_opened_whole_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(_path: str) -> None:
        raise StoreUnavailable("too many open files")

    monkeypatch.setattr(opening, "SQLiteWitness", no_more)
    gc.disable()  # It must not be what closes them.
    try:
        with pytest.raises(StoreUnavailable, match="too many"):
            Registrar(sqlite_url(tmp_path))
        left = [one.filename for one in apsw.connections() if one.filename.startswith(str(tmp_path))]
    finally:
        gc.enable()
    assert left == []


def test_a_url_without_a_store_is_refused() -> None:
    with pytest.raises(ConfigError):
        Registrar("redis://127.0.0.1/0")


def test_the_asynchronous_one_is_the_same() -> None:
    async def main() -> None:
        async with AsyncRegistrar("memory:") as registrar:
            await registrar.open_gate("board-7")
            nonce = await registrar.issue_nonce("o", valid_for_secs=60)
            request = RegistrationRequest("RS/1", "k", "op", "t", "h", "o", "r", nonce, "a")
            first, second = await asyncio.gather(registrar.register(request), registrar.register(request))
            assert (first.code, second.code) == ("registered", "ATTEMPT_COLLISION")
            assert second.result == first.result

    asyncio.run(main())
