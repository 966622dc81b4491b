"""What a service says about its obligations: flows, timeouts, budgets, and what its effects and releases do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from twophp.core.errors import ConfigError
from twophp.core.obligation import FLOWS, LEAK_TIMEOUT_MS, flows_with
from twophp.engine.effects import Act
from twophp.engine.obligation_retention import RETENTION_MS

SCAN_INTERVAL_S: Final = 5.0


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a service says about its obligations, checked once at the start."""

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
            # a scan that comes by more seldom would find obligations that are late by more than their timeout.
            (
                self.scan_interval_s * 1_000 <= self.leak_timeout_ms,
                "scan_interval_secs must not be above leak_timeout_secs",
            ),
            (self.retention_ms is None or self.retention_ms > 0, "retention_secs must be positive, or None"),
            (min(self.budgets.values(), default=1) > 0, "a flow's budget must be positive"),
            (not unknown, f"flows must be declared before they are given anything: {', '.join(sorted(unknown))}"),
        ]
        for holds, problem in rules:
            if not holds:
                raise ConfigError(problem, code="bad_obligations")

    @property
    def owes(self) -> bool:
        """Whether settling anything may owe something to others."""
        return bool(self.effects or self.releases)


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

    The interval is never above the timeout by default: who shortens the one shortens the other with it (A-76).
    """
    known = flows_with(flows)
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


def milliseconds(seconds: float) -> int:
    """The nearest whole number; a timeout that is positive stays so."""
    return max(round(seconds * 1_000), 1) if seconds > 0 else 0
