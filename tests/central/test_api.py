"""The central ledger's API over a real socket: registration, ingest, the draft's questions, proofs, exports."""

from __future__ import annotations

import csv
import gzip
import io
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tests.central.rows import OTHER, T0, changed, row
from tests.central.served import Central, central, outcomes
from tests.patience import PATIENCE_S
from twophp.central.api import bodies as api_bodies
from twophp.central.missing import UNDER_WAY_MS
from twophp.central.proof.merkle import leaf_hash, verify_consistency, verify_inclusion
from twophp.core.entry import FIELDS
from twophp.core.errors import StoreUnavailable
from twophp.wire.rows import decode_rows, encode_batch

ONE_IS_ENOUGH = frozenset(
    {
        "test_what_is_no_batch_is_refused_as_a_whole",
        "test_bodies_are_bounded_before_and_after_they_unfold",
        "test_whoever_falls_silent_in_the_middle_of_a_batch_gives_its_place_up",
        "test_back_pressure_names_whose_fault_it_is_and_when_to_come_back",
        "test_a_parameter_that_nobody_knows_is_refused_and_not_ignored",
        "test_only_rows_come_in_whatever_else_was_sent",
    }
)
"""What these show has nothing to do with the database, or looks into its file. All others are shown on both."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "here" in metafunc.fixturenames:
        engines = ("sqlite",) if metafunc.function.__name__ in ONE_IS_ENOUGH else ("sqlite", "postgres")
        metafunc.parametrize("store_url", engines, indirect=True, scope="module")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, store_url: str | None) -> Iterator[Central]:
    """One for all tests of this file and a database: each brings services and ids of its own."""
    with central(tmp_path_factory.mktemp("central"), store_url=store_url) as running:
        yield running


@pytest.fixture
def orders(here: Central) -> tuple[str, str]:
    return here.join("orders")


@pytest.mark.req("P-12.4-a", "A-59")
def test_registering_twice_is_registering_once_and_a_claim_is_confirmed(here: Central) -> None:
    secret = here.token("stock", "service")
    claim = "5f0c9a1e-0000-4000-8000-000000000001"
    first = here.ask("POST", "/v1/services", secret=secret, json={"name": "stock", "service_ledger_id": claim})
    again = here.ask("POST", "/v1/services", secret=secret, json={"name": "stock"})
    assert first.json()["service_ledger_id"] == again.json()["service_ledger_id"] == claim
    # The service's next token goes on under it; another service is given another id: each writes into its own.
    for name, has_it in (("stock", True), ("depot", False)):
        other = here.ask("POST", "/v1/services", secret=here.token(name, "service"), json={"service_ledger_id": claim})
        assert other.status_code == 200
        assert (other.json()["service_ledger_id"] == claim) == has_it


@pytest.mark.req("P-12.4-c")
def test_a_service_registers_under_its_own_name_and_pushes_only_its_own_rows(
    here: Central, orders: tuple[str, str]
) -> None:
    secret, guid = orders
    assert here.ask("POST", "/v1/services", secret=secret, json={"name": "billing"}).json()["code"] == "other_name"
    answer = here.push(secret, [row("own", guid), row("foreign", OTHER), row("named", guid, source="billing")])
    assert outcomes(answer) == ["stored", "refused", "refused"]
    assert [ack["code"] for ack in answer.json()["acks"]] == [None, "foreign_row", "other_source"]
    unregistered = here.token("billing", "service")
    assert here.push(unregistered, [row("x", guid)]).json()["code"] == "unregistered"


@pytest.mark.req("A-57", "P-9.8-15", "P-9.8-0")
def test_a_batch_is_idempotent_order_tolerant_and_acknowledged(here: Central, orders: tuple[str, str]) -> None:
    secret, guid = orders
    new = row("i1", guid, version=3, phase="COMMITTED")
    answer = here.push(secret, [new, row("i2", guid)])
    assert outcomes(answer) == ["stored", "stored"]
    assert outcomes(here.push(secret, [new, row("i2", guid)])) == ["known", "known"]
    assert outcomes(here.push(secret, [row("i1", guid, version=1)])) == ["older"]
    found = here.get("/v1/entries", correlation_id="server-i1")["rows"]
    assert [(one["version"], one["phase"]) for one in found] == [(3, "COMMITTED")]
    assert found[0]["sync_timestamp"] == answer.json()["acks"][0]["sync_timestamp"] is not None
    assert list(found[0])[:16] == list(FIELDS)
    assert found[0]["phase_1_timestamp"] == "2026-01-01T00:00:00.000Z"


@pytest.mark.req("A-57", "P-9.8-07b")
def test_a_rewritten_version_is_refused_and_alarmed_and_a_broken_rule_is_refused(
    here: Central, orders: tuple[str, str]
) -> None:
    secret, guid = orders
    here.push(secret, [row("r1", guid)])
    assert outcomes(here.push(secret, [row("r1", guid, ttl_ms=1)])) == ["refused"]
    alarms = [
        one for one in here.get("/v1/alarms", role="audit")["alarms"] if one["client_correlation_id"] == "client-r1"
    ]
    assert [one["code"] for one in alarms] == ["version_conflict"]
    answer = here.push(secret, [row("r2", guid, target="somebody")])
    assert outcomes(answer) == ["refused"]
    assert "target" in answer.json()["acks"][0]["detail"]


BAD_BATCHES = {
    "not JSON": b"{",
    "no rows": b"{}",
    "a row that is none": b'{"rows": [1]}',
    "one of the sixteen is missing": json.dumps({"rows": [{"client_correlation_id": "a"}]}).encode(),
    "too many rows": b'{"rows": [' + b",".join([b"{}"] * 5_001) + b"]}",
    "half a character": b'{"rows": ["\xff"]}',
}


@pytest.mark.req("P-9.8-0")
@pytest.mark.parametrize("body", BAD_BATCHES.values(), ids=list(BAD_BATCHES))
def test_what_is_no_batch_is_refused_as_a_whole(here: Central, orders: tuple[str, str], body: bytes) -> None:
    answer = here.ask("POST", "/v1/entries", secret=orders[0], content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_batch")
    assert answer.headers["content-type"] == "application/problem+json"


def test_bodies_are_bounded_before_and_after_they_unfold(here: Central, orders: tuple[str, str]) -> None:
    secret = orders[0]

    def push(body: bytes, encoding: str) -> tuple[int, str]:
        answer = here.ask("POST", "/v1/entries", secret=secret, content=body, headers={"Content-Encoding": encoding})
        return answer.status_code, answer.json()["code"]

    bomb = gzip.compress(b" " * (64 * 1024 * 1024))
    assert len(bomb) < 100_000
    assert push(bomb, "gzip") == (413, "too_large")
    assert push(b"x" * (9 * 1024 * 1024), "identity") == (413, "too_large")
    assert push(b"not gzip", "gzip") == (400, "bad_encoding")
    assert push(gzip.compress(b"{}")[:-4], "gzip") == (400, "bad_encoding")
    assert push(b"{}", "br") == (415, "unsupported_encoding")


def test_back_pressure_names_whose_fault_it_is_and_when_to_come_back(here: Central, orders: tuple[str, str]) -> None:
    """Batches that do not end hold their places; the next is asked to come back."""
    secret, guid = orders
    others = [here.join(f"busy-{number}")[0] for number in range(8)]
    release = threading.Event()
    held: list[httpx.Response] = []

    def slow() -> Iterator[bytes]:
        yield b'{"rows": ['
        entered.release()
        release.wait(PATIENCE_S)
        yield b"]}"

    def hold(which: str) -> None:
        held.append(here.ask("POST", "/v1/entries", secret=which, content=slow()))

    entered = threading.Semaphore(0)
    threads = [threading.Thread(target=hold, args=(which,)) for which in (secret, secret)]
    for thread in threads:
        thread.start()
        assert entered.acquire(timeout=PATIENCE_S)
    _wait_for_batches(here, 2)
    own_fault = here.push(secret, [row("b1", guid)])
    assert (own_fault.status_code, own_fault.json()["code"]) == (429, "slow_down")
    assert int(own_fault.headers["retry-after"]) >= 1
    more = [threading.Thread(target=hold, args=(which,)) for which in [*others[:7]] * 2]
    for thread in more:
        thread.start()
        assert entered.acquire(timeout=PATIENCE_S)
    _wait_for_batches(here, 16)
    overloaded = here.push(others[7], [])
    assert (overloaded.status_code, overloaded.json()["code"]) == (503, "overloaded")
    assert int(overloaded.headers["retry-after"]) >= 1
    release.set()
    for thread in threads + more:
        thread.join(PATIENCE_S)
    assert {answer.status_code for answer in held} == {200}
    assert outcomes(here.push(secret, [row("b1", guid)])) == ["stored"]


def test_whoever_falls_silent_in_the_middle_of_a_batch_gives_its_place_up(
    here: Central, orders: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was cut off without a word looks the same, and stays so for ever."""
    secret, guid = orders
    monkeypatch.setattr(api_bodies, "BODY_S", 0.2)
    host, _colon, port = here.url.removeprefix("http://").partition(":")
    head = f"POST /v1/entries HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\nContent-Length: 99\r\n\r\n{{"
    silent = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(2)]
    for one in silent:
        one.sendall(head.encode())
    for one in silent:
        with one, one.makefile("rb") as answer:
            assert answer.readline().split()[1] == b"408"
    assert outcomes(here.push(secret, [row("after-silence", guid)])) == ["stored"]


def _wait_for_batches(here: Central, count: int) -> None:
    """Until the server has begun to read so many: their first bytes were sent, and it reads them in its own time."""
    for _ in range(2_000):
        if here.state.gate._under_way.total() >= count:
            return
        here.http.get(here.url + "/livez")
    raise AssertionError(here.state.gate._under_way)


def test_a_parameter_that_nobody_knows_is_refused_and_not_ignored(here: Central) -> None:
    """A client that misspells a filter would get all rows, and believe that they were filtered."""
    answer = here.ask("GET", "/v1/entries", params={"phases": "FAILED"})
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_parameter")
    assert answer.json()["detail"] == "query.phases: there is no such parameter"
    assert here.ask("GET", "/v1/tokens", params={"limit": 1}).status_code == 422
    assert httpx.get(f"{here.url}/v1/entries?phases=FAILED", timeout=PATIENCE_S).status_code == 401, (
        "strangers are told nothing"
    )


@pytest.mark.req("P-9.1-a", "P-9.7-b")
def test_rows_are_found_by_anything_and_in_pages(here: Central, orders: tuple[str, str]) -> None:
    secret, guid = orders
    rows = [row(f"p{n}", guid, service_endpoint="orders/paged", phase_1_timestamp=T0 + n) for n in range(7)]
    here.push(secret, rows)
    seen: list[str] = []
    cursor = None
    while True:
        page = here.get(
            "/v1/entries", service_endpoint="orders/paged", limit=3, **({"cursor": cursor} if cursor else {})
        )
        assert len(page["rows"]) <= 3
        seen += [one["client_correlation_id"] for one in page["rows"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert sorted(seen) == [f"client-p{n}" for n in range(7)]
    since = here.get("/v1/entries", service_endpoint="orders/paged", since="2026-01-01T00:00:00.005Z")["rows"]
    assert {one["client_correlation_id"] for one in since} == {"client-p5", "client-p6"}
    assert here.ask("GET", "/v1/entries", params={"cursor": "nonsense"}).status_code == 400
    assert here.ask("GET", "/v1/entries", params={"since": "yesterday"}).json()["code"] == "bad_parameter"


@pytest.mark.req("P-10.4-c", "A-46", "A-48", "P-9.1-c")
def test_pairs_say_whether_both_sides_registered_and_why_not(here: Central, orders: tuple[str, str]) -> None:
    secret, guid = orders
    checkout, client_guid = here.join("checkout")
    endpoint: dict[str, Any] = {"service_endpoint": "orders/verdicts"}
    here.push(
        secret,
        [
            row("v-both", guid, phase="COMMITTED", version=3, **endpoint),
            row("v-lost", guid, phase="ABANDONED", **endpoint),
            row("v-plain", guid, phase="COMMITTED", mode="transparent", **endpoint),
            row("v-clash", guid, phase="FAILED", **endpoint),
        ],
    )
    here.push(
        checkout,
        [
            row("v-both", client_guid, actor="client", phase="COMMITTED", **endpoint),
            row("v-clash", client_guid, actor="client", phase="COMMITTED", **endpoint),
            row("v-late", client_guid, actor="client", **endpoint),
            row("v-strange", client_guid, actor="client", target="nobody", **endpoint),
        ],
    )

    def verdicts() -> dict[str, tuple[str, str | None]]:
        pairs = here.get("/v1/pairs", role="audit", **endpoint)["pairs"]
        assert len(pairs) == len({one["client_correlation_id"] for one in pairs}), "a call is listed once"
        return {one["client_correlation_id"][7:]: (one["verdict"], one["missing"]) for one in pairs}

    assert verdicts() == {
        "v-both": ("PAIRED", None),
        "v-lost": ("SERVER_ONLY", "expired"),
        "v-plain": ("SERVER_ONLY_BY_DESIGN", "plain_caller"),
        "v-clash": ("CONFLICT", None),
        "v-late": ("CLIENT_ONLY", "not_synced_yet"),
        "v-strange": ("CLIENT_ONLY", "never_registered"),
    }
    only = here.get("/v1/pairs", verdict="CONFLICT", **endpoint)["pairs"]
    assert [(one["client_correlation_id"], one["is_alarm"]) for one in only] == [("client-v-clash", True)]
    # Every ledger of that name says that it has sent everything, but may have looked before the row was written. Once
    # that cannot be any more, the row is not late, it is lost (A-48).
    for later_ms, why in ((1, "not_synced_yet"), (UNDER_WAY_MS + 1, "lost")):
        for service in here.get("/v1/services")["services"]:
            if service["name"] == "orders":
                here.state.heard.drained(service["service_ledger_id"], here.state.clock() + later_ms)
        assert verdicts()["v-late"] == ("CLIENT_ONLY", why)


@pytest.mark.req("P-10.4-d", "A-54")
def test_stalled_is_the_drafts_two_phases_and_silence_is_apart(here: Central) -> None:
    secret, guid = here.join("slow")
    facts: dict[str, Any] = {"source": "slow", "service_endpoint": "slow/x"}
    here.push(
        secret,
        [
            row("s1", guid, **facts),
            row("s2", guid, phase="TTL_EXPIRED", **facts),
            row("s3", guid, phase="PROCESSING", **facts),
            row("s4", guid, phase="COMMITTED", **facts),
        ],
    )
    found = here.get("/v1/stalled", source="slow")
    assert {one["server_correlation_id"] for one in found["rows"]} == {"server-s1", "server-s2"}
    assert [one["server_correlation_id"] for one in found["processing_past_lease"]] == ["server-s3"]


@pytest.mark.req("P-9.4-d")
def test_the_sla_report_counts_and_measures_per_endpoint_and_day(here: Central) -> None:
    secret, guid = here.join("measured")
    facts: dict[str, Any] = {"source": "measured", "service_endpoint": "measured/x"}
    phases = ["COMMITTED"] * 3 + ["FAILED", "ABANDONED"]
    here.push(secret, [row(f"m{n}", guid, phase=phase, **facts) for n, phase in enumerate(phases)])
    report = here.get("/v1/reports/sla", since="2026-01-01T00:00:00Z", until="2026-01-02T00:00:00Z")
    (line,) = [line for line in report["lines"] if line["service_endpoint"] == "measured/x"]
    assert (line["day"], line["calls"], line["committed"], line["failed"]) == ("2026-01-01", 5, 3, 1)
    assert (line["confirm_p50_ms"], line["settle_p99_ms"]) == (100, 200)
    assert here.ask("GET", "/v1/reports/sla", params={"since": "2000-01-01T00:00:00Z"}).status_code == 422


@pytest.mark.req("A-45", "P-9.7-d")
def test_exports_agree_and_draft_outcomes_leave_failures_out(here: Central) -> None:
    secret, guid = here.join("exported")
    facts: dict[str, Any] = {"source": "exported", "service_endpoint": "exported/x"}
    here.push(
        secret,
        [
            row("e1", guid, phase="COMMITTED", **facts),
            row("e2", guid, phase="FAILED", transaction_reference="=HYPERLINK(1)", **facts),
        ],
    )

    def export(**parameters: str) -> bytes:
        return here.ask("GET", "/v1/export", role="compliance", params={"source": "exported", **parameters}).content

    lines = [json.loads(line) for line in export().splitlines()]
    assert {one["client_correlation_id"]: one["outcome"] for one in lines} == {
        "client-e1": "COMMITTED",
        "client-e2": "FAILED",
    }
    draft = [json.loads(line) for line in export(draft_outcomes_only="true").splitlines()]
    assert {one["client_correlation_id"]: one["outcome"] for one in draft} == {
        "client-e1": "COMMITTED",
        "client-e2": None,
    }
    table = list(csv.DictReader(io.StringIO(export(format="csv").decode())))
    assert [one["server_correlation_id"] for one in table] == [one["server_correlation_id"] for one in lines]
    assert {one["transaction_reference"] for one in table} == {"", "'=HYPERLINK(1)"}, "no cell is a formula"
    columns = pq.read_table(io.BytesIO(export(format="parquet"))).to_pylist()
    assert columns == lines


def test_proofs_hold_for_anyone_who_hashes_for_themselves(here: Central, orders: tuple[str, str]) -> None:
    secret, guid = orders
    here.push(secret, [row("h1", guid)])
    old = here.get("/v1/proofs/head", role="audit")
    here.push(secret, [row("h2", guid), row("h3", guid)])
    (mine,) = here.get("/v1/entries", correlation_id="client-h3")["rows"]
    proof = here.get(f"/v1/proofs/inclusion/{mine['sequence']}", role="audit")
    (entry,) = decode_rows(json.dumps([mine]).encode())
    path = [bytes.fromhex(part) for part in proof["path"]]
    root = bytes.fromhex(proof["root"])
    assert verify_inclusion(leaf_hash(entry), mine["sequence"] - 1, proof["size"], path, root)
    assert not verify_inclusion(leaf_hash(changed(entry, ttl_ms=1)), mine["sequence"] - 1, proof["size"], path, root)
    grown = here.get("/v1/proofs/consistency", role="audit", old_size=old["size"])
    assert verify_consistency(
        old["size"],
        bytes.fromhex(old["root"]),
        grown["new_size"],
        bytes.fromhex(grown["new_root"]),
        [bytes.fromhex(part) for part in grown["path"]],
    )
    assert here.ask("GET", "/v1/proofs/inclusion/1", params={"size": 10**9}).json()["code"] == "bad_size"


def test_the_feed_tells_of_rows_as_they_arrive_and_goes_on_where_it_stopped(
    here: Central, orders: tuple[str, str]
) -> None:
    secret, guid = orders
    headers = {"Authorization": f"Bearer {here.token('watcher', 'audit')}"}
    with httpx.stream("GET", here.url + "/v1/events", headers=headers, timeout=PATIENCE_S) as feed:
        lines = feed.iter_lines()
        assert next(lines) == ": here"
        here.push(secret, [row("live", guid)])
        told = [next(lines) for _ in range(5)]
    assert told[1] == "event: row"
    assert json.loads(told[3].removeprefix("data: "))["client_correlation_id"] == "client-live"
    sequence = int(told[2].removeprefix("id: "))
    again = headers | {"Last-Event-ID": str(sequence - 1)}
    with httpx.stream("GET", here.url + "/v1/events", headers=again, timeout=PATIENCE_S) as feed:
        lines = feed.iter_lines()
        assert f"id: {sequence}" in [next(lines) for _ in range(4)]


@pytest.mark.req("P-13.5-a")
def test_a_revoked_token_is_told_nothing_more(here: Central, orders: tuple[str, str]) -> None:
    secret, guid = orders
    headers = {"Authorization": f"Bearer {here.token('leaver', 'audit')}"}
    with httpx.stream("GET", here.url + "/v1/events", headers=headers, timeout=PATIENCE_S) as feed:
        lines = feed.iter_lines()
        assert next(lines) == ": here"
        (token,) = [token for token in here.do(here.state.store.tokens()) if token.name == "leaver"]
        assert here.do(here.state.store.revoke_token(token.token_id, here.state.clock()))
        here.push(secret, [row("after", guid)])
        assert [line for line in lines if line] == []


@pytest.mark.req("P-9.1-b")
def test_machines_may_ask_how_it_is(here: Central) -> None:
    assert httpx.get(here.url + "/livez", timeout=PATIENCE_S).json() == {"status": "ok"}
    assert httpx.get(here.url + "/readyz", timeout=PATIENCE_S).json() == {"status": "ok"}
    assert "twophp_central_rows_total" in httpx.get(here.url + "/metrics", timeout=PATIENCE_S).text
    document = httpx.get(here.url + "/openapi.json", timeout=PATIENCE_S).json()
    assert document["openapi"].startswith("3.1")
    fields = document["components"]["schemas"]["WireRow"]
    assert set(fields["required"]) >= set(FIELDS)
    # A row registers what was meant and what became of it; it is no trace of how it ran.
    assert not [name for name in fields["properties"] if any(word in name for word in ("span", "trace", "duration"))]


@pytest.mark.req("P-9.8-14")
def test_only_rows_come_in_whatever_else_was_sent(here: Central, orders: tuple[str, str]) -> None:
    secret, guid = orders
    document = json.loads(encode_batch([row("canary", guid, payload_ref="vault:server-canary/payload")]))
    document["rows"][0]["payload"] = "a-canary-in-the-payload"
    assert outcomes(here.ask("POST", "/v1/entries", secret=secret, json=document)) == ["stored"]
    kept = here.database()
    assert b"server-canary" in kept
    assert b"a-canary-in-the-payload" not in kept


def test_a_feed_ends_when_the_database_is_away_and_whoever_watches_comes_back(
    here: Central, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_sequence: int, _limit: int) -> None:
        raise StoreUnavailable("away")

    headers = {"Authorization": f"Bearer {here.token('watching on', 'audit')}"}
    monkeypatch.setattr(here.state.store, "after", away)
    with httpx.stream("GET", here.url + "/v1/events", headers=headers, timeout=PATIENCE_S) as feed:
        assert list(feed.iter_lines()) == [": here", ""], "and not cut off in the middle of a word"
    assert here.state.watchers == 0


STRANGE = ["{6F9619FF-8B86-D011-B42D-00CF4FC964FF}", "a/b+c==", "../x", "".join(map(chr, range(0x21, 0x7F))), "x" * 255]


@pytest.mark.req("P-13.1-a", "A-13")
@pytest.mark.parametrize("strange", STRANGE)
def test_ids_of_any_visible_characters_are_taken_and_found(
    here: Central, orders: tuple[str, str], strange: str
) -> None:
    secret, writer = orders
    ids: dict[str, Any] = {
        "client_correlation_id": strange,
        "server_correlation_id": strange,
        "parent_reference_id": strange,
    }
    assert outcomes(here.push(secret, [row("strange", writer, **ids)])) == ["stored"]
    found = here.get("/v1/entries", correlation_id=strange)["rows"]
    assert [one["client_correlation_id"] for one in found] == [strange]
    named = quote(strange, safe="")
    assert here.get(f"/v1/trees/{named}")["calls"][0]["client_correlation_id"] == strange
    assert here.get(f"/v1/intents/{named}/{named}")["call"]["server_correlation_id"] == strange
    for page in (f"/tree?id={named}", f"/intent?client={named}&server={named}"):
        assert here.ask("GET", page).status_code == 200
