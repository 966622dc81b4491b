"""What is indeterminate, on the central ledger's pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.central.test_pages import NOW, logged_in
from tools import looking, traffic
from twophp.central.drawing.words import MINUTE_MS
from twophp.central.ports import Role
from twophp.core.intent import Phase


def failed(name: str, *, indeterminate: bool) -> traffic.Call:
    return traffic.Call(
        client_id=f"{name}-client",
        server_id=f"{name}-server",
        caller="checkout",
        endpoint=f"{name}/orders",
        parent=f"{name}-client",
        at=NOW - 2 * MINUTE_MS,
        confirmed_after_ms=10,
        ran_for_ms=30_000,
        phase=Phase.FAILED,
        client_phase=Phase.FAILED,
        indeterminate=indeterminate,
    )


@pytest.fixture(scope="module")
def operator() -> Iterator[httpx.Client]:
    calls = [failed("lost", indeterminate=True), failed("known", indeterminate=False)]
    with looking.central(calls, lambda: NOW) as served, logged_in(served, Role.OPERATIONS) as client:
        yield client


@pytest.mark.req("A-34")
def test_what_is_indeterminate_is_told_apart_on_every_page(operator: httpx.Client) -> None:
    state = 'class="phase indeterminate"'
    for path in ("/intent?client=lost-client&server=lost-server", "/tree?id=lost-client", "/search?target=lost"):
        assert state in operator.get(path).text, path
    intent = operator.get("/intent?client=lost-client&server=lost-server").text
    assert "nobody knows whether its effects happened" in intent
    assert "<code>indeterminate</code>" in intent
    assert re.search(r"<h2>Indeterminate</h2><p class=\"big\">1</p>", operator.get("/").text)
    report = operator.get("/sla?endpoint=lost/orders").text
    assert "Indeterminate</th>" in report
    line = re.search(r"<tr><th scope=\"row\"[^>]*>[^<]*</th>(.*?)</tr>", report)
    assert line
    assert re.findall(r">(\d+)<", line[1])[:4] == ["1", "0", "0", "1"], "calls, committed, failed, indeterminate"


@pytest.mark.req("A-34")
def test_a_search_finds_what_is_indeterminate_or_leaves_it_out(operator: httpx.Client) -> None:
    only = operator.get("/search?indeterminate=true").text
    assert only.count("<tr data-call=") == 1
    assert 'data-call="lost-client"' in only
    for path in ("/search?target=lost&indeterminate=false", "/search?phase=COMMITTED&indeterminate=true"):
        assert "No call fits" in operator.get(path).text, path
    assert 'data-call="lost-client"' in operator.get("/search?phase=FAILED&target=lost").text
