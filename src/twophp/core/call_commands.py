"""The commands about a call, which ``core.call_machine`` decides."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from twophp.core.intent import Mode, Phase
from twophp.core.records import Instant


class Opening(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts of a call that are known before it is sent."""

    client_correlation_id: str
    parent_reference_id: str
    method: str
    url: str
    meant: str
    target: str
    service_endpoint: str
    mode: Mode
    sent_at: Instant
    owner: str


class Note(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Write the call down before it is sent."""

    opening: Opening


class ServerReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The server's statement, its channel and its time. ``opening`` makes the record if there is none yet."""

    phase: Phase
    by: Literal["phase_1", "phase_2", "status_read", "callback"]
    at: Instant
    opening: Opening | None = None
    server_correlation_id: str = ""
    ttl_ms: int = 0
    confirm_by: Instant | None = None
    status: int | None = None
    resource_id: str | None = None
    status_url: str = ""
    first: bool = False  # Answers the first request of its driver that could have made the call run.
    indeterminate: bool = False  # Only of FAILED.


class NotThere(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The server says that nothing is registered; ``plain``: because it served an ordinary request (A-06)."""

    plain: bool = False
    first: bool = False  # See ``ServerReply``.


class GiveUp(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """This driver has not confirmed, and will not."""

    fence: int
    late: bool  # Whether the deadline has passed: by the driver's steady clock, which counts.


class Renew(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The heartbeat of the driver."""

    fence: int


class Release(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The driver leaves an open call to the next driver."""

    fence: int
    error: str = ""


class Tick(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The reconciler's visit: take over a call without a driver, end a given-up one in time, forget an old one."""

    owner: str
    dead_driver: str | None = None  # Its calls are taken over at once; empty: the released ones are.


Command: TypeAlias = Note | ServerReply | NotThere | GiveUp | Renew | Release | Tick
