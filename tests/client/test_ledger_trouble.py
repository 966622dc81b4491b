"""A ledger that fails for a while: an unknown outcome is not called a failure, and nothing stays broken."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import httpx2
import pytest

from tests.client.callers import Losing, settings
from tests.client.shop import Shop, served
from tests.patience import PATIENCE_S
from twophp.client import Advice, AsyncTwoPhaseTransport, PhaseError, TwoPhaseTransport, calling
from twophp.core.errors import StoreUnavailable

CALLBACK = "https://checkout.example/told"


def no_disk() -> None:
    raise apsw.IOError("injected")


def no_file(*_args: object, **_more: object) -> None:
    raise StoreUnavailable("the disk is away", code="store_cannot_open")


@pytest.mark.req("A-42")
def test_named_calls_go_on_when_the_disk_is_back(orders: Shop, tmp_path: Path) -> None:
    transport = TwoPhaseTransport(**settings(tmp_path))
    here = transport._machinery._handles.here
    assert here is not None

    def post(name: str) -> Any:
        with calling(client_correlation_id=name):
            return http.post(f"{orders.url}/orders", json={}).extensions["twophp"]["phase"]

    with httpx2.Client(transport=transport, timeout=PATIENCE_S) as http:
        with pytest.MonkeyPatch.context() as trouble:
            trouble.setattr(here._handle._writer, "_sync", no_disk)
            trouble.setattr("twophp.stores.sqlite.blocking.open_connection", no_file)
            with pytest.raises(PhaseError, match="ledger_unavailable"):
                post("one")
        assert post("two") == "COMMITTED"
    assert len(orders.runs) == 1


@pytest.mark.req("A-42")
def test_named_calls_of_tasks_go_on_when_the_disk_is_back(orders: Shop, tmp_path: Path) -> None:
    async def calls() -> Any:
        transport = AsyncTwoPhaseTransport(**settings(tmp_path))

        async def post(name: str) -> Any:
            with calling(client_correlation_id=name):
                return (await http.post(f"{orders.url}/orders", json={})).extensions["twophp"]["phase"]

        async with httpx2.AsyncClient(transport=transport, timeout=PATIENCE_S) as http:
            store: Any = transport._machinery._ledger.store  # type: ignore[union-attr]
            with pytest.MonkeyPatch.context() as trouble:
                trouble.setattr(store._writer, "_sync", no_disk)
                trouble.setattr("twophp.stores.sqlite.store.open_connection", no_file)
                with pytest.raises(PhaseError, match="ledger_unavailable"):
                    await post("one")
            return await post("two")

    assert asyncio.run(calls()) == "COMMITTED"
    assert len(orders.runs) == 1


def test_what_cannot_be_tidied_up_ends_no_heartbeat(
    orders: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_args: object) -> None:
        raise RuntimeError("of no kind that the code foresees")

    monkeypatch.setattr("twophp.client.ledger.purge", broken)
    transport = TwoPhaseTransport(**settings(tmp_path))
    with httpx2.Client(transport=transport, timeout=PATIENCE_S) as http:
        assert http.post(f"{orders.url}/orders", json={}).extensions["twophp"]["phase"] == "COMMITTED"
        assert not transport._machinery._ledger._heart.done()
    assert "rows could not be purged: of no kind" in caplog.text


def test_a_ledger_whose_heartbeat_was_cancelled_can_be_closed(orders: Shop, tmp_path: Path) -> None:
    async def ended() -> None:
        transport = AsyncTwoPhaseTransport(**settings(tmp_path))
        async with httpx2.AsyncClient(transport=transport, timeout=PATIENCE_S) as http:
            await http.post(f"{orders.url}/orders", json={})
            assert transport._machinery._ledger is not None
            transport._machinery._ledger._heart.cancel()  # As a framework does that cancels all tasks, then closes.

    asyncio.run(ended())
    assert not (tmp_path / "checkout.db-wal").exists(), "the last handle has folded the log into the database"


async def plain(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body", False):
        continue
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("unsent", [False, True])
@pytest.mark.req("A-42", "A-43")
def test_a_note_that_cannot_be_let_go_of_is_no_reason_to_call_again(unsent: bool, tmp_path: Path) -> None:
    """The reconciler may send it once more, so the error must not say that nothing was or will be done."""

    def away(_kind: str) -> None:
        here = transport._machinery._handles.here
        assert here is not None
        here._handle.close()

    net = Unsent(away) if unsent else Losing(away)
    transport = TwoPhaseTransport(**settings(tmp_path, transport=net, callback=CALLBACK))
    with (
        served(plain) as server,
        httpx2.Client(transport=transport, timeout=PATIENCE_S) as http,
        pytest.raises(PhaseError) as raised,
    ):
        http.post(f"{server.url}/orders", json={})
    assert (raised.value.code, raised.value.advice) == ("ledger_unavailable", Advice.WAIT)


class Unsent(Losing):
    """Reaches no server, and then the ledger is gone, too."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        assert self._after is not None
        self._after("phase_1")
        raise httpx2.ConnectError(f"no server is at {request.url.host}")
