"""What the flow asks its driver to do, and what it gets back. Values: nothing here waits or sends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias, TypedDict

import msgspec

from twophp.client.options import CallOptions
from twophp.client.settings import Settings
from twophp.core.call import Call
from twophp.core.call_commands import Command, ServerReply
from twophp.wire.fields import Headers
from twophp.wire.targets import Target

MOST: Final = 4_096


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """What a redirected call takes along to the next URL of the same origin (A-109)."""

    client_correlation_id: str
    first_url: str  # What the caller asked for: a named call is recognised by it.
    origin: str
    is_outcome: bool = False  # The call has ended with it: what follows is another call.


class CallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the caller made it, body and all. ``hop`` is there if the HTTP library follows a redirect."""

    method: str
    target: Target
    headers: Headers
    body: bytes
    options: CallOptions = CallOptions()
    hop: Hop | None = None
    is_repeat: bool = False  # It was sent before, and its outcome is unknown.


class TransportContext(msgspec.Struct, frozen=True, kw_only=True):
    """What all calls of one transport have in common."""

    settings: Settings
    known: KnownEndpoints
    ledger: str  # Its file; every handle on that has this name.
    owner: str  # Who drives the calls: this transport in this process.
    callback_token: Callable[[str], str]  # For a client correlation id.


class Send(msgspec.Struct, frozen=True, kw_only=True):
    """Send this; answered with a Reply, or with NotSent or Lost thrown in.

    A reply that may be the last of its call has its whole body (see ``held.may_be_last``).
    """

    step: Literal["phase_1", "phase_2", "status_read"]
    method: str
    target: Target
    headers: Headers
    body: bytes = b""


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """Read a reply's body, up to a limit, and close it; answered with the bytes."""

    reply: Reply
    limit: int = 0


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Read a reply to its end, so that it outlives its connection; answered with the bytes, None if they broke off."""

    reply: Reply


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Make this durable; answered with the decision. ``request`` is sealed with it, None destroys what was kept."""

    client_correlation_id: str
    command: Command
    request: bytes | None = None


class RecordBehind(msgspec.Struct, frozen=True, kw_only=True):
    """Answered at once with the decision, made from what is ``known`` of a call whose row is durable; written later."""

    known: Call
    told: ServerReply


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Answered with the call under this id, or None."""

    client_correlation_id: str


class Pause(msgspec.Struct, frozen=True):
    """Wait."""

    seconds: float


class Unseal(msgspec.Struct, frozen=True, kw_only=True):
    """Answered with the request that was sealed when this call was noted, or None."""

    call: Call


Effect: TypeAlias = Send | Read | Keep | Record | RecordBehind | Look | Pause | Unseal


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer's head. ``native`` is the HTTP library's own response; None if the reply was put together here."""

    status: int
    headers: Headers
    native: Any = None
    body: bytes = b""


class NotSent(Exception):
    """Nothing left this machine; ``native`` is the HTTP library's own error."""

    def __init__(self, native: Exception) -> None:
        super().__init__(str(native))
        self.native = native


class Lost(Exception):
    """Something may have been sent, and no whole answer came; ``native`` is the HTTP library's own error.

    ``head`` is there if the answer broke off in its body.
    """

    def __init__(self, native: Exception, head: Reply | None = None) -> None:
        super().__init__(str(native))
        self.native = native
        self.head = head


class CallInfo(TypedDict):
    """What the protocol knows of a finished call: ``response.extensions["twophp"]``, ``response.twophp``."""

    client_correlation_id: str
    server_correlation_id: str | None
    phase: str | None
    mode: str  # standard, async, auto_confirm; refused; redirected; plain: the server does not speak 2PHP.
    resource_id: str | None
    indeterminate: bool  # FAILED, and the server does not know whether the effects happened: do not make it anew.


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a call."""

    reply: Reply
    info: CallInfo


class KnownEndpoints:
    """Which endpoints have answered as 2PHP servers: a bounded set, of which the oldest is forgotten first.

    Enrolment is per endpoint, so nothing less than the same method and the same URL counts. To speak 2PHP is not to
    recognise a client correlation id: the draft makes no server answer a repeated Phase 1 alike. That is known of
    twophp's own middleware only (A-32), which shows itself by the form of its refusals.

    Safe to use from any thread, and after a fork: it has no lock.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], bool] = {}  # Whether it recognises ids.

    def add(self, method: str, target: Target, *, recognises_ids: bool = False) -> None:
        """Note that this endpoint has just answered as a 2PHP server; what was known of it stays known."""
        key = method, target.resource
        self._known[key] = recognises_ids or self._known.get(key, False)
        while len(self._known) > MOST:
            with suppress(RuntimeError):  # Another thread came between the two steps that find the oldest.
                self._known.pop(next(iter(self._known)), None)

    def has(self, method: str, target: Target) -> bool:
        """Whether this endpoint has answered as a 2PHP server."""
        return (method, target.resource) in self._known

    def recognises_ids(self, method: str, target: Target) -> bool:
        """Whether the same Phase 1 again is the same intent there."""
        return self._known.get((method, target.resource), False)
