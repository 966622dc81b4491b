"""What a client says when it adds the transport, checked once at the start."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable, Mapping
from types import NoneType
from typing import Any, Final, Self, TypeAlias, TypedDict

import msgspec
from msgspec.structs import force_setattr

from twophp.core.errors import ConfigError
from twophp.core.records import Instant
from twophp.core.settings import Kinds, check_bounds, check_kinds, check_rules
from twophp.engine.environment import CLIENT, with_environment
from twophp.ports import Clock, MintId
from twophp.shipping.shipper import Shipping, shipping
from twophp.stores.clock import mint_uuid, steady_clock, system_clock
from twophp.stores.keys import Keys, checked_keys
from twophp.stores.urls import absolute_url
from twophp.storing.bites import RETENTION_MS
from twophp.wire import grammar
from twophp.wire.paths import CONFIRM_SUFFIX
from twophp.wire.targets import Target, origin_of

MIB: Final = 1024 * 1024
SHORTEST_LEASE_S: Final = 0.01  # Its holder would do nothing but renew it.

Targets: TypeAlias = Mapping[str, str] | Callable[[str], str | None]
"""The name of the service behind an origin such as ``https://orders.internal``; see ``Settings.target_of``."""
Credentials: TypeAlias = Callable[[str], Mapping[str, str]]
"""Header fields that prove who asks, for a URL. Never stored."""

Pause: TypeAlias = Callable[[float], Awaitable[None] | None]
"""Waits so many seconds: blocking for the synchronous transports, awaitable for the asynchronous one."""


_KINDS: Final[Kinds] = (
    (("ledger", "source", "confirm_suffix"), (str,), "a text"),
    (("allow_insecure", "require_2php"), (bool,), "True or False"),
    (("resubmit", "max_body_bytes"), (int,), "a whole number"),
    (("requested_ttl_ms", "margin_ms", "ledger_retention_ms"), (int, NoneType), "a whole number, or None"),
    (("patience_s", "poll_limit_s", "callback_wait_s", "lease_s"), (int, float), "a number of seconds"),
    (("reconcile_every_s",), (int, float, NoneType), "a number of seconds, or None"),
    (("callback", "central"), (str, NoneType), "a URL, or None"),
    (("central_token",), (str, NoneType), "a text, or None"),
    (("central_interval_s",), (int, float, NoneType), "a number of seconds, or None"),
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is not the HTTP library or the ledger's own handle."""

    ledger: str
    source: str
    allow_insecure: bool = False
    targets: Targets | None = None
    credentials: Credentials | None = None
    require_2php: bool = False
    resubmit: int = 0
    requested_ttl_ms: int | None = None
    callback: str | None = None
    confirm_suffix: str = CONFIRM_SUFFIX
    margin_ms: int | None = None
    patience_s: float = 30.0
    poll_limit_s: float = 300.0
    callback_wait_s: float = 5.0
    max_body_bytes: int = 16 * MIB
    lease_s: float = 5.0
    reconcile_every_s: float | None = 5.0
    keys: Keys | None = None
    ledger_retention_ms: int | None = RETENTION_MS  # After a row's arrival at the central ledger; None: for ever.
    central: str | None = None  # Where rows are sent to, as whom, and how often; also TWOPHP_CENTRAL, ..._TOKEN.
    central_token: str | None = None
    central_interval_s: float | None = None
    clock: Clock = system_clock
    steady: Callable[[], Instant] = steady_clock
    mint: MintId = mint_uuid
    pause: Pause | None = None

    def __post_init__(self) -> None:
        check_kinds(self, _KINDS)
        force_setattr(self, "ledger", absolute_url(self.ledger))
        if isinstance(self.targets, Mapping):
            force_setattr(self, "targets", _by_origin(self.targets))
        every = self.reconcile_every_s
        rules = [
            (bool(self.source) and self.source.isprintable(), "source must be a printable name"),
            (self.resubmit >= 0, "resubmit must not be negative"),
            (self.requested_ttl_ms is None or self.requested_ttl_ms > 0, "requested_ttl_ms must be positive"),
            (self.margin_ms is None or self.margin_ms >= 0, "margin_ms must not be negative"),
            (
                self.confirm_suffix.startswith("/") and len(self.confirm_suffix) > 1,
                "confirm_suffix starts with a slash",
            ),
            (self.patience_s >= 0, "patience_s must not be negative"),
            (self.poll_limit_s > 0, "poll_limit_s must be positive"),
            (self.callback_wait_s >= 0, "callback_wait_s must not be negative"),
            (self.max_body_bytes > 0, "max_body_bytes must be positive"),
            (
                self.ledger_retention_ms is None or self.ledger_retention_ms > 0,
                "ledger_retention_ms must be positive, or None: rows are kept for ever",
            ),
            (self.lease_s >= SHORTEST_LEASE_S, f"lease_s must be at least {SHORTEST_LEASE_S}"),
            (every is None or every > 0, "reconcile_every_s must be positive, or None: only when it is asked for"),
            (
                self.callback is None or grammar.read_callback(self.callback.encode("utf-8", "replace")) is not None,
                "callback must be an https URL without userinfo, fragment or comma",
            ),
        ]
        check_rules(rules)
        _check_callables(self)
        check_bounds(
            self,
            seconds=("patience_s", "poll_limit_s", "callback_wait_s", "lease_s", "reconcile_every_s"),
            milliseconds=("requested_ttl_ms", "margin_ms", "ledger_retention_ms"),
        )
        # What cannot work is said now, not when the first row is sent or the first request sealed.
        self.shipping()
        checked_keys(self.keys)

    def __reduce__(self) -> tuple[Any, ...]:
        """To be pickled. What cannot be is named: mostly a function that no module has."""
        for name in self.__struct_fields__:
            try:
                pickle.dumps(getattr(self, name))
            except Exception as error:
                message = f"{name} cannot be pickled; give a function that a module has by its name"
                raise ConfigError(message, code="not_picklable") from error
        return super().__reduce__()  # type: ignore[return-value]

    def __deepcopy__(self, _memo: object) -> Self:
        return self  # Settings never change.

    def shipping(self) -> Shipping | None:
        """Where this client's rows go, if anywhere."""
        interval_s, allow_insecure = self.central_interval_s, self.allow_insecure
        return shipping(self.central, self.central_token, interval_s, allow_insecure=allow_insecure)

    def target_of(self, target: Target) -> str:
        """The name of the service that is called, as its own ledger spells it (A-55).

        Said by ``targets``; else the first label of the host, so ``orders`` for ``https://orders.internal``; an address
        is taken with its port.
        """
        known = self.targets
        if known is None:
            return target.service
        try:
            origin = origin_of(target.origin)
        except ValueError:  # A host that no mapping can name.
            origin = target.origin
        if not callable(known):
            return known.get(origin, target.service)
        name = known(origin)
        return target.service if name is None else _service_name(f"for {origin}", name)

    def margin_of(self, ttl_ms: int) -> int:
        """How long before the deadline the client stops (A-25): 2 % and at least 100 ms, at most half of the TTL."""
        wanted = max(100, ttl_ms // 50) if self.margin_ms is None else self.margin_ms
        return min(wanted, ttl_ms // 2)


def _check_callables(said: Settings) -> None:
    for name in ("clock", "steady", "mint", "credentials", "pause"):
        given = getattr(said, name)
        if not callable(given) and (given is not None or name in ("clock", "steady", "mint")):
            raise ConfigError(f"{name} must be a callable, not of type {type(given).__name__}", code="bad_setting")
    if said.targets is not None and not isinstance(said.targets, Mapping) and not callable(said.targets):
        message = f"targets must be a mapping of origins to names, or a callable, not {type(said.targets).__name__}"
        raise ConfigError(message, code="bad_target")


def _by_origin(targets: Mapping[str, str]) -> dict[str, str]:
    """The mapping with its origins in the form in which they are compared."""
    found: dict[str, str] = {}
    for number, (given, name) in enumerate(targets.items(), 1):
        if not isinstance(given, str):
            message = f"targets: entry {number} must name an origin as a text, not of type {type(given).__name__}"
            raise ConfigError(message, code="bad_target")
        shown = repr(given) if "@" not in given else f"entry {number}"
        try:
            origin = origin_of(given)
        except ValueError as error:
            message = f"targets: {shown} {error}; write an origin such as https://orders.internal:8443"
            raise ConfigError(message, code="bad_target") from error
        if found.setdefault(origin, _service_name(shown, name)) != name:
            raise ConfigError(f"targets: {shown} is named twice, differently", code="bad_target")
    return found


def _service_name(shown: str, name: object) -> str:
    if not isinstance(name, str) or not name or not name.isprintable():
        message = f"targets: the name of a service {shown} must be a printable text, not {name!r}"
        raise ConfigError(message, code="bad_target")
    return name


def settings_of(ledger: str | None, source: str | None, options: Options) -> Settings:
    """What was said, and of the rest what the environment says."""
    said = {"ledger": ledger, "source": source, **options}
    return Settings(**with_environment(said, CLIENT, required=("ledger", "source")))


class Options(TypedDict, total=False):
    """The settings as keywords, for a type checker."""

    allow_insecure: bool
    targets: Targets | None
    credentials: Credentials | None
    require_2php: bool
    resubmit: int
    requested_ttl_ms: int | None
    callback: str | None
    confirm_suffix: str
    margin_ms: int | None
    patience_s: float
    poll_limit_s: float
    callback_wait_s: float
    max_body_bytes: int
    lease_s: float
    reconcile_every_s: float | None
    keys: Keys | None
    ledger_retention_ms: int | None
    central: str | None
    central_token: str | None
    central_interval_s: float | None
    clock: Clock
    steady: Callable[[], Instant]
    mint: MintId
    pause: Pause | None
