"""What becomes of an obligation outside: its effect once it is Committed, its release once it is rolled back.

Both are owed by the very change that settles the obligation, as a job of the outbox (A-72): all or nothing at the point
of decision, delivered at least once after it. Whoever delivers drops repeats by the obligation's id, which is the same
on every attempt. The payload travels with the job, so that a rolled-back obligation keeps nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec

from twophp.core.errors import Refused
from twophp.core.obligation import Obligation, Resolution, State
from twophp.engine.outbox import Deliver, Delivery, Letter

THREADS: Final = 8
"""How many calls of one flow's function are made at a time, each in a thread."""


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
        raise Refused(f"the payload cannot be stored: {error}", code="payload_not_canonical") from error


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


def letter_for(settled: Obligation, payload: bytes) -> Letter:
    """What a settled obligation owes."""
    work = "effect" if settled.state is State.COMMITTED else "release"
    owed = _Owed(settled.key, settled.trace_id, settled.intent, settled.resolution, payload)
    return Letter(
        job_id=f"{settled.obligation_id}/{work}",
        work="effect" if work == "effect" else "release",
        subject=settled.obligation_id,
        name=settled.flow,
        payload=msgspec.msgpack.encode(owed),
    )


def act_deliverer(acts: Mapping[str, Act]) -> Deliver:
    """Delivers jobs by the flow they are named after. A flow that nobody acts on has nothing to do."""
    callers = {flow: _Caller(act) for flow, act in acts.items()}

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
        try:
            await caller.call(effect)
        except SystemExit as error:  # It would end the event loop, and whoever waits for it would wait for ever.
            raise RuntimeError("an effect or a release must not end the process") from error

    return deliver


class _Caller:
    """Calls what one flow's effects are made visible by, or released.

    A function that never returns keeps its thread for good. So each flow has threads of its own, or the effects of
    another would be given up without ever having been tried; and they are daemons, or no process could end.
    """

    def __init__(self, act: Act) -> None:
        self._act = act
        self._free = asyncio.Semaphore(THREADS)

    async def call(self, effect: Effect) -> None:
        """Returns or raises as the act does."""
        if inspect.iscoroutinefunction(self._act):
            await self._act(effect)
            return
        found = await self._in_thread(effect)
        if inspect.isawaitable(found):  # A partial, or an object whose ``__call__`` is async.
            await found

    async def _in_thread(self, effect: Effect) -> Any:
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        over: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def end(result: Any, error: BaseException | None) -> None:
            self._free.release()
            if not over.done():  # Else it was cut off.
                over.set_result((result, error))

        def work() -> None:
            result, raised = None, None
            try:
                result = self._act(effect)
            except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it, whatever it is.
                raised = error
            with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                loop.call_soon_threadsafe(end, result, raised)

        try:
            threading.Thread(target=work, name="twophp-effect", daemon=True).start()
        except BaseException:
            self._free.release()
            raise
        result, raised = await over
        if raised is not None:
            raise raised
        return result
