"""The same small order service in four frameworks, each as its users write it, and one line that adds two phases.

Every service has the same routes:

    POST /orders                201, Location, two cookies; notes the order, then a background task
    PUT  /orders/{id}/lines/{n} 200
    GET  /orders/{id}           200
    GET  /feed                  a streamed answer
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import BackgroundTasks, FastAPI
from fastapi import Response as FastAPIResponse
from litestar import Litestar
from litestar import Request as LitestarRequest
from litestar import Response as LitestarResponse
from litestar import get as litestar_get
from litestar import post as litestar_post
from litestar import put as litestar_put
from litestar.background_tasks import BackgroundTask as LitestarTask
from litestar.params import FromPath
from litestar.response import Stream
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from tests.asgi_frameworks.django_service import django_service
from twophp import current_intent
from twophp.asgi import TwoPhaseMiddleware


class Book:
    """What the handlers did: one line for each run, and the intent it ran under."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, str | None]] = []
        self.mailed = threading.Event()

    def enter(self, what: str) -> None:
        intent = current_intent()
        self.orders.append((what, intent.client_correlation_id if intent else None))

    def mail(self) -> None:
        self.mailed.set()


async def feed() -> AsyncIterator[bytes]:
    for number in range(3):
        yield f"line {number}\n".encode()


class Order(BaseModel):
    sku: str


def fastapi_service(book: Book, **two_phase: Any) -> Any:
    app = FastAPI()

    @app.post("/orders", status_code=201)
    async def create(order: Order, response: FastAPIResponse, tasks: BackgroundTasks) -> dict[str, str]:
        book.enter(order.sku)
        tasks.add_task(book.mail)
        response.headers["location"] = "/orders/42"
        response.set_cookie("a", "1")
        response.set_cookie("b", "2")
        return {"id": "42", "sku": order.sku}

    @app.put("/orders/{order}/lines/{line}")
    def change(order: str, line: int) -> dict[str, str]:  # Not async: FastAPI runs it in a thread.
        book.enter(f"{order}/{line}")
        return {"line": str(line)}

    @app.get("/orders/{order}")
    async def show(order: str) -> dict[str, str]:
        return {"id": order}

    @app.get("/feed")
    async def stream() -> StreamingResponse:
        return StreamingResponse(feed())

    if two_phase:
        app.add_middleware(TwoPhaseMiddleware, **two_phase)
    return app


def starlette_service(book: Book, **two_phase: Any) -> Any:
    async def create(request: Request) -> JSONResponse:
        sku = (await request.json())["sku"]
        book.enter(sku)
        answer = {"id": "42", "sku": sku}
        response = JSONResponse(answer, 201, {"location": "/orders/42"}, background=BackgroundTask(book.mail))
        response.set_cookie("a", "1")
        response.set_cookie("b", "2")
        return response

    async def change(request: Request) -> JSONResponse:
        book.enter("{order}/{line}".format(**request.path_params))
        return JSONResponse({"line": request.path_params["line"]})

    async def show(request: Request) -> JSONResponse:
        return JSONResponse({"id": request.path_params["order"]})

    async def stream(_request: Request) -> StreamingResponse:
        return StreamingResponse(feed())

    routes = [
        Route("/orders", create, methods=["POST"]),
        Route("/orders/{order}/lines/{line}", change, methods=["PUT"]),
        Route("/orders/{order}", show),
        Route("/feed", stream),
    ]
    app = Starlette(routes=routes)
    if two_phase:
        app.add_middleware(TwoPhaseMiddleware, **two_phase)
    return app


def litestar_service(book: Book, **two_phase: Any) -> Any:
    @litestar_post("/orders")
    async def create(request: LitestarRequest[Any, Any, Any]) -> LitestarResponse[dict[str, str]]:
        sku = (await request.json())["sku"]
        book.enter(sku)
        answer = LitestarResponse({"id": "42", "sku": sku}, background=LitestarTask(book.mail))
        answer.set_header("location", "/orders/42")
        answer.set_cookie("a", "1")
        answer.set_cookie("b", "2")
        return answer

    @litestar_put("/orders/{order:str}/lines/{line:int}", sync_to_thread=False)
    def change(order: FromPath[str], line: FromPath[int]) -> dict[str, str]:
        book.enter(f"{order}/{line}")
        return {"line": str(line)}

    @litestar_get("/orders/{order:str}")
    async def show(order: FromPath[str]) -> dict[str, str]:
        return {"id": order}

    @litestar_get("/feed")
    async def stream() -> Stream:
        return Stream(feed())

    app = Litestar([create, change, show, stream], openapi_config=None)
    # Litestar's own middleware runs behind its router, one copy for each route: it would never see /orders/confirm.
    return TwoPhaseMiddleware(app, **two_phase) if two_phase else app


SERVICES: dict[str, Callable[..., Any]] = {
    "fastapi": fastapi_service,
    "starlette": starlette_service,
    "litestar": litestar_service,
    "django": django_service,
}
