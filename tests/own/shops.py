"""One endpoint, written with each library that an application may use: FastAPI, and Django.

``POST /orders`` and ``POST /again`` (``on_crash="rerun"``) take ``{"sku": ..., "then": ...}``. The handler inserts an
order inside its own transaction, reads its own write, and answers with the id that the database has given. A sku that
is there already is refused inside the block, and answered with 409. ``then`` is what it does after that.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]
import psycopg
import sqlalchemy
from fastapi import FastAPI
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import ForeignKey, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from starlette.requests import Request
from starlette.responses import JSONResponse

from twophp import current_intent
from twophp.asgi.messages import App
from twophp.engine.current import RunningIntent

MAKE: Final = (
    "CREATE TABLE orders (id bigserial PRIMARY KEY, sku text NOT NULL UNIQUE, intent text NOT NULL,"
    " parent bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED)"
)
ADD: Final = "INSERT INTO orders (sku, intent, parent) VALUES (%s, %s, %s) RETURNING id"
COUNT: Final = "SELECT count(*) FROM orders WHERE intent = %s"
At = Callable[[str], None]


class Base(DeclarativeBase):
    """What all tables have in common."""


class Order(Base):
    """A business row."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    sku: Mapped[str]
    intent: Mapped[str]
    parent: Mapped[int | None] = mapped_column(ForeignKey("orders.id"))


class Wanted:
    """What a request asks for, and the answer to it."""

    def __init__(self, body: Any, at: At) -> None:
        self.sku: str = body["sku"]
        self.then: str = body.get("then", "")
        self.parent = -1 if self.then == "defer" else None  # There is no such order, as COMMIT finds.
        self.at = at

    def wrote(self) -> None:
        """Inside the block, after the write."""
        self.at("wrote")
        if self.then == "raise":
            raise ZeroDivisionError

    def answer(self, number: int, seen: int) -> JSONResponse:
        """After the block."""
        self.at("left")
        if self.then == "refuse":
            return JSONResponse({"detail": "not today"}, status_code=402)
        return JSONResponse({"id": str(number), "seen": seen}, status_code=201)


TAKEN: Final = {"detail": "the sku is taken"}


def intent_here() -> RunningIntent:
    """It is there: all that is asked for is two-phase."""
    intent = current_intent()
    assert intent is not None
    return intent


def of_fastapi(order: Callable[..., Any], lifespan: Callable[[FastAPI], Any]) -> App:
    """The routes."""
    app = FastAPI(lifespan=lifespan)
    for path in ("/orders", "/again"):
        app.add_api_route(path, order, methods=["POST"])
    return app


def sqlalchemy_async(url: str, schema: str, at: At, driver: str = "asyncpg") -> App:
    search = (
        {"server_settings": {"search_path": schema}} if driver == "asyncpg" else {"options": f"-csearch_path={schema}"}
    )
    engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"), connect_args=search)
    sessions = async_sessionmaker(engine, expire_on_commit=False)

    async def order(request: Request) -> JSONResponse:
        wanted, intent = Wanted(await request.json(), at), intent_here()
        try:
            async with intent.transaction(sessions) as session:
                assert isinstance(session, AsyncSession)
                row = Order(sku=wanted.sku, intent=intent.server_correlation_id, parent=wanted.parent)
                session.add(row)
                if wanted.then == "commit":
                    await session.commit()  # As a repository may do that knows nothing of us.
                mine = select(func.count()).where(Order.intent == intent.server_correlation_id)
                seen = (await session.execute(mine)).scalar_one()
                if wanted.then == "raw commit":
                    await session.execute(sqlalchemy.text("COMMIT"))
                wanted.wrote()
        except IntegrityError:
            return JSONResponse(TAKEN, status_code=409)
        return wanted.answer(row.id, seen)

    return of_fastapi(order, closing(engine.dispose))


def sqlalchemy_async_psycopg(url: str, schema: str, at: At) -> App:
    return sqlalchemy_async(url, schema, at, "psycopg")


def sqlalchemy_sync(url: str, schema: str, at: At) -> App:
    search = {"options": f"-csearch_path={schema}"}
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), connect_args=search)
    sessions = sessionmaker(engine)

    def order(body: dict[str, Any]) -> JSONResponse:
        wanted, intent = Wanted(body, at), intent_here()
        try:
            with intent.transaction(sessions) as session:
                assert isinstance(session, Session)
                row = Order(sku=wanted.sku, intent=intent.server_correlation_id, parent=wanted.parent)
                session.add(row)
                if wanted.then == "commit":
                    session.commit()
                mine = select(func.count()).where(Order.intent == intent.server_correlation_id)
                seen = session.execute(mine).scalar_one()
                if wanted.then == "raw commit":
                    session.execute(sqlalchemy.text("COMMIT"))
                wanted.wrote()
                number = row.id
        except IntegrityError:
            return JSONResponse(TAKEN, status_code=409)
        return wanted.answer(number, seen)

    async def close() -> None:
        engine.dispose()

    return of_fastapi(order, closing(close))


def of_asyncpg(url: str, schema: str, at: At) -> App:
    pools: list[Any] = []

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        pools.append(await asyncpg.create_pool(url, min_size=1, max_size=4, server_settings={"search_path": schema}))
        yield
        await pools.pop().close()

    async def order(request: Request) -> JSONResponse:
        wanted, intent = Wanted(await request.json(), at), intent_here()
        mine = (wanted.sku, intent.server_correlation_id, wanted.parent)
        add = ADD.replace("%s, %s, %s", "$1, $2, $3")
        try:
            async with intent.transaction(pools[0]) as connection:
                number = await connection.fetchval(add, *mine)
                seen = await connection.fetchval(COUNT.replace("%s", "$1"), mine[1])
                if wanted.then == "raw commit":
                    await connection.execute("COMMIT")
                wanted.wrote()
        except asyncpg.UniqueViolationError:
            return JSONResponse(TAKEN, status_code=409)
        return wanted.answer(number, seen)

    return of_fastapi(order, lifespan)


def psycopg_async(url: str, schema: str, at: At) -> App:
    pool = AsyncConnectionPool(url, min_size=1, open=False, kwargs={"options": f"-csearch_path={schema}"})

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with pool:
            yield

    async def order(request: Request) -> JSONResponse:
        wanted, intent = Wanted(await request.json(), at), intent_here()
        mine = (wanted.sku, intent.server_correlation_id, wanted.parent)
        try:
            async with intent.transaction(pool) as connection:
                [number] = await (await connection.execute(ADD, mine)).fetchone()
                [seen] = await (await connection.execute(COUNT, mine[1:2])).fetchone()
                if wanted.then == "raw commit":
                    await connection.execute("COMMIT")
                wanted.wrote()
        except psycopg.errors.UniqueViolation:
            return JSONResponse(TAKEN, status_code=409)
        return wanted.answer(number, seen)

    return of_fastapi(order, lifespan)


def psycopg_sync(url: str, schema: str, at: At) -> App:
    pool = ConnectionPool(url, min_size=1, open=False, kwargs={"options": f"-csearch_path={schema}"})

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        with pool:
            yield

    def order(body: dict[str, Any]) -> JSONResponse:
        wanted, intent = Wanted(body, at), intent_here()
        mine = (wanted.sku, intent.server_correlation_id, wanted.parent)
        try:
            with intent.transaction(pool) as connection:
                [number] = connection.execute(ADD, mine).fetchone()
                [seen] = connection.execute(COUNT, mine[1:2]).fetchone()
                if wanted.then == "raw commit":
                    connection.execute("COMMIT")
                wanted.wrote()
        except psycopg.errors.UniqueViolation:
            return JSONResponse(TAKEN, status_code=409)
        return wanted.answer(number, seen)

    return of_fastapi(order, lifespan)


def closing(close: Callable[[], Any]) -> Callable[[FastAPI], Any]:
    """A lifespan that ends with this."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await close()

    return lifespan


urlpatterns: list[Any] = []


def of_django(url: str, schema: str, at: At) -> App:
    """Its one configuration is this process's."""
    import django  # noqa: PLC0415 - only once it is configured.
    from django.conf import settings  # noqa: PLC0415
    from django.core.asgi import get_asgi_application  # noqa: PLC0415

    said = psycopg.conninfo.conninfo_to_dict(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": said["dbname"],
        "USER": said["user"],
        "HOST": said["host"],
        "PORT": said["port"],
        "OPTIONS": {"options": f"-csearch_path={schema}"},
    }
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="tests",
        LOGGING_CONFIG=None,
        DATABASES={"default": database},
        USE_TZ=True,
    )
    django.setup()
    from django.db import IntegrityError as Taken  # noqa: PLC0415
    from django.db import connection, models, transaction  # noqa: PLC0415
    from django.http import JsonResponse  # noqa: PLC0415
    from django.urls import path  # noqa: PLC0415
    from django.views.decorators.csrf import csrf_exempt  # noqa: PLC0415

    class Bought(models.Model):  # type: ignore[misc]
        """The same table."""

        sku = models.TextField(unique=True)
        intent = models.TextField()
        parent = models.BigIntegerField(null=True)
        id = models.BigAutoField(primary_key=True)

        class Meta:
            app_label = "shop"
            db_table = "orders"
            managed = False

        def __str__(self) -> str:
            return str(self.sku)

    @csrf_exempt  # type: ignore[untyped-decorator]
    def order(request: Any) -> Any:
        wanted, intent = Wanted(json.loads(request.body), at), intent_here()
        mine = {"intent": intent.server_correlation_id}
        try:
            with intent.transaction(connection):
                if wanted.then == "commit":
                    with transaction.atomic():  # As code does that knows nothing of us.
                        row = Bought.objects.create(sku=wanted.sku, parent=wanted.parent, **mine)
                else:
                    row = Bought.objects.create(sku=wanted.sku, parent=wanted.parent, **mine)
                seen = Bought.objects.filter(**mine).count()
                transaction.on_commit(lambda: at("on_commit"))
                if wanted.then == "raw commit":
                    connection.cursor().execute("COMMIT")
                wanted.wrote()
        except Taken:
            return JsonResponse(TAKEN, status=409)
        answer = wanted.answer(row.pk, seen)
        return JsonResponse(json.loads(bytes(answer.body)), status=answer.status_code)

    urlpatterns[:] = [path("orders", order), path("again", order)]
    app: App = get_asgi_application()
    return app


SHOPS: Final[dict[str, Callable[[str, str, At], App]]] = {
    "sqlalchemy": sqlalchemy_async,
    "sqlalchemy-over-psycopg": sqlalchemy_async_psycopg,
    "sqlalchemy-blocking": sqlalchemy_sync,
    "psycopg": psycopg_async,
    "psycopg-blocking": psycopg_sync,
    "asyncpg": of_asyncpg,
    "django": of_django,
}
