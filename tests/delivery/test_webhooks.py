from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophp.core.errors import ConfigError, Refused
from twophp.delivery.webhooks import SIGNATURE, TIMESTAMP, TOLERANCE_MS, Secret, read_secret, sign, verify

# The example that the specification's reference libraries all test against.
EXAMPLE = read_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
BODY = b'{"test": 2432232314}'
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
AT = 1_614_265_330_000
SIGNED = {
    "webhook-id": ID,
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
OTHER = Secret(bytes(range(32)))
THIRD = Secret(bytes(32))

SECRETS = st.binary(min_size=24, max_size=64).map(Secret)


def test_the_published_example_comes_out() -> None:
    assert dict(sign(ID, BODY, secrets=[EXAMPLE], now=AT + 999)) == SIGNED
    assert verify(SIGNED, BODY, secrets=[EXAMPLE], now=AT) == ID


@given(SECRETS, st.binary(max_size=200), st.integers(0, 2**41))
def test_what_is_signed_verifies(secret: Secret, body: bytes, at: int) -> None:
    assert verify(dict(sign("a-1", body, secrets=[secret], now=at)), body, secrets=[secret], now=at) == "a-1"


@pytest.mark.parametrize("known", [[EXAMPLE], [OTHER], [THIRD, OTHER], [EXAMPLE, OTHER]])
def test_while_secrets_are_replaced_either_will_do(known: list[Secret]) -> None:
    headers = dict(sign(ID, BODY, secrets=[EXAMPLE, OTHER], now=AT))
    assert headers[SIGNATURE].startswith(SIGNED[SIGNATURE] + " v1,")
    assert verify(headers, BODY, secrets=known, now=AT) == ID


@pytest.mark.parametrize(
    ("change", "body", "secrets"),
    [
        ({}, BODY + b" ", [EXAMPLE]),
        ({}, BODY, [OTHER, THIRD]),
        ({}, BODY, []),
        ({"webhook-id": "msg_another"}, BODY, [EXAMPLE]),
        ({"webhook-timestamp": "1614265331"}, BODY, [EXAMPLE]),
        ({"webhook-signature": "v1,"}, BODY, [EXAMPLE]),
        ({"webhook-signature": "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}, BODY, [EXAMPLE]),
        ({"webhook-signature": "v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}, BODY, [EXAMPLE]),
        ({"webhook-signature": "v1,\udcff \u00e4"}, BODY, [EXAMPLE]),
        ({"webhook-signature": "v1,x " * 16 + SIGNED[SIGNATURE]}, BODY, [EXAMPLE]),
    ],
)
def test_anything_else_does_not_match(change: dict[str, str], body: bytes, secrets: list[Secret]) -> None:
    with pytest.raises(Refused) as caught:
        verify(SIGNED | change, body, secrets=secrets, now=AT)
    assert caught.value.code == "signature_mismatch"


@pytest.mark.parametrize("name", SIGNED)
@pytest.mark.parametrize("value", [None, "", " "])
def test_all_three_fields_are_needed(name: str, value: str | None) -> None:
    headers = {key: text for key, text in SIGNED.items() if key != name} | ({name: value} if value is not None else {})
    with pytest.raises(Refused) as caught:
        verify(headers, BODY, secrets=[EXAMPLE], now=AT)
    assert caught.value.code == "signature_missing"


@pytest.mark.parametrize("text", ["-1", "1.5", "1e9", "١٦", "9" * 13, "0x1", "1614265330 "])
def test_a_timestamp_is_plain_digits(text: str) -> None:
    with pytest.raises(Refused):
        verify(SIGNED | {TIMESTAMP: text}, BODY, secrets=[EXAMPLE], now=AT)


@pytest.mark.parametrize(
    ("off_ms", "fresh"), [(TOLERANCE_MS, True), (-TOLERANCE_MS, True), (TOLERANCE_MS + 1, False), (-300_001, False)]
)
def test_an_old_delivery_is_a_replay(off_ms: int, fresh: bool) -> None:
    if fresh:
        verify(SIGNED, BODY, secrets=[EXAMPLE], now=AT + off_ms)
        return
    with pytest.raises(Refused) as caught:
        verify(SIGNED, BODY, secrets=[EXAMPLE], now=AT + off_ms)
    assert caught.value.code == "signature_stale"


@pytest.mark.parametrize("webhook_id", ["", "a.b", "a b", "a\r\nb", "ä", "a" * 129])
def test_an_id_cannot_reach_into_its_neighbours(webhook_id: str) -> None:
    with pytest.raises(ConfigError):
        sign(webhook_id, BODY, secrets=[EXAMPLE], now=AT)


@pytest.mark.parametrize(
    "text",
    ["", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa", "whsec_ä", "whsec_====",
     "whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_" + base64.b64encode(bytes(65)).decode()],
)  # fmt: skip
def test_a_secret_is_long_and_written_as_such(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_secret(text)
    assert text not in str(caught.value) or text in {"", "whsec_"}


def test_a_delivery_is_signed_with_something() -> None:
    with pytest.raises(ConfigError):
        sign(ID, BODY, secrets=[], now=AT)


def test_a_secret_does_not_print_itself() -> None:
    assert repr(OTHER) == str(OTHER) == "Secret(whsec_…)"
