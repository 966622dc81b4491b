"""The HTTP/1.1 an outgoing call needs, as bytes: one POST, and the status of its answer.

There is no client to configure, so there is nothing to leak: no cookies, no credentials, no proxy from the
environment, no redirects, no compression, and of the answer nothing but its status and where it ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from twophp.core.errors import DeliveryFailed
from twophp.delivery.egress_urls import Target, refused

Headers: TypeAlias = Iterable[tuple[str, str]]

MAX_REQUEST_BODY_BYTES: Final = 65_536
MAX_REQUEST_HEADERS: Final = 32
MAX_ANSWER_HEAD_BYTES: Final = 16_384
MAX_INTERIM_ANSWERS: Final = 4
"""How many 1xx answers may come before the real one (RFC 9110 §15.2)."""

MAX_SKIPPED_BYTES: Final = 4_096
"""How much of an answer's body is read and thrown away, so that its connection can be used again."""
NO_CONTENT: Final = 204

END_OF_HEAD: Final = b"\r\n\r\n"

OURS: Final = frozenset({"connection", "content-length", "host", "te", "trailer", "transfer-encoding", "upgrade"})
"""Fields that say where a message ends and where it goes; only this module writes them."""
CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
"""Fields that are refused: the client that named the URL would receive them."""

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE: Final = re.compile(r"[!-~](?:[ !-~]{0,4094}[!-~])?")  # Visible ASCII, so nothing ends a line.
_LENGTH: Final = re.compile(rb"[0-9]{1,5}")
_FRAMING: Final = frozenset({b"connection", b"content-length", b"transfer-encoding"})
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\r\n]*)?\r\n")


def request_bytes(target: Target, body: bytes, headers: Headers, *, keeps: bool = False) -> bytes:
    """The whole request; raises EgressRefused for one of our fields, a credential, or a field that holds a second one.

    With ``keeps`` the connection may be used again, which is the default of HTTP/1.1.
    """
    if len(body) > MAX_REQUEST_BODY_BYTES:
        raise refused("body_too_large")
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"Host: {target.authority}",
        "User-Agent: twophp",
        *([] if keeps else ["Connection: close"]),
        f"Content-Length: {len(body)}",
        *_fields(headers),
    ]
    return "\r\n".join(lines).encode("ascii") + END_OF_HEAD + body


def status_of(head: bytes) -> int:
    """The status an answer's head begins with; raises DeliveryFailed if it is none."""
    match = _STATUS_LINE.match(head)
    if match is None:
        raise DeliveryFailed("The answer is not HTTP/1.1.", reason="bad_answer")
    return int(match[1])


def bytes_to_skip(head: bytes) -> int | None:
    """How many bytes of an answer follow its head; None if the connection cannot be used after them.

    Every doubt gives None: another length, a coding, HTTP/1.0, a body where none may be, more than a little.
    """
    if not head.startswith(b"HTTP/1.1 "):
        return None
    said: dict[bytes, bytes] = {}
    for line in head.lower().split(b"\r\n")[1:]:
        name, _colon, value = line.partition(b":")
        if name in _FRAMING and name in said:
            return None
        said[name] = value.strip()
    length = said.get(b"content-length")
    if b"close" in said.get(b"connection", b"") or b"transfer-encoding" in said:
        return None
    if status_of(head) == NO_CONTENT:
        return 0 if length in (None, b"0") else None
    if length is None or not _LENGTH.fullmatch(length) or int(length) > MAX_SKIPPED_BYTES:
        return None
    return int(length)


def is_interim(status: int) -> bool:
    """Whether another answer follows. 101 does not count: we asked for no other protocol."""
    return 100 <= status < 200 and status != 101  # noqa: PLR2004 — the numbers of RFC 9110 §15.2


def check_success(status: int) -> int:
    """Only 2xx is success (A-39). A 3xx is a failure too: its Location is one more URL that the other side chose."""
    if not 200 <= status < 300:  # noqa: PLR2004 — the numbers of RFC 9110 §15.3
        raise DeliveryFailed(f"The other side answered {status}.", reason="status", status=status)
    return status


def _fields(headers: Headers) -> list[str]:
    given = list(headers)
    if len(given) > MAX_REQUEST_HEADERS:
        raise refused("too_many_headers")
    for name, value in given:
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)) or name.lower() in OURS | CREDENTIALS:
            raise refused("header")
    return [f"{name}: {value}" for name, value in given]
