"""What the bridge has read of a request's body, and what is left in its stream.

The middleware reads no more than it could ever store. A larger body may still be the application's alone, which then
has to find all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BufferedReader, BytesIO, RawIOBase
from typing import Any, Final

import msgspec

_INPUT: Final = "wsgi.input"
_ENDS: Final = "wsgi.input_terminated"


class Body(msgspec.Struct, frozen=True):
    """The body of one request."""

    data: bytes = b""
    stream: Any = None  # It has what was not read.
    is_broken_off: bool = False  # The client left before its end.

    def for_application(self, environ: Mapping[str, Any]) -> dict[str, Any]:
        """The entries by which an application reads all of it, in the environ of its request."""
        whole: Any = BytesIO(self.data)
        if self.stream is not None:
            whole = BufferedReader(_Joined(whole, self.stream)) if self.data else self.stream
        return {_INPUT: whole, _ENDS: environ.get(_ENDS, False)}


class _Joined(RawIOBase):
    """What was read of a stream, and then the stream. It ends by itself, so to read ahead waits for nothing."""

    def __init__(self, data: BytesIO, stream: Any) -> None:
        self._data = data
        self._stream = stream

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill what the next bytes are enough for."""
        some = self._data.read(len(buffer)) or self._stream.read(len(buffer))
        buffer[: len(some)] = some
        return len(some)


def read_body(environ: Mapping[str, Any], most: int) -> Body:
    """Read the body, unless its own length says that it is larger than ``most``, or nothing says where it ends."""
    stream, length = environ[_INPUT], str(environ.get("CONTENT_LENGTH") or "")
    if length.isdigit() and len(length) <= len(str(most)) and int(length) <= most:
        data = bytes(stream.read(int(length)))
        return Body(data, is_broken_off=len(data) < int(length))
    if length or not environ.get(_ENDS):
        return Body(stream=stream)
    data = bytes(stream.read(most + 1))
    return Body(data, stream if len(data) > most else None)
