"""A late confirm brings what a recording of Phase 1 cannot hold."""

from __future__ import annotations

from typing import Any

import pytest
from joserfc.jwk import OctKey

from tests.identity.heads import NOW, head
from tests.identity.tokens import AUDIENCE, ISSUER, NOW_S, SECRET, bearing, sign, sign_secret
from twophp.core.errors import ConfigError
from twophp.core.intent import Intent, Mode
from twophp.identity.guards import fresh_credential, hmac_guard, late_confirm_signature
from twophp.identity.identify import bearer_jwt

BEARER = bearer_jwt(keys=SECRET, algorithms=["HS256"], issuer=ISSUER, audience=AUDIENCE)
REGISTERED_S = NOW_S - 32
INTENT = Intent(
    client_correlation_id="c1",
    server_correlation_id="s1",
    principal="p",
    replay_key="r",
    callback="",
    client_id_is_proxy=False,
    mode=Mode.STANDARD,
    service_endpoint="orders/orders",
    path="/orders",
    method="POST",
    received_at=REGISTERED_S * 1000,
    ttl_ms=30_000,
    delta_ms=5_000,
)


@pytest.mark.req("A-24")
@pytest.mark.parametrize(
    ("claims", "fresh"),
    [
        ({"iat": REGISTERED_S + 1, "exp": REGISTERED_S + 61}, True),
        ({"iat": NOW_S, "exp": NOW_S + 60}, True),
        ({"iat": NOW_S - 1, "exp": NOW_S + 60}, False),  # Lives too long.
        ({"iat": REGISTERED_S, "exp": NOW_S + 20}, False),  # The token Phase 1 may have come with.
        ({"iat": REGISTERED_S - 20, "exp": NOW_S + 1}, False),
        ({"iat": None, "exp": NOW_S + 1}, False),
        ({"iat": NOW_S - 20, "exp": NOW_S - 10}, False),  # Expired.
        ({"iat": NOW_S, "exp": 10**400}, False),
        ({"iat": NOW_S, "exp": NOW_S + 60, "aud": "payments"}, False),
    ],
)
def test_a_credential_is_fresh_when_it_was_issued_after_phase_one_and_is_short(
    claims: dict[str, Any], fresh: bool
) -> None:
    guard = fresh_credential(60_000, claims=BEARER.claims)
    assert guard(bearing(sign_secret(**claims)), INTENT) is fresh


@pytest.mark.req("A-24")
def test_a_credential_that_does_not_verify_is_not_fresh() -> None:
    guard = fresh_credential(60_000, claims=BEARER.claims)
    forged = sign("HS256", OctKey.import_key(b"another secret" * 3), iat=NOW_S, exp=NOW_S + 9)
    assert not guard(bearing(forged), INTENT)
    assert not guard(head(), INTENT)


SHARED = b"32 bytes that both sides know of."


def signed(at: int = NOW, *, secret: bytes = SHARED, **changes: str) -> list[tuple[str, str]]:
    facts = {"client_correlation_id": "c1", "server_correlation_id": "s1", "path": "/orders"} | changes
    signature = late_confirm_signature(secret, timestamp_ms=at, **facts)
    return [("Late-Confirm-Timestamp", str(at)), ("Late-Confirm-Signature", signature)]


def test_the_signature_is_the_documented_one() -> None:
    r"""What ``printf 'c1\ns1\n/orders\n1800000000000' | openssl dgst -sha256 -hmac SECRET`` says."""
    assert signed()[1][1] == "d79097ca74e490adb6ea16c0bfbf79c525d98715d3acee7298689ced88846a33"
    assert signed(path="/orders/") == signed()


@pytest.mark.req("A-24")
@pytest.mark.parametrize(
    ("lines", "accepted"),
    [
        (signed(), True),
        (signed(NOW - 30_000), True),
        (signed(NOW + 60_000), True),
        (signed(NOW + 60_001), False),
        (signed(INTENT.received_at + 1), True),
        (signed(INTENT.received_at), False),  # Nothing signed before Phase 1 arrived.
        (signed(secret=b"32 bytes that nobody else knows."), False),
        (signed(client_correlation_id="c2"), False),
        (signed(server_correlation_id="s2"), False),
        (signed(path="/refunds"), False),
        ([signed()[0]], False),
        ([signed()[1]], False),
        ([], False),
        ([("Late-Confirm-Timestamp", str(NOW + 1)), signed()[1]], False),
        ([("Late-Confirm-Timestamp", f" {NOW} "), signed()[1]], True),
        ([("Late-Confirm-Timestamp", f"+{NOW}"), signed()[1]], False),
        ([("Late-Confirm-Timestamp", "9" * 17), signed()[1]], False),
        ([("Late-Confirm-Timestamp", "\u00b2"), signed()[1]], False),
        ([signed()[0], ("Late-Confirm-Signature", signed()[1][1].upper())], False),
        ([signed()[0], ("Late-Confirm-Signature", "\u00e9")], False),
        (signed() * 2, False),
    ],
)
def test_a_late_confirm_is_signed_over_both_ids_the_path_and_a_recent_time(
    lines: list[tuple[str, str]], accepted: bool
) -> None:
    assert hmac_guard(SHARED)(head(*lines), INTENT) is accepted


@pytest.mark.req("A-24")
def test_what_was_recorded_is_of_no_use_later() -> None:
    guard = hmac_guard(SHARED, tolerance_ms=1_000)
    assert guard(head(*signed(), received_at=NOW + 1_000), INTENT)
    assert not guard(head(*signed(), received_at=NOW + 1_001), INTENT)


@pytest.mark.req("A-24", "A-29")
def test_a_step_of_the_machines_clock_makes_no_old_proof_new() -> None:
    """Phase 1 and the late confirm are where the machine's clock has them now, not where it had them then."""
    ahead_ms = 3_600_000
    after_step = {"wall_ahead_ms": ahead_ms}
    assert hmac_guard(SHARED)(head(*signed(NOW + ahead_ms), **after_step), INTENT)
    before_phase_one = INTENT.received_at + ahead_ms
    assert not hmac_guard(SHARED)(head(*signed(before_phase_one), **after_step), INTENT)
    fresh = fresh_credential(60_000, claims=BEARER.claims)
    for issued_s, accepted in ((REGISTERED_S + 3_601, True), (REGISTERED_S + 3_599, False)):
        token = sign_secret(iat=issued_s, exp=issued_s + 60)
        assert fresh(bearing(token, **after_step), INTENT) is accepted


def test_the_headers_can_be_named() -> None:
    guard = hmac_guard(SHARED, signature_header="X-Sig", timestamp_header="X-At")
    (_, at), (_, signature) = signed()
    assert guard(head(("x-at", at), ("x-sig", signature)), INTENT)
    assert not guard(head(*signed()), INTENT)


def test_a_setting_that_cannot_work_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError):
        hmac_guard(b"short")
    with pytest.raises(ConfigError):
        hmac_guard(SHARED, tolerance_ms=0)
    with pytest.raises(ConfigError):
        fresh_credential(0, claims=BEARER.claims)
