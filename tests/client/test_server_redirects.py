"""A handler's redirect, seen from a client: it is no success, and a client that may follow it makes one order."""

from __future__ import annotations

import pickle
from pathlib import Path

import httpx
import pytest

from tests.client.callers import caller
from tests.client.shop import Shop
from tests.patience import PATIENCE_S
from twophp.client import Advice, PhaseError, calling


@pytest.mark.req("A-08", "A-109", "T2-7")
def test_a_plain_client_that_follows_redirects_makes_one_order(orders: Shop) -> None:
    """Starlette redirects a trailing slash with 307: such a call was COMMITTED with nothing done."""
    headers = {"DTT-2PHP-Enabled": "true", "DTT-2PHP-Auto-Confirm": "true", "DTT-2PHP-Client-Correlation-ID": "c-1"}
    with httpx.Client(follow_redirects=True, timeout=PATIENCE_S) as http:
        made = http.post(f"{orders.url}/orders/", json={"sku": 1}, headers=headers)
    assert (made.status_code, len(made.history), orders.runs) == (201, 1, ["POST /orders"])
    assert sorted(row.phase for row in orders.rows()) == ["COMMITTED", "FAILED"]


@pytest.mark.req("A-08", "A-109")
@pytest.mark.parametrize("follow", [False, True])
def test_our_client_hears_of_the_redirect_and_makes_one_order_where_it_may_follow(
    follow: bool, orders: Shop, tmp_path: Path
) -> None:
    with caller("httpx", tmp_path) as http:
        made = http.post(f"{orders.url}/orders/", **({"follow_redirects": True} if follow else {}))
    assert (made.status, len(orders.runs)) == ((200, 1) if follow else (307, 0))
    assert made.info["phase"] == ("COMMITTED" if follow else "FAILED")


@pytest.mark.req("A-109")
def test_a_named_call_that_ended_with_a_redirect_is_not_made_under_the_same_name(
    kind: str, orders: Shop, tmp_path: Path
) -> None:
    follow = {"allow_redirects" if kind == "requests" else "follow_redirects": True}
    with caller(kind, tmp_path) as http, calling(client_correlation_id="one"):
        for _ in range(2):
            with pytest.raises(PhaseError, match="the call one has ended with a redirect to this URL") as raised:
                http.post(f"{orders.url}/orders/", **follow)
            assert (raised.value.code, raised.value.advice) == ("redirected_away", Advice.FIX)
    assert orders.runs == []


@pytest.mark.req("A-109")
def test_a_response_of_requests_that_redirects_can_be_pickled(orders: Shop, tmp_path: Path) -> None:
    with caller("requests", tmp_path) as http:
        made = http.post(f"{orders.url}/orders/", allow_redirects=False).response
    assert pickle.loads(pickle.dumps(made)).status_code == 307  # noqa: S301
