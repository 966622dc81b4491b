"""The observers of a service: those that are asked for and installed. Neither extra is ever required (A-68)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeAlias

from twophp.core.errors import ConfigError
from twophp.core.intent import Intent
from twophp.engine.endpoints import Endpoints
from twophp.engine.obligations.flow import DecisionListener
from twophp.observability.observe import Observer, observed_by
from twophp.ports import Load
from twophp.wire import fields
from twophp.wire.mistaken import Mistaken

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from twophp.asgi.metrics import Metrics

log: Final = logging.getLogger("twophp.server")

LONGEST_NAME: Final = 64
WantsMetrics: TypeAlias = "bool | CollectorRegistry"


class Observers:
    """The observers of one service, from its construction to its end."""

    def __init__(self, service: str, endpoints: Endpoints, *, metrics: WantsMetrics) -> None:
        self._said: set[tuple[str, str]] = set()
        self._metrics = None if metrics is False else _metrics(service, endpoints, metrics)
        self.told = None if metrics is False else _counting(service, metrics)
        self.observer: Observer = observed_by(*_traces(), *([self._metrics] if self._metrics else []))

    def watch(self, load: Callable[[], Load] | None) -> None:
        """Read the load of the store that is open now; None: it is closed."""
        if self._metrics is not None:
            self._metrics.watch(load)

    def unrecorded(self, endpoint: str) -> None:
        """Count a plain request that was served without being recorded (A-37), for an alarm."""
        if self._metrics is not None:
            self._metrics.unrecorded(endpoint)

    def mistaken(self, endpoint: str, found: Mistaken) -> None:
        """Count a plain request that looks like an opt-in and is none (A-11), and log it once for each endpoint."""
        if self._metrics is not None:
            self._metrics.mistaken(endpoint, found.kind)
        if (endpoint, found.kind) not in self._said:  # At most three for each policy.
            self._said.add((endpoint, found.kind))
            log.warning("a request to %s looks like an opt-in and is none: %s", endpoint, _why(found))


def _why(found: Mistaken) -> str:
    if found.kind == "value":
        return f"{found.field} is not true"
    if found.kind == "name":
        return f"there is no field {found.field[:LONGEST_NAME]!r}"
    return f"{found.field} came without {fields.ENABLED.name}"


def _metrics(service: str, endpoints: Endpoints, wanted: WantsMetrics) -> Metrics:
    try:
        from twophp.asgi.metrics import metrics_for  # noqa: PLC0415 - an extra.
    except ModuleNotFoundError as error:
        raise ConfigError("metrics need prometheus-client: install twophp[metrics]", code="missing_extra") from error

    def endpoint_of(intent: Intent) -> str:
        endpoint = endpoints.of(intent)
        return "" if endpoint is None else endpoint.name

    return metrics_for(wanted, service, endpoint_of)


def _counting(service: str, wanted: WantsMetrics) -> DecisionListener:
    from twophp.engine.obligations.metrics import counting  # noqa: PLC0415 - an extra, and there by now.

    return counting(wanted, service)


def _traces() -> list[Observer]:
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.trace") is None:
        return []
    from twophp.asgi.traces import Traces  # noqa: PLC0415 - an extra.

    return [Traces()]
