"""Prometheus metrics (the extra ``metrics``).

    TwoPhaseMiddleware(..., metrics=True)        into prometheus_client's own registry
    app.mount("/metrics", metrics_app())         exposing them is the application's business

The label ``endpoint`` is the key of a policy, never a path: there are as many as the service has policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, make_asgi_app
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from twophp.asgi.messages import App
from twophp.core import job
from twophp.core.errors import ConfigError
from twophp.core.intent import Intent
from twophp.core.machine import Replay
from twophp.core.outcome import INDETERMINATE
from twophp.core.phase import IntentDecision
from twophp.observability.observe import PhaseNumber
from twophp.ports import Load

NO_ENDPOINT: Final = ""  # What is not there has none.
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RESULTS: Final = {job.State.DELIVERED: "delivered", job.State.PENDING: "failed", job.State.DEAD: "given_up"}


class Instruments(Collector):
    """The metrics of one registry, shared by every service that counts into it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        count = partial(Counter, registry=registry)
        by_endpoint, of_delivery = ("service", "endpoint"), ("service", "work", "result")
        self.phases = count("twophp_phases", "Intents that entered a phase", (*by_endpoint, "phase", "mode"))
        self.indeterminate = count(
            "twophp_indeterminate", "Intents that FAILED and may have had effects", (*by_endpoint, "mode")
        )
        self.refusals = count("twophp_refusals", "Requests refused, by code", (*by_endpoint, "code"))
        self.replays = count("twophp_replays", "Requests answered with what was decided before", by_endpoint)
        self.unrecorded = count(
            "twophp_unrecorded", "Plain requests served though they could not be recorded", by_endpoint
        )
        self.mistaken = count(
            "twophp_mistaken_opt_ins", "Plain requests that look like an opt-in and are none", (*by_endpoint, "kind")
        )
        self.deliveries = count("twophp_deliveries", "Attempts to deliver a callback or a hook", of_delivery)
        self.seconds = Histogram(
            "twophp_phase_seconds",
            "From a request's arrival to its answer",
            (*by_endpoint, "phase"),
            buckets=_SECONDS,
            registry=registry,
        )
        self.loads: dict[str, Callable[[], Load]] = {}
        registry.register(self)

    def describe(self) -> list[Metric]:
        """No metrics before there is a service. Without this method the registry would call ``collect`` instead."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The values at the time of a scrape, read only then: between scrapes they cost nothing."""
        waiting = GaugeMetricFamily("twophp_queue_depth", "Changes waiting for the disk", labels=["service"])
        latest = GaugeMetricFamily("twophp_batch_size", "Changes in the latest batch", labels=["service"])
        batches = CounterMetricFamily("twophp_batches", "Batches written", labels=["service"])
        changes = CounterMetricFamily("twophp_batch_changes", "Changes in all batches", labels=["service"])
        for service, load_of in list(self.loads.items()):
            load = load_of()
            waiting.add_metric([service], load.waiting)
            latest.add_metric([service], load.latest_batch)
            batches.add_metric([service], load.batches)
            changes.add_metric([service], load.changes)
        yield from (waiting, latest, batches, changes)


_instruments: Final[WeakKeyDictionary[CollectorRegistry, Instruments]] = WeakKeyDictionary()


def instruments_of(registry: CollectorRegistry) -> Instruments:
    """The registry's own, made when first asked for: a metric can be registered only once."""
    found = _instruments.get(registry)
    if found is None:
        found = _instruments[registry] = Instruments(registry)
    return found


class Metrics:
    """An ``Observer`` that counts for one service."""

    times: Final = True

    def __init__(self, service: str, endpoint_of: Callable[[Intent], str], registry: CollectorRegistry) -> None:
        self._service = service
        self._endpoint_of = endpoint_of
        self._all = instruments_of(registry)

    def watch(self, load: Callable[[], Load] | None) -> None:
        """Read the store's load from here, or no longer."""
        if load is None:
            self._all.loads.pop(self._service, None)
        else:
            self._all.loads[self._service] = load

    def decided(self, decision: IntentDecision) -> None:
        """See ``Observer``."""
        intent = decision.intent
        endpoint = NO_ENDPOINT if intent is None else self._endpoint_of(intent)
        if intent is not None:
            for step in decision.steps:
                if step.before != step.after:
                    self._all.phases.labels(self._service, endpoint, step.after, intent.mode.value).inc()
                if step.event == INDETERMINATE:
                    self._all.indeterminate.labels(self._service, endpoint, intent.mode.value).inc()
        if decision.code is not None:
            self._all.refusals.labels(self._service, endpoint, decision.code).inc()
        elif isinstance(decision.verdict, Replay):
            self._all.replays.labels(self._service, endpoint).inc()

    def replayed(self, intent: Intent) -> None:
        """See ``Observer``."""
        self._all.replays.labels(self._service, self._endpoint_of(intent)).inc()

    def unrecorded(self, endpoint: str) -> None:
        """A plain request of a transparent endpoint was served, and the ledger does not know (A-37)."""
        self._all.unrecorded.labels(self._service, endpoint).inc()

    def mistaken(self, endpoint: str, kind: str) -> None:
        """A plain request that looks like an opt-in (A-11)."""
        self._all.mistaken.labels(self._service, endpoint, kind).inc()

    def answered(self, phase: PhaseNumber, intent: Intent, took_s: float) -> None:
        """See ``Observer``."""
        self._all.seconds.labels(self._service, self._endpoint_of(intent), phase).observe(took_s)

    def attempted(self, decision: job.JobDecision) -> None:
        """See ``Observer``."""
        found = decision.job
        if found is not None and decision.changed and (result := _RESULTS.get(found.state)) is not None:
            self._all.deliveries.labels(self._service, found.work, result).inc()


def metrics_for(
    wanted: bool | CollectorRegistry,  # noqa: FBT001 - what the user wrote: ``metrics=True``.
    service: str,
    endpoint_of: Callable[[Intent], str],
) -> Metrics:
    """What ``metrics=`` asks for."""
    if not isinstance(wanted, bool | CollectorRegistry):
        raise ConfigError("metrics is True, or a registry of prometheus_client", code="bad_setting")
    return Metrics(service, endpoint_of, REGISTRY if isinstance(wanted, bool) else wanted)


def metrics_app(registry: CollectorRegistry = REGISTRY) -> App:
    """An application to mount where Prometheus reads. Do not make it public: endpoint names and rates tell much."""
    app: App = make_asgi_app(registry=registry)
    return app
