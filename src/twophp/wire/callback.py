"""The acknowledgement that auto-confirm sends out of band: exactly five fields (draft §5.5.4)."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from twophp.core.errors import WireError
from twophp.core.records import Instant
from twophp.wire import grammar
from twophp.wire.instant import format_instant, parse_instant

MAX_BODY_BYTES: Final = 4096
"""The longest acknowledgement a receiver reads; ours stay below 500 bytes."""


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """The PONR was crossed for this pair; processing was about to begin at ``dispatched_at``."""

    server_correlation_id: str
    client_correlation_id: str
    dispatched_at: Instant


class _Payload(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON object, in the draft's order. Two fields have only one value (§5.5.4)."""

    server_correlation_id: str
    client_correlation_id: str
    phase_state: Literal["PROCESSING"] = "PROCESSING"
    ponr_crossed: bool = True
    callback_timestamp: str


_DECODER: Final = msgspec.json.Decoder(_Payload)


def encode(acknowledgement: Acknowledgement) -> bytes:
    """Write the body. The same value gives the same bytes, so a redelivery is identical (A-39)."""
    payload = _Payload(
        server_correlation_id=acknowledgement.server_correlation_id,
        client_correlation_id=acknowledgement.client_correlation_id,
        callback_timestamp=format_instant(acknowledgement.dispatched_at),
    )
    return msgspec.json.encode(payload)


def decode(body: bytes) -> Acknowledgement:
    """Read a body that came from outside; raises WireError unless all five fields say what they must."""
    if len(body) > MAX_BODY_BYTES:
        raise WireError("The acknowledgement is too long.", code="body_too_large")
    try:
        payload = _DECODER.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError("The body is no acknowledgement.") from error
    server_id = grammar.read_id(payload.server_correlation_id.encode("utf-8", "replace"))
    client_id = grammar.read_id(payload.client_correlation_id.encode("utf-8", "replace"))
    at = parse_instant(payload.callback_timestamp.encode("utf-8", "replace"))
    if server_id is None or client_id is None or at is None or not payload.ponr_crossed:
        raise WireError("The acknowledgement has a field that says nothing.")
    return Acknowledgement(server_correlation_id=server_id, client_correlation_id=client_id, dispatched_at=at)
