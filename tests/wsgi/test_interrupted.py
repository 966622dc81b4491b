"""A request whose thread is interrupted while it waits, as by a worker's time limit: its handler runs all the same."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path

import pytest

from twophp import Policy
from twophp.identity.head import Head
from twophp.identity.identify import ANONYMOUS, Principal
from twophp.wsgi import TwoPhaseMiddleware
from twophp.wsgi.environ import Environ, StartResponse


class TimeLimit(BaseException):
    """What a server raises in a thread that took too long."""


@pytest.fixture
def limited() -> Iterator[None]:
    def raises(_number: int, _frame: object) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGUSR1, raises)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("limited")
def test_a_handler_outlives_the_interrupt_of_its_request(tmp_path: Path) -> None:
    main, is_interrupted, ran = threading.main_thread(), threading.Event(), []

    def app(_environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        ran.append(threading.current_thread())
        start_response("201 Created", [])
        return [b"done"]

    def identify(_head: Head) -> Principal:
        if not is_interrupted.is_set():
            assert main.ident is not None
            signal.pthread_kill(main.ident, signal.SIGUSR1)
            assert is_interrupted.wait(30)
        return ANONYMOUS

    middleware = TwoPhaseMiddleware(
        app,
        service="shop",
        store=f"sqlite:///{tmp_path}/shop.db",
        identify=identify,
        policies={"POST /orders": Policy.standard(idempotency_key="require")},
        allow_insecure=True,
        replay_wait_ms=5_000,
        sweep_interval_s=3_600.0,
    )
    middleware.start()

    def asks() -> str:
        said: list[str] = []
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/orders",
            "CONTENT_LENGTH": "2",
            "wsgi.input": BytesIO(b"{}"),
            "HTTP_IDEMPOTENCY_KEY": "k-1",
        }
        middleware(environ, lambda status, _headers: said.append(status))  # type: ignore[arg-type, return-value]
        return said[0][:3]

    with pytest.raises(TimeLimit):
        asks()
    is_interrupted.set()
    assert asks() == "201"
    assert len(ran) == 1
    middleware.stop()
