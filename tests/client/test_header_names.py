"""Header names are case-insensitive, and some servers do not know it: they arrive as their sender spelled them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.callers import caller
from tests.client.cutting import Answer, origin


@pytest.mark.req("A-17")
@pytest.mark.parametrize("plain", [True, False])
def test_header_names_keep_their_case_both_ways(kind: str, tmp_path: Path, *, plain: bool) -> None:
    given = {"X-Request-Name": "checkout", "x-lower": "b", "X-MIXED-case": "c", "content-TYPE": "text/plain"}
    content = {"data" if kind == "requests" else "content": b"1", "json": None}
    shown = Answer(more="X-Shop-Name: Orders\r\nETAG: 1\r\n")
    with origin(shown, plain=plain) as server, caller(kind, tmp_path) as http:
        said = http.post(f"{server.url}/orders", headers=given, **content)
    lines = [set(head.decode().split("\r\n")) for head in server.heads]
    spelled = {f"{name}: {value}" for name, value in given.items()}
    assert spelled <= lines[0]
    for own in lines[1:]:
        assert spelled - {"content-TYPE: text/plain"} <= own
        assert not any(line.lower().startswith("content-type") for line in own), "a confirm has no body"
    raw = said.response.raw.headers if kind == "requests" else None
    names = list(raw) if raw is not None else [name.decode() for name, _value in said.response.headers.raw]
    assert {"X-Shop-Name", "ETAG"} <= set(names)
    assert kind != "requests" or {"X-Shop-Name", "ETAG"} <= set(said.response.headers)


@pytest.mark.req("A-17")
def test_a_value_is_sent_in_the_bytes_that_requests_would_send(tmp_path: Path) -> None:
    with origin() as server, caller("requests", tmp_path) as http:
        http.post(f"{server.url}/orders", headers={"X-Name": "café"})
    assert all("X-Name: café".encode("latin-1") in head for head in server.heads)
