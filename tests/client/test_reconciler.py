"""A client may die at any moment. The next process takes its calls to the outcome that the server knows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.client.callers import KINDS, HandTime, Losing, caller, settings
from tests.client.shop import Shop, committed, ledger, pair, shop
from tests.patience import PATIENCE_S
from twophp.client import Advice, PhaseError, TwoPhaseTransport, calling
from twophp.core.intent import Phase
from twophp.stores.clock import system_clock
from twophp.stores.sqlite import SQLiteStore

ROOT = Path(__file__).parents[2]
MOMENTS = ("before phase_1", "after phase_1", "before phase_2", "after phase_2", "after the answer")
OTHERS = [("before phase_2", kind) for kind in KINDS if kind != "httpx2"]
LEASE_OVER_MS = 6_000
DAY_MS = 86_400_000


def crashed(folder: Path, url: str, moment: str, name: str = "the-call") -> None:
    """Run a client that dies there."""
    command = [sys.executable, "-m", "tests.client.crashing", str(folder), url, moment, name]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == -9, done.stderr


class Later:
    """A clock that a test can set forward, so that leases and deadlines end without a wait."""

    def __init__(self, by_ms: int = LEASE_OVER_MS) -> None:
        self.by_ms = by_ms

    def __call__(self) -> int:
        return system_clock() + self.by_ms


@pytest.mark.req("A-43", "A-42", "A-49", "P-3.1-a", "P-10.2-d")
@pytest.mark.parametrize(("moment", "kind"), [*((moment, "httpx2") for moment in MOMENTS), *OTHERS])
def test_whenever_it_dies_the_call_comes_to_its_outcome(moment: str, kind: str, orders: Shop, tmp_path: Path) -> None:
    crashed(tmp_path, f"{orders.url}/orders", moment)
    had_row = bool(committed(tmp_path / "checkout.db"))
    assert had_row is not moment.endswith("phase_1"), (
        "the row is there before Phase 2 leaves, and not before Phase 1's answer"
    )
    progress: list[tuple[int, int]] = []
    with caller(kind, tmp_path, clock=Later()) as http:
        done = http.reconcile(progress=lambda *told: progress.append(told))
        again = http.reconcile()
    assert (len(done.settled), done.left, again.settled) == (int(had_row), (), ())
    assert progress == [(1, 1)] * had_row
    assert orders.runs == ["POST /orders"] * had_row, "confirmed as it was about to, and run once"
    if had_row:
        client, server = pair(tmp_path / "checkout.db", "the-call"), pair(tmp_path / "orders.db", "the-call")
        assert (client.phase, client.outcome) == (server.phase, server.outcome) == (Phase.COMMITTED, Phase.COMMITTED)


@pytest.mark.req("A-43", "A-42")
@pytest.mark.parametrize("kind", ["httpx2", *sorted(kind for kind in KINDS if "async" in kind)[:1]])
def test_a_dead_process_calls_are_taken_over_at_once(kind: str, orders: Shop, tmp_path: Path) -> None:
    """No clock is set forward, and no client waits for a lease."""
    crashed(tmp_path, f"{orders.url}/orders", "before phase_2")
    with caller(kind, tmp_path, lease_s=600.0) as http:
        (settled,) = http.reconcile().settled
    assert (settled.phase, orders.runs) == (Phase.COMMITTED, ["POST /orders"])


@pytest.mark.req("A-49", "A-42")
@pytest.mark.parametrize(
    ("moment", "phase"),
    [("before phase_2", Phase.TTL_EXPIRED), ("after phase_2", Phase.COMMITTED), ("after the answer", Phase.COMMITTED)],
)
def test_after_the_deadline_it_only_asks(moment: str, phase: Phase, tmp_path: Path) -> None:
    server_time = Later(0)
    with shop(tmp_path, clock=server_time) as orders:
        crashed(tmp_path, f"{orders.url}/orders", moment)
        runs = list(orders.runs)
        server_time.by_ms = 60_000
        with caller("httpx2", tmp_path, clock=Later(60_000)) as http:
            (settled,) = http.reconcile().settled
        assert orders.lines()[-1] == "GET /orders"
        assert orders.runs == runs
    assert settled.phase == phase
    assert pair(tmp_path / "checkout.db", "the-call").phase is phase


@pytest.mark.req("A-42")
@pytest.mark.parametrize(("moment", "kind"), [*((moment, "httpx2") for moment in MOMENTS[1:]), *OTHERS[:-1]])
def test_the_same_call_made_again_goes_on_where_it_stopped(
    moment: str, kind: str, orders: Shop, tmp_path: Path
) -> None:
    crashed(tmp_path, f"{orders.url}/orders", moment)
    with caller(kind, tmp_path, clock=Later()) as http, calling(client_correlation_id="the-call"):
        one, two = http.post(f"{orders.url}/orders"), http.post(f"{orders.url}/orders")
    assert (one.status, one.info["phase"]) == (two.status, two.info["phase"]) == (200, "COMMITTED")
    assert one.json == two.json
    assert len(orders.runs) == 1


def test_an_id_is_not_lent_to_another_request(orders: Shop, tmp_path: Path) -> None:
    with caller("httpx2", tmp_path) as http, calling(client_correlation_id="order-4711"):
        http.post(f"{orders.url}/orders")
        with pytest.raises(PhaseError) as raised:
            http.post(f"{orders.url}/orders", json={"item": 2})
    assert (raised.value.code, raised.value.advice) == ("id_reused", Advice.FIX)
    assert len(orders.heard) == 2


def test_a_call_that_a_live_process_drives_is_left_alone(orders: Shop, tmp_path: Path) -> None:
    orders.may_end.clear()
    entered = threading.Event()
    orders.on_heard = lambda heard: entered.set() if heard.path.endswith("/confirm") else None
    command = [sys.executable, "-m", "tests.client.crashing", str(tmp_path), f"{orders.url}/orders", "driving"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as living:  # noqa: S603
        assert living.stdout is not None
        assert living.stdout.readline() == "driving\n"
        assert entered.wait(30)
        for _ in range(4):  # The lease it began with would be over, were it not renewed three times in it.
            assert living.stdout.readline() == "renewed\n"
        with caller("httpx2", tmp_path) as http:
            done = http.reconcile()
        assert (done.settled, done.left) == ((), ())
        assert len(orders.heard) == 2
        orders.may_end.set()
        assert set(living.stdout) - {"renewed\n"} == {"COMMITTED\n"}
    assert living.returncode == 0
    assert len(orders.runs) == 1


def test_two_processes_may_reconcile_at_the_same_time(orders: Shop, tmp_path: Path) -> None:
    crashed(tmp_path, f"{orders.url}/orders", "before phase_2")
    with caller("httpx2", tmp_path, clock=Later()) as one, caller("httpx", tmp_path, clock=Later()) as other:
        found: list[Any] = []
        threads = [threading.Thread(target=lambda c=c: found.append(c.reconcile())) for c in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len([settled for done in found for settled in done.settled]) == 1
    assert len(orders.runs) == 1


def test_who_was_overtaken_does_not_give_up_what_another_confirmed(orders: Shop, tmp_path: Path) -> None:
    """A process is stopped between Phase 1 and Phase 2 for so long that another takes its call over and confirms it."""
    time, net = HandTime(), Losing()
    transport = TwoPhaseTransport(**settings(tmp_path, transport=net, steady=time, pause=time.pause))
    here = transport._machinery._handles.here
    assert here is not None
    record = here.record

    def stopped_after_the_row(client_id: str, command: Any, request: Any = None) -> Any:
        decision = record(client_id, command, request)
        if decision.call is not None and decision.call.stage == "WAITING_CONFIRM" and not time.waits:
            time.waits.append(0)
            with caller("httpx2", tmp_path, clock=Later()) as other:
                assert len(other.reconcile().settled) == 1
            time.now += 60_000
        return decision

    here.record = stopped_after_the_row  # type: ignore[method-assign, assignment]
    with httpx2.Client(transport=transport, timeout=PATIENCE_S) as http:
        response = http.post(f"{orders.url}/orders")
    assert response.extensions["twophp"]["phase"] == "COMMITTED"
    assert orders.runs == ["POST /orders"]
    assert net.sent == ["phase_1", "status"], "too late to confirm, and not its own to give up"


@pytest.mark.req("A-42")
def test_what_cannot_be_found_out_is_asked_about_again_less_and_less_often(tmp_path: Path) -> None:
    clock = Later()
    with shop(tmp_path) as orders:
        crashed(tmp_path, f"{orders.url}/orders", "after phase_2")
    with caller("httpx2", tmp_path, clock=clock) as http:  # The server is gone.
        (left,) = http.reconcile().left
        assert (left.code, left.phase, left.is_open) == ("no_answer", "WAITING_CONFIRM", True)
        assert http.reconcile().left == (), "not due again yet"
        waits = []
        for _ in range(4):
            began = clock.by_ms
            while not http.reconcile().left:
                clock.by_ms += 500
            waits.append(clock.by_ms - began)
    assert waits == sorted(waits)
    assert waits[-1] > 2 * waits[0]


@pytest.mark.req("P-13.2-a")
def test_the_reconciler_proves_who_asks_with_fresh_credentials(tmp_path: Path) -> None:
    def identify(head: Any) -> str:
        assert head.headers.get("authorization", "").startswith("Bearer")
        return "checkout"

    with shop(tmp_path, identify=identify) as orders:
        net = Losing(phase_2=99, status=99)
        options = {"transport": net, "patience_s": 0.0}
        with caller("httpx2", tmp_path, **options) as http, pytest.raises(PhaseError):
            http.post(f"{orders.url}/orders", headers={"Authorization": "Bearer one"})
        with caller("httpx2", tmp_path, clock=Later()) as http:
            (left,) = http.reconcile().left
            assert left.code == "confirm_refused"
        with caller(
            "httpx2", tmp_path, clock=Later(60_000), credentials=lambda _url: {"Authorization": "Bearer 2"}
        ) as http:
            (settled,) = http.reconcile().settled
    assert settled.phase == "COMMITTED"


@pytest.mark.parametrize("kind", ["httpx2", "httpx2 async", "requests"])
def test_a_call_that_cannot_be_asked_about_is_in_nobodys_way(
    kind: str, orders: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def credentials(url: str) -> dict[str, str]:
        return {orders.url: {"Authorization": "Bearer one"}}[url.rpartition("/")[0]]

    with shop(tmp_path / "other") as other:
        for url in (other.url, orders.url):  # The one without credentials is due before the other.
            crashed(tmp_path, f"{url}/orders", "before phase_2", url.rpartition(":")[2])
        with caller(kind, tmp_path, clock=Later(), credentials=credentials) as http:
            done = http.reconcile()
    assert [(call.phase, call.code) for call in done.left] == [("WAITING_CONFIRM", "not_asked")]
    assert [call.phase for call in done.settled] == ["COMMITTED"]
    assert (orders.runs, other.runs) == (["POST /orders"], [])
    assert any("not_asked" in record.message and "KeyError" in record.message for record in caplog.records)


def test_it_happens_by_itself_at_the_start(orders: Shop, tmp_path: Path) -> None:
    crashed(tmp_path, f"{orders.url}/orders", "before phase_2")
    ran = threading.Event()
    orders.on_heard = lambda heard: ran.set() if heard.path.endswith("/confirm") else None
    with caller("httpx2", tmp_path, clock=Later(), reconcile_every_s=30.0):
        assert ran.wait(30)
    assert pair(tmp_path / "checkout.db", "the-call").phase is Phase.COMMITTED


def test_what_has_ended_is_forgotten_in_time_and_its_row_stays(orders: Shop, tmp_path: Path) -> None:
    with caller("httpx2", tmp_path) as http:
        said = http.post(f"{orders.url}/orders")
    with caller("httpx2", tmp_path, clock=Later(31 * DAY_MS)) as http:
        assert http.reconcile().settled == ()
    assert [row.phase for row in ledger(tmp_path / "checkout.db")] == [Phase.COMMITTED]
    assert pair(tmp_path / "checkout.db", said.info["client_correlation_id"]).actor == "client"


@pytest.mark.req("A-59", "A-57")
@pytest.mark.parametrize(("kept_ms", "left"), [(40 * DAY_MS, 0), (None, 1)])
def test_a_row_goes_when_the_central_ledger_has_had_it_for_long_enough(
    kept_ms: int | None, left: int, orders: Shop, tmp_path: Path
) -> None:
    path = tmp_path / "checkout.db"

    async def arrive() -> None:
        async with SQLiteStore(str(path)) as store:
            await store.synced(await store.changes(10), system_clock())

    with caller("httpx2", tmp_path) as http:
        http.post(f"{orders.url}/orders")
    asyncio.run(arrive())
    with caller("httpx2", tmp_path, clock=Later(39 * DAY_MS), ledger_retention_ms=kept_ms) as http:
        http.reconcile()  # The call itself is forgotten.
    with caller("httpx2", tmp_path, clock=Later(39 * DAY_MS), ledger_retention_ms=kept_ms):
        pass
    assert len(ledger(path)) == 1
    with caller("httpx2", tmp_path, clock=Later(41 * DAY_MS), ledger_retention_ms=kept_ms):
        pass
    assert len(ledger(path)) == left


@pytest.mark.req("A-42", "A-83", "A-49")
@pytest.mark.parametrize(
    ("days", "phase", "code"), [(0, Phase.TTL_EXPIRED, "unknown_intent"), (2, Phase.WAITING_CONFIRM, "forgotten")]
)
def test_that_nothing_is_there_is_believed_only_while_a_server_must_remember(
    days: int, phase: Phase, code: str | None, tmp_path: Path
) -> None:
    with shop(tmp_path / "first") as first:
        crashed(tmp_path, f"{first.url}/orders", "before phase_2")
        with shop(tmp_path / "empty") as empty:
            net = Elsewhere(empty.url)
            with caller("httpx2", tmp_path, transport=net, clock=Later(60_000 + days * DAY_MS)) as http:
                done = http.reconcile()
    assert [found.code for found in (*done.settled, *done.left)] == [code]
    assert pair(tmp_path / "checkout.db", "the-call").phase is phase


class Elsewhere(httpx2.HTTPTransport):
    """Leads every request to another instance."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._port = httpx2.URL(url).port

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.url = request.url.copy_with(port=self._port)
        return super().handle_request(request)
