"""Where a request goes, which of its neighbours may be asked about it, and what an answer's ordinary fields say."""

from __future__ import annotations

import pytest

from twophp.wire import response
from twophp.wire.targets import Target, target_of

ORDERS = target_of("https://orders.internal/orders/?dry=1")


@pytest.mark.parametrize(
    ("url", "origin", "path", "query"),
    [
        ("https://Orders.Internal", "https://orders.internal", "/", ""),
        ("https://orders.internal:443/a%2Fb?x=1#f", "https://orders.internal", "/a%2Fb", "x=1"),
        ("http://user:pass@orders:8080/a", "http://orders:8080", "/a", ""),
        ("http://[::1]:8080/a", "http://[::1]:8080", "/a", ""),
    ],
)
def test_a_url_is_taken_apart(url: str, origin: str, path: str, query: str) -> None:
    assert target_of(url) == Target(origin, path, query)


@pytest.mark.parametrize("url", ["", "/orders", "https://", "https://orders:port/"])
def test_what_leads_nowhere_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"host|port"):
        target_of(url)


@pytest.mark.req("A-01", "A-55")
def test_the_confirm_url_comes_from_what_was_called() -> None:
    assert ORDERS.confirms_at().url == "https://orders.internal/orders/confirm"
    assert target_of("https://a/").confirms_at("/go").url == "https://a/go"
    assert (ORDERS.endpoint_of("orders"), target_of("https://a/").endpoint_of("a")) == ("orders/orders", "a/")


@pytest.mark.req("A-109")
def test_only_the_same_origin_is_followed() -> None:
    inside = {
        "/jobs/1": "https://orders.internal/jobs/1",
        "1": "https://orders.internal/orders/1",
        "https://ORDERS.internal:443/x?y=1": "https://orders.internal/x?y=1",
    }
    assert {where: found.url for where in inside if (found := ORDERS.within(where))} == inside
    outside = (
        "http://orders.internal/x",
        "https://orders.internal:8443/x",
        "//evil.example/x",
        "https://[bad",
        "ftp:x",
    )
    assert [ORDERS.within(where) for where in outside] == [None] * len(outside)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({b"Retry-After": b" 7 "}, 7.0),
        ({b"retry-after": b"99999999999999999999"}, 86_400.0),
        ({b"retry-after": b"-1"}, None),
        ({b"retry-after": b"soon"}, None),
        ({b"retry-after": b"Thu, 01 Jan 2026 00:00:05 GMT"}, None),
        ({b"retry-after": b"Thu, 01 Jan 2026 00:00:05 GMT", b"date": b"Thu, 01 Jan 2026 00:00:00 GMT"}, 5.0),
        ({b"retry-after": b"Thu, 01 Jan 2026 00:00:00 GMT", b"date": b"Thu, 01 Jan 2026 00:00:05 GMT"}, 0.0),
        ({}, None),
    ],
)
def test_how_long_to_wait(headers: dict[bytes, bytes], seconds: float | None) -> None:
    assert response.retry_after_s(list(headers.items())) == seconds


def test_dates_and_places_that_are_none() -> None:
    assert response.made_at([(b"date", b"x" * 100)]) is None
    assert response.made_at([(b"date", b"Thu, 99 Foo 2026 00:00:00 GMT")]) is None
    assert response.location([(b"location", b"/a b")]) is None
    assert response.location([(b"Location", b"/a")]) == "/a"
