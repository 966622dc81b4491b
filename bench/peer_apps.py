"""The same FastAPI service behind other packages, each as its own documentation says. Runs in .venv/peers."""

# The packages are in .venv/peers alone, where no type checker looks.
# mypy: disable-error-code="import-not-found,untyped-decorator"
from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header

from bench.orders import Order, fastapi_orders


def bare() -> FastAPI:
    """The service without any package in front of it."""
    return fastapi_orders()


def asgi_idempotency_header() -> FastAPI:
    """On Redis."""
    from idempotency_header_middleware import IdempotencyHeaderMiddleware  # noqa: PLC0415 - what is measured alone
    from idempotency_header_middleware.backends import RedisBackend  # noqa: PLC0415
    from redis.asyncio import Redis  # noqa: PLC0415

    app = fastapi_orders()
    app.add_middleware(IdempotencyHeaderMiddleware, backend=RedisBackend(Redis.from_url(os.environ["BENCH_REDIS"])))
    return app


def fastapi_idempotency_key_redis() -> FastAPI:
    """On Redis."""
    from fastapi_idempotency_key import IdempotencyMiddleware  # noqa: PLC0415
    from fastapi_idempotency_key.backends.redis import RedisBackend  # noqa: PLC0415

    app = fastapi_orders()
    app.add_middleware(IdempotencyMiddleware, backend=RedisBackend(redis_url=os.environ["BENCH_REDIS"]))
    return app


def fastapi_idempotency_key_sqlite() -> FastAPI:
    """On SQLite."""
    from fastapi_idempotency_key import IdempotencyMiddleware  # noqa: PLC0415
    from fastapi_idempotency_key.backends.sqlite import SQLiteBackend  # noqa: PLC0415

    app = fastapi_orders()
    app.add_middleware(IdempotencyMiddleware, backend=SQLiteBackend(os.environ["BENCH_DATABASE"]))
    return app


def fastapi_idempotency() -> FastAPI:
    """On PostgreSQL, through Tortoise."""
    from fastapi_idempotency import IdempotencyMiddleware  # noqa: PLC0415
    from fastapi_idempotency.stores.tortoise import TortoiseStore  # noqa: PLC0415
    from tortoise.contrib.fastapi import RegisterTortoise  # noqa: PLC0415

    models, url = ["fastapi_idempotency.stores.tortoise"], os.environ["BENCH_POSTGRES"]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        url_of_asyncpg = url.replace("postgresql:", "asyncpg:")
        async with RegisterTortoise(app, db_url=url_of_asyncpg, modules={"models": models}, generate_schemas=True):
            yield

    app = fastapi_orders(lifespan=lifespan)
    app.add_middleware(IdempotencyMiddleware, store=TortoiseStore())
    return app


def dbos() -> FastAPI:
    """On PostgreSQL: the handler is a workflow, and the key is its id."""
    from dbos import DBOS, SetWorkflowID  # noqa: PLC0415

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        DBOS.launch()
        yield
        DBOS.destroy()

    DBOS(config={"name": "orders", "system_database_url": os.environ["BENCH_POSTGRES"], "log_level": "ERROR"})
    app = FastAPI(lifespan=lifespan)

    @DBOS.workflow()
    async def placed(sku: str, quantity: int) -> dict[str, Any]:
        return {"id": "42", "sku": sku, "quantity": quantity}

    @app.post("/orders", status_code=201)
    async def post_order(order: Order, idempotency_key: Annotated[str, Header()]) -> dict[str, Any]:
        with SetWorkflowID(idempotency_key):
            found: dict[str, Any] = await placed(order.sku, order.quantity)
        return found

    return app
