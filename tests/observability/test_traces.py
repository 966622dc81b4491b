"""Both ids and the phase stand beside the current span; the ledger needs none of it (A-68)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.observability.calls import Caller, calling, shop
from twophp.asgi.observers import Observers
from twophp.core.policy import Policy
from twophp.engine.endpoints import Endpoints
from twophp.observability.observe import SILENT

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    yield (exporter := InMemorySpanExporter())
    exporter.clear()


def traced(tracer: trace.Tracer, folder: Path, scenario: Any, **more: Any) -> None:
    """As ``calling``, each call in a span: what an instrumentation around the application does."""

    async def in_spans(caller: Caller, two_phase: Any) -> None:
        send = caller.http.request

        async def request(method: str, url: str, **rest: Any) -> Any:
            with tracer.start_as_current_span(f"{method} {url}"):
                return await send(method, url, **rest)

        caller.http.request = request  # type: ignore[method-assign, assignment]
        await scenario(caller, two_phase)

    calling(folder, in_spans, **more)


@pytest.mark.req("A-68")
def test_the_span_of_each_phase_has_both_ids_and_where_the_intent_has_come_to(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    told: dict[str, str] = {}

    async def scenario(caller: Caller, _two_phase: Any) -> None:
        told.update(await caller.register("POST", "/orders"))
        for _ in range(2):
            await caller.confirm("/orders", told)

    traced(provider.get_tracer("test"), tmp_path, scenario)
    one, two, again = (dict(span.attributes or {}) for span in spans.get_finished_spans())
    for attributes in (one, two, again):
        assert attributes["twophp.client_correlation_id"] == told["DTT-2PHP-Client-Correlation-ID"]
        assert attributes["twophp.server_correlation_id"] == told["DTT-2PHP-Server-Correlation-ID"]
    assert [span["twophp.phase"] for span in (one, two, again)] == ["WAITING_CONFIRM", "COMMITTED", "COMMITTED"]


@pytest.mark.req("A-68")
def test_the_traceparent_reaches_the_handler_untouched_and_is_no_key(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(value for name, value in scope["headers"] if name == b"traceparent")
        await shop(scope, receive, send)

    async def scenario(caller: Caller, _two_phase: Any) -> None:
        for _ in range(2):  # The same trace twice: two intents all the same.
            ids = await caller.register("POST", "/orders")
            await caller.confirm("/orders", ids | {"traceparent": TRACEPARENT})

    calling(tmp_path, scenario, app=app)
    assert seen == [TRACEPARENT.encode()] * 2


@pytest.mark.req("A-68", "P-2-f", "P-9.2-b")
def test_without_the_package_everything_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "twophp.asgi.observers.find_spec", lambda name: None if name.startswith("opentelemetry") else find(name)
    )
    monkeypatch.delitem(sys.modules, "twophp.asgi.traces", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    assert Observers("shop", Endpoints(Policy.standard()), metrics=False).observer is SILENT

    async def scenario(caller: Caller, _two_phase: Any) -> None:
        assert (await caller.call("POST", "/orders")).status_code == 200

    calling(tmp_path, scenario)
