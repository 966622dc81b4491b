"""Mount prefixes, root paths and a real framework's routing around the middleware (A-01)."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from tests.asgi.driver import RESOURCE, SERVER, STATE, serving
from twophp import Policy
from twophp.asgi.messages import App

pytestmark = pytest.mark.anyio


async def make(request: Request) -> JSONResponse:
    number = request.path_params.get("number", "7")
    return JSONResponse({"id": number, "root": request.scope["root_path"]}, status_code=201)


def orders() -> Starlette:
    methods = ["POST", "PUT", "PATCH", "DELETE"]
    return Starlette(routes=[Route("/orders", make, methods=methods), Route("/orders/{number}", make, methods=methods)])


POLICIES = {"POST /orders": Policy.standard(), "PUT /orders/{number}": Policy.standard(mode="async")}


@pytest.mark.req("A-01", "A-04", "A-55", "P-5.3.1-a", "P-12.1-a")
@pytest.mark.parametrize("prefix", ["/shop", "/deep/er", "/a%20b"])
async def test_inside_a_mount_policies_name_the_applications_own_paths(prefix: str) -> None:
    def mounted(inner: App) -> App:
        return Starlette(routes=[Mount(unquote(prefix), app=inner)])

    async with serving(app=orders(), policies=POLICIES, around=mounted) as service:
        registered = await service.register(path=prefix + "/orders")
        assert registered.get(STATE) == "WAITING_CONFIRM"
        done = await service.confirm(registered, path=prefix + "/orders/confirm")
        assert (done.status, done.get(RESOURCE)) == (200, "7")
        assert f'"root":"{unquote(prefix)}"'.encode() in done.body
        (row,) = await service.rows()
        assert row.phase == "COMMITTED"
        second = await service.register("c-2", method="PUT", path=prefix + "/orders/42")
        accepted = await service.confirm(second, "c-2", path=prefix + "/orders/42/confirm")
        assert accepted.get("location") == f"{prefix}/_2php/intents/{second.get(SERVER)}"
        await service.server.executions.drain(5)
        read = await service.read(second.get(SERVER) or "", "c-2", path=f"{prefix}/_2php/intents/{second.get(SERVER)}")
        assert (read.status, read.get(STATE), read.get(RESOURCE)) == (200, "COMMITTED", "42")


@pytest.mark.req("A-01")
async def test_a_root_path_given_by_the_server_is_no_part_of_the_route() -> None:
    async with serving(app=orders(), policies=POLICIES) as service:
        registered = await service.register(path="/api/orders", root_path="/api")
        assert registered.get(STATE) == "WAITING_CONFIRM"
        done = await service.confirm(registered, path="/api/orders/confirm", root_path="/api")
        assert done.get(STATE) == "COMMITTED"


@pytest.mark.req("A-01")
async def test_a_path_that_only_looks_like_the_prefix_keeps_it() -> None:
    async with serving(app=orders(), policies={"POST /apiary/orders": Policy.standard()}) as service:
        registered = await service.register(path="/apiary/orders", root_path="/api")
        assert registered.get(STATE) == "WAITING_CONFIRM"


@pytest.mark.req("A-01", "A-02")
async def test_the_suffix_is_a_setting() -> None:
    async with serving(confirm_suffix="/go") as service:
        registered = await service.register()
        assert (await service.confirm(registered, path="/orders/confirm")).status in (201, 400)
        assert (await service.confirm(registered, path="/orders/go")).get(STATE) == "COMMITTED"
