"""OpenTelemetry attributes (the extra ``otel``): both ids and the phase on the span that is current (A-68).

The ledger neither needs nor reads any of this: no id comes from a trace, and ``traceparent`` passes through untouched.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.context import get_current
from opentelemetry.trace import get_current_span

from twophp.core import job
from twophp.core.intent import Intent
from twophp.core.phase import IntentDecision
from twophp.observability.observe import PhaseNumber

CLIENT_CORRELATION_ID: Final = "twophp.client_correlation_id"
SERVER_CORRELATION_ID: Final = "twophp.server_correlation_id"
PHASE: Final = "twophp.phase"
INDETERMINATE: Final = "twophp.indeterminate"


class Traces:
    """An ``Observer`` that writes beside the current span, if one is being recorded."""

    times: Final = False

    def decided(self, decision: IntentDecision) -> None:
        """See ``Observer``. Runs where the request or the execution runs, so theirs is the current span."""
        if decision.intent is not None and get_current():  # Asked first: without a span the context is empty.
            self.replayed(decision.intent)

    def replayed(self, intent: Intent) -> None:
        """See ``Observer``."""
        span = get_current_span()
        if span.is_recording():
            attributes = {
                CLIENT_CORRELATION_ID: intent.client_correlation_id,
                SERVER_CORRELATION_ID: intent.server_correlation_id,
                PHASE: intent.phase.value,
            }
            span.set_attributes(attributes)
            if intent.indeterminate:
                span.set_attribute(INDETERMINATE, True)  # noqa: FBT003 - OpenTelemetry's.

    def answered(self, phase: PhaseNumber, intent: Intent, took_s: float) -> None:
        """See ``Observer``: a span knows its own times."""

    def attempted(self, decision: job.JobDecision) -> None:
        """See ``Observer``: an attempt belongs to no request, so it has no span."""
