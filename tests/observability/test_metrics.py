"""What Prometheus reads: by phase and endpoint, and no more labels than there are policies."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from tests.delivery.outboxes import Desk, Receiver
from tests.observability.calls import Caller, calling, shop
from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware
from twophp.asgi.metrics import Metrics, metrics_app
from twophp.core.errors import ConfigError, DeliveryFailed
from twophp.core.job import DEFAULT_TRIES, Command, Delivered, Enqueue, Failed, decide
from twophp.kernel.commands import MakeChange
from twophp.observability.observe import SILENT, observed_by
from twophp.ports import Change
from twophp.stores.sqlite import SQLiteStore

ORDERS = "POST /orders"
ORDER = "PUT /orders/{id}"


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, {"service": "shop"} | labels) or 0.0


def phases(registry: CollectorRegistry, endpoint: str, mode: str = "standard") -> dict[str, float]:
    found = {
        sample.labels["phase"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "twophp_phases_total"
        and (sample.labels["endpoint"], sample.labels["mode"]) == (endpoint, mode)
    }
    return dict(sorted(found.items()))


def test_handshakes_are_counted_by_phase_and_endpoint(tmp_path: Path) -> None:
    registry = CollectorRegistry()

    async def scenario(caller: Caller, _two_phase: Any) -> None:
        for _ in range(3):
            await caller.call("POST", "/orders")
        await caller.call("PUT", "/orders/one")
        await caller.call("PUT", "/orders/bad")
        await caller.register("POST", "/orders")

    calling(tmp_path, scenario, metrics=registry)
    assert phases(registry, ORDERS) == {"COMMITTED": 3, "PROCESSING": 3, "WAITING_CONFIRM": 4}
    assert phases(registry, ORDER) == {"COMMITTED": 1, "FAILED": 1, "PROCESSING": 2, "WAITING_CONFIRM": 2}
    assert value(registry, "twophp_phase_seconds_count", endpoint=ORDERS, phase="1") == 4
    assert value(registry, "twophp_phase_seconds_count", endpoint=ORDERS, phase="2") == 3
    assert 0 < value(registry, "twophp_phase_seconds_sum", endpoint=ORDERS, phase="2") < 30


def test_auto_confirm_has_its_own_mode_and_waits_for_the_handler(tmp_path: Path) -> None:
    registry = CollectorRegistry()

    async def scenario(caller: Caller, _two_phase: Any) -> None:
        headers = caller.ids() | {"DTT-2PHP-Auto-Confirm": "true"}
        answer = await caller.http.post("/orders", headers=headers)
        assert answer.status_code == 201, answer.text

    calling(tmp_path, scenario, metrics=registry)
    [mode] = [mode for mode in ("auto_confirm", "transparent") if phases(registry, ORDERS, mode)]
    assert phases(registry, ORDERS, mode) == {"COMMITTED": 1, "PROCESSING": 1, "WAITING_CONFIRM": 1}
    assert value(registry, "twophp_phase_seconds_count", endpoint=ORDERS, phase="2") == 1


def test_replays_and_refusals_are_counted_too(tmp_path: Path) -> None:
    registry = CollectorRegistry()

    async def scenario(caller: Caller, _two_phase: Any) -> None:
        ids = await caller.register("POST", "/orders")
        for _ in range(3):
            assert (await caller.confirm("/orders", ids)).status_code == 200
        other = ids | {"DTT-2PHP-Server-Correlation-ID": "00000000-0000-4000-8000-000000000000"}
        assert (await caller.confirm("/orders", other)).status_code == 404

    calling(tmp_path, scenario, metrics=registry)
    assert value(registry, "twophp_replays_total", endpoint=ORDERS) == 2
    assert value(registry, "twophp_refusals_total", endpoint="", code="unknown_intent") == 1


def test_however_many_paths_there_are_the_labels_are_as_many_as_the_policies(tmp_path: Path) -> None:
    registry = CollectorRegistry()

    async def scenario(caller: Caller, _two_phase: Any) -> None:
        for number in range(20):
            await caller.call("PUT", f"/orders/{number}")

    calling(tmp_path, scenario, metrics=registry)
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    assert {sample.labels["endpoint"] for sample in samples if "endpoint" in sample.labels} == {ORDER}


def test_queue_and_batches_are_read_when_somebody_looks(tmp_path: Path) -> None:
    registry = CollectorRegistry()

    async def scenario(caller: Caller, _two_phase: Any) -> None:
        await asyncio.gather(*(caller.register("POST", "/orders") for _ in range(8)))
        assert value(registry, "twophp_batch_changes_total") >= 8
        assert 1 <= value(registry, "twophp_batches_total") <= value(registry, "twophp_batch_changes_total")
        assert value(registry, "twophp_batch_size") >= 1
        assert registry.get_sample_value("twophp_queue_depth", {"service": "shop"}) == 0

    calling(tmp_path, scenario, metrics=registry)
    assert registry.get_sample_value("twophp_queue_depth", {"service": "shop"}) is None  # No service is open to ask.


def test_a_store_says_how_many_wait_and_how_many_went_together(tmp_path: Path) -> None:
    async def load_of_a_crowd() -> None:
        async with SQLiteStore(f"{tmp_path}/shop.db") as store:
            before = store.load()
            crowd = [asyncio.ensure_future(store.transact(MakeChange(Change(answer=1)))) for _ in range(10)]
            await asyncio.sleep(0)
            assert store.load().waiting == 10
            await asyncio.gather(*crowd)
            after = store.load()
        assert (after.waiting, after.latest_batch) == (0, 10)
        assert after.changes - before.changes == 10
        assert after.batches - before.batches == 1

    asyncio.run(load_of_a_crowd())


def lived_through(*commands: Command) -> Any:
    """The last decision about a job that lived through these."""
    job, decision = None, None
    for at, command in enumerate(commands):
        decision = decide(job, command, at, DEFAULT_TRIES)
        job = decision.job
    return decision


def test_attempts_are_counted_by_what_came_of_them() -> None:
    registry = CollectorRegistry()
    metrics = Metrics("shop", lambda _intent: "", registry)
    made = Enqueue(job_id="j", work="callback", subject="s", name="", started=True)
    metrics.attempted(lived_through(made, Delivered(attempt=1)))
    metrics.attempted(lived_through(made, Failed(attempt=1, error="timeout")))
    assert value(registry, "twophp_deliveries_total", work="callback", result="delivered") == 1
    assert value(registry, "twophp_deliveries_total", work="callback", result="failed") == 1


def test_the_application_exposes_them_where_it_wants(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    page = metrics_app(registry)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (page if scope["path"] == "/metrics" else shop)(scope, receive, send)

    async def scenario(caller: Caller, _two_phase: Any) -> None:
        await caller.call("POST", "/orders")
        text = (await caller.http.get("/metrics")).text
        assert (
            'twophp_phases_total{endpoint="POST /orders",mode="standard",phase="COMMITTED",service="shop"} 1.0' in text
        )

    calling(tmp_path, scenario, metrics=registry, app=app)


def test_two_services_of_one_process_share_a_registry() -> None:
    for _ in range(2):  # The second would fail to register its metrics again.
        TwoPhaseMiddleware(
            shop,
            service="shop",
            store="memory:",
            identify=anonymous,
            policies=Policy.standard(),
            metrics=True,
        )


def test_asking_for_metrics_without_the_package_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "twophp.asgi.metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"twophp\[metrics\]"):
        TwoPhaseMiddleware(
            shop, service="shop", store="memory:", identify=anonymous, policies=Policy.standard(), metrics=True
        )


def test_a_registry_is_a_registry() -> None:
    with pytest.raises(ConfigError):
        TwoPhaseMiddleware(
            shop,
            service="shop",
            store="memory:",
            identify=anonymous,
            policies=Policy.standard(),
            metrics="yes",  # type: ignore[arg-type]
        )


def test_nobody_listening_costs_one_empty_call() -> None:
    assert observed_by() is SILENT
    one = Metrics("shop", lambda _intent: "", CollectorRegistry())
    assert observed_by(one) is one


def test_a_status_read_of_the_page_needs_no_handshake(tmp_path: Path) -> None:
    async def scenario(caller: Caller, _two_phase: Any) -> None:
        answer: httpx.Response = await caller.http.get("/orders")
        assert answer.status_code == 201

    registry = CollectorRegistry()
    calling(tmp_path, scenario, metrics=registry)
    assert phases(registry, ORDERS) == {}


def test_an_outbox_tells_how_its_attempts_ended() -> None:
    registry = CollectorRegistry()

    async def scenario() -> None:
        receiver = Receiver()
        receiver.errors.append(DeliveryFailed("no", reason="status"))
        desk = Desk(receiver, observer=Metrics("shop", lambda _intent: "", registry))
        decision, owed = await desk.owe()
        await owed.start(decision)
        await desk.idle()
        assert value(registry, "twophp_deliveries_total", work="callback", result="failed") == 1
        await desk.next_due()
        assert value(registry, "twophp_deliveries_total", work="callback", result="delivered") == 1

    asyncio.run(scenario())
