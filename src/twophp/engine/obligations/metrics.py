"""Prometheus metrics of obligations, by flow and state (the extra ``metrics``)."""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter

from twophp.core.errors import ConfigError
from twophp.core.obligation import Decision
from twophp.engine.obligations.flow import DecisionListener


class Instruments:
    """The metrics of one registry, shared by every service that counts into it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by_flow = ("service", "flow")
        self.states = Counter(
            "twophp_obligations",
            "Obligations that entered a state",
            (*by_flow, "state", "resolution"),
            registry=registry,
        )
        self.refusals = Counter(
            "twophp_obligation_refusals",
            "Commits, rollbacks and reserves refused",
            (*by_flow, "code"),
            registry=registry,
        )


_instruments: Final[WeakKeyDictionary[CollectorRegistry, Instruments]] = WeakKeyDictionary()


def counting(wanted: bool | CollectorRegistry, service: str) -> DecisionListener:  # noqa: FBT001 - ``metrics=True``
    """What ``metrics=`` asks for: count every decision once it is durable."""
    if not isinstance(wanted, bool | CollectorRegistry):
        raise ConfigError("metrics is True, or a registry of prometheus_client", code="bad_setting")
    registry = REGISTRY if isinstance(wanted, bool) else wanted
    found = _instruments.get(registry)
    if found is None:  # A metric can be registered only once.
        found = _instruments[registry] = Instruments(registry)
    instruments = found

    def told(decision: Decision) -> None:
        for record in decision.records:
            instruments.states.labels(service, record.flow, record.state.value, record.resolution).inc()
        if decision.code is not None:
            flow = "" if decision.obligation is None else decision.obligation.flow
            instruments.refusals.labels(service, flow, decision.code).inc()

    return told
