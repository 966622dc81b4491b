"""One order, one row and one COMMIT with FastAPI and SQLAlchemy: alone, behind the middleware, and settled by it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from bench.orders import Order
from twophp import Policy, anonymous, current_intent
from twophp.asgi import TwoPhaseMiddleware

CONNECTIONS = 16


class Base(DeclarativeBase):
    """What all tables have in common."""


class Row(Base):
    """The business row."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    sku: Mapped[str]
    quantity: Mapped[int]


def _orders(*, own: bool) -> FastAPI:
    url = os.environ["BENCH_POSTGRES"].replace("postgresql:", "postgresql+asyncpg:")
    engine = create_async_engine(url, pool_size=CONNECTIONS, max_overflow=0)
    sessions = async_sessionmaker(engine, expire_on_commit=False)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def post_order(order: Order) -> dict[str, Any]:
        row, intent = Row(sku=order.sku, quantity=order.quantity), current_intent()
        if own and intent is not None:
            async with intent.transaction(sessions) as session:
                session.add(row)
        else:
            async with sessions.begin() as session:
                session.add(row)
        return {"id": str(row.id), "sku": order.sku, "quantity": order.quantity}

    return app


def _wrapped(app: FastAPI, schema: str) -> Any:
    app.add_middleware(
        TwoPhaseMiddleware,
        service="orders",
        store=f"{os.environ['BENCH_POSTGRES']}?schema={schema}",
        identify=anonymous,
        policies=Policy.standard(),
        allow_insecure=True,
    )
    return app


def plain() -> FastAPI:
    """Without us."""
    return _orders(own=False)


def beside() -> Any:
    """The handler commits its row by itself, and the middleware the outcome."""
    return _wrapped(_orders(own=False), "beside")


def own() -> Any:
    """Both in one commit."""
    return _wrapped(_orders(own=True), "own")
