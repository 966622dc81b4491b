"""``twophp ledger verify`` finds a change to the registrar's rows that went round the triggers."""

from __future__ import annotations

import pytest

from tests.registrar.scene import Scene


def history(scene: Scene) -> None:
    """Something of everything: registered and verified, rejected and compensated, resolved as absent, and a gate."""
    scene.registered()
    scene.registered(logical_request_key="lrk-2", canonical_target="dot/artifact-2", attempt_id="a-2")
    scene.registrar.resolve("lrk-9")
    scene.registrar.resolve("lrk-9")


def findings(scene: Scene) -> set[tuple[str, str]]:
    assert scene.place is not None
    return {(one.what, one.subject) for one in scene.place.verify().findings}


def test_what_the_registrar_wrote_holds(durable: Scene) -> None:
    history(durable)
    assert durable.place is not None
    report = durable.place.verify()
    assert report.holds, report.findings
    assert report.records == 6, "two keys, two verdicts, a fence and the gate"


EDITS = {
    "UPDATE registrar_consumed SET canonical_target = 'dot/other' WHERE logical_request_key = 'lrk-1'": (
        "record_differs",
        "lrk-1",
    ),
    "UPDATE registrar_consumed SET consumed_at = 1 WHERE logical_request_key = 'lrk-1'": ("record_differs", "lrk-1"),
    "UPDATE registrar_consumed SET run_id = '' WHERE logical_request_key = 'lrk-1'": ("record_differs", "lrk-1"),
    "DELETE FROM registrar_consumed WHERE logical_request_key = 'lrk-1'": ("record_missing", "lrk-1"),
    "UPDATE registrar_registration SET status = 'active' WHERE logical_request_key = 'lrk-2'": (
        "record_differs",
        "lrk-2",
    ),
    "DELETE FROM registrar_registration WHERE logical_request_key = 'lrk-2'": ("record_missing", "lrk-2"),
    "DELETE FROM registrar_nonce_use WHERE logical_request_key = 'lrk-2'": ("record_missing", "lrk-2"),
    "DELETE FROM registrar_nonce": ("record_missing", "lrk-1"),
    "UPDATE registrar_verification SET verdict = 'FAIL' WHERE subject = 'lrk-1'": ("record_differs", "lrk-1"),
    "DELETE FROM registrar_verification WHERE subject = 'lrk-1'": ("record_missing", "lrk-1"),
    "UPDATE registrar_fence SET version = 1": ("record_differs", "lrk-9"),
    "DELETE FROM registrar_fence": ("record_missing", "lrk-9"),
    "UPDATE registrar_gate SET authority_ref = 'nobody'": ("record_differs", "OPEN"),
    "DELETE FROM registrar_gate": ("record_missing", "registrar"),
    "INSERT INTO registrar_fence VALUES (999, 'lrk-77', 5, 1)": ("record_differs", "lrk-77"),
}


@pytest.mark.req("REG-4-07")
@pytest.mark.parametrize("edit", EDITS)
def test_a_row_that_was_changed_behind_the_triggers_is_found(durable: Scene, edit: str) -> None:
    history(durable)
    durable.registrar.close()
    durable.tampering(edit)
    assert EDITS[edit] in findings(durable)


def test_a_compensation_that_was_changed_is_found(url: str) -> None:
    scene = Scene(url, verifier=lambda _row: False)
    scene.registrar.open_gate("board-7")
    assert scene.registrar.register(scene.asks()).code == "verify_failed"
    assert scene.registrar.compensate("lrk-1", scene.nonce()).admitted
    scene.close()
    assert findings(scene) == set()
    scene.tampering("UPDATE registrar_compensation SET compensated_at = 1")
    assert findings(scene) == {("record_differs", "lrk-1")}
    scene.tampering("DELETE FROM registrar_compensation")
    assert findings(scene) == {("record_missing", "lrk-1")}
