"""What can be said to an intent: the commands that ``core.phase`` decides about."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from twophp.core.intent import Mode
from twophp.core.records import Instant


class Register(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Phase 1. ``server_correlation_id`` is a fresh one, used only if the intent is new."""

    client_correlation_id: str
    server_correlation_id: str
    principal: str
    replay_key: str
    mode: Mode
    service_endpoint: str
    path: str
    arrived_at: Instant
    method: str = "POST"
    requested_ttl_ms: int | None = None
    callback: str = ""
    client_id_is_proxy: bool = False
    is_plain: bool = False  # Nobody asked for a handshake: the endpoint records what it serves.
    owner: str = ""
    counted_bytes: int | None = None
    request_digest: str | None = None
    follows: str = ""  # The server id of an intent whose redirect this request follows.


class Confirm(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Phase 2. ``guard_passed`` is the late-confirm guard's word (A-24); it matters only inside the grace."""

    client_correlation_id: str
    server_correlation_id: str
    principal: str
    path: str
    arrived_at: Instant
    owner: str
    guard_passed: bool = False
    provisional_resource_id: str | None = None  # Told to the client while it still runs (draft §5.3.3).


class Settle(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The handler's outcome, from whoever holds ``fence``. ``indeterminate``: nobody knows whether it did anything."""

    fence: int
    succeeded: bool
    status: int
    resource_id: str | None = None
    transaction_reference: str | None = None
    indeterminate: bool = False


class Renew(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The heartbeat of whoever holds ``fence``."""

    fence: int


class Tick(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The sweeper's visit: do whatever time makes due. ``owner`` takes over what nobody executes any more (A-34)."""

    owner: str = ""
    dead_owner: str | None = None  # What it executed is taken over at once.
    live_owner: str | None = None  # What it executes is not, however old its lease is. Of others, only the lease tells.


Command: TypeAlias = Register | Confirm | Settle | Renew | Tick
