"""One browser and one central ledger for all tests here; a page that complains fails its test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, sync_playwright

from tests.central.test_pages import NOW, hostile_call
from tests.patience import PATIENCE_S
from tools import looking, traffic
from twophp.central.drawing.words import MINUTE_MS
from twophp.central.ports import Role

PATIENCE_MS = 1_000 * PATIENCE_S


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if looking.chromium() is None:
        pytest.skip("needs chromium")
    with sync_playwright() as playwright, looking.browser_of(playwright) as running:
        yield running
    asyncio.set_event_loop(None)  # Playwright leaves its own behind.


@pytest.fixture(scope="module")
def served() -> Iterator[looking.Served]:
    calls = [
        *traffic.Shop(NOW).calls(per_day=3),
        *traffic.worked_example(NOW - 30 * MINUTE_MS),
        *traffic.wide_tree(NOW - 60 * MINUTE_MS),
        hostile_call(),
    ]
    with looking.central(calls, lambda: NOW) as running:
        yield running


class Complaints(list[str]):
    """What a browser says when something is not as it should be: errors, violations of the policy, dialogs."""

    def listen(self, page: Page) -> None:
        page.on("console", lambda said: self.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("dialog", self._refuse)

    def _refuse(self, dialog: Dialog) -> None:
        self.append(f"dialog: {dialog.message}")
        dialog.dismiss()


class Looks:
    """Opens windows, and collects every complaint in them."""

    def __init__(self, browser: Browser, served: looking.Served) -> None:
        self.complaints = Complaints()
        self._browser = browser
        self._served = served

    @contextmanager
    def window(self, **options: Any) -> Iterator[Page]:
        context: BrowserContext = self._browser.new_context(
            base_url=self._served.url, viewport={"width": 1300, "height": 900}, reduced_motion="reduce", **options
        )
        context.set_default_timeout(PATIENCE_MS)
        try:
            page = context.new_page()
            self.complaints.listen(page)
            yield page
        finally:
            context.close()

    @contextmanager
    def logged_in(self, *roles: Role, at: str = "/", **options: Any) -> Iterator[Page]:
        with self.window(**options) as page:
            page.goto(at)
            page.get_by_label("Token").fill(self._served.token("watcher", *roles))
            page.get_by_role("button", name="Log in").click()
            page.locator("header.top").wait_for()
            yield page


@pytest.fixture
def looks(browser: Browser, served: looking.Served) -> Iterator[Looks]:
    made = Looks(browser, served)
    yield made
    assert made.complaints == []
