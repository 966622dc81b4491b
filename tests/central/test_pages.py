"""The pages over a real socket: who sees what, what is logged, what cannot be smuggled in, and how large it all is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from tests.patience import PATIENCE_S
from tools import looking, traffic
from twophp.central.auth.access import COOKIE, own_address
from twophp.central.drawing.words import MINUTE_MS
from twophp.central.pages.frame import CSP
from twophp.central.pages.search import instant
from twophp.central.pages.services import freshness
from twophp.central.ports import Role, Service
from twophp.core.intent import Mode, Phase

NOW = 1_795_010_460_000
HOSTILE = "<img src=x onerror=alert(1)>\"'&\u202e</script><script>alert(2)</script>"
BIG = 10_000

READING = [
    "/",
    "/?range=7d",
    "/stalled",
    "/search",
    "/search?phase=FAILED",
    f"/search?source={quote(HOSTILE)}",
    "/search?verdict=CLIENT_ONLY&since=2026-11-01T00:00",
    "/tree?id=client-corr-id1",
    f"/tree?id={traffic.WIDE_ROOT}",
    f"/tree?id={quote(HOSTILE)}",
    "/intent?client=client-corr-id5&server=server-corr-id5",
    f"/intent?client={quote(HOSTILE)}&server={quote(HOSTILE)}",
    "/services",
    "/sla",
    "/sla?days=30&endpoint=orders/orders",
    f"/sla?endpoint={quote(HOSTILE)}/{quote(HOSTILE)}",
]
READERS = [Role.AUDIT, Role.OPERATIONS, Role.COMPLIANCE]


def hostile_call() -> traffic.Call:
    return traffic.Call(
        client_id=HOSTILE,
        server_id=HOSTILE,
        caller=HOSTILE,
        endpoint=f"{HOSTILE}/{HOSTILE}",
        parent=HOSTILE,
        at=NOW - MINUTE_MS,
        confirmed_after_ms=None,
        ran_for_ms=None,
        phase=Phase.WAITING_CONFIRM,
        client_phase=Phase.WAITING_CONFIRM,
        mode=Mode.STANDARD,
    )


@pytest.fixture(scope="module")
def served() -> Iterator[looking.Served]:
    calls = [
        *traffic.Shop(NOW).calls(per_day=6),
        *traffic.worked_example(NOW - 30 * MINUTE_MS),
        *traffic.wide_tree(NOW - 60 * MINUTE_MS),
        hostile_call(),
    ]
    with looking.central(calls, lambda: NOW) as running:
        yield running


@pytest.fixture
def stranger(served: looking.Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=PATIENCE_S) as client:
        yield client


@contextmanager
def logged_in(served: looking.Served, *roles: Role) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=PATIENCE_S) as client:
        answer = log_in(client, served.token("somebody", *roles))
        assert answer.status_code == 303, answer.text
        yield client


def log_in(client: httpx.Client, secret: str, after: str = "") -> httpx.Response:
    page = client.get("/login", params={"next": after})
    return client.post("/login", data={"csrf": csrf(page), "token": secret, "next": after})


def csrf(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert found, page.text
    return found[1]


@pytest.fixture(scope="module")
def operator(served: looking.Served) -> Iterator[httpx.Client]:
    with logged_in(served, Role.OPERATIONS) as client:
        yield client


# Who sees what.


@pytest.mark.req("P-13.5-a", "A-63")
@pytest.mark.parametrize("path", [*READING, "/tokens"])
def test_a_stranger_is_sent_to_log_in_and_comes_back(stranger: httpx.Client, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/login")
    assert stranger.get(path, headers={"Authorization": "Bearer tphp_wrong"}).status_code == 303


@pytest.mark.req("P-13.5-a", "A-63")
@pytest.mark.parametrize("role", READERS)
def test_every_reader_sees_every_page_and_operations_alone_the_tokens(served: looking.Served, role: Role) -> None:
    with logged_in(served, role) as client:
        for path in READING:
            assert client.get(path).status_code in (200, 404), path
        is_operator = role is Role.OPERATIONS
        assert client.get("/tokens").status_code == (200 if is_operator else 403)
        assert ('href="/tokens"' in client.get("/").text) is is_operator
        assert ("Pull now" in client.get("/services").text) is is_operator


@pytest.mark.req("A-63")
def test_a_service_cannot_log_in(served: looking.Served, stranger: httpx.Client) -> None:
    answer = log_in(stranger, served.token("orders", Role.SERVICE))
    assert answer.status_code == 403
    assert COOKIE not in stranger.cookies
    token = {"Authorization": f"Bearer {served.token('orders', Role.SERVICE)}"}
    assert stranger.get("/", headers=token).status_code == 403


@pytest.mark.req("A-63", "P-13.5-b")
@pytest.mark.parametrize("role", [Role.AUDIT, Role.COMPLIANCE])
def test_only_operations_pull_and_manage_tokens(served: looking.Served, role: Role) -> None:
    with logged_in(served, role) as client:
        form = {"csrf": csrf(client.get("/"))}
        for path in ("/pull", "/tokens", "/tokens/revoke"):
            assert client.post(path, data=form).status_code == 403, path


@pytest.mark.req("A-63")
def test_every_read_is_in_the_access_log(served: looking.Served, operator: httpx.Client) -> None:
    operator.get("/tree?id=client-corr-id1")
    newest = served.run(served.store.accesses(limit=1))[0]
    assert (newest.method, newest.path, newest.status) == ("GET", "/tree?id=client-corr-id1", 200)
    assert newest.who.startswith("somebody")
    assert "GET /tree?id=client-corr-id1" in operator.get("/tokens").text


# Sessions and forms.


def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(
    served: looking.Served, stranger: httpx.Client
) -> None:
    answer = log_in(stranger, served.token("somebody", Role.AUDIT), "/stalled?source=orders")
    assert answer.headers["location"] == "/stalled?source=orders"
    cookie = next(line for line in answer.headers.get_list("set-cookie") if line.startswith(COOKIE))
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie  # Plain loopback; behind TLS the scheme says https.


def test_behind_tls_cookies_are_secure(served: looking.Served) -> None:
    transport = httpx.ASGITransport(app=served.app)  # type: ignore[arg-type]

    async def over_tls() -> list[str]:
        async with httpx.AsyncClient(
            transport=transport, base_url="https://central.internal", timeout=PATIENCE_S
        ) as client:
            return (await client.get("/login")).headers.get_list("set-cookie")

    (cookie,) = served.run(over_tls())
    assert "Secure" in cookie


@pytest.mark.parametrize("wrong", ["", "nonsense"])
@pytest.mark.parametrize("path", ["/pull", "/tokens", "/tokens/revoke", "/logout"])
def test_a_form_that_is_not_ours_changes_nothing(operator: httpx.Client, path: str, wrong: str) -> None:
    before = operator.get("/tokens").text.count("<tr")
    form = {"csrf": wrong, "name": "x", "role": "audit", "days": "1", "service_ledger_id": "x", "token_id": "x"}
    assert operator.post(path, data=form).status_code == 403
    assert abs(operator.get("/tokens").text.count("<tr") - before) <= 3  # The log has grown; there is no new token.
    assert "<b>x</b>" not in operator.get("/tokens").text
    assert operator.get("/").status_code == 200


@pytest.mark.parametrize("body", [b"token=" + b"x" * 20_000, b"token=\xff", b"a&" * 60])
def test_a_login_form_that_cannot_be_read_is_refused_with_a_page(stranger: httpx.Client, body: bytes) -> None:
    answer = stranger.post("/login", content=body)
    assert answer.status_code == 400
    assert "the form" in answer.text.lower()


def test_the_login_form_is_refused_without_its_own_cookie(served: looking.Served, stranger: httpx.Client) -> None:
    page = stranger.get("/login")
    stranger.cookies.clear()
    form = {"csrf": csrf(page), "token": served.token("somebody", Role.AUDIT)}
    assert stranger.post("/login", data=form).status_code == 403


def test_a_bearer_credential_may_read_pages_and_submit_nothing(served: looking.Served, stranger: httpx.Client) -> None:
    token = {"Authorization": f"Bearer {served.token('program', Role.OPERATIONS)}"}
    assert stranger.get("/services", headers=token).status_code == 200
    assert stranger.post("/tokens", headers=token, data={"csrf": ""}).status_code == 403


def test_a_wrong_token_is_told_nothing(stranger: httpx.Client) -> None:
    answer = log_in(stranger, "tphp_" + "0" * 64)
    assert answer.status_code == 401
    assert "tphp_0" not in answer.text


def test_logging_out_ends_the_session_on_this_side(served: looking.Served) -> None:
    with logged_in(served, Role.AUDIT) as client:
        kept = client.cookies[COOKIE]
        assert client.post("/logout", data={"csrf": csrf(client.get("/"))}).status_code == 303
        client.cookies.set(COOKIE, kept)
        assert client.get("/").status_code == 303


def test_a_token_is_made_shown_once_and_revoked(served: looking.Served, operator: httpx.Client) -> None:
    form = {"csrf": csrf(operator.get("/tokens")), "name": "night shift", "role": ["audit"], "days": "7"}
    made = operator.post("/tokens", data=form)
    secret = re.search(r"tphp_[0-9a-f]{64}", made.text)
    assert secret
    assert secret[0] not in operator.get("/tokens").text
    token = next(one for one in served.run(served.store.tokens()) if one.name == "night shift")
    assert token.expires_at == NOW + 7 * 86_400_000
    with httpx.Client(base_url=served.url, timeout=PATIENCE_S) as client:
        log_in(client, secret[0])
        assert client.get("/").status_code == 200
        form = {"csrf": csrf(operator.get("/tokens")), "token_id": token.token_id}
        assert operator.post("/tokens/revoke", data=form).headers["location"] == "/tokens?said=revoked"
        assert client.get("/").status_code == 303


@pytest.mark.parametrize(
    "form", [{"name": "", "role": "audit", "days": "7"}, {"name": "x", "role": "audit", "days": "8"},
             {"name": "x", "role": ["audit", "service"], "days": "7"}, {"name": "x", "days": "7"}],
)  # fmt: skip
def test_a_token_that_makes_no_sense_is_not_made(operator: httpx.Client, form: dict[str, Any]) -> None:
    answer = operator.post("/tokens", data=form | {"csrf": csrf(operator.get("/tokens"))})
    assert answer.status_code == 400
    assert "tphp_" not in answer.text


def test_a_form_is_bounded(operator: httpx.Client) -> None:
    assert operator.post("/tokens", content=b"csrf=" + b"x" * 20_000).status_code == 400
    assert operator.post("/theme", content=b"&".join(b"a=1" for _ in range(100))).status_code == 400


@pytest.mark.parametrize(
    "address", ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", ""]
)
def test_nobody_is_sent_elsewhere(served: looking.Served, stranger: httpx.Client, address: str) -> None:
    assert own_address(address) == "/"
    assert log_in(stranger, served.token("somebody", Role.AUDIT), address).headers["location"] == "/"


def test_a_link_from_elsewhere_arrives(operator: httpx.Client, stranger: httpx.Client) -> None:
    """A strict cookie does not come along with such a link: the page sends the browser to itself, from itself."""
    again = stranger.get("/tree?id=client-corr-id1", headers={"Sec-Fetch-Site": "cross-site"})
    assert again.status_code == 200
    assert 'content="0; url=/tree?id=client-corr-id1"' in again.text
    own = {"Sec-Fetch-Site": "same-origin"}
    assert stranger.get("/tree?id=client-corr-id1", headers=own).status_code == 303
    assert operator.get("/tree?id=client-corr-id1", headers=own).status_code == 200


# What cannot be smuggled in.


class Seen(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.parametrize("path", [*READING, "/tokens", "/login?next=%22%3E%3Cscript%3E"])
def test_no_page_holds_a_script_or_style_of_anybody(operator: httpx.Client, path: str) -> None:
    answer = operator.get(path)
    assert answer.headers["content-security-policy"] == CSP
    assert "unsafe" not in CSP
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    seen = Seen()
    seen.feed(answer.text)
    for tag, attributes in seen.tags:
        assert tag not in ("img", "style", "iframe", "base", "object"), tag
        assert tag != "script" or (attributes.get("src") or "").startswith("/static/")
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        for name in ("href", "src", "action"):
            assert (attributes.get(name) or "/").startswith(("/", "#")), attributes
    assert "\u202e" not in answer.text


def test_hostile_ids_are_found_by_their_links(operator: httpx.Client) -> None:
    page = operator.get("/stalled")
    seen = Seen()
    seen.feed(page.text)
    links = {attributes.get("href") or "" for tag, attributes in seen.tags if tag == "a"}
    (link,) = [link for link in links if link.startswith("/intent") and "onerror" in link]
    intent = operator.get(link)
    assert intent.status_code == 200
    assert "&lt;img src=x onerror" in intent.text


# What the pages say.


@pytest.mark.req("P-10.3-a", "P-10.4-a")
def test_the_tree_of_any_member_has_all_fourteen_rows(operator: httpx.Client) -> None:
    for member in ("client-corr-id1", "server-corr-id7"):
        page = operator.get("/tree", params={"id": member})
        assert re.findall(r'<th scope="row">(E\d\d)</th>', page.text) == [f"E{number:02}" for number in range(1, 15)]
        assert page.text.count('class="call"') == 7


@pytest.mark.req("P-10.4-d", "A-54")
def test_stalled_rows_are_there_and_the_silent_ones_apart(operator: httpx.Client) -> None:
    page = operator.get("/stalled").text
    assert "past its deadline" in page
    assert "may still be confirmed" in page
    assert "its client has not heard" in page  # The server's row is further on.
    assert "expired and cleaned up" in page
    assert "running, and silent" in page
    assert "warehouse/picks" in page[page.index('id="silent"') :]


@pytest.mark.req("P-10.4-c", "A-48")
def test_one_side_missing_is_found_and_said_why(operator: httpx.Client) -> None:
    page = operator.get("/search?verdict=CLIENT_ONLY").text
    assert "lost: should be here" in page
    assert "not synced yet" in page
    assert "plain caller, by design" in operator.get("/search?verdict=SERVER_ONLY_BY_DESIGN").text


def test_a_pasted_id_leads_to_its_call(operator: httpx.Client) -> None:
    answer = operator.get("/search?q=server-corr-id3")
    assert answer.headers["location"] == "/intent?client=client-corr-id3&server=server-corr-id3"
    assert "No call fits" in operator.get("/search?q=nobody").text


def test_searching_goes_on_page_by_page_without_repeating(operator: httpx.Client) -> None:
    seen: list[str] = []
    address = "/search?source=orders&actor=server"
    while address:
        page = operator.get(address).text
        seen += re.findall(r'<tr data-call="([^"]+)"', page)
        found = re.search(r'class="pager"><a href="([^"]+)">', page)
        address = found[1].replace("&amp;", "&") if found else ""
    assert len(seen) == len(set(seen)) > 50


def test_an_intent_shows_both_rows_and_its_proof(operator: httpx.Client) -> None:
    page = operator.get("/intent?client=client-corr-id2&server=server-corr-id2").text
    for name in ("client_correlation_id", "parent_reference_id", "payload_ref", "sync_timestamp", "version"):
        assert f"<code>{name}</code>" in page
    assert page.count("<b>verified</b>") == 2
    assert "Client\N{RIGHT SINGLE QUOTATION MARK}s row" in page
    assert "serviceA/tasks" in page  # Its parent.
    assert "serviceC1/tasks" in page  # Its child.
    assert "past the point of no return" in page


def test_a_rewritten_row_is_not_verified(served: looking.Served, operator: httpx.Client) -> None:
    genuine = served.store.of_pairs

    async def rewritten(pairs: Any) -> Any:
        rows = await genuine(pairs)
        changed = msgspec.structs.replace(rows[0].entry, ttl_ms=1)
        return [msgspec.structs.replace(rows[0], entry=changed), *rows[1:]]

    served.store.of_pairs = rewritten  # type: ignore[method-assign]
    try:
        page = operator.get("/intent?client=client-corr-id2&server=server-corr-id2").text
    finally:
        del served.store.of_pairs
    assert "NOT verified" in page
    assert page.count("<b>verified</b>") == 1


def test_what_is_not_there_is_said(operator: httpx.Client) -> None:
    assert operator.get("/tree?id=nobody").status_code == 404
    assert operator.get("/intent?client=a&server=b").status_code == 404
    assert operator.get("/static/frame.py").status_code == 404
    assert operator.get("/search?cursor=nonsense&phase=FAILED").status_code == 400


def test_a_pull_that_fails_says_so(served: looking.Served, operator: httpx.Client) -> None:
    """No service listens at these pull URLs. How a pull succeeds, the browser shows."""
    orders = next(one for one in served.run(served.store.services()) if one.name == "orders")
    form = {"csrf": csrf(operator.get("/services")), "service_ledger_id": orders.service_ledger_id, "next": "/services"}
    answer = operator.post("/pull", data=form)
    assert answer.headers["location"] == "/services?said=pull_failed&n=0"
    assert "The pull failed" in operator.get(answer.headers["location"]).text
    assert operator.post("/pull", data=form | {"service_ledger_id": "nobody"}).status_code == 400


def test_the_theme_is_remembered(operator: httpx.Client) -> None:
    assert operator.post("/theme", data={"theme": "dark", "next": "/sla"}).headers["location"] == "/sla"
    assert 'data-theme="dark"' in operator.get("/sla").text
    operator.post("/theme", data={"theme": '"><script>', "next": "/sla"})
    assert 'data-theme="dark"' in operator.get("/sla").text
    operator.cookies.delete("twophp_theme")


def test_a_fresh_ledger_teaches() -> None:
    with looking.central([], lambda: NOW) as empty, logged_in(empty, Role.OPERATIONS) as client:
        assert "Rows arrive when" in client.get("/").text
        assert "No service has registered yet" in client.get("/services").text
        assert "Nothing is stalled" in client.get("/stalled").text
        assert "No calls in 14 days" in client.get("/sla").text


# How large it is.


@pytest.mark.parametrize("path", [*READING, "/tokens"])
def test_a_page_and_all_it_needs_is_below_100_kb(operator: httpx.Client, path: str) -> None:
    page = operator.get(path)
    files = [*re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text), "/static/live.js"]
    total = sum(operator.get(file).num_bytes_downloaded for file in files) + page.num_bytes_downloaded
    assert total < 100_000, f"{total:,}"


def test_a_tree_of_ten_thousand_rows_is_still_a_page() -> None:
    calls = list(traffic.wide_tree(NOW - 60 * MINUTE_MS, BIG // 2 - 2))  # Its rows just fit into one answer.
    with looking.central(calls, lambda: NOW) as full, logged_in(full, Role.AUDIT) as client:
        page = client.get("/tree", params={"id": traffic.WIDE_ROOT})
        assert f"{BIG // 2 - 1:,} calls" in page.text
        assert page.num_bytes_downloaded < 80_000
        rest = re.search(r'<a href="(/tree\?[^"]*first=[^"]*)"', page.text)
        assert rest
        below = client.get(rest[1].replace("&amp;", "&"))
        assert below.status_code == 200
        assert "The whole tree" in below.text


def test_files_are_kept_and_checked(operator: httpx.Client) -> None:
    page = operator.get("/").text
    style = re.search(r'href="(/static/ledger.css\?v=[^"]+)"', page)
    assert style
    assert "immutable" in operator.get(style[1]).headers["cache-control"]
    plain = operator.get("/static/live.js")
    assert plain.headers["cache-control"] == "no-cache"
    assert operator.get("/static/live.js", headers={"If-None-Match": plain.headers["etag"]}).status_code == 304


# Small parts.


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("2026-01-01T00:00", 1_767_225_600_000),
        ("2026-01-01T01:00+01:00", 1_767_225_600_000),
        ("soon", None),
        ("", None),
    ],
)
def test_a_typed_time_is_utc(typed: str, found: int | None) -> None:
    assert instant(typed) == found


@pytest.mark.parametrize(("ago_ms", "word"), [(0, "fresh"), (10 * MINUTE_MS, "quiet"), (90 * MINUTE_MS, "silent")])
def test_how_fresh_a_service_is(ago_ms: int, word: str) -> None:
    service = Service(service_ledger_id="x", name="x", registered_at=0, last_sync_at=NOW - ago_ms)
    assert freshness(service, NOW) == word
    assert freshness(Service(service_ledger_id="x", name="x", registered_at=0), NOW) == "silent"
