"""A service for the black-box tests: uvicorn serves ``app``; a file says how often the handler ran."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware

FOLDER = Path(os.environ["SHOP"])


async def make(request: Request) -> Response:
    body = await request.body()
    with (FOLDER / "runs").open("ab") as runs:
        runs.write(b"%d\n" % len(body))
    return JSONResponse({"id": "7", "bytes": len(body)}, 201, headers={"location": "/orders/7"})


async def show(_request: Request) -> Response:
    return PlainTextResponse("an order", 200)


app = Starlette(routes=[Route("/orders", make, methods=["POST"]), Route("/orders/7", show)])
app.add_middleware(
    TwoPhaseMiddleware,
    service="shop",
    store=f"sqlite:///{FOLDER}/shop.db",
    identify=anonymous,
    policies={"POST /orders": Policy.standard()},
    max_body_bytes=100_000,
    trusted_proxies=["127.0.0.1"],
)
