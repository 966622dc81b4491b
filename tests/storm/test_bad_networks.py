"""Whatever a network does at whichever boundary of a call: the right answer or an honest error, and one run at most."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from tests.client.callers import KINDS, caller, settings
from tests.client.shop import Shop, ledger, shop
from tests.storm.proxy import BOUNDARIES, HOWS, Boundary, Fault, How, proxied
from twophp.asgi import Outgoing
from twophp.client import Advice, PhaseError, TwoPhaseTransport
from twophp.core.intent import Phase
from twophp.core.pairing import Verdict, pair_up
from twophp.ports import Find

PATHS: Final = {"standard": "/orders", "async": "/later", "auto_confirm": "/orders"}
EXCHANGES: Final = {"standard": 2, "async": 3, "auto_confirm": 1}
TIMEOUT_S: Final = 0.4
SOMEWHERE: Final = "https://checkout.example/2php/callback"


async def unknown_name(_host: str, _port: int) -> list[str]:
    """No callback leaves the machine; only the answer itself can say how it went."""
    raise OSError


def in_short(seconds: float) -> None:
    """A moment instead of the whole wait."""
    threading.Event().wait(min(seconds, 0.02))


def faults() -> list[Any]:
    return [
        pytest.param(mode, Fault(exchange, boundary, how), id=f"{mode}-{exchange}-{boundary}-{how}")
        for mode, exchanges in EXCHANGES.items()
        for exchange in range(exchanges)
        for boundary in BOUNDARIES
        for how in HOWS
    ]


def transport(folder: Path, port: int, mode: str, *, require_2php: bool) -> TwoPhaseTransport:
    more = {"callback": SOMEWHERE} if mode == "auto_confirm" else {}
    targets = {f"http://127.0.0.1:{port}": "orders"}
    return TwoPhaseTransport(**settings(folder, targets=targets, require_2php=require_2php, pause=in_short, **more))


def one_call(orders: Shop, folder: Path, mode: str, fault: Fault | None, *, require_2php: bool) -> Any:
    """The answer, or the error that was raised instead, and whether the fault was met."""
    with proxied(int(orders.url.rpartition(":")[2]), fault) as proxy:
        if fault is not None and fault.how == "delay":  # Longer than a moment, shorter than the client's patience.
            threading.Timer(TIMEOUT_S / 4, proxy.go_on.set).start()
        made = transport(folder, proxy.port, mode, require_2php=require_2php)
        with httpx2.Client(transport=made, timeout=TIMEOUT_S) as http:
            try:
                found: Any = http.post(f"http://127.0.0.1:{proxy.port}{PATHS[mode]}", json={"item": 1})
            except (PhaseError, httpx2.TransportError) as error:
                found = error
        return found, proxy.struck.is_set()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One server for all of them: what it has run is looked up by the call."""
    with shop(tmp_path_factory.mktemp("shop"), outgoing=Outgoing(resolver=unknown_name)) as made:
        yield made


@pytest.mark.req("A-42", "P-5.3.3-e", "P-8.1-a")
@pytest.mark.parametrize(("mode", "fault"), faults())
def test_known_servers_are_asked_until_they_answer(mode: str, fault: Fault, door: Shop, tmp_path: Path) -> None:
    runs_before = len(door.runs)
    answer, struck = one_call(door, tmp_path, mode, fault, require_2php=True)
    assert struck or fault.exchange == EXCHANGES[mode] - 1, "the fault was met"
    assert not isinstance(answer, Exception), repr(answer)
    assert answer.extensions["twophp"]["phase"] == "COMMITTED"
    assert answer.status_code == (
        201 if mode == "auto_confirm" else 200
    )  # Draft §5.5: its one answer is the handler's.
    assert len(door.runs) - runs_before == 1, "one run"
    _agree(door, tmp_path)


@pytest.mark.req("A-06", "A-42")
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("how", HOWS)
def test_a_server_that_may_be_plain_is_not_asked_twice(
    boundary: Boundary, how: How, door: Shop, tmp_path: Path
) -> None:
    """Phase 1 to an endpoint nobody knows: if its answer is lost, nobody may send it again, and the caller is told."""
    runs_before = len(door.runs)
    answer, _struck = one_call(door, tmp_path, "standard", Fault(0, boundary, how), require_2php=False)
    ran = len(door.runs) - runs_before
    if isinstance(answer, PhaseError):
        assert (answer.code, answer.advice, answer.phase) == ("answer_lost", Advice.CHECK, None)
        assert ran == 0, "registered at most, and never confirmed"
        assert how != "delay"
    else:
        assert answer.status_code == 200
        assert ran == 1


def _agree(door: Shop, folder: Path) -> None:
    """Exactly two rows of the call, and both say the same."""
    (mine,) = ledger(folder / "checkout.db")
    (call,) = pair_up([mine, *door.rows(Find(mine.client_correlation_id))], read={"orders", "checkout"})
    assert call.verdict is Verdict.PAIRED
    assert [row.phase for row in call.rows] == [Phase.COMMITTED, Phase.COMMITTED]


@pytest.mark.req("A-42", "A-06", "P-8.1-a")
@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_that_is_cut_at_any_byte_is_heard_once_more(kind: str, tmp_path: Path) -> None:
    """The real middleware, one kind of client after the other: together they cut at every third byte."""
    with (
        shop(tmp_path) as orders,
        proxied(int(orders.url.rpartition(":")[2]), None) as proxy,
        caller(kind, tmp_path, pause=lambda _seconds: None) as http,
    ):
        url = f"http://127.0.0.1:{proxy.port}/orders"
        http.post(url)
        calls = 1
        for step in ("orders", "confirm"):
            for at in range(3 * KINDS.index(kind), len(proxy.replies[step]), 3 * len(KINDS)):
                proxy.cut_at = {step: at}
                said = http.post(url, json={step: at})
                calls += 1
                assert proxy.cut_at == {}
                assert (said.status, said.info["phase"]) == (200, "COMMITTED")
                assert json.loads(said.json["sent"]) == {step: at}
        assert len(orders.runs) == calls
