"""What people do with the pages, in a real browser: by mouse, by keyboard, with scripts and without."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import msgspec
import pytest
from playwright.sync_api import Page, ViewportSize, expect

from tests.asgi_frameworks.serving import served as serving
from tests.asgi_frameworks.serving import wrapped
from tests.central.browser.conftest import Looks
from tests.central.browser.sight import CONTRASTS, NAMELESS
from tests.central.provider import AUDIENCE, CLIENT, provider
from tests.central.served import central
from tests.central.test_pages import HOSTILE, NOW, READING
from tests.patience import PATIENCE_S
from tools import looking, traffic
from twophp.central.auth.oidc import Oidc, Provider
from twophp.central.ingest.pull import management_token
from twophp.central.ports import Role
from twophp.core.intent import Phase
from twophp.shipping.shipper import PULL_PATH

PHONE: Final[ViewportSize] = {"width": 400, "height": 800}
DESK: Final[ViewportSize] = {"width": 1300, "height": 900}
TREE = "/tree?id=client-corr-id5"
INTENT = "/intent?client=client-corr-id2&server=server-corr-id2"
MINUTE_MS = 60_000
LOOKED_AT = (
    *("/", "/stalled", "/search?phase=FAILED", TREE, "/services", "/sla", "/tokens", "/search"),
    *(f"{INTENT}&ask=1", "/nowhere"),
)


def cards(page: Page) -> list[str]:
    return page.locator("svg.tree a.call .name").all_text_contents()


def test_whoever_follows_a_link_logs_in_and_is_there(looks: Looks, served: looking.Served) -> None:
    with looks.window() as page:
        page.goto(TREE)
        expect(page).to_have_title(re.compile("Log in"))
        page.keyboard.type(served.token("reader", Role.AUDIT))  # The field has the focus.
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{TREE}")
        assert len(cards(page)) == 7
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_text("You are logged out.")).to_be_visible()
        page.goto("/")
        expect(page).to_have_title(re.compile("Log in"))


def test_a_wrong_token_is_told_so(looks: Looks) -> None:
    with looks.window() as page:
        page.goto("/login")
        page.get_by_label("Token").fill("tphp_wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("No token like this")
    assert [one for one in looks.complaints if "401" in one]  # The browser notes the refusal itself, and nothing else.
    looks.complaints.clear()


def test_a_tree_folds_zooms_and_leads_on(looks: Looks) -> None:
    with looks.logged_in(Role.AUDIT, at=TREE) as page:
        assert cards(page)[0] == "serviceA/tasks"
        page.evaluate("window.stayed = true")
        page.get_by_label("Fold what is below: 6 calls").click()
        page.get_by_label("Show what is below: 6 calls").wait_for()
        assert cards(page) == ["serviceA/tasks"]
        assert "fold=server-corr-id1" in page.url
        page.go_back()
        page.get_by_label("Fold what is below: 6 calls").wait_for()
        assert page.evaluate("window.stayed")  # All that without loading a page.
        width = page.locator("svg.tree").evaluate("svg => svg.clientWidth")
        page.get_by_role("button", name="Zoom in").click()
        assert page.locator("svg.tree").evaluate("svg => svg.clientWidth") > width
        page.get_by_role("button", name="Fit").click()
        page.get_by_label(re.compile("^serviceC1/tasks, called by serviceB1: Committed")).click()
        page.wait_for_url("**/intent?client=client-corr-id5&server=server-corr-id5")
        expect(page.get_by_role("heading", name="serviceC1/tasks")).to_be_visible()


def test_a_large_tree_stays_usable(looks: Looks) -> None:
    with looks.logged_in(Role.AUDIT, at=f"/tree?id={traffic.WIDE_ROOT}") as page:
        assert page.locator("svg.tree *").count() < 10_000
        assert len(cards(page)) > 40
        box = page.locator("[data-stage]").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 30, box["y"] + 400)
        page.mouse.down()
        page.mouse.move(box["x"] + 30, box["y"] + 100)
        page.mouse.up()
        assert page.locator("[data-stage]").evaluate("stage => stage.scrollTop") > 200
        page.locator("svg.tree a.rest").first.click()
        expect(page.get_by_text("The whole tree")).to_be_visible()


def test_by_keyboard_alone(looks: Looks) -> None:
    with looks.logged_in(Role.AUDIT, at=TREE) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.locator("[data-stage]").focus()
        for key, name in (
            ("ArrowDown", "serviceA/tasks"),
            ("ArrowRight", "serviceB2/tasks"),
            ("ArrowDown", "serviceB3/tasks"),
            ("ArrowRight", "serviceE1/tasks"),
            ("ArrowLeft", "serviceB3/tasks"),
        ):
            page.keyboard.press(key)
            assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith(name), key
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "find"
        page.keyboard.type("server-corr-id7")
        page.keyboard.press("Enter")
        page.wait_for_url("**/intent?client=client-corr-id7&server=server-corr-id7")


def test_what_arrives_is_seen_at_once(looks: Looks, served: looking.Served) -> None:
    with looks.logged_in(Role.OPERATIONS, at="/stalled") as page:
        expect(page.locator("#live.on")).to_be_visible()
        page.evaluate("window.stayed = true")
        call = next(traffic.wide_tree(NOW - MINUTE_MS, 0))
        open_ = {"phase": Phase.WAITING_CONFIRM, "client_phase": Phase.WAITING_CONFIRM, "confirmed_after_ms": None}
        arrive(served, call, client_id="just-arrived", parent="just-arrived", server_id="s-1", **open_)
        expect(page.locator("tr[data-call='just-arrived']").first).to_be_visible()
        page.goto("/tree?id=just-arrived")
        expect(page.locator("#live.on")).to_be_visible()
        page.evaluate("window.stayed = true")
        arrive(served, call, client_id="made-for-it", parent="just-arrived", server_id="s-2", caller="reports", **open_)
        expect(page.locator("svg.tree a.call")).to_have_count(2)
        assert page.evaluate("window.stayed")


def arrive(served: looking.Served, call: traffic.Call, **facts: object) -> None:
    changed = msgspec.structs.replace(call, **facts)
    served.run(traffic.fill(served.store, [changed], NOW))


@pytest.fixture
def pulled_from(served: looking.Served, tmp_path: Path) -> Iterator[str]:
    """A real service with one registered call that it has not sent."""

    async def app(*_asgi: object) -> None:
        raise AssertionError("nothing is confirmed here")

    token = management_token(looking.KEY, "depot")
    service = wrapped(app, tmp_path, service="depot", management_token=token)
    with serving(service, lifespan="off") as running:
        headers = {"DTT-2PHP-Enabled": "true", "DTT-2PHP-Client-Correlation-ID": "0b9d4b1e-3a52-4c0e-9d52-0e4a1f6f7a11"}
        assert (
            httpx.post(f"{running.url}/crates", headers=headers, json={"crates": 2}, timeout=PATIENCE_S).status_code
            == 200
        )
        where = f"{running.url}{PULL_PATH}"
        served.run(served.store.register("depot", None, "token of depot", NOW, pull_url=where))
        yield headers["DTT-2PHP-Client-Correlation-ID"]


@pytest.mark.req("P-9.6-a", "P-9.6-b", "P-9.7-c")
def test_a_pull_brings_what_was_not_sent(looks: Looks, pulled_from: str) -> None:
    with looks.logged_in(Role.OPERATIONS, at="/services") as page:
        page.get_by_role("row", name=re.compile("depot")).get_by_role("button", name="Pull now").click()
        expect(page.get_by_role("status").filter(has_text="Pulled: 1 row arrived")).to_be_visible()
        page.get_by_label("Any correlation id").fill(pulled_from)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="depot/crates")).to_be_visible()
        page.get_by_role("button", name="Pull from depot").click()
        expect(page.get_by_role("status").filter(has_text="Pulled: 1 row of this call")).to_be_visible()
        told = page.get_by_role("article", name="What depot told")
        expect(told).to_contain_text("registered; waits for Phase 2")
        expect(told).to_contain_text("none were reserved for this call")
        assert page.evaluate(CONTRASTS) == []


@pytest.mark.req("A-47")
def test_a_service_is_asked_about_a_call_without_scripts(looks: Looks) -> None:
    """Where a service does not listen, the page says so, and its rest stands."""
    call = next(call for call in traffic.Shop(NOW).calls(per_day=3) if call.endpoint == "orders/orders")
    at = f"/intent?client={call.client_id}&server={call.server_id}"
    with looks.logged_in(Role.OPERATIONS, at=at, java_script_enabled=False) as page:
        page.get_by_role("link", name="Fetch from orders").click()
        expect(page.get_by_text("could not be asked")).to_be_visible()
        expect(page.get_by_role("heading", name="Proof")).to_be_visible()
    with looks.logged_in(Role.AUDIT, at=f"{at}&ask=1") as page:
        expect(page.get_by_text("An operator can ask")).to_be_visible()


def test_ids_from_outside_are_only_ever_text(looks: Looks) -> None:
    with looks.logged_in(Role.OPERATIONS) as page:
        for path in READING:
            page.goto(path)
        page.goto("/stalled")
        page.locator("a", has_text="onerror").first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x onerror=alert(1)>")
        page.goto("/search")
        page.get_by_label("Written by").fill(HOSTILE)
        page.get_by_role("button", name="Search", exact=True).click()
        page.locator("main").wait_for()
    complaints = [one for one in looks.complaints if "404" not in one]  # Some of the calls are not there.
    assert complaints == []
    looks.complaints.clear()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_can_be_read_and_every_control_has_a_name(looks: Looks, theme: str) -> None:
    with looks.logged_in(Role.OPERATIONS, color_scheme=theme) as page:
        for path in LOOKED_AT:
            page.goto(path)
            assert page.evaluate(NAMELESS) == [], path
            assert page.evaluate(CONTRASTS) == [], path
            page.set_viewport_size(PHONE)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
            page.set_viewport_size(DESK)
    assert ["404" in one for one in looks.complaints] == [True]  # The last page is the one that is not there.
    looks.complaints.clear()


def test_light_and_dark_are_chosen_and_kept(looks: Looks) -> None:
    scheme = "getComputedStyle(document.documentElement).colorScheme"
    with looks.logged_in(Role.AUDIT, color_scheme="light") as page:
        page.get_by_role("button", name="Switch between light and dark").click()
        assert page.evaluate(scheme) == "dark"
        page.goto("/sla")
        assert page.evaluate(scheme) == "dark"


def test_all_can_be_read_without_scripts(looks: Looks) -> None:
    with looks.logged_in(Role.OPERATIONS, at=TREE, java_script_enabled=False) as page:
        assert len(cards(page)) == 7
        page.get_by_label("Fold what is below: 6 calls").click()
        page.wait_for_url("**fold=server-corr-id1")
        assert cards(page) == ["serviceA/tasks"]
        page.get_by_role("button", name="Switch between light and dark").click()
        expect(page.locator("html[data-theme=dark]")).to_be_attached()
        page.goto("/")
        expect(page.get_by_role("img", name=re.compile("Calls by outcome"))).to_be_visible()
        page.get_by_text("The numbers behind these pictures").click()
        expect(page.get_by_role("table", name="Calls and latencies by time")).to_be_visible()
        page.get_by_role("link", name="Stalled", exact=True).click()
        expect(page.get_by_role("heading", name="Stalled", exact=True)).to_be_visible()


@pytest.mark.req("P-13.5-a")
def test_an_identity_provider_logs_somebody_in(looks: Looks, tmp_path: Path) -> None:
    with provider() as issuer:
        issuer.who = {"sub": "grace", "roles": ["audit"]}
        rules = Provider(issuer=issuer.issuer, audience=AUDIENCE, client_id=CLIENT, allow_insecure=True)
        with central(tmp_path, oidc=Oidc(rules)) as running, looks.window() as page:
            page.goto(f"{running.url}/login")
            page.get_by_role("link", name="Log in with your identity provider").click()
            expect(page.locator("header .who")).to_contain_text("grace")
            page.goto(f"{running.url}/services")
            expect(page.get_by_role("heading", name="No service has registered yet")).to_be_visible()
