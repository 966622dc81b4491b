"""Write docs/screenshots again: every page of the central ledger, light and dark (``make screenshots``)."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Final, Literal
from uuid import UUID

from playwright.sync_api import Browser, sync_playwright

from tools import looking, telling, traffic
from twophp.central.ports import Role
from twophp.core.intent import Phase
from twophp.ports import MintId

FOLDER: Final = Path(__file__).parents[1] / "docs" / "screenshots"
NOW: Final = 1_795_010_460_000  # A fixed moment, so that the pictures differ only when the pages do.
WIDTH: Final = 1440
HEIGHT: Final = 900
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")


def pages(calls: list[traffic.Call]) -> Mapping[str, str]:
    """A name and an address for every picture."""
    odd = next(call for call in calls if not call.has_server)
    failed = next(
        call
        for call in calls
        if call.endpoint == "fraud/checks" and call.phase is Phase.FAILED and call.at > NOW - 600_000
    )
    told = next(
        call
        for call in reversed(calls)
        if call.endpoint == "orders/orders" and call.phase is Phase.COMMITTED and call.at > NOW - 600_000
    )
    one_sided = f"/intent?client={odd.client_id}&server={odd.server_id}"
    return {
        "overview": "/",
        "stalled": "/stalled?ask=1",
        "tree": "/tree?id=client-corr-id1",
        "tree-failed": f"/tree?id={failed.client_id}",
        "tree-one-sided": f"/tree?id={odd.client_id}",
        "tree-large": f"/tree?id={traffic.WIDE_ROOT}",
        "intent": "/intent?client=client-corr-id2&server=server-corr-id2",
        "intent-told": f"/intent?client={told.client_id}&server={told.server_id}&ask=1#asked",
        "intent-one-sided": one_sided,
        "wrong": "/nowhere",
        "search": "/search?phase=FAILED&source=payments",
        "services": "/services",
        "sla": "/sla",
        "sla-endpoint": "/sla?endpoint=orders/orders",
        "tokens": "/tokens",
    }


def made_up_ids() -> MintId:
    """Ids that are the same every time. Only this tool uses them."""
    numbers = count(1)
    return lambda: str(UUID(bytes=hashlib.sha256(b"%d" % next(numbers)).digest()[:16], version=4))


def main() -> None:
    """Take them all, or those whose names are given."""
    wanted = set(sys.argv[1:])
    calls = traffic.everything(NOW)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        looking.central(calls, lambda: NOW, made_up_ids()) as served,
        looking.telling(lambda: NOW, NOW - 420_000) as told,
        sync_playwright() as playwright,
    ):
        for name in ("orders", "stock", "warehouse"):
            register = served.store.register(name, None, f"token of {name}", NOW, pull_url=told.url + telling.PATH)
            served.run(register)
        secret = served.token("on call", Role.OPERATIONS)
        for name in ("auditor", "compliance export"):
            served.token(name, Role.AUDIT)
        with looking.browser_of(playwright) as browser:
            for theme in THEMES:
                _take(browser, served.url, secret, theme, pages(calls), wanted)


def _take(
    browser: Browser, url: str, secret: str, theme: Literal["light", "dark"], wanted: Mapping[str, str], only: set[str]
) -> None:
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=theme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(f"{url}/login")
    if not only or "login" in only:
        page.screenshot(path=FOLDER / f"login-{theme}.png")
    page.get_by_label("Token").fill(secret)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{url}/")
    for name, address in wanted.items():
        if only and name not in only:
            continue
        page.goto(url + address)
        page.locator("#live.on, body:not([data-live])").first.wait_for()
        page.screenshot(path=FOLDER / f"{name}-{theme}.png")
        print(f"screenshots: {name}-{theme}.png")
    context.close()


if __name__ == "__main__":
    main()
