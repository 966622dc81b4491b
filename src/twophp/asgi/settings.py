"""What a service says when it adds the middleware, checked once at the start."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from types import NoneType
from typing import Final, Literal, TypeAlias, TypedDict

import msgspec
from msgspec.structs import force_setattr

from twophp.asgi.answers import ResourceId
from twophp.asgi.outgoing import Outgoing
from twophp.core.errors import ConfigError
from twophp.core.intent import Intent
from twophp.core.quota import DEFAULT_QUOTA, Quota
from twophp.core.settings import Kinds, check_bounds, check_kinds, several
from twophp.engine.endpoints import NEVER_REGISTERED, Endpoints
from twophp.engine.obligations.rules import Rules as ObligationRules
from twophp.identity.head import Head, Proxies
from twophp.identity.identify import Identify, anonymous
from twophp.ports import Clock
from twophp.shipping.shipper import Shipping, shipping
from twophp.stores.urls import SUPPORTED, parse_store_url
from twophp.storing.bites import RETENTION_MS
from twophp.wire.parse import MUTATIONS
from twophp.wire.paths import CONFIRM_SUFFIX

MIB = 1024 * 1024

PULL_VARIABLE: Final = "TWOPHP_PULL_URL"

_FIELD_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 §5.1

Prevalidate: TypeAlias = Callable[[Head, bytes], Awaitable[None] | None]
"""Looks at a Phase 1 request before it is stored; raises to refuse it (A-07)."""
LateConfirmGuard: TypeAlias = Callable[[Head, Intent], bool | Awaitable[bool]]
"""Asks a confirm that comes within the grace for more than its ids; only ``True`` lets it in (A-24)."""
Reconciled: TypeAlias = Literal["COMMITTED", "NOT_DONE", "UNKNOWN"]
ReconcileResult: TypeAlias = tuple[Reconciled, str | None]
"""What ``reconcile`` answers: how the execution ended, and after COMMITTED the id of the resource, if there is one."""
Reconcile: TypeAlias = Callable[[Intent], ReconcileResult | Awaitable[ReconcileResult]]
"""Asks the business side how a crashed execution ended, and for the resource's id (A-34)."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is not the application, the store or the keys."""

    service: str
    identify: Identify
    endpoints: Endpoints
    proxies: Proxies
    allow_insecure: bool = False
    confirm_suffix: str = CONFIRM_SUFFIX
    strict_uuid: bool = False
    methods: frozenset[str] = MUTATIONS  # What can be registered.
    prevalidate: Prevalidate | None = None
    late_confirm_guard: LateConfirmGuard | None = None
    reconcile: Reconcile | None = None
    resource_id: ResourceId | None = None
    outgoing: Outgoing = Outgoing()
    obligations: ObligationRules = ObligationRules()
    success_status: Literal["200", "passthrough"] = "200"
    expose_replay_policy: bool = False
    expose_server_id: bool = False
    stored_headers: frozenset[bytes] = frozenset()
    max_body_bytes: int = MIB
    body_timeout_s: float = 60.0  # A body that takes longer to arrive is ended.
    max_result_bytes: int = 4 * MIB
    replay_wait_ms: int | None = None  # None: the endpoint's processing_timeout_ms.
    sweep_interval_s: float = 1.0
    drain_timeout_s: float = 10.0
    tune_collector: bool = True  # Python's own: freeze what is loaded, look less often (ADR 37).
    quota: Quota | None = DEFAULT_QUOTA  # Of each principal; None: no bound.
    ledger_retention_ms: int | None = RETENTION_MS  # After a row's arrival at the central ledger; None: for ever.
    central: str | None = None  # Where rows are sent to, as whom, and how often; also TWOPHP_CENTRAL, ..._TOKEN.
    central_token: str | None = None
    central_interval_s: float | None = None
    central_events: bool | None = None  # Each row as soon as it is written; also TWOPHP_CENTRAL_EVENTS=1.
    management_token: str | None = None  # Lets the central ledger pull; also TWOPHP_MANAGEMENT_TOKEN.
    pull_url: str | None = None  # Where it can: this service's address with /_2php/ledger; also TWOPHP_PULL_URL.

    def __post_init__(self) -> None:
        check_kinds(self, _KINDS)
        if self.quota is DEFAULT_QUOTA and self.max_body_bytes > DEFAULT_QUOTA.open_bytes:
            force_setattr(self, "quota", Quota(open_bytes=self.max_body_bytes))
        rules = [
            (bool(self.service) and self.service.isprintable(), "service must be a printable name"),
            (callable(self.identify), "identify must be a callable; say identify=anonymous if nobody is known"),
            (
                all(hook is None or callable(hook) for hook in self._hooks()),
                "prevalidate, late_confirm_guard, reconcile and resource_id are callables, or None",
            ),
            (
                self.confirm_suffix.startswith("/") and not self.confirm_suffix.endswith("/"),
                "confirm_suffix starts with a slash and does not end with one: no request's path would match it",
            ),
            (
                all(_can_be_registered(method) for method in self.methods),
                "methods are names in upper case, none of GET, HEAD, OPTIONS",
            ),
            (
                not (strange := _strange_methods(self.endpoints, self.methods)),
                f"a policy's key names a method that is not registered here: {', '.join(strange)}; see methods=",
            ),
            (self.success_status in ("200", "passthrough"), "success_status is '200' or 'passthrough'"),
            (self.max_body_bytes > 0, "max_body_bytes must be positive"),
            (self.body_timeout_s > 0, "body_timeout_s must be positive"),
            (self.max_result_bytes > 0, "max_result_bytes must be positive"),
            (
                self.ledger_retention_ms is None or self.ledger_retention_ms > 0,
                "ledger_retention_ms must be positive, or None: rows are kept for ever",
            ),
            (self.sweep_interval_s > 0, "sweep_interval_s must be positive"),
            (self.drain_timeout_s >= 0, "drain_timeout_s must not be negative"),
            (self.replay_wait_ms is None or self.replay_wait_ms >= 0, "replay_wait_ms must not be negative"),
            (
                all(isinstance(token, str | NoneType) for token in (self.central_token, self.management_token)),
                "central_token and management_token are texts, or None",  # Never quoted.
            ),
            (
                self.quota is None or self.quota.open_bytes >= self.max_body_bytes,
                "a quota's open_bytes must not be below max_body_bytes: the largest request would never be admitted",
            ),
        ]
        for holds, problem in rules:
            if not holds:
                raise ConfigError(problem, code="bad_setting")
        check_bounds(
            self,
            seconds=("sweep_interval_s", "drain_timeout_s", "body_timeout_s"),
            milliseconds=("replay_wait_ms", "ledger_retention_ms"),
        )

    def _hooks(self) -> tuple[object, ...]:
        return self.prevalidate, self.late_confirm_guard, self.reconcile, self.resource_id

    def shipping(self) -> Shipping | None:
        """Where this service's rows go, if anywhere."""
        return shipping(
            self.central,
            self.central_token,
            self.central_interval_s,
            events=self.central_events,
            pull_url=self.pull_url or os.environ.get(PULL_VARIABLE),
            allow_insecure=self.allow_insecure,
        )


GUARD: Final = 'say late_confirm_guard=, such as fresh_credential(...) or hmac_guard(...), or replay="REJECT"'
"""What to do about ``unguarded``."""


def unguarded(settings: Settings) -> Iterator[tuple[str, str]]:
    """Each endpoint that lets late confirms in without a guard, and what is left to hold them (A-24)."""
    if settings.late_confirm_guard is None:
        is_anybody = settings.identify is anonymous
        left = "nobody is known, so no late confirm is let in" if is_anybody else _SAME
        for endpoint in settings.endpoints:
            if endpoint.policy.replay == "REUSE":
                yield endpoint.name, f"REUSE without a late_confirm_guard: {left}"


_SAME: Final = "a late confirm needs no more than the same identity"
_KINDS: Final[Kinds] = (
    (("service", "confirm_suffix"), (str,), "a text"),
    (
        ("allow_insecure", "strict_uuid", "expose_replay_policy", "expose_server_id", "tune_collector"),
        (bool,),
        "True or False",
    ),
    (("max_body_bytes", "max_result_bytes"), (int,), "a whole number"),
    (("replay_wait_ms", "ledger_retention_ms"), (int, NoneType), "a whole number, or None"),
    (("sweep_interval_s", "drain_timeout_s"), (int, float), "a number of seconds"),
    (("central", "pull_url"), (str, NoneType), "a text, or None"),
    (("central_interval_s",), (int, float, NoneType), "a number of seconds, or None"),
    (("central_events",), (bool, NoneType), "True, False or None"),
    (("outgoing",), (Outgoing,), "an Outgoing(...)"),
    (("obligations",), (ObligationRules,), "the Rules(...) of obligations"),
    (("quota",), (Quota, NoneType), "a Quota(...), or None"),
)


class Options(TypedDict, total=False):
    """The settings as keywords. Spelled out, so that a type checker sees through ``app.add_middleware(...)``."""

    allow_insecure: bool
    confirm_suffix: str
    strict_uuid: bool
    prevalidate: Prevalidate | None
    late_confirm_guard: LateConfirmGuard | None
    reconcile: Reconcile | None
    resource_id: ResourceId | None
    success_status: Literal["200", "passthrough"]
    expose_replay_policy: bool
    expose_server_id: bool
    max_body_bytes: int
    body_timeout_s: float
    max_result_bytes: int
    replay_wait_ms: int | None
    sweep_interval_s: float
    drain_timeout_s: float
    tune_collector: bool
    quota: Quota | None
    outgoing: Outgoing
    obligations: ObligationRules
    ledger_retention_ms: int | None
    central: str | None
    central_token: str | None
    central_interval_s: float | None
    central_events: bool | None
    management_token: str | None
    pull_url: str | None


def _strange_methods(endpoints: Endpoints, methods: Collection[str]) -> list[str]:
    """Keys that fit no request: most likely misspelled, and what they were meant for would run unprotected."""
    named = [(endpoint.name, endpoint.name.partition(" ")) for endpoint in endpoints]
    return [name for name, (method, space, _path) in named if space and method not in methods]


def _can_be_registered(method: str) -> bool:
    return len(method) > 1 and method.isascii() and method.isupper() and method not in NEVER_REGISTERED


def header_names(names: Iterable[str]) -> frozenset[bytes]:
    """Extra request headers to keep with an intent, in the form they are compared in. One text is one name."""
    return frozenset(_header_name(name) for name in several("stored_headers", names))


def _header_name(given: object) -> bytes:
    if not isinstance(given, str) or not _FIELD_NAME.fullmatch(given):
        raise ConfigError(f"stored_headers: {given!r} is no header's name", code="bad_setting")
    return given.lower().encode("ascii")


def method_names(methods: Iterable[str]) -> frozenset[str]:
    """The methods that can be registered; ``Settings`` checks which they may be."""
    found = several("methods", methods)
    if not all(isinstance(method, str) for method in found):
        raise ConfigError(f"methods must be a list of texts, not {found!r}", code="bad_setting")
    return frozenset(found)


def store_url(given: object) -> str:
    """The store's URL, which must be of a kind that is known; nothing is opened here."""
    if not isinstance(given, str):  # Not quoted: a URL may hold a password.
        message = f"store must be a text, {SUPPORTED}, not of type {type(given).__name__}"
        raise ConfigError(message, code="bad_setting")
    parse_store_url(given)
    return given


def checked_clock(given: Clock) -> Clock:
    """The clock, which must be a callable."""
    if not callable(given):
        raise ConfigError(f"clock must be a callable, not {given!r}", code="bad_setting")
    return given


def longest_horizon_ms(endpoints: Endpoints) -> int:
    """How long after its end an intent may still be asked for. Its row is kept as long."""
    horizons: Collection[int] = [endpoint.policy.horizon_ms for endpoint in endpoints]
    return max(horizons, default=0)


def shortest_lease_ms(endpoints: Endpoints) -> int:
    """The shortest time within which a lease of a running handler must be renewed."""
    leases: Collection[int] = [endpoint.policy.lease_ms for endpoint in endpoints]
    return min(leases, default=30_000)
