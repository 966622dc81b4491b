"""What the tests of the wire share: literals spelled by hand, never taken from the code under test."""

from __future__ import annotations

from twophp.core.errors import WireError
from twophp.wire.parse import Request, parse

CLIENT = "8b1f7d3e-5c1c-4f5e-9d0b-2f5d3c3f7a10"
SERVER = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
CALLBACK_URL = "https://client.example/2php/callback"
AT = 1_767_323_045_678  # 2026-01-02T03:04:05.678Z

Pairs = list[tuple[bytes, bytes]]

ENABLED = (b"dtt-2php-enabled", b"true")
AUTO = (b"dtt-2php-auto-confirm", b"true")
CLIENT_ID = (b"dtt-2php-client-correlation-id", CLIENT.encode())
SERVER_ID = (b"dtt-2php-server-correlation-id", SERVER.encode())
CALLBACK = (b"dtt-2php-callback", CALLBACK_URL.encode())
REQUESTED_TTL = (b"dtt-2php-requested-ttl", b"5000")

PHASE_ONE: Pairs = [ENABLED, CLIENT_ID]
PHASE_TWO: Pairs = [ENABLED, CLIENT_ID, SERVER_ID]
AUTO_CONFIRM: Pairs = [ENABLED, AUTO, CALLBACK, CLIENT_ID]
TRANSPARENT: Pairs = [ENABLED, AUTO]


def field(name: str, value: bytes) -> tuple[bytes, bytes]:
    return b"dtt-2php-" + name.encode(), value


def outcome(method: str, path: str, headers: Pairs, *, strict_uuid: bool = False) -> Request | str:
    """The parsed value, or the code of the refusal."""
    try:
        return parse(method, path, headers, strict_uuid=strict_uuid)
    except WireError as error:
        return error.code
