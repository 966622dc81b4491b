"""What each tier is for: the service's own ledger decides, rows alone travel, the central ledger puts them together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.asgi_frameworks.serving import Served, served, wrapped
from tests.central.served import Central, central
from tests.client.shop import Heard, Shop, tapped
from tests.patience import PATIENCE_S
from twophp.client import AsyncTwoPhaseTransport, TwoPhaseTransport
from twophp.wire.fields import NAMES

CALLS = {"A": ("B1", "B2", "B3"), "B1": ("C1",), "B2": ("D1",), "B3": ("E1",), "C1": (), "D1": (), "E1": ()}
USUAL = {"host", "accept", "accept-encoding", "connection", "user-agent", "content-length", "content-type"}
CLIENT_ID = "5a1f0d6e-8f0c-4a53-9a0e-000000000001"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Central]:
    (tmp_path / "c").mkdir()
    with central(tmp_path / "c") as running:
        yield running


class Chain:
    """The draft's seven services, each with its own ledger, and every request that any of them heard."""

    def __init__(self, folder: Path, here: Central) -> None:
        self.folder = folder
        self.here = here
        self.urls: dict[str, str] = {}
        self.heard: list[Heard] = []

    def _made_by(self, name: str) -> dict[str, Any]:
        targets = {url: callee for callee, url in self.urls.items()}
        return {
            "ledger": f"sqlite:///{self.folder}/{name}.db",
            "source": name,
            "targets": targets,
            "allow_insecure": True,
        }

    @contextmanager
    def open(self) -> Iterator[None]:
        """All of them, the last ones first: a caller has to know its callees."""
        with ExitStack() as stack:
            for name in reversed(CALLS):
                self.urls[name] = stack.enter_context(self._service(name)).url
            yield

    @contextmanager
    def _service(self, name: str) -> Iterator[Served]:
        async def task(_request: Request) -> Response:
            async with httpx.AsyncClient(
                transport=AsyncTwoPhaseTransport(**self._made_by(name)), timeout=PATIENCE_S
            ) as http:
                for callee in CALLS[name]:
                    assert (await http.post(f"{self.urls[callee]}/tasks", json={})).status_code == 200
            return JSONResponse({})

        shop = Shop(self.folder)
        shop.heard = self.heard
        app = Starlette(routes=[Route("/tasks", task, methods=["POST"])])
        token = self.here.token(name, "service")
        store = f"sqlite:///{self.folder}/{name}.db"
        with served(
            tapped(
                wrapped(app, self.folder, service=name, store=store, central=self.here.url, central_token=token), shop
            )
        ) as running:
            yield running

    def run(self) -> str:
        token = self.here.token("client", "service")
        made_by = self._made_by("client") | {"central": self.here.url, "central_token": token}
        with httpx.Client(transport=TwoPhaseTransport(**made_by), timeout=PATIENCE_S) as http:
            answer = http.post(f"{self.urls['A']}/tasks", json={}, timeout=PATIENCE_S)
        assert answer.status_code == 200
        id_: str = answer.extensions["twophp"]["client_correlation_id"]
        return id_


@pytest.mark.req("P-4-b", "P-10.1-b", "P-10.3-a")
def test_the_tree_is_rebuilt_from_ledgers_and_no_further_header(here: Central, tmp_path: Path) -> None:
    chain = Chain(tmp_path, here)
    with chain.open():
        root = chain.run()
    tree = here.get(f"/v1/trees/{root}")
    assert (tree["rows"], len(tree["calls"]), tree["complete"]) == (14, 7, True)
    assert [call["depth"] for call in tree["calls"]] == [0, 1, 1, 1, 2, 2, 2]
    sent = {name for heard in chain.heard for name in heard.headers}
    assert len(chain.heard) == 14, "two phases of seven calls"
    assert sent - USUAL <= {name.lower() for name in NAMES}
    assert not any("parent" in name or "trace" in name for name in sent)


@pytest.mark.req("P-2-g", "P-9.4-b")
def test_what_the_central_ledger_says_does_not_change_what_the_service_decides(here: Central, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    settings = {"central": here.url, "central_token": here.token("orders", "service"), "central_events": True}
    with served(wrapped(shop.app, tmp_path, **settings)) as running:
        headers = {"DTT-2PHP-Enabled": "true", "DTT-2PHP-Client-Correlation-ID": CLIENT_ID}
        registered = httpx.post(f"{running.url}/orders", headers=headers, content=b"{}", timeout=PATIENCE_S)
        until_it_arrives(here)
        database = apsw.Connection(str(here.folder / "central.db"))
        database.setbusytimeout(PATIENCE_S * 1_000)
        database.execute("UPDATE entry SET phase = 'ABANDONED', outcome = 'ABANDONED'")
        database.close()
        assert here.get("/v1/entries")["rows"][0]["phase"] == "ABANDONED", "edited by hand"
        server_id = registered.headers["DTT-2PHP-Server-Correlation-ID"]
        confirmed = httpx.post(
            f"{running.url}/orders/confirm",
            headers=headers | {"DTT-2PHP-Server-Correlation-ID": server_id},
            timeout=PATIENCE_S,
        )
        assert (confirmed.status_code, len(shop.runs)) == (200, 1)


@pytest.mark.req("P-9.5-f", "P-9.4-a")
def test_a_row_is_published_as_it_is_written_and_nobody_waits_for_it(here: Central, tmp_path: Path) -> None:
    """Long before the next batch; and while central is away, requests are answered as ever."""
    shop = Shop(tmp_path)
    token = here.token("orders", "service")
    settings = {"central": here.url, "central_token": token, "central_events": True, "central_interval_s": 3_600.0}
    headers = {"DTT-2PHP-Enabled": "true", "DTT-2PHP-Client-Correlation-ID": CLIENT_ID}
    with served(wrapped(shop.app, tmp_path, **settings)) as running:
        assert (
            httpx.post(f"{running.url}/orders", headers=headers, content=b"{}", timeout=PATIENCE_S).status_code == 200
        )
        until_it_arrives(here)
    (tmp_path / "away").mkdir()
    away = settings | {"central": "http://127.0.0.1:9", "store": f"sqlite:///{tmp_path}/away/orders.db"}
    with served(wrapped(shop.app, tmp_path, **away)) as running:
        known: dict[str, Any] = {"targets": {running.url: "orders"}, "allow_insecure": True}
        ledger = f"sqlite:///{tmp_path}/checkout.db"
        with httpx.Client(
            transport=TwoPhaseTransport(ledger=ledger, source="checkout", **known), timeout=PATIENCE_S
        ) as http:
            answers = [http.post(f"{running.url}/orders", content=b"{}").status_code for _ in range(5)]
    assert answers == [200] * 5


def until_it_arrives(here: Central) -> None:
    """The live feed brings it; the test does not poll."""
    arrived = threading.Event()
    with here.http.stream(
        "GET", f"{here.url}/v1/events?after=0", headers={"Authorization": f"Bearer {here.token('watcher', 'audit')}"}
    ) as feed:
        for line in feed.iter_lines():
            if line.startswith("event: row"):
                arrived.set()
                break
    assert arrived.is_set()
