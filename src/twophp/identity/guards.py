"""Extra proof that a late confirm has to bring where an endpoint says REUSE (draft §13.3, A-24).

Inside the grace period δ an answer that was delayed on the way looks like one that was recorded and sent again. A
guard asks for something that a recording of Phase 1 cannot hold. It is called with the head of the Phase 2 request,
which ``identify`` has already accepted, and with the intent; it says whether the confirm may go on.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from math import floor
from typing import Any, Final, TypeAlias

from twophp.core.errors import ConfigError, Unauthenticated
from twophp.core.intent import Intent
from twophp.core.records import Instant
from twophp.core.settings import knows_its_settings
from twophp.identity.head import Head

LateConfirmGuard: TypeAlias = Callable[[Head, Intent], bool]
VerifiedClaims: TypeAlias = Callable[[Head], Mapping[str, Any]]

MIN_SECRET_BYTES: Final = 32
_MILLISECONDS: Final = re.compile(r"[0-9]{1,16}", re.ASCII)


@knows_its_settings()
def fresh_credential(max_age_ms: int, *, claims: VerifiedClaims) -> LateConfirmGuard:
    """A token issued after Phase 1 that lives for ``max_age_ms`` at most (A-24).

    ``claims`` verifies the request's token, as ``bearer_jwt(...).claims`` does. Issued in the very same second as
    Phase 1 arrived is not after: ``iat`` has no milliseconds, and a late confirm is never that early.
    """
    if max_age_ms <= 0:
        raise ConfigError("max_age_ms must be positive", code="bad_guard")

    def guard(head: Head, intent: Intent) -> bool:
        try:
            verified = claims(head)
        except Unauthenticated:
            return False
        issued_ms, expires_ms = _claim_ms(verified, "iat"), _claim_ms(verified, "exp")
        if issued_ms is None or expires_ms is None:
            return False
        # Since it has not expired yet, a short life is a young age as well.
        return issued_ms > head.by_wall(intent.received_at) and expires_ms - issued_ms <= max_age_ms

    return guard


def _claim_ms(claims: Mapping[str, Any], name: str) -> Instant | None:
    try:
        return int(floor(claims[name]) * 1000)
    except (KeyError, OverflowError, TypeError, ValueError):  # It is missing, or it is no finite number.
        return None


@knows_its_settings()
def hmac_guard(
    secret: bytes,
    *,
    signature_header: str = "Late-Confirm-Signature",
    timestamp_header: str = "Late-Confirm-Timestamp",
    tolerance_ms: int = 60_000,
) -> LateConfirmGuard:
    """A signature over both ids, the path and a timestamp, by a secret that both sides share (A-24).

    The client computes it with ``late_confirm_signature``. The timestamp must be later than Phase 1 and within
    ``tolerance_ms`` of the request's arrival.
    """
    if len(secret) < MIN_SECRET_BYTES or tolerance_ms <= 0:
        raise ConfigError(
            f"a secret has {MIN_SECRET_BYTES} bytes or more, and the tolerance is positive", code="bad_guard"
        )

    def guard(head: Head, intent: Intent) -> bool:
        timestamp = head.headers.get(timestamp_header, "")
        if not _MILLISECONDS.fullmatch(timestamp):
            return False
        at = int(timestamp)
        expected = late_confirm_signature(
            secret,
            client_correlation_id=intent.client_correlation_id,
            server_correlation_id=intent.server_correlation_id,
            path=intent.path,
            timestamp_ms=at,
        )
        given = head.headers.get(signature_header, "")
        # As bytes: ``compare_digest`` takes constant time for them, and refuses text that is not ASCII.
        signed = hmac.compare_digest(expected.encode(), given.encode())
        is_recent = abs(head.by_wall(head.received_at) - at) <= tolerance_ms
        return signed and is_recent and at > head.by_wall(intent.received_at)

    return guard


def late_confirm_signature(
    secret: bytes, *, client_correlation_id: str, server_correlation_id: str, path: str, timestamp_ms: Instant
) -> str:
    """HMAC-SHA256 in lower-case hex over the four values, a line each.

    ``path`` is the raw path of Phase 1 without its query and without one trailing slash (A-01). Neither an id nor a raw
    path can hold a line break, so no two inputs read the same.
    """
    bound = path.removesuffix("/")
    signed = f"{client_correlation_id}\n{server_correlation_id}\n{bound}\n{timestamp_ms}"
    return hmac.new(secret, signed.encode(), "sha256").hexdigest()
