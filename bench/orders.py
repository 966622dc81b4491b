"""The small service that everything here serves, in Starlette and FastAPI; without twophp: peers have it too."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


class Order(BaseModel):
    """About three hundred bytes of JSON."""

    sku: str
    quantity: int
    note: str


async def order(request: Request) -> JSONResponse:
    """The handler: parse, answer."""
    body = await request.json()
    return JSONResponse({"id": "42", "sku": body["sku"], "quantity": body["quantity"]}, status_code=201)


def starlette_orders() -> Starlette:
    """With Starlette."""
    return Starlette(routes=[Route("/orders", order, methods=["POST"])])


def fastapi_orders(**settings: Any) -> FastAPI:
    """With FastAPI."""
    app = FastAPI(**settings)

    @app.post("/orders", status_code=201)
    async def post_order(order: Order) -> dict[str, Any]:
        return {"id": "42", "sku": order.sku, "quantity": order.quantity}

    return app
