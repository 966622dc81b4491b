"""The header fields of what the client sends: the caller's request with three more, and the requests of its own."""

from __future__ import annotations

from hashlib import sha256
from hmac import new as hmac
from typing import Final

import msgspec

from twophp.client.exchange import CallRequest
from twophp.client.settings import Settings
from twophp.wire import emit
from twophp.wire.fields import Headers
from twophp.wire.targets import Target, target_of

# About a body, or about what the caller asked for: not repeated by a confirm or a status read, which have neither.
_ABOUT_THE_REQUEST: Final = (b"content-", b"if-")
_OF_ONE_MESSAGE: Final = frozenset({b"transfer-encoding", b"expect", b"te", b"trailer", b"range", b"connection"})
_KEPT: Final = (b"content-", b"accept", b"if-")  # What a server keeps of a request, so what a repeat needs.


class SealedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that may have to be sent again after a crash: without credentials, which are never stored."""

    method: str
    url: str
    headers: list[tuple[bytes, bytes]]
    body: bytes


def phase_one_headers(
    asked: CallRequest, settings: Settings, client_correlation_id: str, callback: str | None
) -> Headers:
    """The caller's own fields, and what turns them into a Phase 1 (draft §5.2.1, §5.5.3)."""
    wish = asked.options.requested_ttl_ms or settings.requested_ttl_ms
    if callback is None:
        own = emit.phase_one_request(client_correlation_id=client_correlation_id, requested_ttl_ms=wish)
    else:
        own = emit.auto_confirm_request(
            client_correlation_id=client_correlation_id, callback=callback, requested_ttl_ms=wish
        )
    return [*asked.headers, *own]


def own_headers(asked: CallRequest, settings: Settings, url: str) -> Headers:
    """The caller's credentials, cookies and traces, without what was about the body (A-03)."""
    given = {} if settings.credentials is None else dict(settings.credentials(url))
    fresh = [(name.encode("ascii"), value.encode("latin-1")) for name, value in given.items()]
    dropped = _OF_ONE_MESSAGE | {name.lower() for name, _value in fresh}
    kept = [
        pair for pair in asked.headers if not _starts(pair[0], _ABOUT_THE_REQUEST) and pair[0].lower() not in dropped
    ]
    return kept + fresh


def sealed_request(asked: CallRequest) -> bytes:
    """The bytes to seal."""
    headers = [pair for pair in asked.headers if _starts(pair[0], _KEPT)]
    return msgspec.msgpack.encode(SealedRequest(asked.method, asked.target.url, headers, asked.body))


def _starts(name: bytes, with_one_of: tuple[bytes, ...]) -> bool:
    return name.lower().startswith(with_one_of)


def unsealed_request(data: bytes, settings: Settings) -> CallRequest:
    """The request again, with fresh credentials."""
    request = msgspec.msgpack.decode(data, type=SealedRequest)
    target: Target = target_of(request.url)
    bare = CallRequest(method=request.method, target=target, headers=[], body=request.body)
    return msgspec.structs.replace(bare, headers=[*request.headers, *own_headers(bare, settings, request.url)])


def callback_token(secret: bytes, client_correlation_id: str) -> str:
    """The end of the URL at which one call is acknowledged (A-66). It cannot be guessed and need not be stored."""
    return hmac(secret, client_correlation_id.encode(), sha256).hexdigest()
