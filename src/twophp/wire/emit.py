"""From values to header fields: the server's answers and the client's requests.

Every function returns a new list in ASGI's form (lower-case names, raw bytes); ``fields.canonical`` spells it for
HTTP/1.1. Statuses are the engine's business, except where a field and a status only make sense together.

Nothing is written that the grammar would not read back: a value that is not ours (a handler's resource id, a foreign
server's correlation id) cannot smuggle in a second field. A refusal here is a bug of the caller, so its code is
``internal``; a caller that takes a resource id from a handler checks ``grammar.read_resource_id`` *before* settling.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from twophp.core.errors import WireError
from twophp.core.intent import SETTLED, Phase
from twophp.wire import fields, grammar
from twophp.wire.instant import format_instant

if TYPE_CHECKING:
    from collections.abc import Callable

    from twophp.core.policy import ReplayPolicy
    from twophp.core.records import Instant
    from twophp.wire.fields import Field, Headers

NO_STORE: Final = (b"cache-control", b"no-store")
"""On every answer that twophp makes up (A-18)."""

EXPIRED_MESSAGE: Final = "Request TTL exceeded. Re-submit as new request."
INDETERMINATE_MESSAGE: Final = "Outcome indeterminate."  # A-34, its exact words
"""The draft's own words (§5.4); no byte may differ."""

_MAX_RETRY_AFTER_S: Final = 86_400
_OPT_IN: Final = (fields.ENABLED.key, grammar.TRUE)  # we always send lower-case ``true``.
_AUTO_CONFIRM: Final = (fields.AUTO_CONFIRM.key, grammar.TRUE)
# on the wire an abandoned intent is an expired one, or the moment of the change would show the grace.
_STATES: Final[dict[Phase, tuple[bytes, bytes]]] = {
    phase: (fields.PHASE_STATE.key, (Phase.TTL_EXPIRED if phase is Phase.ABANDONED else phase).encode())
    for phase in Phase
    if phase is not Phase.ABSENT
}
# Bound once: Python 3.11 takes ten times as long to find an enum's member as to find a name.
_WAITING, _COMMITTED = Phase.WAITING_CONFIRM, Phase.COMMITTED
_WAITS: Final = _STATES[_WAITING]
_SERVER_ID, _DEADLINE = fields.SERVER_CORRELATION_ID.key, fields.PONR_DEADLINE.key
_RESOURCE_ID: Final = fields.RESOURCE_ID.key
_EMPTY: Final = (b"content-length", b"0")
# T2: the phases that the answer to a repeated Phase 1 may show. One whose intent has expired is refused instead.
_REGISTERED: Final = frozenset({Phase.WAITING_CONFIRM, Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED})


# --- the server's answers ---------------------------------------------------------------------------------------


def phase_one_answer(
    *,
    server_correlation_id: str,
    ttl_ms: int | None,
    deadline_at: Instant | None,
    phase: Phase = Phase.WAITING_CONFIRM,
    replay_policy: ReplayPolicy | None = None,
) -> Headers:
    """Draft §5.2.2: server id, state, TTL and deadline; never a resource id, since nothing was created yet.

    The answer to a repeated Phase 1 whose intent has gone on has no TTL and no deadline (T2).
    """
    if phase not in _REGISTERED or (phase is _WAITING and (ttl_ms is None or deadline_at is None)):
        raise _broken(fields.PHASE_STATE)
    headers = [_server_id(server_correlation_id), _STATES[phase]]
    if ttl_ms is not None:
        headers.append(_ttl(ttl_ms))
    if deadline_at is not None:
        headers.append((fields.PONR_DEADLINE.key, format_instant(deadline_at).encode()))
    if replay_policy is not None:  # draft §8.2: MAY. Off by default, because it hints at the grace.
        headers.append(_checked(fields.REPLAY_POLICY, replay_policy, grammar.read_replay_policy))
    headers.append(NO_STORE)
    return headers


def waiting_answer(server_correlation_id: str, ttl_ms: int, deadline_at: Instant) -> Headers:
    """The same for an intent that waits, which nearly all do, with the length of its empty body."""
    if not server_correlation_id.isascii() or not grammar.matches_id(raw := server_correlation_id.encode()):
        raise _broken(fields.SERVER_CORRELATION_ID)
    deadline = (_DEADLINE, format_instant(deadline_at).encode())
    return [(_SERVER_ID, raw), _WAITS, _ttl(ttl_ms), deadline, NO_STORE, _EMPTY]


def final_answer(
    *,
    phase: Phase,
    resource_id: str | None = None,
    server_correlation_id: str | None = None,
    app_sets_caching: bool = False,
) -> Headers:
    """Draft §5.3.2 and §5.5.3: the settled state; a commit always names its resource.

    Auto-confirm adds the server id, which the client has not seen yet. ``app_sets_caching`` keeps an application's
    own Cache-Control (A-18).
    """
    if phase not in SETTLED or (phase is _COMMITTED and resource_id is None):
        raise _broken(fields.PHASE_STATE)
    headers = [_STATES[phase]]
    if resource_id is not None:
        if not resource_id.isascii() or not grammar.matches_resource_id(raw := resource_id.encode()):
            raise _broken(fields.RESOURCE_ID)
        headers.append((_RESOURCE_ID, raw))
    if server_correlation_id is not None:
        headers.append(_server_id(server_correlation_id))
    if not app_sets_caching:
        headers.append(NO_STORE)
    return headers


def accepted_answer(*, resource_id: str, location: str | None = None, retry_after_s: int | None = None) -> Headers:
    """A 202 (draft §5.3.3): still PROCESSING, a provisional resource id, and where to look again (A-04)."""
    headers = [_STATES[Phase.PROCESSING], _resource_id(resource_id)]
    if location is not None:
        headers.append(_location(location))
    if retry_after_s is not None:
        headers.append(retry_after(retry_after_s))
    headers.append(NO_STORE)
    return headers


def transparent_answer(*, server_correlation_id: str | None = None) -> Headers:
    """Draft §5.5.6: the application's answer as it is, with at most the server id for a later lookup."""
    return [] if server_correlation_id is None else [_server_id(server_correlation_id)]


def state(phase: Phase) -> tuple[bytes, bytes]:
    """The Phase-State field alone, as a client may see it (A-21)."""
    if phase not in _STATES:  # P-14.1-g: only the six names are ever sent.
        raise _broken(fields.PHASE_STATE)
    return _STATES[phase]


def retry_after(seconds: int) -> tuple[bytes, bytes]:
    """When to ask again; at least a second, at most a day."""
    return b"retry-after", str(min(max(seconds, 1), _MAX_RETRY_AFTER_S)).encode()


# --- the client's requests --------------------------------------------------------------------------------------


def phase_one_request(*, client_correlation_id: str, requested_ttl_ms: int | None = None) -> Headers:
    """Draft §5.2.1: what turns an ordinary request into a Phase 1; nothing else of it changes."""
    return [_OPT_IN, _client_id(client_correlation_id), *_wish(requested_ttl_ms)]


def auto_confirm_request(*, client_correlation_id: str, callback: str, requested_ttl_ms: int | None = None) -> Headers:
    """Draft §5.5.3: no second round trip, and an acknowledgement to ``callback``."""
    confirm = [_AUTO_CONFIRM, _callback(callback)]
    return [_OPT_IN, *confirm, _client_id(client_correlation_id), *_wish(requested_ttl_ms)]


def transparent_request(*, client_correlation_id: str | None = None) -> Headers:
    """Draft §5.5.6: registered by the server only. An id is welcome and not needed (A-35)."""
    headers = [_OPT_IN, _AUTO_CONFIRM]
    if client_correlation_id is not None:
        headers.append(_client_id(client_correlation_id))
    return headers


def phase_two_request(*, client_correlation_id: str, server_correlation_id: str) -> Headers:
    """Draft §5.3.1: the same client id as in Phase 1 and the server id it answered, byte for byte."""
    return [_OPT_IN, _client_id(client_correlation_id), _server_id(server_correlation_id)]


def status_read_request(*, client_correlation_id: str, server_correlation_id: str) -> Headers:
    """A poll (A-04): a GET or HEAD with the fields of a Phase 2."""
    return phase_two_request(client_correlation_id=client_correlation_id, server_correlation_id=server_correlation_id)


# --- checked values ---------------------------------------------------------------------------------------------


def _checked(field: Field, value: str, read: Callable[[bytes], object | None]) -> tuple[bytes, bytes]:
    """One field, if its grammar would read it back; otherwise CR, LF or worse might follow."""
    if value.isascii() and read(raw := value.encode()) is not None:
        return field.key, raw
    raise _broken(field)


def _server_id(value: str) -> tuple[bytes, bytes]:
    return _checked(fields.SERVER_CORRELATION_ID, value, grammar.matches_id)


def _client_id(value: str) -> tuple[bytes, bytes]:
    return _checked(fields.CLIENT_CORRELATION_ID, value, grammar.matches_id)


def _resource_id(value: str) -> tuple[bytes, bytes]:
    return _checked(fields.RESOURCE_ID, value, grammar.matches_resource_id)


def _callback(value: str) -> tuple[bytes, bytes]:
    return _checked(fields.CALLBACK, value, grammar.read_callback)


def _location(value: str) -> tuple[bytes, bytes]:
    if not value.isascii() or grammar.read_location(value.encode("ascii")) is None:
        raise WireError("The Location cannot be sent.", code="internal", field="Location")
    return b"location", value.encode("ascii")


@lru_cache(maxsize=64)  # A service has few policies, and each tells every client the same.
def _ttl(ttl_ms: int) -> tuple[bytes, bytes]:
    return _milliseconds(fields.TTL, ttl_ms)


def _milliseconds(field: Field, value: int) -> tuple[bytes, bytes]:
    return _checked(field, str(int(value)), grammar.read_milliseconds)


def _wish(requested_ttl_ms: int | None) -> Headers:
    return [] if requested_ttl_ms is None else [_milliseconds(fields.REQUESTED_TTL, requested_ttl_ms)]


def _broken(field: Field) -> WireError:
    return WireError("The value cannot be sent in this field.", code="internal", field=field.name)
