"""Refusals on the wire: ``application/problem+json`` (RFC 9457) with a stable ``code`` (A-10).

``PROBLEMS`` is the whole vocabulary. Its titles are also the only texts that DTT-2PHP-Message ever carries: fixed,
ASCII, at most 200 bytes (A-69). No id, no path and nothing else that came in goes out again; a problem has the same
bytes for every client, so an unknown id, a wrong client id and a wrong path cannot be told apart (A-67).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from twophp.core.errors import OUTCOME_INDETERMINATE, WireError
from twophp.core.intent import Phase
from twophp.wire import fields
from twophp.wire.emit import EXPIRED_MESSAGE, INDETERMINATE_MESSAGE, NO_STORE, retry_after, state

if TYPE_CHECKING:
    from twophp.core.errors import TwoPHPError
    from twophp.wire.fields import Headers

CONTENT_TYPE: Final = (b"content-type", b"application/problem+json")


class Kind(NamedTuple):
    """One line of the table: the status, the sentence for people, and the phase where one may be sent."""

    status: int
    title: str
    phase: Phase | None = None
    detail: str | None = None
    is_plain: bool = False  # For a client that knows no 2PHP: without a field of ours.


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


PROBLEMS: Final[dict[str, Kind]] = {
    "bad_request": Kind(400, "The request breaks the two-phase contract."),
    "bad_field": Kind(400, "A field of the two-phase contract is malformed."),
    "duplicate_field": Kind(400, "A field has more than one value; a comma separates values."),
    "missing_field": Kind(400, "A required field is missing."),
    "wrong_place": Kind(400, "A field was sent where it has no meaning."),
    "bad_batch": Kind(400, "The rows are not what the schema says."),
    "bad_evidence": Kind(400, "What a service tells about a call is not what the schema says."),
    "bad_callback": Kind(
        400, "The callback must be an https URL that may be called, without userinfo, fragment or comma."
    ),
    "idempotency_key_missing": Kind(
        400, "Idempotency-Key is missing", detail="This operation needs the field Idempotency-Key.", is_plain=True
    ),
    "idempotency_key_malformed": Kind(
        400,
        "Idempotency-Key is malformed",
        detail="A key is one string of 1 to 255 visible ASCII characters, in double quotes.",
        is_plain=True,
    ),
    "unauthenticated": Kind(401, "Authentication failed."),
    "tls_required": Kind(403, "Two-phase requests need TLS."),  # draft §13.6
    "other_identity": Kind(403, "The intent belongs to another identity."),  # draft §13.2; A-67: no Phase-State
    "unknown_intent": Kind(404, "No such intent."),  # no Phase-State
    "ttl_expired": Kind(408, EXPIRED_MESSAGE, Phase.TTL_EXPIRED),  # draft §5.4
    # No Phase-State: nothing was registered. The connection is of no more use, so the answer says that it closes.
    "body_too_slow": Kind(408, "The body arrived too slowly."),
    "still_processing": Kind(409, "The intent is still being processed.", Phase.PROCESSING),  # T2
    "idempotency_key_in_use": Kind(
        409,
        "A request is outstanding for this Idempotency-Key",
        detail="The first request with this key is still being processed.",
        is_plain=True,
    ),
    "constraint_violated": Kind(409, "The business rows break a constraint of the database.", Phase.FAILED),
    "body_too_large": Kind(413, "The body is too large."),
    "fingerprint_mismatch": Kind(422, "The correlation id was used for another request."),
    "idempotency_key_reused": Kind(
        422,
        "Idempotency-Key is already used",
        detail="The key was used for another request. A new request needs a new key.",
        is_plain=True,
    ),
    "invalid_request": Kind(422, "The request was refused before it was registered."),
    "mode_mismatch": Kind(422, "The correlation id was used in another mode."),  # T2
    "two_phase_required": Kind(428, f"This endpoint takes two-phase requests only: send {fields.ENABLED.name}: true."),
    "quota_exceeded": Kind(429, "Too many open intents."),
    "internal": Kind(500, "Internal error."),
    "needs_asyncio": Kind(500, "The server is set up wrongly and cannot register; nothing was registered."),
    OUTCOME_INDETERMINATE: Kind(500, INDETERMINATE_MESSAGE, Phase.FAILED),
    "record_tampered": Kind(500, "The stored intent was changed; nothing acts on it. Ask its operator."),
    "not_settled": Kind(500, "The outcome is not durable yet; ask again with the same ids.", Phase.PROCESSING),
    "handler_failed": Kind(500, "Processing failed.", Phase.FAILED),  # draft §5.3.2
    "interrupted": Kind(  # ADR 44
        500, "Processing was interrupted and nothing happened; it is safe to resubmit.", Phase.FAILED
    ),
    "store_unavailable": Kind(503, "The ledger is unavailable; nothing was registered."),
    "store_overloaded": Kind(503, "The ledger is busy; nothing was registered."),
    "commit_unknown": Kind(503, "The outcome is not known yet; ask again with the same ids."),
    "store_poisoned": Kind(503, "The ledger stopped; ask again with the same ids."),
}


def problem(
    code: str, *, field: str | None = None, retry_after_s: int | None = None, status: int | None = None
) -> Problem:
    """The answer for a code. ``field`` is one of the twelve names; any other is left out.

    A code outside the table is some internal error that was not meant for the wire, and is answered as one.
    """
    known = code if code in PROBLEMS else "internal"
    answer = _problem(known, field if field in fields.NAMES else None, status)
    if retry_after_s is None:
        return answer
    headers = (*answer.headers, retry_after(retry_after_s))
    return Problem(status=answer.status, headers=headers, body=answer.body)


def problem_of(error: TwoPHPError, *, retry_after_s: int | None = None) -> Problem:
    """The answer for an error of our tree. A code that is for logs (a full disk) is answered as its class is (503)."""
    field = error.field if isinstance(error, WireError) else None
    code = error.code if error.code in PROBLEMS else error.default_code
    return problem(code, field=field, retry_after_s=retry_after_s)


@cache  # Bounded by codes times names times a hundred statuses; each answer is built once and shared.
def _problem(code: str, field: str | None, status: int | None) -> Problem:
    kind = PROBLEMS[code]
    status = status or kind.status
    headers: Headers = [CONTENT_TYPE, NO_STORE]
    if not kind.is_plain:
        headers.append((fields.MESSAGE.key, kind.title.encode("ascii")))
    if kind.phase is not None:
        headers.append(state(kind.phase))
    members: dict[str, str | int] = {"status": status, "code": code, "title": kind.title}
    if kind.detail is not None:
        members["detail"] = kind.detail
    if field is not None:
        members["field"] = field
    return Problem(status=status, headers=tuple(headers), body=msgspec.json.encode(members))
