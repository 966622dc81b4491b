"""What services tell on demand and central does not keep: journal, attempts, obligations and leases of a call."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.asgi_frameworks.serving import served, wrapped
from tests.central.rows import row
from tests.central.served import KEY, READING, Central, central
from tests.cli.running import run
from tests.patience import PATIENCE_S
from twophp import current_intent
from twophp.asgi.outgoing import Outgoing
from twophp.central.ingest.pull import management_token
from twophp.client import TwoPhaseTransport
from twophp.delivery.hooks import Hooks, PhaseEvent
from twophp.wire.rows import row_document

CANARY = "canary-payload"


class Orders:
    """A real service: its handler reserves something and may be held up; its hook fails at the first attempt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.may_end = threading.Event()
        self.entered = threading.Event()
        self.hooked = threading.Event()
        self.hooks = Hooks()
        self.hooks.on_phase("COMMITTED", name="tell-stock")(self._hook)

    async def _create(self, _request: Request) -> Response:
        intent = current_intent()
        assert intent is not None
        await intent.obligations.reserve("publish", {"key": f"{CANARY}-key", "body": CANARY})
        self.entered.set()
        await asyncio.to_thread(self.may_end.wait)
        return JSONResponse({"said": CANARY}, 201)

    async def _hook(self, _event: PhaseEvent) -> None:
        self.hooked.set()
        raise RuntimeError(CANARY)

    def app(self) -> Any:
        inner = Starlette(routes=[Route("/orders", self._create, methods=["POST"])])
        token = management_token(KEY, "orders")
        return wrapped(inner, self.folder, management_token=token, outgoing=Outgoing(hooks=self.hooks))

    def call(self, url: str) -> Any:
        """One call, by the service itself: so both sides are in one ledger."""
        ledger = f"sqlite:///{self.folder}/orders.db"
        known: dict[str, Any] = {"targets": {url: "orders"}, "allow_insecure": True}
        with httpx.Client(
            transport=TwoPhaseTransport(ledger=ledger, source="orders", **known), timeout=PATIENCE_S
        ) as http:
            return http.post(f"{url}/orders", content=CANARY.encode(), timeout=PATIENCE_S).extensions["twophp"]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Central]:
    (tmp_path / "c").mkdir()
    with central(tmp_path / "c", silent_ms=1) as running:
        yield running


@pytest.mark.req("A-47", "A-63", "P-9.6-a", "P-9.6-b", "P-13.5-b")
def test_a_service_tells_all_about_a_call_and_nothing_that_was_in_it(
    here: Central, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(tmp_path)
    orders.may_end.set()
    secret, guid = here.join("orders")
    with served(orders.app()) as running:
        here.ask("POST", "/v1/services", secret=secret, json={"pull_url": f"{running.url}/_2php/ledger"})
        ids = orders.call(running.url)
        assert orders.hooked.wait(PATIENCE_S)
        assert here.ask("POST", f"/v1/services/{guid}/pull").json()["rows"] == 2
        path = f"/v1/intents/{ids['client_correlation_id']}/{ids['server_correlation_id']}"
        found = here.get(path)
        assert found["call"]["verdict"] == "PAIRED"
        (told,) = found["told"]
        evidence = told["evidence"]
        assert (told["name"], told["code"]) == ("orders", None)
        assert (
            evidence["intent"] | {"phase": "COMMITTED", "status": 201, "owner": None, "fence": 1} == evidence["intent"]
        )
        assert evidence["call"]["stage"] == "COMMITTED"
        phases = [line["after"] for line in evidence["journal"] if line["kind"] == "intent"]
        assert phases == ["WAITING_CONFIRM", "PROCESSING", "COMMITTED"]
        assert all(re.fullmatch("[0-9a-f]{64}", line["digest"]) for line in evidence["journal"])
        (job,) = evidence["jobs"]
        assert (job["work"], job["name"], job["attempts"]) == ("hook", "tell-stock", 1)
        assert {one["flow"]: one["state"] for one in evidence["obligations"]} == {
            "publish": "Committed",
            "hook": "Committed",
        }
        page = _page(here, ids, ask="1")
        assert CANARY not in page.text + msgspec.json.encode(found).decode()
        assert CANARY.encode() not in here.database()
        for word in ("tell-stock", "Obligations", "publish", "by its clock"):
            assert word in page.text
        assert "Fetch from orders" in _page(here, ids).text
        readers = [_page(here, ids, role=role, ask="1").text for role in READING if role != "operations"]
        assert all("An operator can ask" in text and "tell-stock" not in text for text in readers)
        monkeypatch.setenv("TWOPHP_OPERATOR_TOKEN", here.token("operator", "operations"))
        shown = run("ledger", "show", ids["client_correlation_id"], here.url)
        assert all(word in shown.stdout for word in ("orders, through", "tell-stock", "OBL-002", "fence"))
        monkeypatch.setenv("TWOPHP_OPERATOR_TOKEN", here.token("auditor", "audit"))
        assert "only operations" in run("ledger", "show", ids["client_correlation_id"], here.url).output
        assert [line.path for line in here.do(here.state.store.accesses(limit=20)) if line.path == path] == [path] * 3
    gone = here.get(path)["told"][0]
    assert (gone["evidence"], gone["code"]) == (None, "pull_failed")
    assert "could not be asked" in _page(here, ids, ask="1").text
    assert here.ask("GET", "/v1/intents/nobody/nothing").json()["code"] == "not_found"


def _page(here: Central, ids: Any, *, role: str = "operations", **asked: str) -> httpx.Response:
    pair = {"client": ids["client_correlation_id"], "server": ids["server_correlation_id"]}
    page = here.ask("GET", "/intent", role=role, params=pair | asked)
    assert page.status_code == 200
    return page


@pytest.mark.req("A-54", "P-10.4-d")
def test_a_service_says_who_holds_what_runs_and_until_when(here: Central, tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    secret, guid = here.join("orders")
    with served(orders.app()) as running:
        here.ask("POST", "/v1/services", secret=secret, json={"pull_url": f"{running.url}/_2php/ledger"})
        caller = threading.Thread(target=orders.call, args=(running.url,))
        caller.start()
        assert orders.entered.wait(PATIENCE_S)
        here.ask("POST", f"/v1/services/{guid}/pull")
        silent = here.get("/v1/stalled", processing_older_than_ms=0)
        assert len(silent["processing_past_lease"]) == 1, "no service has been asked"
        assert silent["leases"] is None
        asked = here.get("/v1/stalled", processing_older_than_ms=0, ask_leases=True)
        (lease,) = asked["leases"]
        assert (lease["state"], lease["fence"], asked["processing_past_lease"]) == ("held", 1, [])
        assert lease["owner"]
        assert "more</span>" in here.ask("GET", "/stalled?ask=1").text
        orders.may_end.set()
        caller.join(PATIENCE_S)
        again = here.get("/v1/stalled", processing_older_than_ms=0, ask_leases=True)
        assert [one["state"] for one in again["leases"]] == ["settled"]
        assert here.ask("GET", "/v1/stalled", role="audit", params={"ask_leases": True}).status_code == 403
        assert "Ask for their leases" not in here.ask("GET", "/stalled?ask=1", role="audit").text


def stub(answer: dict[str, Any]) -> Any:
    """A service that answers every pull with this, and more than it was asked for."""

    async def ledger(_request: Request) -> Response:
        return JSONResponse({"name": "depot", "rows": [], "drained": False} | answer)

    return Starlette(routes=[Route("/_2php/ledger", ledger, methods=["POST"])])


FACTS = {
    "client_correlation_id": "client-1",
    "server_correlation_id": "server-1",
    "phase": "PROCESSING",
    "owner": "worker-9",
    "lease_until": "2026-01-01T00:00:00Z",
    "fence": 3,
    "at": "2026-01-01T00:00:07Z",
}
LEASES = [
    ([FACTS, FACTS | {"client_correlation_id": "client-2"}], "ended", None, "ended 7"),
    ([], "unknown", "not_found", "does not know this call"),
    (None, "unknown", "pull_failed", "older than this question"),
    ([FACTS | {"owner": "x" * 300}], "unknown", "pull_failed", "not what a service tells"),
]


@pytest.mark.req("A-54")
@pytest.mark.parametrize(("told", "state", "code", "words"), LEASES)
def test_a_lease_that_ended_is_told_from_one_that_nobody_knows(
    here: Central, told: Any, state: str, code: str | None, words: str
) -> None:
    secret, guid = here.join("depot")
    running_row = row(1, guid, phase="PROCESSING", source="depot", service_endpoint="depot/crates")
    here.push(secret, [running_row])
    with served(stub({} if told is None else {"leases": told}), lifespan="off") as running:
        here.ask("POST", "/v1/services", secret=secret, json={"pull_url": f"{running.url}/_2php/ledger"})
        asked = here.get("/v1/stalled", ask_leases=True)
        assert [(one["state"], one["code"]) for one in asked["leases"]] == [(state, code)]
        assert len(asked["processing_past_lease"]) == 1
        assert words in here.ask("GET", "/stalled?ask=1").text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.req("A-63")
def test_a_service_that_is_pulled_speaks_for_nobody_else(here: Central) -> None:
    """A pushed row in another service's name is refused, and so is a pulled one."""
    secret, guid = here.join("warehouse")
    told = [row("of-its-own", guid, source="warehouse"), row("of-another", guid, source="bank")]
    page = {"rows": [row_document(one) for one in told], "drained": True}
    with served(stub(page), lifespan="off") as running:
        here.ask("POST", "/v1/services", secret=secret, json={"pull_url": f"{running.url}/_2php/ledger"})
        pulled = here.ask("POST", f"/v1/services/{guid}/pull").json()
    assert (pulled["stored"], pulled["refused"]) == (1, 1)
    assert here.get("/v1/entries", source="bank")["rows"] == []
