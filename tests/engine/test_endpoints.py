"""Which key wins, what is no key, and that order never matters."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.profile import STEADY
from twophp.core.errors import ConfigError
from twophp.core.policy import Policy
from twophp.engine import endpoints
from twophp.engine.endpoints import Endpoints

STANDARD = Policy.standard()

KEYS = [
    "*",
    "DELETE *",
    "/reports/*",
    "/reports/daily/*",
    "PUT /reports/*",
    "/reports/{id}",
    "POST /orders",
    "/orders",
    "PUT /orders/{id}",
    "/orders/{id}",
    "/orders/new",
    "/orders/{id}/items/{item}",
    "/orders/{id}/items/first",
    "/{tenant}/new",
    "PATCH /carts/a%2Fb",
    "POST /caf%C3%A9",
]
TABLE = [
    ("POST", "/orders", "POST /orders"),
    ("POST", "/orders/", "POST /orders"),  # the confirm URL cannot show a trailing slash.
    ("PUT", "/orders", "/orders"),
    ("POST", "/orders//", "POST /orders"),  # Several slashes are one: some routers take them so.
    ("POST", "//orders", "POST /orders"),
    ("POST", "/./orders", "*"),  # No router resolves dots.
    ("POST", "/ORDERS", "*"),
    ("POST", "/%6Frders", "*"),  # Decoded once, before it comes here: this one was sent as /%256Frders.
    ("PUT", "/orders/7", "PUT /orders/{id}"),
    ("POST", "/orders/7", "/orders/{id}"),
    ("PUT", "/orders/a%2Fb", "PUT /orders/{id}"),
    ("PUT", "/orders/a b", "PUT /orders/{id}"),
    ("PUT", "/orders/{id}", "PUT /orders/{id}"),
    ("PUT", "/orders/new", "/orders/new"),  # Exact without a method beats a template with one.
    ("PUT", "/orders/7/items", "*"),
    ("PUT", "/orders/7/items/8", "/orders/{id}/items/{item}"),
    ("PUT", "/orders/7/items/first", "/orders/{id}/items/first"),
    ("PUT", "/orders//items/first", "*"),
    ("POST", "/caf\u00e9", "POST /caf%C3%A9"),  # A key may spell a path as the wire does.
    ("POST", "/acme/new", "/{tenant}/new"),
    ("POST", "/reports/new", "/reports/{id}"),  # The first differing segment is literal here.
    ("POST", "/reports", "/reports/*"),
    ("POST", "/reports/", "/reports/*"),
    ("PUT", "/reports/7", "/reports/{id}"),  # A template beats a prefix, method or not.
    ("POST", "/reports/7/rows", "/reports/*"),
    ("PUT", "/reports/7/rows", "PUT /reports/*"),
    ("PUT", "/reports/daily/7", "/reports/daily/*"),  # The longer prefix beats the method.
    ("POST", "/reportsx", "*"),
    ("POST", "/reports//", "/reports/*"),
    ("PATCH", "/carts/a/b", "PATCH /carts/a%2Fb"),  # To a router an encoded slash is a slash.
    ("PATCH", "/carts/a%2Fb", "*"),
    ("DELETE", "/elsewhere", "DELETE *"),
    ("POST", "/", "*"),
    ("POST", "", "*"),
    ("LOCK", "/anything", "*"),
]


@pytest.mark.req("A-07")
@pytest.mark.parametrize(("method", "path", "expected"), TABLE)
def test_the_most_specific_key_wins_whatever_the_order(method: str, path: str, expected: str) -> None:
    for keys in (KEYS, KEYS[::-1], sorted(KEYS)):
        found = Endpoints({key: Policy.standard(ttl_ms=KEYS.index(key) + 1) for key in keys}).match(method, path)
        assert found is not None
        assert (found.name, found.policy.ttl_ms) == (expected, KEYS.index(expected) + 1)


@pytest.mark.req("A-07")
def test_one_endpoint_is_enrolled_and_its_neighbours_are_not() -> None:
    endpoints = Endpoints({"POST /orders": STANDARD, "/a/{b}": STANDARD, "/r/*": STANDARD})
    assert endpoints.match("POST", "/orders") is not None
    for method, path in [("PUT", "/orders"), ("POST", "/order"), ("POST", "/orders/1"), ("POST", "/a"), ("POST", "/")]:
        assert endpoints.match(method, path) is None


def test_one_policy_stands_for_all() -> None:
    found = Endpoints(STANDARD).match("POST", "/any/where")
    assert found is not None
    assert (found.name, found.policy) == ("*", STANDARD)


def test_the_root_and_everything_below_it() -> None:
    endpoints = Endpoints({"POST /": STANDARD, "/*": STANDARD})
    found = [endpoints.match(method, path) for method, path in [("POST", "/"), ("PUT", "/"), ("PUT", "/a/b")]]
    assert [endpoint and endpoint.name for endpoint in found] == ["POST /", "/*", "/*"]


def test_all_endpoints_can_be_listed() -> None:
    assert [endpoint.name for endpoint in Endpoints(dict.fromkeys(KEYS, STANDARD))] == KEYS


@pytest.mark.parametrize(
    "key",
    [
        "",
        "orders",
        "POST",
        "POST orders",
        "POST  /orders",
        "POST /orders ",
        " /orders",
        "post /orders",
        "GET /orders",
        "HEAD *",
        "OPTIONS /orders/*",
        "POST,PUT /orders",
        "/orders?x=1",
        "/orders#top",
        "/orders//items",
        "/*/items",
        "/orders*",
        "/orders/**",
        "/orders/{id}.json",
        "/orders/{}",
        "/orders/{id",
        "/orders/:id",
        "/orders/{1}",
        "/orders/{id}/*",
        "/caf\u00e9",
        "/a b",
        "/a\n",
        "**",
        7,
        None,
    ],
)
def test_what_is_no_key_is_refused_with_its_text(key: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoints({key: STANDARD})
    assert caught.value.code == "bad_policy"
    assert repr(key) in str(caught.value)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("/orders/{id}", "/orders/{number}"),
        ("/orders", "/orders/"),
        ("PUT /a/{b}/c", "PUT /a/{x}/c"),
    ],
)
def test_two_keys_with_one_meaning_are_refused(one: str, two: str) -> None:
    with pytest.raises(ConfigError, match="means the same"):
        Endpoints({one: STANDARD, two: STANDARD})


@pytest.mark.parametrize("policies", [{"*": "standard"}, {"*": None}, "standard", None, [("*", STANDARD)]])
def test_what_is_no_policy_is_refused(policies: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoints(policies)
    assert caught.value.code == "bad_policy"


def by_hand(keys: list[str], method: str, path: str) -> str | None:
    """The rules of the module's docstring, tried one key after the other."""
    best: tuple[Any, str] | None = None
    for key in keys:
        wanted, _, pattern = key.rpartition(" ")
        if (
            wanted in ("", method)
            and (rank := rank_by_hand(pattern, re.sub("/+", "/", path).removesuffix("/"))) is not None
        ):
            best = min(filter(None, [best, ((rank, not wanted), key)]))
    return best and best[1]


def rank_by_hand(pattern: str, path: str) -> tuple[Any, ...] | None:
    if pattern == "*":
        return (3,)
    if pattern.endswith("/*"):
        return (2, -len(pattern)) if f"{path}/".startswith(pattern[:-1]) else None
    have, want = path.split("/"), pattern.split("/")
    holes = [part.startswith("{") for part in want]
    fits = [bool(mine) if hole else mine == part for mine, part, hole in zip(have, want, holes, strict=False)]
    if len(have) != len(want) or not all(fits):
        return None
    return (1, holes) if any(holes) else (0,)


SEGMENTS = st.lists(st.sampled_from(["a", "b", "{x}"]), min_size=1, max_size=3)
PATTERNS = st.one_of(
    st.just("*"),
    SEGMENTS.map(lambda parts: "/" + "/".join(parts)),
    st.lists(st.sampled_from("ab"), max_size=2).map(lambda parts: "".join(f"/{part}" for part in parts) + "/*"),
)
METHODS = st.sampled_from(["POST", "PUT"])
SOME_KEYS = st.lists(
    st.tuples(st.sampled_from(["", "POST ", "PUT "]), PATTERNS).map("".join), min_size=1, max_size=8, unique=True
)
PATHS = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=4).map(lambda parts: "/" + "/".join(parts))


@STEADY
@given(SOME_KEYS, METHODS, PATHS)
def test_every_table_agrees_with_the_rules_by_hand(keys: list[str], method: str, path: str) -> None:
    found = Endpoints(dict.fromkeys(keys, STANDARD)).match(method, path)
    assert (found and found.name) == by_hand(keys, method, path)


@STEADY
@given(st.text(max_size=12))
def test_any_path_is_matched_or_not_without_an_error(path: str) -> None:
    assert Endpoints(dict.fromkeys(KEYS, STANDARD)).match("POST", path) is not None


def test_a_path_of_many_slashes_costs_no_more_than_the_keys() -> None:
    """Bounded by the table: a path with a million segments is split only where a template has as many."""
    endpoints = Endpoints({"/a/{b}": STANDARD, "/r/*": STANDARD})
    assert endpoints.match("POST", "/" * 1_000_000) is None


@pytest.mark.req("A-16")
def test_what_is_remembered_of_paths_is_bounded_and_changes_nothing() -> None:
    known = Endpoints(dict.fromkeys(KEYS, STANDARD))
    paths = [("PUT", f"/orders/{number}") for number in range(3 * endpoints.MOST_KNOWN)]
    paths += [("POST", "/" + "x" * endpoints.LONGEST_KNOWN)]
    first, again = [[known.match(*path) for path in paths] for _round in range(2)]
    assert first == again == [known._find(*path) for path in paths]
    assert len(known._known) <= endpoints.MOST_KNOWN
    assert max(len(path) for _method, path in known._known) <= endpoints.LONGEST_KNOWN
