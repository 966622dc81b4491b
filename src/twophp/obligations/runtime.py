"""What both trackers are made of: settings as users say them, and everything that is open between start and end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict

from twophp.core.errors import ConfigError, StoreError
from twophp.core.job import DEFAULT_TRIES, Tries
from twophp.core.obligation import LEAK_TIMEOUT_MS, Obligation, ObligationError
from twophp.core.settings import Kinds, check_kinds
from twophp.delivery.outbox import Outbox, Wait, wait_for_news
from twophp.engine.current import current_intent
from twophp.engine.obligations.effects import Act, act_deliverer
from twophp.engine.obligations.fencing import Fencing
from twophp.engine.obligations.flow import DecisionListener, Obligations
from twophp.engine.obligations.rules import RETENTION_MS, SCAN_INTERVAL_S, Rules, rules_for
from twophp.ports import AtOnce, Clock, Statement, Vault
from twophp.stores.clock import ids_in_order, system_clock
from twophp.stores.keys import Keys
from twophp.stores.urls import open_vault, opening
from twophp.stores.vault import ClearVault

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log: Final = logging.getLogger("twophp.obligations")

SERVICE: Final = "obligations"
Apply: TypeAlias = Statement | Iterable[Statement]


class Options(TypedDict, total=False):
    """The settings of a tracker. Spelled out, so that a type checker sees through ``**options``.

    leak_timeout_secs   how long an obligation may stay Reserved unless it says otherwise; 30
    scan_interval_secs  how often the leak scan comes by; 5, and None leaves that to another process
    retention_secs      how long a settled obligation is kept to look at; 30 days, and None keeps it for ever. The audit
                        is kept in any case
    flows               flows of your own, beside the contract's five
    flow_budget         how many obligations of a flow may be Reserved at a time: a number, or one by flow; no limit
    effects             by flow: makes a committed effect visible outside, at least once
    releases            by flow: releases what a rolled-back obligation had taken, at least once
    service             whose file it is; "obligations"
    keys                the key ring, else ``TWOPHP_KEYS`` or the file beside the database
    metrics             True, or a registry of prometheus_client
    tries               how often and how far apart effects and releases are attempted
    clock, wait         time, for tests
    """

    leak_timeout_secs: float
    scan_interval_secs: float | None
    retention_secs: float | None
    flows: Iterable[str]
    flow_budget: int | Mapping[str, int] | None
    effects: Mapping[str, Act] | None
    releases: Mapping[str, Act] | None
    service: str
    keys: Keys | None
    metrics: bool | CollectorRegistry
    tries: Tries
    clock: Clock
    wait: Wait


class Which(TypedDict, total=False):
    """How ``list`` may be narrowed. ``before`` an id goes on after an earlier page; ``limit`` is 100."""

    flow: str
    state: str
    key: str
    intent: str
    trace_id: str
    before: str
    limit: int


class Runtime:
    """Everything of one tracker that is open. Its coroutines suspend only where its store does."""

    def __init__(self, url: str, options: Options) -> None:
        _check(url, options)
        self.url = url
        self.rules = _rules(options)
        interval = options.get("scan_interval_secs", self.rules.scan_interval_s)
        self.scans = interval is not None
        self._service = options.get("service", SERVICE)
        self._keys = options.get("keys")
        self._clock = options.get("clock", system_clock)
        self._wait = options.get("wait", wait_for_news)
        self._tries = options.get("tries", DEFAULT_TRIES)
        self._told = _told(options.get("metrics", False), self._service)
        self._loops: list[asyncio.Task[None]] = []
        self._is_open = False

    async def open(self) -> None:
        """Open the store, make sure whose it is, and begin to scan and to deliver on the running loop."""
        async with opening(self.url, clock=self._clock) as store:
            self.store = store
            owner = await store.get_or_set_meta("service", self._service)
            if owner != self._service:
                message = f"{self.url} belongs to the service {owner!r}; give the tracker a store of its own"
                raise ConfigError(message, code="other_service")
            vault = self._vault()
            self.outbox = self._outbox(vault or ClearVault()) if self.rules.owes else None
            self.obligations = Obligations(
                store, vault, owner, mint=ids_in_order(), rules=self.rules, outbox=self.outbox, told=self._told
            )
            self.fencing = Fencing(store, self.obligations)
        self._is_open = True
        self._start()

    @property
    def at_once(self) -> AtOnce | None:
        """The store's short way, if it has one and a command is all that there is to write."""
        return self.store.at_once if self.obligations.is_plain else None

    def _vault(self) -> Vault | None:
        if self.url == "memory:" and self._keys is None:
            return None
        return open_vault(self.url, self._keys, clock=self._clock)

    def _outbox(self, vault: Vault) -> Outbox:
        deliver = {"effect": act_deliverer(self.rules.effects), "release": act_deliverer(self.rules.releases)}
        return Outbox(self.store, vault, self._service, deliver=deliver, tries=self._tries, wait=self._wait)

    def _start(self) -> None:
        self._stopping = asyncio.Event()
        if self.scans:
            self._loops.append(asyncio.create_task(self._scan_now_and_then(), name="twophp leak scan"))
        if self.outbox is not None:
            self._loops.append(asyncio.create_task(self.outbox.run(), name="twophp effects"))

    async def close(self) -> None:
        """End what ``open`` began and close the store. Closing twice is closing once."""
        try:
            await self._stop()
        finally:  # Also if the caller is cancelled while deliveries get their moment.
            was_open, self._is_open = self._is_open, False
            if was_open:
                await self.store.close()

    async def _stop(self) -> None:
        """A scan that runs comes to its end, deliveries get a moment."""
        loops, self._loops = self._loops, []  # Another start may be on another event loop.
        if loops:
            self._stopping.set()
            if self.outbox is not None:
                await self.outbox.close()
            await asyncio.gather(*loops)

    async def _scan_now_and_then(self) -> None:
        """INV-OBL-SCAN-PERIODIC. A store that fails now is asked again at the next turn."""
        while not self._stopping.is_set():
            try:
                await self.obligations.scan()
                await self.obligations.forget()
            except StoreError as error:
                log.warning("a leak scan failed and will be made again: %s", error)
            except Exception:
                log.exception("a leak scan failed")
            await self._wait(self._stopping, self.rules.scan_interval_s)


_KINDS: Final[Kinds] = (
    (("service",), (str,), "a text"),
    (("tries",), (Tries,), "a Tries"),
)


def _check(url: object, options: Options) -> None:
    """Raise ConfigError for what no tracker takes. A misspelled ``effects`` would lose them all."""
    if not isinstance(url, str):  # Not quoted: a URL may hold a password.
        raise ConfigError(f"the store's URL must be a text, not of type {type(url).__name__}", code="bad_setting")
    said: Any = {"service": SERVICE, "tries": DEFAULT_TRIES, "clock": system_clock, "wait": wait_for_news, **options}
    check_kinds(SimpleNamespace(**said), _KINDS)
    for name in ("clock", "wait"):
        if not callable(said[name]):
            raise ConfigError(f"{name} must be a callable", code="bad_setting")
    if not said["service"].isprintable() or not said["service"]:
        raise ConfigError("service must be a printable name", code="bad_setting")


def _rules(options: Options) -> Rules:
    interval = options.get("scan_interval_secs", SCAN_INTERVAL_S)
    return rules_for(
        leak_timeout_secs=options.get("leak_timeout_secs", LEAK_TIMEOUT_MS / 1_000),
        scan_interval_secs=SCAN_INTERVAL_S if interval is None else interval,  # Never above the timeout by default.
        retention_secs=options.get("retention_secs", RETENTION_MS / 1_000),
        flows=options.get("flows", ()),
        flow_budget=options.get("flow_budget"),
        effects=options.get("effects"),
        releases=options.get("releases"),
    )


def _told(metrics: bool | CollectorRegistry, service: str) -> DecisionListener | None:  # noqa: FBT001 - ``metrics=True``
    if metrics is False:
        return None
    try:
        from twophp.engine.obligations.metrics import counting  # noqa: PLC0415 - an extra.
    except ModuleNotFoundError as error:
        raise ConfigError("metrics need prometheus-client: install twophp[metrics]", code="missing_extra") from error
    return counting(metrics, service)


def trace_of(trace_id: str | None) -> str:
    """The trace id as given (A-79); inside an intent it may be left out and is the server correlation id."""
    if trace_id is not None:
        return trace_id
    intent = current_intent()
    if intent is None:
        raise ConfigError("trace_id may be left out only inside a handler that executes an intent", code="no_trace_id")
    return intent.server_correlation_id


def there(found: Obligation | None, obligation_id: str) -> Obligation:
    """The obligation, or the contract's error."""
    if found is None:
        raise ObligationError(f"there is no obligation {obligation_id}")
    return found


def statements(apply: Apply) -> tuple[Statement, ...]:
    """One statement or several."""
    return (apply,) if isinstance(apply, Statement) else tuple(apply)
