"""The commands about an intent, which ``core.phase`` decides."""

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
    is_plain: bool = False  # The client asked for no handshake: the endpoint records the request it serves.
    owner: str = ""
    counted_bytes: int | None = None
    request_digest: str | None = None
    follows: str = ""  # The server id of an intent whose redirect this request follows.


class Confirm(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Phase 2. ``guard_passed`` is the late-confirm guard's verdict (A-24); it matters only inside the grace."""

    client_correlation_id: str
    server_correlation_id: str
    principal: str
    path: str
    arrived_at: Instant
    owner: str
    guard_passed: bool = False
    provisional_resource_id: str | None = None  # Told to the client while it still runs (draft §5.3.3).


class Settle(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The handler's outcome, from the holder of ``fence``. ``indeterminate``: it is unknown whether it had effects."""

    fence: int
    succeeded: bool
    status: int
    resource_id: str | None = None
    transaction_reference: str | None = None
    indeterminate: bool = False


class Renew(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The heartbeat of the holder of ``fence``."""

    fence: int


class Tick(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The sweeper's visit: do what is due. ``owner`` takes over an intent that no process executes any more (A-34)."""

    owner: str = ""
    dead_owner: str | None = None  # Its intents are taken over at once.
    live_owner: str | None = None  # Its intents are not taken over at any lease age; for others the lease decides.


Command: TypeAlias = Register | Confirm | Settle | Renew | Tick
