"""Who watches a service: as many as are asked for and installed. Neither extra is ever required (A-68)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

from twophp.core.errors import ConfigError
from twophp.core.intent import Intent
from twophp.engine.endpoints import Endpoints
from twophp.engine.obligations import Told
from twophp.engine.observe import Observer, observed_by
from twophp.ports import Load

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from twophp.asgi.metrics import Metrics

WantsMetrics: TypeAlias = "bool | CollectorRegistry"


class Observers:
    """The observers of one service, from its construction to its end."""

    def __init__(self, service: str, endpoints: Endpoints, *, metrics: WantsMetrics) -> None:
        self._metrics = None if metrics is False else _metrics(service, endpoints, metrics)
        self.told = None if metrics is False else _counting(service, metrics)
        self.observer: Observer = observed_by(*_traces(), *([self._metrics] if self._metrics else []))

    def watch(self, load: Callable[[], Load] | None) -> None:
        """The store is open, or it is no longer."""
        if self._metrics is not None:
            self._metrics.watch(load)

    def unrecorded(self, endpoint: str) -> None:
        """A plain request was served without being recorded (A-37): to be alarmed about."""
        if self._metrics is not None:
            self._metrics.unrecorded(endpoint)


def _metrics(service: str, endpoints: Endpoints, wanted: WantsMetrics) -> Metrics:
    try:
        from twophp.asgi.metrics import metrics_for  # noqa: PLC0415 - an extra.
    except ModuleNotFoundError as error:
        raise ConfigError("metrics need prometheus-client: install twophp[metrics]", code="missing_extra") from error

    def endpoint_of(intent: Intent) -> str:
        endpoint = endpoints.match(intent.method, intent.path or "/")
        return "" if endpoint is None else endpoint.name

    return metrics_for(wanted, service, endpoint_of)


def _counting(service: str, wanted: WantsMetrics) -> Told:
    from twophp.engine.obligation_metrics import counting  # noqa: PLC0415 - an extra, and there by now.

    return counting(wanted, service)


def _traces() -> list[Observer]:
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.trace") is None:
        return []
    from twophp.asgi.traces import Traces  # noqa: PLC0415 - an extra.

    return [Traces()]
