"""The body of a request through the bridge: none of it is lost, and half of one is no request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from twophp import Policy, anonymous
from twophp.wsgi import TwoPhaseMiddleware
from twophp.wsgi.environ import Environ, StartResponse

LIMIT = 100
POLICIES = {
    "POST /orders": Policy.standard(require=True, idempotency_key="accept"),
    "POST /plain": Policy.standard(transparent=True),
    "POST /keyed": Policy.standard(idempotency_key="accept"),
}
Answers = Callable[..., str]


class Wire:
    """What a server gives as ``wsgi.input``: some bytes, and then the end of the connection."""

    def __init__(self, data: bytes) -> None:
        self._data = BytesIO(data)
        self.read, self.readline = self._data.read, self._data.readline


@pytest.fixture
def seen() -> list[bytes]:
    """The bodies that the application has seen."""
    return []


@pytest.fixture
def answers(tmp_path: Path, seen: list[bytes]) -> Iterator[Answers]:
    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        length = environ.get("CONTENT_LENGTH")
        seen.append(environ["wsgi.input"].read(*([int(length)] if length else [])))
        start_response("201 Created", [])
        return [b"done"]

    middleware = TwoPhaseMiddleware(
        app,
        service="shop",
        store=f"sqlite:///{tmp_path}/shop.db",
        identify=anonymous,
        policies=POLICIES,
        max_body_bytes=LIMIT,
        allow_insecure=True,
        sweep_interval_s=3_600.0,
    )

    def asks(path: str, data: bytes, length: int | None, **more: Any) -> str:
        said: list[str] = []
        about = {"CONTENT_LENGTH": str(length)} if length is not None else {"wsgi.input_terminated": True}
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": path, "wsgi.input": Wire(data), **about, **more}
        b"".join(middleware(environ, lambda status, _headers: said.append(status)))  # type: ignore[arg-type, return-value]
        return said[0][:3]

    yield asks
    middleware.stop()


@pytest.mark.parametrize("path", ["/upload", "/plain", "/keyed"])
@pytest.mark.parametrize("has_length", [True, False])
def test_a_large_body_that_is_the_applications_alone_reaches_it(
    answers: Answers, seen: list[bytes], path: str, *, has_length: bool
) -> None:
    large = bytes(range(256)) * 10
    assert answers(path, large, len(large) if has_length else None) == "201"
    assert seen == [large]


@pytest.mark.req("A-16")
@pytest.mark.parametrize(
    "headers",
    [
        {"HTTP_IDEMPOTENCY_KEY": '"k-1"'},
        {"HTTP_DTT_2PHP_ENABLED": "true", "HTTP_DTT_2PHP_CLIENT_CORRELATION_ID": "c-1"},
    ],
)
def test_a_body_that_breaks_off_is_no_request(answers: Answers, seen: list[bytes], headers: dict[str, str]) -> None:
    assert answers("/orders", b'{"sku":', 20, **headers) == "400"
    assert seen == []
    assert answers("/orders", b'{"sku": "a cup of "}', 20, **headers) in ("200", "201")  # Its ids are not taken.
