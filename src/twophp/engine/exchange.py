"""What is kept of a request and of its answer, sealed, between the phases and for every replay.

Of a request: method, path, query, body, and the headers that say what the body is. Credentials, cookies and addresses
come from the live request that confirms it: the service's store must not become a store of credentials (A-03).
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from operator import itemgetter
from typing import Final, TypeAlias

import msgspec

RawHeaders: TypeAlias = tuple[tuple[bytes, bytes], ...]

KEPT_PREFIXES: Final = (b"content-", b"accept", b"if-")
# Hop-by-hop fields belong to a connection and Date to a moment; both are made anew for every answer.
OF_THE_MOMENT: Final = frozenset(
    {
        b"connection",
        b"date",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_name_of: Final = itemgetter(0)
_lower: Final = bytes.lower
_NOT_STORED: Final = OF_THE_MOMENT | {b"set-cookie"}  # a cookie belongs to the first client.


class StoredRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The request as it was registered."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: RawHeaders
    body: bytes
    root_path: str = ""  # The last, with a default: requests that were sealed before it was kept still open.


class StoredResponse(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The application's answer: its own status, its headers in order and with repeats, its body."""

    status: int
    headers: RawHeaders
    body: bytes


_decode_request: Final = msgspec.msgpack.Decoder(StoredRequest).decode
_decode_response: Final = msgspec.msgpack.Decoder(StoredResponse).decode


encode: Final[Callable[[StoredRequest | StoredResponse], bytes]] = msgspec.msgpack.Encoder().encode
"""The bytes to seal."""


def decode_request(data: bytes) -> StoredRequest:
    """What was sealed in Phase 1."""
    return _decode_request(data)


def decode_response(data: bytes) -> StoredResponse:
    """What was sealed when the intent was settled."""
    return _decode_response(data)


def lowered(headers: RawHeaders) -> list[bytes]:
    """Their names in lower case, as they are compared. One look at all of them tells whether any is a special one."""
    return [*map(_lower, map(_name_of, headers))]


def storable(response: StoredResponse) -> StoredResponse:
    """The answer as every replay repeats it; most are that already."""
    if _NOT_STORED.isdisjoint(lowered(response.headers)):
        return response
    headers = [pair for pair in response.headers if pair[0].lower() not in _NOT_STORED]
    return StoredResponse(response.status, tuple(headers), response.body)


class _Omitted(msgspec.Struct, frozen=True):
    """What stands for a body that was not kept."""

    bytes: int
    sha256: str
    omitted: bool = True
    title: str = "The answer was too large to be kept; this is its size and its digest."


def bounded(response: StoredResponse, limit: int) -> StoredResponse:
    """The answer as it is stored: one with a body past ``limit`` keeps its status, headers and digest (A-16)."""
    if len(response.body) <= limit:
        return response
    headers = tuple(pair for pair in response.headers if not pair[0].lower().startswith(b"content-"))
    note = msgspec.json.encode(_Omitted(len(response.body), sha256(response.body).hexdigest()))
    return StoredResponse(response.status, (*headers, (b"content-type", b"application/json")), note)
