"""Who called whom, without a header for it: the intent being executed is the parent of every call its handler makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.asgi_frameworks.serving import wrapped
from tests.client.callers import caller, settings
from tests.client.shop import Shop, ledger, pair, served
from twophp.client import AsyncTwoPhaseTransport, TwoPhaseTransport, calling, carrying
from twophp.core.entry import LedgerEntry
from twophp.core.errors import ConfigError

Handler = Callable[[Any, str], Any]


@contextmanager
def between(folder: Path, orders: Shop, handler: Handler) -> Iterator[str]:
    """A service that serves ``POST /checkout`` and, with one ledger for both sides, calls the orders while it does."""
    options = settings(folder, ledger=f"sqlite:///{folder}/front.db", source="front")

    async def create(request: Request) -> Response:
        await handler(request, f"{orders.url}/orders")
        return JSONResponse({"id": "front-1"}, 201)

    app = Starlette(routes=[Route("/checkout", create, methods=["POST"])])
    app.state.options = options
    store = {"service": "front", "store": options["ledger"]}
    with served(wrapped(app, folder, **store)) as server:
        yield f"{server.url}/checkout"


async def awaiting(request: Request, url: str) -> None:
    """Two calls at the same time, in tasks of their own."""
    transport = AsyncTwoPhaseTransport(**request.app.state.options)
    async with httpx2.AsyncClient(transport=transport, timeout=60) as http:
        await asyncio.gather(http.post(url, json=1), http.post(url, json=2))


async def blocking(request: Request, url: str) -> None:
    """In a thread that asyncio made."""

    def work() -> None:
        with httpx.Client(transport=TwoPhaseTransport(**request.app.state.options), timeout=60) as http:
            http.post(url, json=1)
            with ThreadPoolExecutor(1) as pool:  # A thread has no context of its own, so it has to be carried along.
                pool.submit(carrying(http.post), url, json=2).result()

    await asyncio.to_thread(work)


def rows_of(folder: Path) -> tuple[list[LedgerEntry], list[LedgerEntry], list[LedgerEntry]]:
    return tuple(ledger(folder / name)[::-1] for name in ("checkout.db", "front.db", "orders.db"))  # type: ignore[return-value]


@pytest.mark.req("A-51", "A-50", "P-10.2-c", "P-10.3-b", "P-10.3-c", "P-10.1-a", "P-2-k", "P-0-c", "P-4-a", "P-1-d")
@pytest.mark.parametrize("handler", [awaiting, blocking])
def test_a_handlers_calls_are_children_of_the_call_it_serves(handler: Handler, orders: Shop, tmp_path: Path) -> None:
    with between(tmp_path, orders, handler) as url, caller("httpx2", tmp_path, targets={}) as http:
        said = http.post(url)
    root = said.info["client_correlation_id"]
    mine, front, theirs = rows_of(tmp_path)
    assert [(row.actor, row.parent_reference_id) for row in mine] == [("client", root)]
    served_row, *made = front
    assert (served_row.actor, served_row.client_correlation_id, served_row.parent_reference_id) == (
        "server",
        root,
        root,
    )
    assert [(row.actor, row.source, row.parent_reference_id) for row in made] == [("client", "front", root)] * 2
    assert root not in {row.client_correlation_id for row in made}, "every boundary has a handshake of its own"
    assert {row.client_correlation_id for row in made} == {row.client_correlation_id for row in theirs}
    assert {(row.client_correlation_id, row.server_correlation_id) for row in made} == {
        (row.client_correlation_id, row.server_correlation_id) for row in theirs
    }
    assert all(row.parent_reference_id == row.client_correlation_id for row in theirs)


@pytest.mark.req("A-51")
def test_detached_work_names_its_parent(orders: Shop, tmp_path: Path) -> None:
    with caller("httpx2", tmp_path) as http:
        with calling(parent="inbound-1"):
            one = http.post(f"{orders.url}/orders")
            with calling(requested_ttl_ms=60_000):
                inner = http.post(f"{orders.url}/orders")
        two = http.post(f"{orders.url}/orders", extensions={"twophp": {"parent": "inbound-2"}})
        root = http.post(f"{orders.url}/orders")
    parents = [
        pair(tmp_path / "checkout.db", said.info["client_correlation_id"]).parent_reference_id
        for said in (one, inner, two, root)
    ]
    assert parents == ["inbound-1", "inbound-1", "inbound-2", root.info["client_correlation_id"]]


@pytest.mark.req("A-51")
def test_what_is_said_follows_into_tasks_and_threads(tmp_path: Path, orders: Shop) -> None:
    async def tasks() -> list[Any]:
        transport = AsyncTwoPhaseTransport(**settings(tmp_path))
        async with httpx2.AsyncClient(transport=transport, timeout=60) as http:
            with calling(parent="task"):
                first = asyncio.create_task(http.post(f"{orders.url}/orders"))
            with calling(parent="thread"):
                second = asyncio.create_task(asyncio.to_thread(_post, tmp_path, orders))
            return [(await first).extensions["twophp"], await second]

    infos = asyncio.run(tasks())
    with ExitStack() as stack, calling(parent="carried"):
        pool = stack.enter_context(ThreadPoolExecutor(1))
        infos.append(pool.submit(carrying(_post), tmp_path, orders).result())
        infos.append(pool.submit(_post, tmp_path, orders).result())
    rows = [pair(tmp_path / "checkout.db", info["client_correlation_id"]) for info in infos]
    forgotten = rows[3].client_correlation_id
    assert [row.parent_reference_id for row in rows] == ["task", "thread", "carried", forgotten]


def _post(folder: Path, orders: Shop) -> Any:
    with caller("httpx2", folder) as http:
        return http.post(f"{orders.url}/orders").info


@pytest.mark.parametrize("said", [{"parent": "no spaces"}, {"client_correlation_id": ""}, {"parent": "é"}])
def test_an_id_that_cannot_be_sent_is_refused_at_once(said: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as raised:
        calling(**said)  # type: ignore[arg-type]
    assert raised.value.code == "bad_option"


def test_an_option_that_is_none_is_refused(orders: Shop, tmp_path: Path) -> None:
    with caller("httpx2", tmp_path) as http, pytest.raises(ConfigError) as raised:
        http.post(f"{orders.url}/orders", extensions={"twophp": {"parrent": "x"}})
    assert raised.value.code == "bad_option"
    assert orders.heard == []
