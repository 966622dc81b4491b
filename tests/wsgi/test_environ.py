"""A WSGI request as a scope, and back (PEP 3333)."""

from __future__ import annotations

from io import BytesIO
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophp.wsgi.environ import answer_of, environ_of, scope_of, status_line

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True).filter(lambda name: not name.startswith("content-"))
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_categories=["Cc"]), max_size=20)


def environ(path: str = "/orders", **more: Any) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": path.encode().decode("latin-1"),
        "QUERY_STRING": "a=1",
        "SERVER_NAME": "shop.example",
        "SERVER_PORT": "443",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "192.0.2.7",
        "REMOTE_PORT": "4711",
        "wsgi.url_scheme": "https",
        "wsgi.input": BytesIO(b"live"),
        **more,
    }


def test_a_scope_has_the_facts_of_the_request() -> None:
    scope = scope_of(environ("/bücher", HTTP_X_A="1", CONTENT_TYPE="text/plain", CONTENT_LENGTH=""))
    assert (scope["method"], scope["scheme"], scope["path"]) == ("POST", "https", "/bücher")
    assert (scope["raw_path"], scope["query_string"]) == (b"/b%C3%BCcher", b"a=1")
    assert (scope["client"], scope["server"]) == (("192.0.2.7", 4711), ("shop.example", 443))
    assert scope["headers"] == [(b"x-a", b"1"), (b"content-type", b"text/plain")]


@pytest.mark.parametrize("name", ["RAW_URI", "REQUEST_URI"])
def test_the_path_on_the_wire_is_kept_where_the_server_tells_it(name: str) -> None:
    assert scope_of(environ("/a/b", **{name: "/a%2Fb?a=1"}))["raw_path"] == b"/a%2Fb"
    assert scope_of(environ("/a/b", **{name: "https://shop.example/a%2Fb"}))["raw_path"] == b"/a/b"


def test_a_mount_is_the_root_path() -> None:
    scope = scope_of(environ("/orders", SCRIPT_NAME="/shop"))
    assert (scope["root_path"], scope["path"], scope["raw_path"]) == ("/shop", "/shop/orders", b"/shop/orders")
    back = environ_of(scope, b"", environ("/orders", SCRIPT_NAME="/shop"))
    assert (back["SCRIPT_NAME"], back["PATH_INFO"]) == ("/shop", "/orders")


@given(path=TEXT, headers=st.dictionaries(NAMES, VALUES, max_size=4), body=st.binary(max_size=50))
def test_the_way_back_gives_the_same_request(path: str, headers: dict[str, str], body: bytes) -> None:
    fields = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
    live = environ(f"/{path}", RAW_URI=f"/{quote(path)}?a=1", CONTENT_TYPE="text/plain", **fields)
    back = environ_of(scope_of(live), body, live)
    assert back.pop("wsgi.input").read() == body
    assert back.pop("wsgi.input_terminated")
    live.pop("wsgi.input")
    assert back == live


def test_a_replayed_request_has_nothing_of_the_one_that_confirms_it() -> None:
    live = environ("/orders/confirm", HTTP_COOKIE="a=b", HTTP_ACCEPT="text/html", CONTENT_LENGTH="4")
    scope = scope_of(live)
    scope.update({"path": "/orders", "raw_path": b"/orders", "headers": [(b"content-length", b"2"), (b"x-a", b"1")]})
    back = environ_of(scope, b"{}", live)
    assert (back["PATH_INFO"], back["CONTENT_LENGTH"], back["HTTP_X_A"]) == ("/orders", "2", "1")
    assert {"HTTP_COOKIE", "HTTP_ACCEPT"}.isdisjoint(back)


def test_a_run_without_a_request_has_what_pep_3333_asks_for() -> None:
    scope = scope_of(environ())
    back = environ_of(scope, b"", None)
    for name in ("SERVER_NAME", "SERVER_PORT", "SERVER_PROTOCOL", "wsgi.version", "wsgi.errors", "wsgi.multithread"):
        assert name in back
    back["wsgi.errors"].writelines(["nobody", "reads this"])
    assert back["wsgi.errors"].write("a") == 1
    back["wsgi.errors"].flush()


def test_an_answer_is_gathered_whole_and_closed() -> None:
    closed = []

    class Chunks:
        def __iter__(self) -> Any:
            return iter([b"b", b"c"])

        def close(self) -> None:
            closed.append(True)

    def app(_environ: Any, start_response: Any) -> Any:
        start_response("500 No", [])
        start_response("201 Created", [("X-A", "1")], None)(b"a")
        return Chunks()

    assert answer_of(app, {}) == (201, [("X-A", "1")], b"abc")
    assert closed == [True]


def test_an_application_that_never_starts_its_answer_fails() -> None:
    with pytest.raises(RuntimeError, match="start_response"):
        answer_of(lambda _environ, _start: [], {})


def test_a_status_has_a_phrase() -> None:
    assert (status_line(201), status_line(299)) == ("201 Created", "299 Unknown")
