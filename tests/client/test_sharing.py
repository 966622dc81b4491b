"""Transports on one ledger share its handles: many cost what one costs, and none closes what another uses."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import requests

from tests.client.callers import caller, settings
from tests.client.shop import Shop, committed
from tests.client.test_reconciler import LEASE_OVER_MS, Later, crashed
from tests.patience import PATIENCE_S
from twophp.client import AsyncTwoPhaseTransport, CallbackReceiver, TwoPhaseTransport
from twophp.client.requests import TwoPhaseAdapter
from twophp.client.sharing import Visitor, Visits
from twophp.core.errors import ConfigError, StoreUnavailable

LINUX_ONLY = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")

COUNTING = """
import asyncio, os, sys, threading
import httpx2, requests
from twophp.client import AsyncTwoPhaseTransport, TwoPhaseTransport
from twophp.client.requests import TwoPhaseAdapter
options = dict(ledger="sqlite:///checkout.db", source="checkout", allow_insecure=True, reconcile_every_s=60)

def files():
    return len(os.listdir("/proc/self/fd"))

def threads():  # The store starts and ends one more of its own when commits are slow.
    return sorted(thread.name for thread in threading.enumerate()[1:] if not thread.name.startswith("twophp-commit"))

before = files()
"""


def run(folder: Path, program: str, *args: str) -> str:
    """What a process of its own prints, so that nothing else is counted."""
    command = [sys.executable, "-W", "ignore", "-c", COUNTING + program, *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return done.stdout


@LINUX_ONLY
def test_fifty_transports_cost_what_one_costs(tmp_path: Path) -> None:
    program = """
made = [TwoPhaseAdapter(**options)]
one = files()
made += [kind(**options) for kind in (TwoPhaseAdapter, TwoPhaseTransport) * 25]
print(files() == one <= before + 14, threads())
for transport in made:
    transport.close()
print(files() == before, threads())
"""
    assert run(tmp_path, program) == "True ['twophp-checkout', 'twophp-reconciler']\nTrue []\n"


@LINUX_ONLY
def test_fifty_asynchronous_transports_of_a_loop_cost_what_one_costs(tmp_path: Path) -> None:
    program = """
async def main():
    none = files()
    made = [AsyncTwoPhaseTransport(**options)]
    await made[0].__aenter__()
    one = files()
    made += [AsyncTwoPhaseTransport(**options) for _ in range(50)]
    await asyncio.gather(*(transport.__aenter__() for transport in made[1:]))
    print(files() == one > none, threads())
    await asyncio.gather(*(transport.aclose() for transport in made))
    print(files() == none)

asyncio.run(main())
"""
    assert run(tmp_path, program) == "True []\nTrue\n"


@LINUX_ONLY
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_child_of_a_fork_shares_among_its_own(orders: Shop, tmp_path: Path) -> None:
    program = """
clients = [httpx2.Client(transport=TwoPhaseTransport(**options)) for _ in range(5)]
child = os.fork()
for client in clients:
    assert client.post(sys.argv[1], json={}).extensions["twophp"]["phase"] == "COMMITTED"
ours = [name for name in threads() if name in ("twophp-checkout", "twophp-reconciler")]
assert len(ours) == 2, threads()
for client in clients:
    client.close()
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    os._exit(0)
"""
    run(tmp_path, program, f"{orders.url}/orders")
    assert len(orders.runs) == 10


def test_closing_one_transport_leaves_the_others_at_work(orders: Shop, tmp_path: Path) -> None:
    orders.may_end.clear()
    entered = threading.Event()
    orders.on_heard = lambda heard: entered.set() if heard.path.endswith("/confirm") else None
    answers: list[Any] = []
    with caller("requests", tmp_path) as going_on:
        transport = TwoPhaseTransport(**settings(tmp_path))
        with httpx2.Client(transport=transport, timeout=PATIENCE_S) as client:
            under_way = threading.Thread(target=lambda: answers.append(going_on.post(f"{orders.url}/orders")))
            under_way.start()
            assert entered.wait(PATIENCE_S)
            transport.close()
            orders.may_end.set()
            under_way.join()
            with pytest.raises(StoreUnavailable) as raised:
                client.post(f"{orders.url}/orders")
            with pytest.raises(StoreUnavailable):
                transport.reconcile()
        assert raised.value.code == "store_closed"
        assert answers[0].info["phase"] == going_on.post(f"{orders.url}/orders").info["phase"] == "COMMITTED"


@pytest.mark.req("A-43")
@pytest.mark.parametrize("kind", ["httpx2", "requests", "httpx2 async"])
def test_what_a_transport_did_is_durable_when_it_is_closed(kind: str, orders: Shop, tmp_path: Path) -> None:
    async def beside(work: Any) -> None:
        async with AsyncTwoPhaseTransport(**settings(tmp_path)):
            await work

    async def post() -> None:
        async with httpx2.AsyncClient(
            transport=AsyncTwoPhaseTransport(**settings(tmp_path)), timeout=PATIENCE_S
        ) as http:
            await http.post(f"{orders.url}/orders", json={})
        assert [row[-1] for row in committed(tmp_path / "checkout.db")] == ["COMMITTED"]

    if kind == "httpx2 async":
        asyncio.run(beside(post()))
        return
    with caller(kind, tmp_path) as _another:
        with caller(kind, tmp_path) as http:
            http.post(f"{orders.url}/orders")
        assert [row[-1] for row in committed(tmp_path / "checkout.db")] == ["COMMITTED"]


def test_one_thread_goes_on_reconciling_for_those_that_are_left(orders: Shop, tmp_path: Path) -> None:
    options = settings(tmp_path, clock=Later(), reconcile_every_s=0.05)
    first, second = TwoPhaseTransport(**options), TwoPhaseAdapter(**options)
    first.close()
    ran = threading.Event()
    orders.on_heard = lambda heard: ran.set() if heard.path.endswith("/confirm") else None
    try:
        crashed(tmp_path, f"{orders.url}/orders", "before phase_2")
        assert ran.wait(PATIENCE_S)
    finally:
        second.close()


def test_a_transport_that_joins_visits_at_once_with_its_own_connections(orders: Shop, tmp_path: Path) -> None:
    """However long the interval of those that were there before: they may not even have the credentials."""
    clock, visited = Later(), threading.Event()
    with caller("requests", tmp_path, clock=clock, reconcile_every_s=3_600.0):
        crashed(tmp_path, f"{orders.url}/orders", "before phase_2")
        clock.by_ms += LEASE_OVER_MS

        class Net(httpx2.HTTPTransport):
            def handle_request(self, request: httpx2.Request) -> httpx2.Response:
                visited.set()
                return super().handle_request(request)

        with caller("httpx2", tmp_path, clock=clock, reconcile_every_s=3_600.0, transport=Net()):
            assert visited.wait(PATIENCE_S)


@pytest.mark.parametrize("kind", ["requests", "httpx2"])
def test_the_first_visit_may_be_over_before_the_transport_is_made(
    orders: Shop, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that reconciles may be the quicker one."""
    clock = Later()
    crashed(tmp_path, f"{orders.url}/orders", "before phase_2")
    clock.by_ms += LEASE_OVER_MS
    join = Visits.join

    def visit_then_join(visits: Visits, visitor: Visitor) -> None:
        visitor.visit()
        join(visits, visitor)

    monkeypatch.setattr(Visits, "join", visit_then_join)
    with caller(kind, tmp_path, clock=clock, reconcile_every_s=3_600.0):
        assert any(heard.path.endswith("/confirm") for heard in orders.heard)
    assert "could not be reconciled" not in caplog.text


def test_a_transport_may_be_closed_by_its_own_visit(orders: Shop, tmp_path: Path) -> None:
    crashed(tmp_path, f"{orders.url}/orders", "before phase_2")
    made: list[TwoPhaseTransport] = []
    may_close, closed = threading.Event(), threading.Event()

    def credentials(_url: str) -> dict[str, str]:
        may_close.wait()
        made[0].close()
        closed.set()
        raise LookupError("there are none")

    with caller("httpx2", tmp_path, clock=(clock := Later())):  # Keeps the handles open.
        options = settings(tmp_path, clock=clock, credentials=credentials, reconcile_every_s=60.0)
        made.append(TwoPhaseTransport(**options))
        may_close.set()
        assert closed.wait(PATIENCE_S)


def test_a_file_that_took_anothers_place_is_not_taken_for_it(orders: Shop, tmp_path: Path) -> None:
    with caller("httpx2", tmp_path) as http:
        http.post(f"{orders.url}/orders")
        for path in tmp_path.glob("checkout.db*"):
            path.rename(path.with_name(f"old-{path.name}"))
        with caller("httpx2", tmp_path) as other:
            other.post(f"{orders.url}/orders")
        assert len(committed(tmp_path / "checkout.db")) == 1


def test_a_path_is_the_same_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    made = [
        TwoPhaseTransport(**settings(tmp_path, ledger=f"sqlite:///{path}"))
        for path in ("checkout.db", tmp_path / "checkout.db", tmp_path / "link" / "checkout.db")
    ]
    assert len({id(transport._machinery._ledger) for transport in made}) == 1
    for transport in made:
        transport.close()


def test_those_that_disagree_about_the_ledger_do_not_share_it(tmp_path: Path) -> None:
    different: list[dict[str, Any]] = [
        {},
        {"lease_s": 9.0},
        {"clock": Later()},
        {"ledger_retention_ms": None},
        {"central": "http://127.0.0.1:9", "central_token": "hush"},
    ]
    alike: list[dict[str, Any]] = [{"patience_s": 1.0}, {"reconcile_every_s": 60.0}, {"targets": {}}, {"resubmit": 1}]
    made = [TwoPhaseTransport(**settings(tmp_path, **changes)) for changes in different + alike]
    assert len({id(transport._machinery._ledger) for transport in made}) == len(different)
    with pytest.raises(ConfigError) as raised:
        TwoPhaseTransport(**settings(tmp_path, source="another"))
    assert raised.value.code == "other_service"
    for transport in made:
        transport.close()


def test_ledgers_in_memory_are_each_transports_own(orders: Shop, tmp_path: Path) -> None:
    one, other = (TwoPhaseTransport(**settings(tmp_path, ledger="memory:", source=name)) for name in ("one", "other"))
    for transport in (one, other):
        with httpx.Client(transport=transport, timeout=PATIENCE_S) as http:
            assert http.post(f"{orders.url}/orders").extensions["twophp"]["phase"] == "COMMITTED"


def test_a_receiver_shares_with_the_transport_of_its_loop(tmp_path: Path) -> None:
    async def both() -> None:
        async with AsyncTwoPhaseTransport(**settings(tmp_path)) as transport:
            options = settings(tmp_path)
            async with CallbackReceiver(**options) as receiver:
                assert receiver._ledger is transport._machinery._ledger
            assert transport._machinery._ledger is not None
            assert transport._machinery._ledger.is_alive

    asyncio.run(both())


def test_loops_have_ledgers_of_their_own(tmp_path: Path) -> None:
    async def opened() -> Any:
        transport = AsyncTwoPhaseTransport(**settings(tmp_path))
        await transport.__aenter__()
        return transport._machinery._ledger

    with asyncio.Runner() as one, asyncio.Runner() as other:
        assert one.run(opened()) is not other.run(opened())


def test_many_threads_open_and_close_at_the_same_time(orders: Shop, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(3):
                with requests.Session() as session:
                    session.mount("http://", TwoPhaseAdapter(**settings(tmp_path, reconcile_every_s=60.0)))
                    assert session.post(f"{orders.url}/orders").twophp["phase"] == "COMMITTED"  # type: ignore[attr-defined]
        except BaseException as error:  # noqa: BLE001 - told below.
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(orders.runs) == 18
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {"twophp-checkout", "twophp-reconciler"} & left


@pytest.mark.req("A-42")
def test_who_leaves_does_not_wait_for_those_who_join_meanwhile() -> None:
    visits, visiting, may_end = Visits(), threading.Event(), threading.Event()

    def leave_within() -> None:
        visits.leave(first)
        visiting.set()
        may_end.wait()

    first, second, third = Visitor(60.0, leave_within), Visitor(60.0, lambda: None), Visitor(60.0, lambda: None)
    visits.join(first)
    assert visiting.wait(30)
    visits.join(second)
    leaving = threading.Thread(target=visits.leave, args=(second,), daemon=True)
    leaving.start()
    leaving.join(0.1)  # The thread that reconciles is still busy.
    visits.join(third)
    may_end.set()
    leaving.join(30)
    assert not leaving.is_alive()
    visits.leave(third)
    visits.leave(third)  # Once more changes nothing.
