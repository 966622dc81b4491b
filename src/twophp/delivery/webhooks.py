"""Signed deliveries, as Standard Webhooks 1.0 has them, so that receivers can use a library they know (A-66).

    webhook-id          names the event; the same on every attempt, so that receivers can drop repeats
    webhook-timestamp   seconds since the epoch of this *attempt*; an old one is a replay
    webhook-signature   ``v1,`` and base64 of HMAC-SHA256 over ``id.timestamp.body``, once for each secret

While a secret is being replaced, the sender signs with the new and the old one, and a receiver needs only one of them.
Secrets are written ``whsec_`` and base64 of 24 to 64 random bytes. Nothing here reads a clock: the sender gives the
time of the attempt, and the receiver the time of the arrival.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from twophp.core.errors import ConfigError, Refused
from twophp.core.records import Instant

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"

PREFIX: Final = "whsec_"
MIN_SECRET_BYTES: Final = 24
MAX_SECRET_BYTES: Final = 64
MAX_SIGNATURES: Final = 16
"""How many signatures a receiver checks; a sender has one for each secret: two while one is being replaced."""
TOLERANCE_MS: Final = 300_000

# No full stop: it separates what is signed, and "a.1" with "2" must not be signed like "a" with "1.2".
_ID: Final = re.compile(r"[A-Za-z0-9_~:-]{1,128}")
_SECONDS: Final = re.compile(r"[0-9]{1,12}")


class Secret(msgspec.Struct, frozen=True):
    """A shared key that does not print itself."""

    key: bytes

    def __repr__(self) -> str:
        return f"Secret({PREFIX}…)"


def read_secret(text: str) -> Secret:
    """Read ``whsec_…``; raises ConfigError, which never quotes what it was given."""
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(PREFIX) or not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        message = f"A webhook secret is {PREFIX} and base64 of {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes."
        raise ConfigError(message, code="bad_webhook_secret")
    return Secret(key)


def sign(webhook_id: str, body: bytes, *, secrets: Sequence[Secret], now: Instant) -> tuple[tuple[str, str], ...]:
    """The three header fields of one attempt, made ``now``."""
    if not _ID.fullmatch(webhook_id):
        raise ConfigError("A webhook id has no full stop, and no more than 128 characters.", code="bad_webhook_id")
    if not 0 < len(secrets) <= MAX_SIGNATURES:
        raise ConfigError("A delivery is signed with at least one secret, and few.", code="bad_webhook_secret")
    timestamp = str(now // 1000)
    signatures = _signatures(webhook_id, timestamp, body, secrets)
    return ((ID, webhook_id), (TIMESTAMP, timestamp), (SIGNATURE, " ".join(signatures)))


def verify(
    headers: Mapping[str, str],
    body: bytes,
    *,
    secrets: Sequence[Secret],
    now: Instant,
    tolerance_ms: int = TOLERANCE_MS,
) -> str:
    """The id of a delivery that was signed with one of the secrets, not long before or after ``now``.

    ``headers`` finds lower-case names. Raises Refused: ``signature_missing``, ``signature_stale`` or
    ``signature_mismatch``.
    """
    webhook_id, timestamp = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    received = headers.get(SIGNATURE, "").split()
    if not (_ID.fullmatch(webhook_id) and _SECONDS.fullmatch(timestamp) and received):
        raise Refused("The delivery is not signed.", code="signature_missing")
    if abs(int(timestamp) * 1000 - now) > tolerance_ms:
        raise Refused("The delivery was signed at another time.", code="signature_stale")
    if not _any_equal(_signatures(webhook_id, timestamp, body, secrets), received[:MAX_SIGNATURES]):
        raise Refused("The delivery was signed with another secret, or changed.", code="signature_mismatch")
    return webhook_id


def _signatures(webhook_id: str, timestamp: str, body: bytes, secrets: Sequence[Secret]) -> list[str]:
    signed = f"{webhook_id}.{timestamp}.".encode("ascii") + body
    macs = (hmac.digest(secret.key, signed, "sha256") for secret in secrets)
    return [f"v1,{base64.b64encode(mac).decode('ascii')}" for mac in macs]


def _any_equal(expected: Sequence[str], received: Sequence[str]) -> bool:
    """Compare all with all, each in constant time: its duration tells nothing. Other versions simply never match."""
    equal = False
    for ours in expected:
        for theirs in received:
            equal |= hmac.compare_digest(ours.encode("ascii"), theirs.encode("utf-8", "replace"))
    return equal
