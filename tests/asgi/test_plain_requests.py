"""What becomes of requests that do not opt in, almost do, or opt in where only a confirm belongs."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from litestar import Litestar, post
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from tests.asgi.driver import CLIENT, ENABLED, SERVER, STATE, Orders, by_header, serving
from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware
from twophp.core.errors import ConfigError

pytestmark = pytest.mark.anyio

RUNS: list[str] = []


async def run(request: Request) -> JSONResponse:
    RUNS.append(request.url.path)
    return JSONResponse({"id": "7"}, 201)


def routed() -> Starlette:
    RUNS.clear()
    routes = [
        Route("/audit", run, methods=["POST"]),
        Route("/audit/{number}", run, methods=["PUT"]),
        Route("/caf\u00e9", run, methods=["POST"]),
    ]
    return Starlette(routes=[*routes, Mount("/in/side", routes=routes)])


SPELLINGS = ["/audit", "/%61udit", "/%61%75%64%69%74", "//audit", "/audit//", "/in/side/audit", "/in%2Fside/%61udit"]


# --- the path that the router sees --------------------------------------------------------------------


@pytest.mark.req("A-01", "A-07", "A-37")
@pytest.mark.parametrize("path", SPELLINGS)
async def test_a_transparent_policy_records_whatever_the_router_runs(path: str) -> None:
    policies = dict.fromkeys(("/audit", "/in/side/audit"), Policy.standard(transparent=True))
    async with serving(app=routed(), policies=policies) as service:
        await service.request("POST", path, body=b"{}")
        rows = await service.rows()
        assert len(rows) >= len(RUNS)
        assert len(rows) == 1


@pytest.mark.req("A-01", "A-07", "A-37")
async def test_what_no_route_knows_is_recorded_under_no_policy() -> None:
    async with serving(app=routed(), policies={"/audit": Policy.standard(transparent=True)}) as service:
        for path in ("/./audit", "/x/../audit", "/audit/7/8", "/%2561udit", "/AUDIT"):
            assert (await service.request("POST", path)).status == 404
        assert (RUNS, await service.rows()) == ([], [])


@pytest.mark.req("A-01", "A-07")
@pytest.mark.parametrize("path", ["/%61udit", "/caf%C3%A9", "/caf%c3%a9", "/api/%61udit", "/%61pi/audit"])
async def test_an_opt_in_is_registered_whatever_the_spelling_and_confirmed_under_the_same(path: str) -> None:
    policies = {"POST /audit": Policy.standard(ttl_ms=7_000), "POST /caf%C3%A9": Policy.standard(ttl_ms=7_000)}
    root_path = "/api" if "pi/" in path else ""
    async with serving(app=routed(), policies=policies) as service:
        registered = await service.register(path=path, root_path=root_path)
        assert (registered.get(STATE), RUNS) == ("WAITING_CONFIRM", [])
        done = await service.confirm(registered, path=f"{path}/confirm", root_path=root_path)
        assert (done.get(STATE), len(RUNS)) == ("COMMITTED", 1)
        intent = await service.intent(registered.get(SERVER))
        assert intent is not None
        assert service.server.policy_of(intent).ttl_ms == 7_000


@pytest.mark.req("A-01", "A-37")
async def test_a_router_that_joins_slashes_runs_nothing_unseen() -> None:
    ran = []

    @post("/audit")
    async def audit() -> None:
        ran.append(1)

    async with serving(app=Litestar([audit]), policies={"/audit": Policy.standard(transparent=True)}) as service:  # type: ignore[arg-type]
        for path in ("//audit", "/audit/", "/audit//"):
            await service.request("POST", path, {"content-length": "0"})
        assert len(ran) == len(await service.rows()) == 3


# --- only a confirm -----------------------------------------------------------------------------------------


@pytest.mark.req("A-02", "T1-3")
@pytest.mark.parametrize("key", ["*", "/*", "/orders/*", "/orders/{id}", "POST /orders"])
@pytest.mark.parametrize("path", ["/orders/confirm", "/orders/confirm/", "/orders/%63onfirm"])
async def test_a_confirm_without_a_server_id_registers_nothing(key: str, path: str) -> None:
    async with serving(policies=dict.fromkeys({key, "POST /orders"}, Policy.standard())) as service:
        refused = await service.register(path=path)
        assert (refused.status, json.loads(refused.body)["code"]) == (400, "missing_field")
        assert json.loads(refused.body)["field"] == SERVER
        assert (await service.rows(), service.orders.runs) == ([], 0)


@pytest.mark.req("A-02")
@pytest.mark.parametrize("key", ["POST /orders/confirm", "/orders/confirm", "/orders/confirm/*", "/{any}/confirm"])
async def test_a_route_that_ends_in_confirm_is_registered_where_a_policy_names_it(key: str) -> None:
    async with serving(policies={"*": Policy.standard(), key: Policy.standard()}) as service:
        registered = await service.register(path="/orders/confirm")
        assert registered.get(STATE) == "WAITING_CONFIRM"
        done = await service.confirm(registered, path="/orders/confirm/confirm")
        assert (done.get(STATE), service.orders.runs) == ("COMMITTED", 1)


@pytest.mark.req("A-02", "A-07")
async def test_a_route_that_ends_in_confirm_is_the_applications_where_nothing_is_enrolled() -> None:
    async with serving(policies={"POST /orders": Policy.standard()}) as service:
        assert (await service.register(path="/carts/7/confirm")).status == 201
        assert (await service.request("POST", "/orders/confirm")).status == 201
        assert (await service.register(method="PUT", path="/orders/confirm")).status == 201
        assert service.orders.runs == 3


# --- what looks like an opt-in ------------------------------------------------------------------------------

ALMOST: list[tuple[str, Mapping[str, str]]] = [
    *(("value", {"DTT-2PHP-Enabled": value}) for value in ("yes", "1", "on", "?1", "", "treu", '"true"')),
    ("name", {"DTT-2PHP-Enable": "true"}),
    ("name", {"X-DTT-2PHP-Enabled": "true"}),
    ("name", {"2PHP-Enabled": "true"}),
    ("name", {"DTT-Enabled": "true"}),
    ("name", {"DTT-2PHP-Client-Corr-ID": "c-1"}),
    ("missing", {CLIENT: "c-1"}),
    ("missing", {"DTT-2PHP-Auto-Confirm": "true"}),
]


@pytest.mark.req("A-11", "A-36")
@pytest.mark.parametrize(("kind", "headers"), ALMOST)
async def test_what_looks_like_an_opt_in_is_counted_always_and_said_once(
    kind: str, headers: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    async with serving(metrics=registry) as service:
        with caplog.at_level(logging.WARNING, "twophp.server"):
            for _ in range(3):
                assert (await service.request("POST", "/orders", headers, b"{}")).status == 201
        labels = {"service": "shop", "endpoint": "POST /orders", "kind": kind}
        assert registry.get_sample_value("twophp_mistaken_opt_ins_total", labels) == 3
        said = [record.getMessage() for record in caplog.records if "opt-in" in record.getMessage()]
        assert len(said) == 1
        assert (service.orders.runs, await service.rows()) == (3, [])


@pytest.mark.req("A-11", "P-5.1-c")
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"DTT-2PHP-Enabled": "false", CLIENT: "c-1"},
        {"DTT-2PHP-Enabled": "No"},
        {"DTT-2PHP-Phase-State": "COMMITTED"},
        {"x-addttl": "1"},
    ],
)
async def test_whoever_says_no_or_nothing_is_not_noted(
    headers: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    async with serving(metrics=registry) as service:
        await service.request("POST", "/orders", headers, b"{}")
        await service.request("POST", "/elsewhere", {"DTT-2PHP-Enabled": "yes"})  # Not enrolled: it would run anyway.
    assert not [record for record in caplog.records if "opt-in" in record.getMessage()]
    assert "twophp_mistaken_opt_ins_total" not in {
        sample.name for family in registry.collect() for sample in family.samples
    }


# --- require ------------------------------------------------------------------------------------------------------

REQUIRED = {"POST /orders": Policy(require=True), "*": Policy.standard()}


@pytest.mark.req("A-37", "P-11-c")
@pytest.mark.parametrize("headers", [{}, {"DTT-2PHP-Enabled": "yes", CLIENT: "c-1"}, {"x-user": "ada"}])
@pytest.mark.parametrize("path", ["/orders", "/orders/", "/%6Frders", "//orders"])
async def test_where_two_phases_are_required_a_plain_mutation_is_428_and_does_not_run(
    path: str, headers: Mapping[str, str]
) -> None:
    async with serving(policies=REQUIRED, identify=by_header) as service:
        refused = await service.request("POST", path, headers, b"{}")
        assert (refused.status, refused.get("content-type")) == (428, "application/problem+json")
        assert json.loads(refused.body)["code"] == "two_phase_required"
        assert (service.orders.runs, await service.rows()) == (0, [])


@pytest.mark.req("A-37", "P-11-a")
async def test_where_two_phases_are_required_everything_else_is_as_always() -> None:
    async with serving(policies=REQUIRED) as service:
        _registered, done = await service.both()
        assert done.get(STATE) == "COMMITTED"
        for method, path in (("GET", "/orders"), ("OPTIONS", "/orders"), ("POST", "/elsewhere"), ("PUT", "/orders")):
            assert (await service.request(method, path)).status == 201
        auto = {**ENABLED, "DTT-2PHP-Auto-Confirm": "true"}
        assert (await service.request("POST", "/orders", auto)).status == 201


@pytest.mark.parametrize("preset", [Policy.low_latency, Policy.standard, Policy.long_running, Policy])
def test_require_is_a_setting_of_every_preset_and_excludes_transparent(preset: Any) -> None:
    assert preset(require=True).require is True
    with pytest.raises(ConfigError) as caught:
        preset(require=True, transparent=True)
    assert caught.value.code == "bad_policy"


@pytest.mark.req("A-07")
def test_no_policies_at_all_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        TwoPhaseMiddleware(Orders(), service="shop", store="memory:", identify=anonymous, policies={})
    assert caught.value.code == "bad_policy"
