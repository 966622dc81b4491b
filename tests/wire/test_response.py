"""Answers, as a client reads them (A-06)."""

from __future__ import annotations

import pytest

from twophp.core.errors import WireError
from twophp.core.intent import Phase
from twophp.wire.parse import TwoPhaseAnswer, parse_response

from .samples import AT, SERVER, SERVER_ID, Pairs, field

WAITING = field("phase-state", b"WAITING_CONFIRM")
FIGURE: Pairs = [  # draft §5.2.2
    SERVER_ID,
    WAITING,
    field("ttl", b"30000"),
    field("ponr-deadline", b"2026-01-02T03:04:05.678Z"),
]


def answer(headers: Pairs) -> TwoPhaseAnswer:
    found = parse_response(headers)
    assert found is not None
    return found


@pytest.mark.req("P-5.2.2-b", "P-14.1-f", "P-14.1-g", "P-14.1-h", "P-14.1-i")
def test_the_drafts_phase_1_answer() -> None:
    assert answer(FIGURE) == TwoPhaseAnswer(
        phase=Phase.WAITING_CONFIRM,
        server_correlation_id=SERVER,
        ttl_ms=30_000,
        deadline_at=AT,
        resource_id=None,
        replay_policy=None,
        message=None,
    )


@pytest.mark.req("A-06")
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (FIGURE, True),
        ([SERVER_ID, WAITING], True),
        ([WAITING], False),
        ([SERVER_ID, field("phase-state", b"COMMITTED")], False),  # T2: a repeated Phase 1 that went on already.
        ([SERVER_ID, field("phase-state", b"TTL_EXPIRED")], False),
    ],
)
def test_only_a_registered_and_waiting_intent_may_be_confirmed(headers: Pairs, expected: bool) -> None:
    assert answer(headers).awaits_confirm is expected


@pytest.mark.req("A-06")
@pytest.mark.parametrize("headers", [[], [(b"content-type", b"text/plain")], [SERVER_ID]])
def test_without_a_phase_state_the_answer_is_plain(headers: Pairs) -> None:
    assert parse_response(headers) is None


@pytest.mark.req("A-06")
@pytest.mark.parametrize("name", ["ttl", "ponr-deadline"])
@pytest.mark.parametrize("value", [b"5", b"", b"not a time", b"1, 2"])
def test_a_time_to_confirm_without_a_phase_state_is_refused(name: str, value: bytes) -> None:
    for headers in ([field(name, value)], [SERVER_ID, field(name, value)]):
        with pytest.raises(WireError) as raised:
            parse_response(headers)
        assert (raised.value.code, raised.value.field) == ("missing_field", "DTT-2PHP-Phase-State")


@pytest.mark.req("P-14.1-g")
@pytest.mark.parametrize("name", ["WAITING_CONFIRM", "PROCESSING", "COMMITTED", "FAILED", "TTL_EXPIRED", "ABANDONED"])
def test_the_six_states_are_understood(name: str) -> None:
    assert answer([field("phase-state", name.encode())]).phase == name


@pytest.mark.req("A-06", "P-14.1-g")
@pytest.mark.parametrize("state", [b"", b"waiting_confirm", b"ABSENT", b"DONE", b"COMMITTED\n", b"\xff", b"x" * 9999])
def test_an_unknown_state_is_no_plain_answer(state: bytes) -> None:
    with pytest.raises(WireError) as caught:
        parse_response([SERVER_ID, field("phase-state", state)])
    assert caught.value.code == "bad_field"


@pytest.mark.req("A-06", "A-12")
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([SERVER_ID, WAITING, field("phase-state", b"COMMITTED")], "duplicate_field"),
        ([SERVER_ID, field("phase-state", b"WAITING_CONFIRM, COMMITTED")], "duplicate_field"),
        ([SERVER_ID, field("server-correlation-id", b"other"), WAITING], "duplicate_field"),
        ([field("server-correlation-id", b"a b"), WAITING], "bad_field"),
        ([field("server-correlation-id", b""), WAITING], "bad_field"),
    ],
)
def test_an_answer_that_contradicts_itself_is_refused(headers: Pairs, code: str) -> None:
    with pytest.raises(WireError) as caught:
        parse_response(headers)
    assert caught.value.code == code


@pytest.mark.req("P-14.1-h", "P-14.1-i", "P-14.1-j", "P-14.1-k", "P-14.1-l", "A-05", "A-69")
@pytest.mark.parametrize(
    ("name", "value", "attribute", "expected"),
    [
        ("ttl", b" 5 ", "ttl_ms", 5),
        ("ttl", b"-5", "ttl_ms", None),
        ("ttl", b"5, 6", "ttl_ms", None),
        ("ponr-deadline", b"2026-01-02T04:04:05.678+01:00", "deadline_at", AT),
        ("ponr-deadline", b"tomorrow", "deadline_at", None),
        ("resource-id", b"order/42,v=1", "resource_id", "order/42,v=1"),
        ("resource-id", b"x" * 256, "resource_id", "x" * 256),
        ("resource-id", b"x" * 257, "resource_id", None),
        ("resource-id", b"a b", "resource_id", None),
        ("resource-id", b"", "resource_id", None),
        ("resource-id", b"\xc3\xa9", "resource_id", None),
        ("replay-policy", b"REUSE", "replay_policy", "REUSE"),
        ("replay-policy", b"REJECT", "replay_policy", "REJECT"),
        ("replay-policy", b"reuse", "replay_policy", None),
        ("message", b"Wait, then retry.", "message", "Wait, then retry."),
        ("message", b"x" * 201, "message", None),
        ("message", b"a\r\nb", "message", None),
    ],
)
def test_advice_is_read_or_dropped(name: str, value: bytes, attribute: str, expected: object) -> None:
    assert getattr(answer([*FIGURE[:2], field(name, value)]), attribute) == expected


@pytest.mark.req("A-12")
@pytest.mark.parametrize("name", ["ttl", "ponr-deadline", "resource-id", "replay-policy", "message"])
def test_contradictory_advice_is_dropped(name: str) -> None:
    found = answer([*FIGURE[:2], field(name, b"REUSE"), field(name, b"7")])
    assert found == answer(FIGURE[:2])
