"""A handler that answers with a redirect has done nothing (A-08), and its client may go where it was sent (T2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.asgi.driver import AUTO, CLIENT, SERVER, STATE, Orders, Seen, answer, by_header, serving
from twophp import Policy, current_intent
from twophp.asgi.messages import Send
from twophp.stores.sqlite.verify import verify

pytestmark = pytest.mark.anyio

HOST = {"host": "shop.example"}


def redirecting(status: int, location: str | None = "/orders") -> Orders:
    """Sends every request for /old to ``location``, and serves any other."""

    async def behave(_app: Orders, seen: Seen, send: Send) -> None:
        if seen.scope["path"].startswith("/old"):
            await answer(send, status, {} if location is None else {"location": location}, b"elsewhere")
        else:
            await answer(send)

    return Orders(behave)


def done(orders: Orders) -> int:
    return len([seen for seen in orders.seen if not seen.scope["path"].startswith("/old")])


ALL = Policy.standard()


@pytest.mark.req("A-08", "P-5.3.2-c")
@pytest.mark.parametrize("status", [300, 301, 302, 304, 305, 307, 308])
@pytest.mark.parametrize("passthrough", [False, True])
async def test_a_redirect_has_done_nothing_and_is_answered_as_it_is(status: int, passthrough: bool, store: str) -> None:
    settings: dict[str, Any] = {"success_status": "passthrough"} if passthrough else {}
    async with serving(redirecting(status), policies=ALL, store=store, **settings) as service:
        registered = await service.register(path="/old")
        sent = await service.confirm(registered, path="/old/confirm")
        assert (sent.status, sent.get(STATE), sent.get("location")) == (status, "FAILED", "/orders")
        assert await service.confirm(registered, path="/old/confirm") == sent
        (row,) = await service.rows()
        assert row.outcome == "FAILED"


@pytest.mark.req("A-08")
@pytest.mark.parametrize(("passthrough", "status"), [(False, 200), (True, 303)])
async def test_see_other_is_success(passthrough: bool, status: int) -> None:
    settings: dict[str, Any] = {"success_status": "passthrough"} if passthrough else {}
    async with serving(redirecting(303, "/orders/7"), policies=ALL, **settings) as service:
        registered = await service.register(path="/old")
        sent = await service.confirm(registered, path="/old/confirm")
        assert (sent.status, sent.get(STATE), sent.get("location")) == (status, "COMMITTED", "/orders/7")


@pytest.mark.req("A-08", "P-5.3.2-c")
async def test_business_rows_of_a_redirect_are_not_written(tmp_path: Path) -> None:
    async def behave(_app: Orders, _seen: Seen, send: Send) -> None:
        intent = current_intent()
        assert intent is not None
        async with intent.transaction() as tx:
            tx.execute("CREATE TABLE made (sku TEXT)")
        await answer(send, 302, {"location": "/elsewhere"}, b"")

    async with serving(Orders(behave), store=f"sqlite:///{tmp_path}/shop.db") as service:
        registered, sent = await service.both()
        assert (sent.status, sent.get(STATE)) == (302, "FAILED")
        assert await service.phase(registered.get(SERVER)) == "FAILED"
    assert b"CREATE TABLE made" not in (tmp_path / "shop.db").read_bytes()


# --- following it -------------------------------------------------------------------------------------------------

PLACES = ["/orders", "http://shop.example/orders", "https://SHOP.example:443/orders", "orders", "//shop.example/orders"]


@pytest.mark.req("T2-7", "A-32", "A-109", "P-5.5.6-a")
@pytest.mark.parametrize("location", PLACES)
async def test_in_transparent_mode_the_same_id_may_go_where_it_was_sent(location: str, store: str) -> None:
    async with serving(redirecting(307, location), policies=ALL, store=store, headers=HOST) as service:
        asked = {**AUTO, CLIENT: "c-1"}
        assert (await service.request("POST", "/old", asked, b"{}")).status == 307
        assert (await service.request("POST", "/old", asked, b"{}")).status == 307
        assert (service.orders.runs, done(service.orders)) == (1, 0)
        made = await service.request("POST", "/orders", asked, b"{}")
        assert made.status == 201
        assert await service.request("POST", "/orders", asked, b"{}") == made
        assert (service.orders.runs, done(service.orders)) == (2, 1)
        assert (await service.request("POST", "/old", asked, b"{}")).status == 422  # The id is the new intent's now.
        assert sorted(row.phase for row in await service.rows()) == ["COMMITTED", "FAILED"]
    if store.startswith("sqlite"):
        assert not verify(store.removeprefix("sqlite:///")).findings


@pytest.mark.req("T2-7")
async def test_in_standard_mode_it_is_registered_and_confirmed_there(store: str) -> None:
    async with serving(redirecting(308, "/orders?a=1"), policies=ALL, store=store, headers=HOST) as service:
        registered = await service.register(path="/old")
        assert (await service.confirm(registered, path="/old/confirm")).status == 308
        assert (await service.register(path="/orders")).status == 422  # Another query is another place.
        again = await service.register(path="/orders", query="a=1")
        assert again.get(STATE) == "WAITING_CONFIRM"
        assert (await service.confirm(again)).get(STATE) == "COMMITTED"
        replayed = await service.confirm(registered, path="/old/confirm")
        assert replayed.status in (308, 404)  # From memory for a while, then unknown: it never runs.
        assert done(service.orders) == 1


@pytest.mark.req("T2-7", "A-32")
@pytest.mark.parametrize(
    ("status", "location", "change"),
    [
        (307, "/orders", {"body": b"other"}),
        (307, "/orders", {"method": "PUT"}),
        (307, "/orders", {"path": "/elsewhere"}),
        (307, "/orders", {"more": {"content-type": "text/plain"}}),
        (307, "https://other.example/orders", {}),
        (307, None, {}),
        (307, "http://[", {}),
        (400, "/orders", {}),
        (304, "/orders", {}),
        (303, "/orders", {}),
        (201, "/orders", {}),
    ],
)
async def test_anything_else_with_the_same_id_is_refused(status: int, location: str | None, change: Any) -> None:
    async with serving(redirecting(status, location), policies=ALL, headers=HOST) as service:
        registered = await service.register(path="/old")
        await service.confirm(registered, path="/old/confirm")
        refused = await service.register(**({"path": "/orders"} | change))
        assert (refused.status, service.orders.runs) == (422, 1)


@pytest.mark.req("T2-7", "A-32")
async def test_only_its_own_identity_follows() -> None:
    orders = redirecting(307)
    async with serving(orders, policies=ALL, identify=by_header, headers=HOST) as service:
        ada, eve = {"x-user": "ada"}, {"x-user": "eve"}
        registered = await service.register(path="/old", more=ada)
        await service.confirm(registered, path="/old/confirm", more=ada)
        assert (await service.register(path="/orders", more=eve)).get(STATE) == "WAITING_CONFIRM"  # Unrelated.
        assert (await service.confirm(registered, path="/old/confirm", more=ada)).status == 307
        assert (await service.register(path="/orders", more=ada)).get(STATE) == "WAITING_CONFIRM"
