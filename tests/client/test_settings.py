"""What cannot work is refused at once; what must not be sent is not sent; what is closed lets go of everything."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from math import inf
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

from tests.client.callers import Forgetful, caller, settings
from tests.client.shop import Shop, served
from tests.delivery.tls_server import Authority
from tests.patience import PATIENCE_S
from twophp.client import Advice, AsyncTwoPhaseTransport, PhaseError, TwoPhaseTransport, calling
from twophp.core.errors import ConfigError, StoreUnavailable
from twophp.wire.targets import target_of

BAD: list[dict[str, Any]] = [
    {"source": ""},
    {"resubmit": -1},
    {"requested_ttl_ms": 0},
    {"margin_ms": -1},
    {"confirm_suffix": "confirm"},
    {"patience_s": -1},
    {"poll_limit_s": 0},
    {"max_body_bytes": 0},
    {"lease_s": 0},
    {"reconcile_every_s": 0},
    {"callback": "http://checkout.example/told"},
    {"allow_insecure": "false"},  # Any text counts as true.
    {"require_2php": 1},
    {"patience_s": "5"},
    {"source": None},
    {"resubmit": True},
    {"patience_s": inf},
    {"poll_limit_s": inf},
    {"lease_s": inf},
    {"lease_s": 1e-9},  # Its heartbeat would never rest.
    {"reconcile_every_s": 1e10},
    {"requested_ttl_ms": 10**30},
    {"ledger_retention_ms": 10**30},
]

BAD_OPTIONS: list[dict[str, Any]] = [
    {"parent": 5},
    {"client_correlation_id": b"order-4711"},
    {"client_correlation_id": "order 4711"},
    {"requested_ttl_ms": "5"},
    {"requested_ttl_ms": 0},
    {"requested_ttl_ms": 1.5},
    {"requested_ttl_ms": 10**30},
    {"resubmit": True},
    {"resubmit": -1},
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: next(iter(bad)))
def test_a_setting_that_cannot_work_is_refused(bad: dict[str, Any], tmp_path: Path) -> None:
    for kind in (TwoPhaseTransport, AsyncTwoPhaseTransport):
        with pytest.raises(ConfigError) as raised:
            kind(**settings(tmp_path, **bad))
        assert raised.value.code == "bad_setting"


def test_keys_that_cannot_be_read_are_said_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not by the first request that has to be sealed, which is any time later."""
    for kind in (TwoPhaseTransport, AsyncTwoPhaseTransport):
        with pytest.raises(ConfigError, match="keys=") as raised:
            kind(**settings(tmp_path, keys="hush"))
        assert (raised.value.code, "hush" in str(raised.value)) == ("bad_key_ring", False)
    monkeypatch.setenv("TWOPHP_KEYS", "hush")
    for kind in (TwoPhaseTransport, AsyncTwoPhaseTransport):
        with pytest.raises(ConfigError, match="TWOPHP_KEYS"):
            kind(**settings(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", BAD_OPTIONS, ids=str)
def test_an_option_that_cannot_work_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        calling(**bad)
    assert raised.value.code == "bad_option"


def test_a_ledger_is_one_services_own(tmp_path: Path) -> None:
    TwoPhaseTransport(**settings(tmp_path)).close()
    with pytest.raises(ConfigError) as raised:
        TwoPhaseTransport(**settings(tmp_path, source="another"))
    assert raised.value.code == "other_service"
    with pytest.raises(ConfigError) as raised:
        TwoPhaseTransport(**settings(tmp_path, ledger="nosuch://"))
    assert raised.value.code == "unknown_store"


@pytest.mark.req("P-13.6-a", "P-13.6-b", "A-64")
def test_plain_http_is_refused_unless_it_is_asked_for(kind: str, orders: Shop, tmp_path: Path) -> None:
    with caller(kind, tmp_path, allow_insecure=False) as http:
        with pytest.raises(PhaseError) as raised:
            http.post(f"{orders.url}/orders")
        assert http.get(f"{orders.url}/orders/1").status_code == 201, "the transport passes what is no mutation"
    assert (raised.value.code, raised.value.advice) == ("tls_required", Advice.FIX)
    assert orders.lines() == ["GET /orders/1"]


def test_a_server_that_is_not_trusted_was_sent_nothing(kind: str, tmp_path: Path) -> None:
    async def nobody(_scope: Any, _receive: Any, _send: Any) -> None:
        pass

    Authority().server(tmp_path, "localhost")
    certificate = str(tmp_path / "localhost.pem")
    with (
        served(nobody, ssl_certfile=certificate, lifespan="off") as server,
        caller(kind, tmp_path) as http,
        pytest.raises(Exception, match=r"(?i)certificate.verify.failed") as raised,
    ):
        http.post(f"https://localhost:{server.port}/orders")
    assert not isinstance(raised.value, PhaseError), "as ever, it is the library's own error"


def test_a_body_has_a_bound(kind: str, orders: Shop, tmp_path: Path) -> None:
    with caller(kind, tmp_path, max_body_bytes=1_000) as http, pytest.raises(PhaseError) as raised:
        http.post(f"{orders.url}/orders", json={"item": "x" * 1_000})
    assert (raised.value.code, raised.value.advice) == ("body_too_large", Advice.FIX)
    assert orders.heard == []


def test_a_phase_error_is_no_error_of_an_http_library(orders: Shop, tmp_path: Path) -> None:
    """A retry on a library's errors would make a second call."""
    with caller("httpx2", tmp_path, allow_insecure=False) as http, pytest.raises(PhaseError) as raised:
        http.post(f"{orders.url}/orders")
    assert not isinstance(raised.value, (httpx.HTTPError, httpx2.HTTPError, OSError))
    assert "tls" in str(raised.value).lower() or "https" in str(raised.value)


@pytest.mark.req("A-55")
@pytest.mark.parametrize(
    ("url", "service"),
    [
        ("https://orders.internal/orders", "orders"),
        ("https://user:secret@Orders:8443/a", "orders"),
        ("http://127.0.0.1:8001/orders", "127.0.0.1:8001"),
        ("http://[::1]:8001/orders", "[::1]:8001"),
    ],
)
def test_a_service_is_called_by_the_first_label_of_its_host(url: str, service: str) -> None:
    assert target_of(url).service == service
    assert "secret" not in target_of(url).url


def test_a_transport_that_cannot_open_lets_go_of_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: str, **_more: object) -> None:
        raise StoreUnavailable("the disk is full", code="disk_full")

    monkeypatch.setattr("twophp.stores.urls.BlockingSQLite", full)  # The second of two handles.
    codes: list[str] = []

    def attempt() -> None:
        with pytest.raises(StoreUnavailable) as raised:
            TwoPhaseTransport(**settings(tmp_path))
        codes.append(raised.value.code)

    before = set(threading.enumerate())  # What others have left running is theirs.
    attempting = threading.Thread(target=attempt, daemon=True)
    attempting.start()
    attempting.join(PATIENCE_S)
    assert codes == ["disk_full"]
    attempting.join()
    assert set(threading.enumerate()) <= before


def test_who_is_interrupted_while_it_opens_is_not_kept(tmp_path: Path) -> None:
    program = """
import signal, threading
from twophp.client import TwoPhaseTransport
from twophp.stores.clock import mint_uuid
interrupted = threading.Event()

def interrupt(*_signal):
    interrupted.set()
    raise KeyboardInterrupt

def mint():  # Called while the ledger is being opened, by the portal's thread.
    if not interrupted.is_set():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        interrupted.wait()
    return mint_uuid()

signal.signal(signal.SIGINT, interrupt)
try:
    TwoPhaseTransport(ledger="sqlite:///checkout.db", source="checkout", mint=mint)
except KeyboardInterrupt:
    print([thread.name for thread in threading.enumerate()])
"""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (done.stdout, done.stderr) == ("['MainThread']\n", "")


def test_closing_lets_go_of_everything_and_twice_is_once(orders: Shop, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    transport = TwoPhaseTransport(**settings(tmp_path, reconcile_every_s=60.0))
    client = httpx2.Client(transport=transport, timeout=PATIENCE_S)
    client.post(f"{orders.url}/orders")
    names = {"twophp-checkout", "twophp-reconciler"}  # The service is in this process, too, and has others.
    own = {thread for thread in set(threading.enumerate()) - before if thread.name in names}
    assert {thread.name for thread in own} == names
    client.close()
    transport.close()
    assert not own & set(threading.enumerate())
    with pytest.raises(StoreUnavailable), httpx2.Client(transport=transport, timeout=PATIENCE_S) as again:
        again.post(f"{orders.url}/orders")


def test_an_asynchronous_transport_that_is_closed_stays_closed(orders: Shop, tmp_path: Path) -> None:
    async def late() -> None:
        transport = AsyncTwoPhaseTransport(**settings(tmp_path))
        opening = asyncio.create_task(transport.__aenter__())
        await asyncio.sleep(0)  # It has begun.
        await transport.aclose()
        await opening
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as http:
            http._transport = transport
            with pytest.raises(StoreUnavailable) as raised:
                await http.post(f"{orders.url}/orders")
        assert raised.value.code == "store_closed"
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(late())
    assert orders.heard == []
    assert not (tmp_path / "checkout.db-wal").exists()


def test_an_asynchronous_transport_belongs_to_one_loop(orders: Shop, tmp_path: Path) -> None:
    async def post(client: httpx2.AsyncClient) -> None:
        await client.post(f"{orders.url}/orders")

    with asyncio.Runner() as one, asyncio.Runner() as other:
        client = httpx2.AsyncClient(transport=AsyncTwoPhaseTransport(**settings(tmp_path)), timeout=PATIENCE_S)
        one.run(post(client))
        with pytest.raises(ConfigError) as raised:
            other.run(post(client))
        one.run(client.aclose())
    assert raised.value.code == "other_loop"


def test_many_callers_share_one_transport(orders: Shop, tmp_path: Path) -> None:
    ids: list[str] = []
    with caller("httpx2", tmp_path) as http:
        work = [threading.Thread(target=lambda: ids.extend(_some(http, orders))) for _ in range(8)]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    assert len(set(ids)) == len(orders.runs) == 40


def _some(http: Any, orders: Shop) -> list[str]:
    return [http.post(f"{orders.url}/orders").info["client_correlation_id"] for _ in range(5)]


def test_many_tasks_share_one_transport(orders: Shop, tmp_path: Path) -> None:
    async def all_at_once() -> set[str]:
        transport = AsyncTwoPhaseTransport(**settings(tmp_path))
        async with httpx.AsyncClient(transport=transport, timeout=30) as http:
            done = await asyncio.gather(*(http.post(f"{orders.url}/orders") for _ in range(40)))
        return {response.extensions["twophp"]["client_correlation_id"] for response in done}

    assert len(asyncio.run(all_at_once())) == len(orders.runs) == 40


def test_a_cancelled_call_is_left_to_the_reconciler(orders: Shop, tmp_path: Path) -> None:
    orders.may_end.clear()

    async def cancelled() -> int:
        transport = AsyncTwoPhaseTransport(**settings(tmp_path, lease_s=0.2))
        async with httpx2.AsyncClient(transport=transport, timeout=30) as http:
            entered, loop = asyncio.Event(), asyncio.get_running_loop()
            orders.on_heard = lambda heard: (
                loop.call_soon_threadsafe(entered.set) if heard.path.endswith("/confirm") else None
            )
            task = asyncio.create_task(http.post(f"{orders.url}/orders"))
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            orders.may_end.set()
            settled = 0
            while not settled:
                settled = len((await transport.reconcile()).settled)
            return settled

    assert asyncio.run(cancelled()) == 1
    assert len(orders.runs) == 1


ONLY = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
import {library} as library
from twophp.client import AsyncTwoPhaseTransport, TwoPhaseTransport
transport = TwoPhaseTransport(ledger="memory:", source="checkout", allow_insecure=True)
assert isinstance(transport, library.BaseTransport)
with library.Client(transport=transport) as http:
    response = http.post({url!r}, json={{"item": 1}})
    assert response.extensions["twophp"]["phase"] == "COMMITTED", response
"""


@pytest.mark.parametrize(("library", "missing"), [("httpx", ["httpx2", "requests"]), ("httpx2", ["httpx", "requests"])])
def test_one_of_the_libraries_is_enough(library: str, missing: list[str], orders: Shop, tmp_path: Path) -> None:
    program = ONLY.format(library=library, missing=missing, url=f"{orders.url}/orders")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr


def test_with_neither_it_can_still_be_imported(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["httpx"] = sys.modules["httpx2"] = None
from twophp.client import PhaseError, TwoPhaseTransport
from twophp.client.requests import TwoPhaseAdapter
TwoPhaseAdapter(ledger="memory:", source="checkout").close()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr


def test_the_same_transport_serves_both_libraries(orders: Shop, tmp_path: Path) -> None:
    transport = TwoPhaseTransport(**settings(tmp_path))
    for library in (httpx, httpx2):
        client: Any = library.Client(transport=transport)
        response = client.post(f"{orders.url}/orders", json={})
        assert type(response).__module__.startswith(library.__name__)
        assert response.extensions["twophp"]["phase"] == "COMMITTED"
    transport.close()


FORKED = """
import os, sys, httpx2, requests
from twophp.client import TwoPhaseTransport
from twophp.client.requests import TwoPhaseAdapter
options = dict(ledger="sqlite:///checkout.db", source="checkout", allow_insecure=True)
{before}
child = os.fork()
{after}
if child:
    assert os.waitpid(child, 0)[1] == 0
    {end}
else:
    os._exit(0)
"""


def forked(folder: Path, url: str, **parts: str) -> None:
    program = FORKED.format(**({"end": "pass"} | parts))
    command = [sys.executable, "-W", "ignore", "-c", program, url]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S)  # noqa: S603
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_fork_opens_a_ledger_of_its_own(orders: Shop, tmp_path: Path) -> None:
    before = """
http = httpx2.Client(transport=TwoPhaseTransport(**options))
http.post(sys.argv[1], json={})
"""
    after = """
for _ in range(3):
    assert http.post(sys.argv[1], json={}).extensions["twophp"]["phase"] == "COMMITTED"
"""
    forked(tmp_path, f"{orders.url}/orders", before=before, after=after, end="http.close()")
    assert len(orders.runs) == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_fork_opens_nothing_that_was_closed(orders: Shop, tmp_path: Path) -> None:
    before = """
transport = TwoPhaseTransport(**options)
transport.close()
"""
    after = """
try:
    httpx2.Client(transport=transport).post(sys.argv[1], json={})
except Exception as error:
    assert error.code == "store_closed", error
else:
    sys.exit("it was opened again")
"""
    forked(tmp_path, f"{orders.url}/orders", before=before, after=after)
    assert orders.heard == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_fork_reads_nothing_from_its_parents_connections(orders: Shop, tmp_path: Path) -> None:
    """Not by a GET either: it would take the answer to a mutation of its parent."""
    before = """
adapter = TwoPhaseAdapter(**options)
http = requests.Session()
http.mount("http://", adapter)
http.post(sys.argv[1], json={})
pool = adapter.poolmanager
"""
    after = """
http.get(sys.argv[1])
assert (adapter.poolmanager is pool) is bool(child)
"""
    forked(tmp_path, f"{orders.url}/orders", before=before, after=after, end="http.close()")
    assert len(orders.runs) == 1


@pytest.mark.req("P-13.2-a")
def test_a_confirm_that_is_refused_has_run_nothing(orders: Shop, tmp_path: Path) -> None:
    net = Forgetful()
    with caller("httpx2", tmp_path, transport=net) as http, pytest.raises(PhaseError) as raised:
        http.post(f"{orders.url}/orders")
    assert (raised.value.code, raised.value.advice, raised.value.phase) == (
        "confirm_refused",
        Advice.RESUBMIT,
        "WAITING_CONFIRM",
    ), "it was given up before its deadline (A-49)"
    assert orders.runs == []


def test_two_callers_of_one_named_call_do_it_once(orders: Shop, tmp_path: Path) -> None:
    said: list[Any] = []

    def make() -> None:
        with caller("httpx2", tmp_path, lease_s=0.5) as http, calling(client_correlation_id="order-4711"):
            said.append(http.post(f"{orders.url}/orders").json)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 4
    assert all(answer == said[0] for answer in said)
    assert len(orders.runs) == 1
