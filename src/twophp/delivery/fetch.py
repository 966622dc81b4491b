"""One HTTP/1.1 exchange with a server that the operator has named: a request, and its whole answer, bounded.

For tier 2, pulls and identity providers, so that no HTTP library has to be installed. It is no gate for URLs that come
from elsewhere: those go through ``egress``. No redirects, no proxies, no cookies; one connection for one exchange.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

import msgspec

from twophp.core.errors import ConfigError, DeliveryFailed
from twophp.delivery.egress import REASONS, default_tls
from twophp.delivery.egress_addresses import is_loopback, read_address
from twophp.delivery.egress_http import END_OF_HEAD, MAX_ANSWER_HEAD_BYTES, MAX_INTERIM_ANSWERS, is_interim, status_of

MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
TIMEOUT_S: Final = 30.0

_VALUE: Final = re.compile(r"[\x20-\x7e]*")
_PATH: Final = re.compile(r"[!-~]*")


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go: a server, and what stands before every path."""

    tls: bool
    host: str
    port: int
    path: str  # Without a slash at its end.

    @property
    def authority(self) -> str:
        """What the Host field says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came back. Names of header fields are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_after_s(self) -> int | None:
        """What ``Retry-After`` says in seconds; None where it says nothing we understand."""
        said = self.headers.get("retry-after", "")
        return int(said) if said.isascii() and said.isdigit() and len(said) < 6 else None  # noqa: PLR2004


def read_origin(url: str, *, allow_insecure: bool = False) -> Origin:
    """Understand the URL of a server; plain HTTP only to this machine, or where it is allowed (A-64)."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    host = parts.hostname or ""
    readable = (
        parts.scheme in ("http", "https") and host and _PATH.fullmatch(url) and not (parts.query or parts.fragment)
    )
    if not readable or parts.username is not None or parts.password is not None:
        raise ConfigError(
            "a URL like https://central.example is needed, without user, query or fragment", code="bad_url"
        )
    tls = parts.scheme == "https"
    if not tls and not allow_insecure and not _is_this_machine(host):
        raise ConfigError("plain HTTP goes to this machine alone; use https, or allow_insecure", code="tls_required")
    return Origin(tls=tls, host=host, port=port or (443 if tls else 80), path=parts.path.rstrip("/"))


def _is_this_machine(host: str) -> bool:
    address = read_address(host)
    return host == "localhost" or (address is not None and is_loopback(address))


async def fetch(
    origin: Origin,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    tls: ssl.SSLContext | None = None,
    timeout_s: float = TIMEOUT_S,
    most: int = MAX_ANSWER_BYTES,
) -> Answer:
    """Send and read, all of it within ``timeout_s``; raises DeliveryFailed. Any status is an answer."""
    request = _request(origin, method, path, headers or {}, body)
    context = (tls or default_tls()) if origin.tls else None
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(origin, request, context, most)
    except tuple(kind for kind, _ in REASONS) as error:
        reason = next(reason for kind, reason in REASONS if isinstance(error, kind))
        raise DeliveryFailed(f"The call did not succeed: {reason}.", reason=reason) from error


def _request(origin: Origin, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = {"Host": origin.authority, "User-Agent": "twophp", "Connection": "close", "Accept-Encoding": "identity"}
    if body or method != "GET":
        lines["Content-Length"] = str(len(body))
    lines |= headers
    if not _PATH.fullmatch(path) or not all(_VALUE.fullmatch(value) for value in lines.values()):
        raise ConfigError("a path or a header field has characters that cannot be sent", code="bad_url")
    head = [f"{method} {origin.path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items())]
    return "\r\n".join(head).encode("ascii") + END_OF_HEAD + body


async def _exchange(origin: Origin, request: bytes, context: ssl.SSLContext | None, most: int) -> Answer:
    reader, writer = await asyncio.open_connection(
        origin.host,
        origin.port,
        ssl=context,
        server_hostname=origin.host if context is not None else None,
        limit=MAX_ANSWER_HEAD_BYTES,
    )
    try:
        writer.write(request)
        # An answer may come before all was taken (429, 413): it is read while writing still goes on.
        sending = asyncio.ensure_future(_drained(writer))
        try:
            return await _answer(reader, most)
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def _drained(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # The reader meets the same error, and raises it.
        await writer.drain()


async def _answer(reader: asyncio.StreamReader, most: int) -> Answer:
    for _ in range(MAX_INTERIM_ANSWERS + 1):
        head = await reader.readuntil(END_OF_HEAD)
        status = status_of(head)
        if not is_interim(status):
            headers = _headers(head)
            return Answer(status=status, headers=headers, body=await _body(reader, status, headers, most))
    raise _bad_answer()


def _headers(head: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found[name.lower()] = value.strip(" \t")
    return found


async def _body(reader: asyncio.StreamReader, status: int, headers: Mapping[str, str], most: int) -> bytes:
    if status in (204, 304):
        return b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _chunks(reader, most)
    said = headers.get("content-length")
    if said is None:
        body = await _up_to(reader, most + 1)
    elif said.isascii() and said.isdigit() and len(said) < 16 and int(said) <= most:  # noqa: PLR2004
        return await reader.readexactly(int(said))
    else:
        raise _bad_answer()
    if len(body) > most:
        raise _bad_answer()
    return body


async def _up_to(reader: asyncio.StreamReader, most: int) -> bytes:
    parts: list[bytes] = []
    left = most
    while left and (part := await reader.read(min(left, 65_536))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


async def _chunks(reader: asyncio.StreamReader, most: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    while True:
        line = (await reader.readuntil(b"\r\n")).partition(b";")[0].strip()
        try:
            size = int(line, 16)
        except ValueError:
            raise _bad_answer() from None
        total += size
        if size < 0 or total > most:
            raise _bad_answer()
        if size == 0:
            return b"".join(parts)
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)


def _bad_answer() -> DeliveryFailed:
    return DeliveryFailed("The answer cannot be understood, or is too long.", reason="bad_answer")
