"""Tier 2: rows reach the central ledger by themselves, even if it fails, and no request notices (draft §9.4)."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.asgi_frameworks.serving import served, wrapped
from tests.central.served import KEY, Central, central
from tests.cli.world import NAMES, Participant, fan_out, participants
from tests.client.shop import Shop
from tests.client.shop import ledger as ledger_rows
from tests.patience import PATIENCE_S
from twophp.central.ingest.pull import management_token
from twophp.client import TwoPhaseTransport
from twophp.core.entry import Writer
from twophp.core.errors import ConfigError
from twophp.core.intent import by_pair
from twophp.ports import Tail
from twophp.shipping.shipper import LONGEST_WAIT_S, Shipper, Shipping, shipping
from twophp.stores.clock import mint_uuid, system_clock
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.reader import reading_obligations
from twophp.wire.rows import decode_rows, encode_batch


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


on_both = pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True, scope="function")


def shipper(who: Participant, url: str, secret: str, *, ledger_id: str = "", **how: Any) -> Shipper:
    """The one that the middleware and the client's ledger make, for a participant."""
    writer = Writer(source=who.name, service_ledger_id=ledger_id or mint_uuid())
    to = Shipping(url=url, token=secret, **how)
    return Shipper(who.store, writer, to, encode=encode_batch, mint=mint_uuid)


@pytest.mark.anyio
@pytest.mark.req(
    "P-10.3-a", "P-10.4-a", "P-10.4-b", "P-10.4-c", "P-10.1-b", "P-9.5-c", "P-10.3-b", "P-10.3-c", "P-10.2-d"
)
@on_both
async def test_eight_ledgers_become_the_drafts_fourteen_rows(tmp_path: Path, store_url: str | None) -> None:
    await fan_out(tmp_path)
    (tmp_path / "c").mkdir()
    with central(tmp_path / "c", store_url=store_url) as here:
        async with participants(tmp_path, *NAMES) as who:
            secrets = {name: here.token(name, "service") for name in NAMES}
            for name, one in who.items():
                assert await shipper(one, here.url, secrets[name]).ship() > 0
                rows = await one.store.entries(Tail())
                assert all(row.sync_timestamp is not None for row in rows)
                assert await one.store.changes(10) == []
        tree = here.get("/v1/trees/client-corr-id7", role="audit")
        assert (tree["rows"], tree["complete"], tree["above"]) == (14, True, None)
        assert [(call["client"]["source"], call["server"]["source"], call["depth"]) for call in tree["calls"]] == [
            ("client", "serviceA", 0),
            ("serviceA", "serviceB1", 1),
            ("serviceA", "serviceB2", 1),
            ("serviceA", "serviceB3", 1),
            ("serviceB1", "serviceC1", 2),
            ("serviceB2", "serviceD1", 2),
            ("serviceB3", "serviceE1", 2),
        ]
        assert {call["verdict"] for call in tree["calls"]} == {"PAIRED"}
        assert [call["parent"] for call in tree["calls"]] == [None, 0, 0, 0, 1, 2, 3]
        made = here.get("/v1/initiated/serviceA", role="compliance")["rows"]
        assert {row["target"] for row in made} == {"serviceB1", "serviceB2", "serviceB3"}
        assert here.get("/v1/trees/server-corr-id1")["rows"] == 14
        # Sent once more by their writers, nothing is twice: two rows for each call, one per actor.
        exported = decode_rows(b"[" + b",".join(here.ask("GET", "/v1/export").content.splitlines()) + b"]")
        for row in exported:
            assert here.push(secrets[row.source], [row]).json()["acks"][0]["outcome"] == "known"
        sides = Counter((row.client_correlation_id, row.server_correlation_id) for row in exported)
        assert set(sides.values()) == {2}
        assert len({(row.client_correlation_id, row.actor) for row in exported}) == 14
        assert here.get("/v1/trees/server-corr-id1")["rows"] == 14


@pytest.mark.anyio
@pytest.mark.req("A-59", "P-12.4-b")
async def test_rows_leave_under_the_guid_that_was_issued(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    with central(tmp_path / "c") as here:
        secret, guid = here.join("serviceA")
        async with participants(tmp_path, "serviceA") as who:
            await who["serviceA"].registers(1)
            assert await shipper(who["serviceA"], here.url, secret).ship() == 1
            assert {row.service_ledger_id for row in await who["serviceA"].store.entries(Tail())} == {guid}
            assert await who["serviceA"].store.get_or_set_meta("service_ledger_id", "another") == guid
        (row,) = here.get("/v1/entries")["rows"]
        assert row["service_ledger_id"] == guid


@pytest.mark.anyio
@pytest.mark.req("A-57")
async def test_a_row_that_changed_meanwhile_is_sent_again_and_only_that(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    with central(tmp_path / "c") as here:
        async with participants(tmp_path, "serviceA") as who:
            one = who["serviceA"]
            sending = shipper(one, here.url, here.token("serviceA", "service"))
            await one.registers(1)
            await one.registers(2)
            assert await sending.ship() == 2
            assert await sending.ship() == 0
            await one.settles(await one.confirms(1))
            assert await sending.ship() == 1
        found = {row["client_correlation_id"]: row["phase"] for row in here.get("/v1/entries")["rows"]}
        assert found == {"client-corr-id1": "COMMITTED", "client-corr-id2": "WAITING_CONFIRM"}


# A central ledger that misbehaves.

Answering = Callable[[str, dict[str, Any]], Awaitable[tuple[int, dict[str, str], Any]]]


@asynccontextmanager
async def stand_in(answer: Answering) -> AsyncIterator[str]:
    """A server that says to each path and document what ``answer`` says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.lower().partition("content-length: ")[2].partition("\r")[0])
            body = await reader.readexactly(length)
            document = json.loads(gzip.decompress(body) if "gzip" in head else body)
            status, headers, said = await answer(head.split()[1], document)
            text = json.dumps(said).encode()
            lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(text)}", *(f"{k}: {v}" for k, v in headers.items())]
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + text)
            await writer.drain()
        except (asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def acks(document: dict[str, Any]) -> dict[str, Any]:
    at = "2026-01-01T00:00:00.000Z"
    return {
        "acks": [{"version": row["version"], "outcome": "stored", "sync_timestamp": at} for row in document["rows"]]
    }


REGISTERED: tuple[int, dict[str, str], Any] = (200, {}, {"service_ledger_id": "5f0c9a1e-0000-4000-8000-000000000001"})


@pytest.mark.anyio
@pytest.mark.req("P-9.4-d", "P-9.4-c")
async def test_an_outage_is_caught_up_with_in_bounded_batches_and_each_row_once_in_its_newest_version(
    tmp_path: Path,
) -> None:
    batches: list[list[tuple[str, int]]] = []

    async def answer(path: str, document: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        if path.endswith("services"):
            return REGISTERED
        batches.append([(row["client_correlation_id"], row["version"]) for row in document["rows"]])
        return 200, {}, acks(document)

    async with participants(tmp_path, "serviceA") as who, stand_in(answer) as url:
        one = who["serviceA"]
        for number in range(60):  # Three transitions each, while central is away.
            await one.registers(number)
            await one.settles(await one.confirms(number))
        assert await shipper(one, url, "t", batch_rows=7).ship() == 60
    sent = [row for batch in batches for row in batch]
    assert max(map(len, batches)) == 7
    assert sent == [(f"client-corr-id{number}", 3) for number in range(60)], "oldest first, newest version, once"


@pytest.mark.anyio
@pytest.mark.req("P-9.4-c")
async def test_a_flapping_central_ledger_gets_everything_and_is_asked_less_and_less(tmp_path: Path) -> None:
    """Down, busy, broken, cut off, then well: nothing is lost, and the waits grow."""
    turn: list[int] = []

    async def answer(path: str, document: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        if path.endswith("services"):
            return REGISTERED
        turn.append(len(turn))
        match turn[-1]:
            case 0:
                return 503, {"Retry-After": "7"}, {"code": "overloaded"}
            case 1:
                return 500, {}, {}
            case 2:
                raise OSError
            case 3:
                return 200, {}, {"acks": []}  # Not what was sent: no row is marked.
        return 200, {}, acks(document)

    async with participants(tmp_path, "serviceA") as who:
        one = who["serviceA"]
        await one.registers(1)
        with socket.create_server(("127.0.0.1", 0)) as unheard:
            closed = unheard.getsockname()[1]
        down = shipper(one, f"http://127.0.0.1:{closed}", "t", interval_s=1.0)
        waits = [await down._visit() for _ in range(12)]
        assert all(later >= sooner / 2 for sooner, later in pairwise(waits))
        assert LONGEST_WAIT_S / 2 <= waits[-1] <= LONGEST_WAIT_S
        async with stand_in(answer) as url:
            flapping = shipper(one, url, "t", interval_s=1.0, timeout_s=1.0)
            assert 7 <= await flapping._visit() <= 11, "as long as it was asked to, and a little apart from others"
            for failures in (2, 3, 4):
                await flapping._visit()
                assert flapping.failures == failures
                assert len(await one.store.changes(10)) == 1
            assert await flapping._visit() == 1.0
            assert flapping.failures == 0
        assert await one.store.changes(10) == []


@pytest.mark.anyio
async def test_a_row_that_is_not_taken_holds_up_nobody_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(path: str, document: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        if path.endswith("services"):
            return REGISTERED
        ids = [row["client_correlation_id"] for row in document["rows"]]
        if "client-corr-id3" in ids:
            return 400, {}, {"code": "bad_batch"}
        said = acks(document)
        for id_, ack in zip(ids, said["acks"], strict=True):
            if id_ == "client-corr-id5":
                ack |= {"outcome": "refused", "sync_timestamp": None, "code": "version_conflict"}
        return 200, {}, said

    async with participants(tmp_path, "serviceA") as who, stand_in(answer) as url:
        one = who["serviceA"]
        for number in range(9):
            await one.registers(number)
        sending = shipper(one, url, "t", batch_rows=4)
        with caplog.at_level(logging.ERROR, "twophp.ship"):
            assert await sending.ship() == 7
        left = {row.client_correlation_id for row in await one.store.changes(20)}
        assert left == {"client-corr-id3", "client-corr-id5"}
        assert [record.name for record in caplog.records].count("twophp.ship") == 2
        caplog.clear()
        await one.registers(10)
        assert await sending.ship() == 1, "and they are not tried again and again"
        assert not caplog.records


@pytest.mark.anyio
@pytest.mark.req("P-9.4-a", "P-9.3-b", "P-9.7-a", "P-9.5-d")
async def test_requests_are_answered_while_the_central_ledger_hangs_and_shutdown_does_not_wait_for_it(
    tmp_path: Path,
) -> None:
    """Both shippers are held in the middle of an exchange before ten handshakes begin, and until they are over."""
    held, both_are_held, release = 0, threading.Event(), asyncio.Event()

    async def answer(_path: str, _document: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        nonlocal held
        held += 1
        if held == 2:
            both_are_held.set()
        await release.wait()
        return 500, {}, {}

    async with stand_in(answer) as url:
        shop = Shop(tmp_path)
        app = wrapped(shop.app, tmp_path, central=url, central_token="t", central_interval_s=0.05)
        with served(app) as running:

            def calls() -> list[int]:
                transport = TwoPhaseTransport(
                    ledger=f"sqlite:///{tmp_path}/checkout.db",
                    source="checkout",
                    allow_insecure=True,
                    targets={running.url: "orders"},
                    central=url,
                    central_token="t",
                    central_interval_s=0.05,
                )
                with httpx.Client(transport=transport, timeout=PATIENCE_S) as http:
                    http.post(f"{running.url}/orders", json={})
                    assert both_are_held.wait(PATIENCE_S)
                    return [http.post(f"{running.url}/orders", json={}).status_code for _ in range(10)]

            assert await asyncio.to_thread(calls) == [200] * 10
        assert not release.is_set(), "it hung the whole time, and the service has stopped nevertheless"
        release.set()
    store = SQLiteStore(str(tmp_path / "orders.db"), clock=system_clock)
    left = await store.changes(100)
    assert len(left) == 11, "what was not sent is there for next time"
    # Rows and what was kept of the calls are in one database, so they were written in one transaction.
    kept = [
        await store.unseal(by_pair(row.client_correlation_id, row.server_correlation_id), "response") for row in left
    ]
    assert None not in kept
    await store.close()


@pytest.mark.req("P-9.1-c", "P-9.4-c", "P-9.8-15", "P-9.7-b", "P-9.4-b", "OBL-OV-1", "A-59")
def test_both_sides_send_their_rows_by_themselves(tmp_path: Path) -> None:
    """A real client, a real service and a real central ledger: one call, two rows, one pair.

    Both were registered before, so the GUIDs they claim are not theirs: they write as whom they are known.
    """
    (tmp_path / "c").mkdir()
    with central(tmp_path / "c") as here:
        shop = Shop(tmp_path)
        (token, orders_id), (other_token, checkout_id) = here.join("orders"), here.join("checkout")
        app = wrapped(shop.app, tmp_path, central=here.url, central_token=token, central_interval_s=0.05)
        with served(app) as running:
            transport = TwoPhaseTransport(
                ledger=f"sqlite:///{tmp_path}/checkout.db",
                source="checkout",
                allow_insecure=True,
                targets={running.url: "orders"},
                central=here.url,
                central_token=other_token,
                central_interval_s=3600.0,
            )
            with httpx.Client(transport=transport, timeout=PATIENCE_S) as http:
                ids = http.post(f"{running.url}/orders", json={"secret": "canary-payload"}).extensions["twophp"]
            # The client has said goodbye and sent what was left; the service is watched until it has done so, too.
            pairs = _until(here, lambda found: bool(found) and found[0]["verdict"] == "PAIRED", running.url)
        (pair,) = pairs
        assert pair["client_correlation_id"] == ids["client_correlation_id"]
        assert {pair["client"]["phase"], pair["server"]["phase"]} == {"COMMITTED"}
        assert b"canary-payload" not in here.database()
        services = {one["name"]: one["rows"] for one in here.get("/v1/services")["services"]}
        assert services == {"orders": 1, "checkout": 1}
    for name, guid in (("orders", orders_id), ("checkout", checkout_id)):
        (own,) = ledger_rows(tmp_path / f"{name}.db")  # Verified with it.
        assert own.service_ledger_id == guid
        # Everything that left did so under an obligation.
        with reading_obligations(str(tmp_path / f"{name}.db")) as ledger:
            found = asyncio.run(ledger.tally())
        assert {(one.flow, one.state) for one in found} == {("tier2_shipment", "Committed")}


def _until(here: Central, well: Callable[[Sequence[Any]], bool], url: str) -> Sequence[Any]:
    """Ask until it is so; each question takes its own time, and there is a last one."""
    for _ in range(1_000):
        found: Sequence[Any] = here.get("/v1/pairs")["pairs"]
        if well(found) and found[0]["server"]["phase"] == "COMMITTED":
            return found
        httpx.get(f"{url}/nothing", timeout=PATIENCE_S)
    raise AssertionError(found)


# On demand.


@pytest.mark.req("P-9.6-a", "P-9.6-b", "P-9.7-c", "P-13.5-b", "A-63", "P-2-h")
@on_both
def test_a_pull_brings_rows_at_once_and_only_with_the_management_credential(
    tmp_path: Path, store_url: str | None
) -> None:
    (tmp_path / "c").mkdir()
    with central(tmp_path / "c", store_url=store_url) as here:
        shop = Shop(tmp_path)
        secret, guid = here.join("orders")
        app = wrapped(shop.app, tmp_path, management_token=management_token(KEY, "orders"))
        with served(app) as running:
            pull_url = f"{running.url}/_2php/ledger"
            # The batch is disabled: nothing ever sends. Where it can be pulled was said when it was set up.
            here.ask("POST", "/v1/services", secret=secret, json={"pull_url": pull_url})
            with httpx.Client(
                transport=TwoPhaseTransport(
                    ledger=f"sqlite:///{tmp_path}/checkout.db", source="checkout", allow_insecure=True
                ),
                timeout=PATIENCE_S,
            ) as http:
                for _ in range(3):
                    http.post(f"{running.url}/orders", content=b"canary-payload")
            assert here.get("/v1/entries")["rows"] == []
            pulled = here.ask("POST", f"/v1/services/{guid}/pull")
            assert pulled.status_code == 200, pulled.text
            assert pulled.json() == {
                "service_ledger_id": guid,
                "rows": 3,
                "stored": 3,
                "refused": 0,
                "complete": True,
            }
            assert len(here.get("/v1/entries")["rows"]) == 3
            assert here.ask("POST", f"/v1/services/{guid}/pull").json()["rows"] == 0, "it knows what has arrived"
            one = here.get("/v1/entries")["rows"][0]["client_correlation_id"]
            again = here.ask("POST", f"/v1/services/{guid}/pull", json={"correlation_id": one})
            assert (again.json()["rows"], again.json()["stored"]) == (1, 0)
            for credential in ("", "Bearer wrong", f"Bearer {secret}", f"Bearer {management_token(KEY, 'stock')}"):
                headers = {"Authorization": credential} if credential else {}
                assert httpx.post(pull_url, json={}, headers=headers, timeout=PATIENCE_S).status_code == 401
            rows = httpx.post(
                pull_url,
                json={},
                headers={"Authorization": f"Bearer {management_token(KEY, 'orders')}"},
                timeout=PATIENCE_S,
            )
            assert "canary-payload" not in rows.text
        gone = here.ask("POST", f"/v1/services/{guid}/pull")
        assert (gone.status_code, gone.json()["code"]) == (502, "pull_failed")
        assert here.ask("POST", f"/v1/services/{here.join('silent')[1]}/pull").json()["code"] == "no_pull_url"


def test_a_service_without_a_management_token_has_no_such_endpoint(tmp_path: Path) -> None:
    with served(wrapped(Shop(tmp_path).app, tmp_path)) as running:
        assert httpx.post(f"{running.url}/_2php/ledger", json={}, timeout=PATIENCE_S).status_code == 404


def test_a_pull_url_names_our_endpoint_and_nothing_else(tmp_path: Path) -> None:
    with central(tmp_path) as here:
        secret, _guid = here.join("orders")
        for url in (
            "http://169.254.169.254/latest/meta-data",
            "https://orders.internal/admin",
            "https://user:word@orders.internal/_2php/ledger",
            "file:///etc/passwd",
            "http://orders.internal/_2php/ledger",
        ):
            answer = here.ask("POST", "/v1/services", secret=secret, json={"pull_url": url})
            assert (answer.status_code, answer.json()["code"]) == (422, "bad_parameter"), url


def test_settings_come_from_the_environment_and_are_checked_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-a-file\n")
    environ = {
        "TWOPHP_CENTRAL": "https://central.example",
        "TWOPHP_CENTRAL_TOKEN_FILE": str(tmp_path / "token"),
        "TWOPHP_CENTRAL_INTERVAL_S": "60",
    }
    found = shipping(None, None, None, environ=environ)
    assert found == Shipping(url="https://central.example", token="from-a-file", interval_s=60.0)
    assert "from-a-file" not in repr(found)
    assert shipping(None, None, None, environ={}) is None
    settings: list[dict[str, Any]] = [
        {"url": "http://central.example", "token": "t"},
        {"url": "https://user@central.example", "token": "t"},
        {"url": "https://central.example", "token": ""},
        {"url": "https://central.example", "token": "two\nlines"},
        {"url": "https://central.example", "token": "t", "interval_s": 0.0},
        {"url": "https://central.example", "token": "t", "interval_s": float("inf")},
        {"url": "https://central.example", "token": "t", "pull_url": "orders.example/_2php/ledger"},
        {"url": "https://central.example", "token": "t", "pull_url": "https://orders.example/ledger"},
    ]
    for wrong in settings:
        with pytest.raises(ConfigError):
            Shipping(**wrong)
    with pytest.raises(ConfigError):
        wrapped(Shop(tmp_path).app, tmp_path, allow_insecure=False, central="http://elsewhere.example")
