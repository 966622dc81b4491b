"""What both sides say of the same request, put together: neither can say later that it was another."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.client.callers import caller
from tests.client.shop import Shop, pair
from twophp.core.identity import payload_digest
from twophp.core.pairing import Reason, Verdict, pair_up


def test_each_side_binds_itself_to_the_content_of_the_request(kind: str, orders: Shop, tmp_path: Path) -> None:
    with caller(kind, tmp_path, targets=lambda _origin: "orders") as http:
        said = http.post(f"{orders.url}/orders")
    id_ = said.info["client_correlation_id"]
    client, server = pair(tmp_path / "checkout.db", id_), pair(tmp_path / "orders.db", id_)
    [heard] = [heard for heard in orders.heard if heard.line == "POST /orders"]
    received = payload_digest(heard.headers.get("content-type", ""), heard.body)
    assert client.request_digest == server.request_digest == received
    assert (client.settled_at is not None, server.settled_at is not None) == (True, True)
    [agreed] = pair_up([client, server])
    assert agreed.verdict is Verdict.PAIRED
    [disputed] = pair_up([client, replace(server, request_digest=payload_digest("", b"something else"))])
    assert (disputed.verdict, disputed.reason) == (Verdict.CONFLICT, Reason.REQUEST_DIFFERS)
