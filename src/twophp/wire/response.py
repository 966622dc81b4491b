"""What an answer says beside its phase: when it was made, when to ask again, where it points, and who made it.

The draft has two answers for a failure, ``500`` and ``4xx`` (§5.3.2), and does not ask for a Phase-State on them. So a
bare failure status may be the outcome, or that of another: a gateway, a guard, a server that has forgotten.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from twophp.core.errors import OUTCOME_INDETERMINATE
from twophp.core.intent import Phase
from twophp.wire import fields, grammar
from twophp.wire.emit import INDETERMINATE_MESSAGE
from twophp.wire.problem import CONTENT_TYPE, PROBLEMS

if TYPE_CHECKING:
    from twophp.core.records import Instant
    from twophp.wire.parse import RawHeaders, TwoPhaseAnswer

MAX_RETRY_AFTER_S: Final = 86_400

GATEWAY_ERRORS: Final = frozenset({502, 503, 504, 511, *range(520, 531), 598, 599})
"""Made by a gateway before the server, or by a server that is overloaded: no statement about any request."""

ABOUT_THE_REQUEST: Final = frozenset({401, 403, 404, 405, 407, 408, 409, 410, 421, 425, 429, 431})
"""About the client, its rate, its lateness, and whether the thing it asks about is known or busy.

To the first confirm they are its outcome. To a repeated one they are not: the first may have run before the credential
expired, before the server forgot, or while it is still at work.
"""

_CODES: Final = {kind.title.encode("ascii"): code for code, kind in PROBLEMS.items()}
_LONGEST_DATE: Final = 64


def field(headers: RawHeaders, name: bytes) -> bytes | None:
    """The first value of a field, stripped; ``name`` in lower case."""
    for key, value in headers:
        if key.lower() == name:
            return value.strip(grammar.OWS)
    return None


def made_at(headers: RawHeaders) -> Instant | None:
    """The answer's Date (RFC 9110 §6.6.1): the server's own clock, in whole seconds."""
    raw = field(headers, b"date")
    return None if raw is None else _http_date(raw)


def retry_after_s(headers: RawHeaders) -> float | None:
    """How long to wait before asking again (RFC 9110 §10.2.3); a date counts from the answer's own."""
    raw = field(headers, b"retry-after")
    if raw is None:
        return None
    if raw.isdigit():
        return float(min(int(raw[:6]), MAX_RETRY_AFTER_S))
    until, since = _http_date(raw), made_at(headers)
    if until is None or since is None:
        return None
    return min(max(until - since, 0) / 1_000, MAX_RETRY_AFTER_S)


def location(headers: RawHeaders) -> str | None:
    """Where an answer points, if it can be written into a request again."""
    raw = field(headers, b"location")
    return None if raw is None else grammar.read_location(raw)


def refusal(headers: RawHeaders) -> str | None:
    """The code of a refusal that twophp's own middleware gave, which registered or ran nothing for this request.

    Known by its form: problem+json with a message out of the fixed vocabulary (A-69). A message alone proves nothing:
    it is the draft's field, and another server may send it with a failure of its business logic.
    """
    content_type = (field(headers, b"content-type") or b"").partition(b";")[0]
    if content_type.strip().lower() != CONTENT_TYPE[1]:
        return None
    return _CODES.get(field(headers, fields.MESSAGE.key) or b"")


def failure_code(headers: RawHeaders) -> str | None:
    """The code of a failure that twophp tells; None if the handler's own answer says it all.

    The words of A-34 count in any form: to take an indeterminate outcome for a failure would be worse.
    """
    message = field(headers, fields.MESSAGE.key) or b""
    return OUTCOME_INDETERMINATE if message == INDETERMINATE_MESSAGE.encode() else refusal(headers)


def is_indeterminate(answer: TwoPhaseAnswer) -> bool:
    """Whether the server says that it does not know whether the effects happened (A-34, its exact words)."""
    return answer.phase is Phase.FAILED and answer.message == INDETERMINATE_MESSAGE


@lru_cache(maxsize=64)  # A server says the same for a second.
def _http_date(raw: bytes) -> Instant | None:
    if len(raw) > _LONGEST_DATE:
        return None
    try:
        return int(parsedate_to_datetime(raw.decode("latin-1")).timestamp() * 1_000)
    except (TypeError, ValueError, OverflowError):
        return None
