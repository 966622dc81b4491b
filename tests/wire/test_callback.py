from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophp.core.errors import WireError
from twophp.wire.callback import Acknowledgement, decode, encode

from .samples import AT, CLIENT, SERVER

SENT = Acknowledgement(server_correlation_id=SERVER, client_correlation_id=CLIENT, dispatched_at=AT)
FIGURE: dict[str, Any] = {
    "server_correlation_id": SERVER,
    "client_correlation_id": CLIENT,
    "phase_state": "PROCESSING",
    "ponr_crossed": True,
    "callback_timestamp": "2026-01-02T03:04:05.678Z",
}


@pytest.mark.req("P-5.5.4-a", "P-5.5.4-b", "P-5.5.4-c", "P-5.5.4-d", "P-5.5.4-e", "P-5.5.4-f")
def test_the_payload_is_the_drafts_five_fields() -> None:
    assert json.loads(encode(SENT)) == FIGURE
    assert list(json.loads(encode(SENT))) == list(FIGURE)


@pytest.mark.req("A-39")
def test_the_same_acknowledgement_is_the_same_bytes_and_is_read_back() -> None:
    assert encode(SENT) == encode(SENT)
    assert decode(encode(SENT)) == SENT


@pytest.mark.req("P-5.5.4-f")
@pytest.mark.parametrize("name", FIGURE)
def test_each_of_the_five_is_needed(name: str) -> None:
    body = json.dumps({key: value for key, value in FIGURE.items() if key != name}).encode()
    if name in ("phase_state", "ponr_crossed"):  # Only one value each, so leaving it out changes nothing.
        assert decode(body) == SENT
        return
    with pytest.raises(WireError):
        decode(body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("server_correlation_id", "a b"),
        ("server_correlation_id", ""),
        ("client_correlation_id", "\ud800"),
        ("client_correlation_id", 7),
        ("phase_state", "COMMITTED"),
        ("ponr_crossed", False),
        ("ponr_crossed", "true"),
        ("callback_timestamp", "now"),
        ("callback_timestamp", None),
    ],
)
def test_a_field_that_says_something_else_is_refused(name: str, value: object) -> None:
    with pytest.raises(WireError):
        decode(json.dumps(FIGURE | {name: value}).encode())


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b"\xff", b"[" * 4096, b" " * 4097 + encode(SENT)])
def test_a_body_that_is_no_acknowledgement_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        decode(body)


@given(st.binary())
def test_no_body_raises_anything_else(body: bytes) -> None:
    with pytest.raises(WireError):
        decode(body)
