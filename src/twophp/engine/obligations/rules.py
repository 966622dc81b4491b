"""What a service says about its obligations: flows, timeouts, budgets, effects, releases; and how long it keeps them.

A settled obligation holds nothing and blocks no other; its record is there for people to look at. Its history is in
the journal and stays there for ever, also without the record. So records older than the retention are dropped, a bite
at a time and the oldest first. One line of the journal names those of each bite: by it, verification can tell a record
that retention dropped from one that was deleted from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import NoneType, SimpleNamespace
from typing import Any, ClassVar, Final

from twophp.core.errors import ConfigError, Refused
from twophp.core.obligation import FLOWS, LEAK_TIMEOUT_MS, flows_with
from twophp.core.policy import DAY_MS
from twophp.core.records import Key
from twophp.core.settings import Kinds, SettingsStruct, check_kinds, check_rules, knows_its_settings, several
from twophp.engine.obligations.effects import Act
from twophp.kernel.retention import ForgetObligations
from twophp.ports import ObligationStore
from twophp.storing.bites import Bites

RETENTION_MS: Final = 30 * DAY_MS
"""As long as ledger rows are kept at home (A-59)."""
INTERVAL_S: Final = 60.0
"""How often the service looks for them."""
SCAN_INTERVAL_S: Final = 5.0
MOST_S: Final = 10_000_000_000
"""Three hundred years: a time above that is none, and would not fit beside the others."""

_KINDS: Final[Kinds] = (
    (("leak_timeout_secs", "scan_interval_secs"), (int, float), "a number of seconds"),
    (("retention_secs",), (int, float, NoneType), "a number of seconds, or None"),
    (("flow_budget",), (int, Mapping, NoneType), "a number, or a number for each flow, or None"),
    (("effects", "releases"), (Mapping, NoneType), "a callable for each flow, or None"),
)


class Rules(SettingsStruct, frozen=True, kw_only=True):
    """What a service says about its obligations, checked once at the start."""

    bad_code: ClassVar[str] = "bad_obligations"

    flows: frozenset[str] = FLOWS
    leak_timeout_ms: int = LEAK_TIMEOUT_MS
    scan_interval_s: float = SCAN_INTERVAL_S
    retention_ms: int | None = RETENTION_MS
    budgets: Mapping[str, int] = {}
    effects: Mapping[str, Act] = {}
    releases: Mapping[str, Act] = {}

    def __post_init__(self) -> None:
        unknown = {*self.budgets, *self.effects, *self.releases} - self.flows
        rules = [
            (self.leak_timeout_ms > 0, "leak_timeout_secs must be positive"),
            (self.scan_interval_s > 0, "scan_interval_secs must be positive"),
            # a scan at longer intervals would find obligations that are late by more than their timeout.
            (
                self.scan_interval_s * 1_000 <= self.leak_timeout_ms,
                "scan_interval_secs must not be above leak_timeout_secs",
            ),
            (self.retention_ms is None or self.retention_ms > 0, "retention_secs must be positive, or None"),
            (all(map(_is_count, self.budgets.values())), "a flow's budget must be a positive number"),
            (
                all(map(callable, (*self.effects.values(), *self.releases.values()))),
                "effects and releases must be callables",  # Else each would be given up after its last attempt.
            ),
            (
                not unknown,
                f"flows must be declared before they are given anything: {', '.join(sorted(map(str, unknown)))}",
            ),
        ]
        check_rules(rules, "bad_obligations")

    @property
    def owes(self) -> bool:
        """Whether settling anything may owe something to others."""
        return bool(self.effects or self.releases)


@knows_its_settings(of="obligation_rules")
def rules_for(
    *,
    leak_timeout_secs: float = LEAK_TIMEOUT_MS / 1_000,
    scan_interval_secs: float = SCAN_INTERVAL_S,
    retention_secs: float | None = RETENTION_MS / 1_000,
    flows: Iterable[str] = (),
    flow_budget: int | Mapping[str, int] | None = None,
    effects: Mapping[str, Act] | None = None,
    releases: Mapping[str, Act] | None = None,
) -> Rules:
    """The rules as users say them: seconds, the flows beside the contract's five, one budget for all flows or for some.

    The interval is never above the timeout by default: a service that shortens one shortens both (A-76).
    """
    said: dict[str, float | None] = {
        "leak_timeout_secs": leak_timeout_secs,
        "scan_interval_secs": scan_interval_secs,
        "retention_secs": retention_secs,
    }
    check_kinds(SimpleNamespace(**said, flow_budget=flow_budget, effects=effects, releases=releases), _KINDS)
    for name, seconds in said.items():
        if seconds is not None and not _is_time(seconds):
            raise ConfigError(f"{name} must be a number of seconds, not {seconds!r}", code="bad_setting")
    known = flows_with(_names(flows))
    budgets = dict.fromkeys(known, flow_budget) if isinstance(flow_budget, int) else dict(flow_budget or {})
    if scan_interval_secs == SCAN_INTERVAL_S:
        scan_interval_secs = min(scan_interval_secs, leak_timeout_secs)
    return Rules(
        flows=known,
        leak_timeout_ms=milliseconds(leak_timeout_secs),
        scan_interval_s=scan_interval_secs,
        retention_ms=None if retention_secs is None else milliseconds(retention_secs),
        budgets=budgets,
        effects=dict(effects or {}),
        releases=dict(releases or {}),
    )


def _names(flows: Iterable[str]) -> tuple[str, ...]:
    """One text is one flow."""
    found = several("flows", flows)
    if not all(isinstance(flow, str) for flow in found):
        raise ConfigError(f"flows must be a list of texts, not {found!r}", code="bad_setting")
    return found


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _is_time(seconds: object) -> bool:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return is_number and -MOST_S <= seconds <= MOST_S  # type: ignore[operator]  # Neither endless nor NaN.


def milliseconds(seconds: float) -> int:
    """The nearest whole number; a timeout that is positive stays so."""
    if not _is_time(seconds):
        raise Refused(f"a timeout is a number of seconds, not {seconds!r}", code="bad_timeout")
    return max(round(seconds * 1_000), 1) if seconds > 0 else 0


async def forget_settled(store: ObligationStore, retention_ms: int | None) -> int:
    """Drop what was settled longer ago than this, and return how many. With None all is kept for ever."""
    if retention_ms is None:
        return 0
    before = store.now() - retention_ms

    def forget(keys: Sequence[Key]) -> Any:
        return store.transact(ForgetObligations(keys, before))

    return await Bites("obligations", partial(store.settled, before), forget, _name).run()


def _name(key: Key) -> str:
    return str(key.values[0])
