"""Reading request bodies: bounded before and after decompression, and decoded by msgspec."""

from __future__ import annotations

import asyncio
import zlib
from typing import Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from twophp.central.api.problems import ApiProblem
from twophp.core.misfits import UNREADABLE, misfit

MOST_SENT_BYTES: Final = 8 * 1024 * 1024
MOST_BODY_BYTES: Final = 16 * 1024 * 1024
"""After decompression: 5,000 rows of ordinary length are a quarter of it."""
MOST_SMALL_BYTES: Final = 65_536
BODY_S: Final = 30.0
"""How long a body may take. Who fell silent in the middle of one would hold a place among the batches for ever."""
GZIP: Final = 16 + zlib.MAX_WBITS

T = TypeVar("T")


async def read_body(request: Request, most: int) -> bytes:
    """The body as it was sent; refused as soon as it is known to be too long."""
    said = request.headers.get("content-length", "")
    if said.isdigit() and int(said) > most:
        raise ApiProblem("too_large")
    parts: list[bytes] = []
    total = 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                total += len(part)
                if total > most:
                    raise ApiProblem("too_large")
                parts.append(part)
    except ClientDisconnect as error:
        raise ApiProblem("bad_encoding") from error
    except TimeoutError as error:
        raise ApiProblem("too_slow") from error
    return b"".join(parts)


async def read_packed(request: Request) -> bytes:
    """A body that may be compressed. However small it arrives, it does not unfold beyond the bound."""
    sent = await read_body(request, MOST_SENT_BYTES)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding == "identity":
        return sent
    if encoding != "gzip":
        raise ApiProblem("unsupported_encoding")
    unpack = zlib.decompressobj(GZIP)
    try:
        body = unpack.decompress(sent, MOST_BODY_BYTES + 1)
    except zlib.error as error:
        raise ApiProblem("bad_encoding") from error
    if len(body) > MOST_BODY_BYTES:
        raise ApiProblem("too_large")
    if not unpack.eof or unpack.unused_data:
        raise ApiProblem("bad_encoding")
    return body


async def read_document(request: Request, kind: type[T], *, empty: T | None = None) -> T:
    """A small JSON body of a known shape; ``empty`` is what no body at all means, where that is allowed."""
    body = await read_body(request, MOST_SMALL_BYTES)
    if not body and empty is not None:
        return empty
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise ApiProblem("bad_parameter", misfit(error, kind, body)[:500]) from None
