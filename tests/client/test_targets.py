"""``targets=`` names services by origin, however it is spelled; what can be no origin is refused at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.client.callers import caller, settings
from tests.client.shop import Shop, ledger
from twophp.client import AsyncTwoPhaseTransport, CallbackReceiver, TwoPhaseTransport
from twophp.client.requests import TwoPhaseAdapter
from twophp.client.settings import Settings
from twophp.core.errors import ConfigError
from twophp.wire.targets import target_of

ALIKE = [
    ("HTTPS://Orders.Internal", "https://orders.internal/orders"),
    ("https://orders.internal/", "https://orders.internal/orders"),
    ("https://orders.internal:443", "https://orders.internal/orders"),
    ("http://orders.internal:80/", "http://orders.internal:80/orders"),
    ("http://orders:8080", "http://ORDERS:8080/orders?a=1"),
    ("http://my_service:8000", "http://my_service:8000/"),
    ("https://bücher.example", "https://xn--bcher-kva.example/a"),
    ("https://BÜCHER.example", "https://xn--bcher-kva.example/a"),
    ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example/a"),
    ("http://[::1]:8001", "http://[0:0:0:0:0:0:0:1]:8001/orders"),
    ("http://[0:0::0001]", "http://[::1]/orders"),
    ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/orders"),
]

DIFFERENT = [
    ("https://orders.internal", "http://orders.internal/orders"),
    ("https://orders.internal:8443", "https://orders.internal/orders"),
    ("http://orders.internal:443", "https://orders.internal/orders"),
    ("https://orders.internal", "https://orders.internal.example/orders"),
]

BAD: list[tuple[Any, str]] = [
    (["https://orders.internal"], "mapping"),
    ("https://orders.internal", "mapping"),
    (5, "mapping"),
    ({b"https://orders.internal": "orders"}, "entry 1"),
    ({"https://a": "a", 7: "orders"}, "entry 2"),
    ({"": "orders"}, "''"),
    ({"orders": "orders"}, "'orders' must begin with http"),
    ({"orders.internal:8443": "orders"}, "orders.internal:8443"),
    ({"//orders.internal": "orders"}, "//orders.internal"),
    ({"ftp://orders.internal": "orders"}, "ftp://orders.internal"),
    ({"https://": "orders"}, "host"),
    ({"https://orders.internal/orders": "orders"}, "end after host"),
    ({"https://orders.internal?": "orders"}, "end after host"),
    ({"https://orders.internal#x": "orders"}, "end after host"),
    ({"https://orders internal": "orders"}, "orders internal"),
    ({" https://orders.internal": "orders"}, "https://orders.internal"),
    ({"https://orders..internal": "orders"}, "orders..internal"),
    ({"https://-orders": "orders"}, "-orders"),
    ({"https://" + "a" * 64: "orders"}, "aaaa"),
    ({"https://orders:99999": "orders"}, "99999"),
    ({"https://orders:0": "orders"}, "port"),
    ({"https://orders:": "orders"}, "port"),
    ({"https://orders:x": "orders"}, "orders:x"),
    ({"https://[::g]": "orders"}, "::g"),
    ({"https://::1": "orders"}, "::1"),
    ({"https://\u2028.example": "orders"}, "targets"),
    ({"https://orders.internal": ""}, "orders.internal"),
    ({"https://orders.internal": None}, "orders.internal"),
    ({"https://orders.internal": "or\nders"}, "orders.internal"),
    ({"https://orders.internal": "a", "HTTPS://Orders.internal:443/": "b"}, "twice"),
]


def made(**changes: Any) -> Settings:
    return Settings(**({"ledger": "memory:", "source": "checkout"} | changes))


@pytest.mark.req("A-55")
@pytest.mark.parametrize(("origin", "url"), ALIKE)
def test_an_origin_is_found_however_it_is_spelled(origin: str, url: str) -> None:
    assert made(targets={origin: "shop"}).target_of(target_of(url)) == "shop"


@pytest.mark.parametrize(("origin", "url"), DIFFERENT)
def test_another_origin_is_not_taken_for_it(origin: str, url: str) -> None:
    assert made(targets={origin: "shop"}).target_of(target_of(url)) == "orders"


@pytest.mark.parametrize(("bad", "named"), BAD, ids=lambda value: str(value)[:40])
def test_what_can_be_no_origin_is_refused_by_name(bad: Any, named: str, tmp_path: Path) -> None:
    for kind in (TwoPhaseTransport, AsyncTwoPhaseTransport, TwoPhaseAdapter, CallbackReceiver):
        with pytest.raises(ConfigError) as raised:
            kind(**settings(tmp_path, targets=bad))
        assert raised.value.code == "bad_target"
        assert named in str(raised.value)


def test_a_password_in_an_origin_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="entry 1") as raised:
        TwoPhaseTransport(**settings(tmp_path, targets={"https://me:hush@orders.internal": "orders"}))
    assert "hush" not in str(raised.value)


def test_a_function_is_asked_with_the_same_form_and_may_pass() -> None:
    asked: list[str] = []
    settings = made(targets=asked.append)
    assert settings.target_of(target_of("HTTP://[0::1]:80/orders")) == "[0::1]"
    assert asked == ["http://[::1]"]
    with pytest.raises(ConfigError) as raised:
        made(targets=lambda _origin: 5).target_of(target_of("https://orders/orders"))
    assert raised.value.code == "bad_target"


@pytest.mark.req("A-55")
def test_rows_name_the_service_by_an_origin_that_was_spelled_otherwise(kind: str, orders: Shop, tmp_path: Path) -> None:
    origin = orders.url.replace("http://", "HTTP://") + "/"
    with caller(kind, tmp_path, targets={origin: "orders"}) as http:
        http.post(f"{orders.url}/orders")
    assert [row.service_endpoint for row in ledger(tmp_path / "checkout.db")] == ["orders/orders"]
