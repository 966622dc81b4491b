"""The body of an answer that requests hands on as ``response.raw``: read ahead, or watched while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPException
from io import BytesIO
from typing import Any, Final

from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError
from urllib3.response import HTTPResponse

from twophp.client.exchange import CallInfo
from twophp.client.held import broken_off

BREAKS: Final = (RequestException, HTTPError, HTTPException, OSError)
"""All that requests and urllib3 raise while they send and read."""

_PIECE: Final = 16 * 1024


class Held(HTTPResponse):
    """An answer that has come whole: reading it cannot fail any more."""


def held(raw: Any, limit: int) -> Any:
    """The same answer, with its body in memory; of a longer one, the beginning. Raises one of BREAKS if it breaks off.

    The body stays as it came, so a reader of ``response.raw`` gets what the server sent. It must be decodable.
    """
    body, rest = BytesIO(), raw.stream(_PIECE, decode_content=False)
    try:
        for piece in rest:
            body.write(piece)
            if body.tell() > limit:
                return _like(raw, HTTPResponse, _Parts(body.getvalue(), rest, raw))
        for _piece in _like(raw, Held, BytesIO(body.getvalue())).stream(_PIECE, decode_content=True):
            continue
    except BREAKS:
        raw.close()
        raise
    body.seek(0)
    return _like(raw, Held, body)


def guarded(raw: Any, info: CallInfo) -> Any:
    """The same answer, whose reader receives a PhaseError if it breaks off."""
    return raw if isinstance(raw, Held) else _Guarded(raw, info)


def _like(raw: Any, kind: type[HTTPResponse], body: Any) -> HTTPResponse:
    return kind(
        body=body,
        headers=raw.headers,
        status=raw.status,
        version=raw.version,
        reason=raw.reason,
        preload_content=False,
        decode_content=False,
        original_response=getattr(raw, "_original_response", None),  # Where requests finds the cookies.
    )


class _Parts:
    """A file: what was read ahead, then what is still to come."""

    closed = False

    def __init__(self, ahead: bytes, rest: Iterator[bytes], raw: Any) -> None:
        self._ahead, self._rest, self._raw = ahead, rest, raw

    def read(self, size: int | None = None) -> bytes:
        if size is None or size < 0:
            return self._ahead + b"".join(self._rest)
        while len(self._ahead) < size and (piece := next(self._rest, b"")):
            self._ahead += piece
        taken, self._ahead = self._ahead[:size], self._ahead[size:]
        return taken

    def close(self) -> None:
        self.closed = True
        self._raw.close()
        self._raw.release_conn()


class _Guarded:
    """Stands in for a urllib3 response; only its reading is different."""

    def __init__(self, raw: Any, info: CallInfo) -> None:
        self._raw, self._info = raw, info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def __iter__(self) -> Iterator[bytes]:
        return self._each(iter(self._raw))

    def stream(self, *args: Any, **how: Any) -> Iterator[bytes]:
        return self._each(self._raw.stream(*args, **how))

    def read_chunked(self, *args: Any, **how: Any) -> Iterator[bytes]:
        return self._each(self._raw.read_chunked(*args, **how))

    def read(self, *args: Any, **how: Any) -> Any:
        return self._one(self._raw.read, *args, **how)

    def read1(self, *args: Any, **how: Any) -> Any:
        return self._one(self._raw.read1, *args, **how)

    def readinto(self, *args: Any, **how: Any) -> Any:
        return self._one(self._raw.readinto, *args, **how)

    def _one(self, reading: Any, *args: Any, **how: Any) -> Any:
        try:
            return reading(*args, **how)
        except BREAKS as error:
            raise broken_off(self._info) from error

    def _each(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from pieces
        except BREAKS as error:
            raise broken_off(self._info) from error
