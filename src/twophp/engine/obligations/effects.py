"""What becomes of an obligation outside: its effect once it is Committed, its release once it is rolled back.

Both are owed by the very change that settles the obligation, as a job of the outbox (A-72): all or nothing at the point
of decision, delivered at least once after it. An act drops repeats by the obligation's id, which is the same on every
attempt. The payload travels with the job, so that a rolled-back obligation keeps nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from twophp.core.errors import Refused
from twophp.core.misfits import unwritable
from twophp.core.obligation import Obligation, Resolution, State
from twophp.delivery.calling import Caller
from twophp.delivery.outbox import Deliver, Delivery, OutboxMessage


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """A committed effect to make visible, or a tentative one to release. ``resolution`` says who settled it."""

    obligation_id: str
    flow: str
    key: str
    trace_id: str
    intent: str
    resolution: Resolution
    payload: Any


Act: TypeAlias = Callable[[Effect], Awaitable[None] | None]
"""Makes an effect visible, or releases it. It may be called again with the same effect; raising asks for that."""


# Payloads: JSON as it is, or plain bytes after a letter that no JSON begins with. Earlier releases put one before JSON.

_JSON: Final = b"j"
_BYTES: Final = b"b"
_NOTHING: Final = b""
_encode: Final = msgspec.json.Encoder().encode


def encode_payload(payload: Any) -> bytes:
    """A payload as bytes; empty for None."""
    if payload is None:
        return _NOTHING
    if isinstance(payload, bytes):
        return _BYTES + payload
    try:
        return _encode(payload)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Refused(f"the payload cannot be stored: {unwritable(error)}", code="payload_not_canonical") from error


def decode_payload(stored: bytes | None) -> Any:
    """The payload as JSON has it, its bytes, or None."""
    if not stored:
        return None
    if stored[:1] == _BYTES:
        return stored[1:]
    return msgspec.json.decode(stored[1:] if stored[:1] == _JSON else stored)


# Letters.


class _Owed(msgspec.Struct, frozen=True):
    """What a job carries: all that its delivery needs, so that nothing has to be read again."""

    key: str
    trace_id: str
    intent: str
    resolution: Resolution
    payload: bytes


_OWED: Final = msgspec.msgpack.Decoder(_Owed)


def letter_for(settled: Obligation, payload: bytes) -> OutboxMessage:
    """What a settled obligation owes."""
    work = "effect" if settled.state is State.COMMITTED else "release"
    owed = _Owed(settled.key, settled.trace_id, settled.intent, settled.resolution, payload)
    return OutboxMessage(
        job_id=f"{settled.obligation_id}/{work}",
        work="effect" if work == "effect" else "release",
        subject=settled.obligation_id,
        name=settled.flow,
        payload=msgspec.msgpack.encode(owed),
    )


def act_deliverer(acts: Mapping[str, Act]) -> Deliver:
    """Delivers jobs by the flow they are named after. A flow without an act needs nothing done."""
    callers = {flow: Caller(act, "twophp-effect") for flow, act in acts.items()}

    async def deliver(delivery: Delivery) -> None:
        caller = callers.get(delivery.job.name)
        if caller is None:
            return
        owed = _OWED.decode(delivery.payload)
        effect = Effect(
            obligation_id=delivery.job.subject,
            flow=delivery.job.name,
            key=owed.key,
            trace_id=owed.trace_id,
            intent=owed.intent,
            resolution=owed.resolution,
            payload=decode_payload(owed.payload),
        )
        await caller.call(effect)

    return deliver
