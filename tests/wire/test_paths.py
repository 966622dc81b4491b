from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophp.wire.paths import bound_path, confirm_path, confirmed_path


@pytest.mark.req("P-5.3.1-a", "A-01")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/orders", "/orders/confirm"),  # draft §5.3.1
        ("/orders/", "/orders/confirm"),
        ("/orders/42", "/orders/42/confirm"),
        ("/a/b/c/d", "/a/b/c/d/confirm"),
        ("/", "/confirm"),
        ("/orders//", "/orders//confirm"),  # One slash only.
        ("/a%2Fb/%C3%A9", "/a%2Fb/%C3%A9/confirm"),  # Raw, still percent-encoded.
        ("/carts/7/confirm", "/carts/7/confirm/confirm"),
    ],
)
def test_the_confirm_path(path: str, expected: str) -> None:
    assert confirm_path(path) == expected
    assert confirmed_path(expected) == bound_path(path)


@pytest.mark.req("A-01")
@pytest.mark.parametrize("path", ["/orders", "/orders/confirm/", "/confirmed", "confirm", "", "/orders/CONFIRM"])
def test_other_paths_confirm_nothing(path: str) -> None:
    assert confirmed_path(path) is None


@pytest.mark.req("A-01")
@given(one=st.text("/ab%", max_size=8), two=st.text("/ab%", max_size=8))
def test_two_resources_share_a_bound_path_only_with_their_confirm_url(one: str, two: str) -> None:
    assert (bound_path(one) == bound_path(two)) == (confirm_path(one) == confirm_path(two))
    assert confirmed_path(confirm_path(one, "/~go"), "/~go") == bound_path(one)
