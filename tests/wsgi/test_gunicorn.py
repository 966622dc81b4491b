"""Flask and Django behind gunicorn: real workers, real threads, one ledger file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.patience import PATIENCE_S
from twophp.client import TwoPhaseTransport

ENABLED = {"DTT-2PHP-Enabled": "true"}
CLIENT, SERVER, STATE = "DTT-2PHP-Client-Correlation-ID", "DTT-2PHP-Server-Correlation-ID", "DTT-2PHP-Phase-State"
WITHIN_S = 60.0


@contextmanager
def gunicorn(folder: Path, factory: str, *arguments: str) -> Iterator[str]:
    """Gunicorn on a free port; its URL. It listens on a socket that was bound here, so the port is nobody else's."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        number = listening.fileno()
        os.set_inheritable(number, True)
        command = [sys.executable, "-m", "gunicorn", f"tests.wsgi.service:{factory}()", "--bind", f"fd://{number}"]
        command += ["--log-level", "warning", "--graceful-timeout", "10", "--worker-tmp-dir", str(folder), *arguments]
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - Our own command.
                command, env=os.environ | {"SHOP_FOLDER": str(folder)}, stdout=log, stderr=log, pass_fds=[number]
            )
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            httpx.get(f"{url}/pid", timeout=WITHIN_S)  # Waits in the queue until a worker is up.
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(WITHIN_S) == 0, (folder / "log").read_text(encoding="utf-8")


def register(http: httpx.Client, client_id: str, **order: object) -> httpx.Response:
    return http.post("/orders", json={"sku": "tea", **order}, headers={**ENABLED, CLIENT: client_id})


def confirm(http: httpx.Client, registered: httpx.Response, client_id: str) -> httpx.Response:
    ids = {CLIENT: client_id, SERVER: registered.headers[SERVER]}
    return http.post("/orders/confirm", headers={**ENABLED, **ids})


def runs(folder: Path) -> Counter[str]:
    return Counter(line.split()[0] for line in (folder / "runs").read_text(encoding="ascii").splitlines())


@pytest.mark.req("A-52", "P-8.1-a")
def test_several_workers_and_threads_share_one_ledger(tmp_path: Path) -> None:
    with gunicorn(tmp_path, "flask_app", "--workers", "2", "--threads", "4") as url:

        def handshake(number: int) -> tuple[int, str, str]:
            # A connection for each request: which worker it meets is the kernel's choice.
            with httpx.Client(base_url=url, timeout=WITHIN_S, headers={"Connection": "close"}) as http:
                name = f"c-{number}"
                registered = register(http, name)
                first, again = confirm(http, registered, name), confirm(http, registered, name)
                assert (again.status_code, again.content) == (first.status_code, first.content)
                return first.status_code, first.headers[STATE], first.json()["id"]

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(handshake, range(40)))
        assert found == [(200, "COMMITTED", f"c-{number}") for number in range(40)]
    assert runs(tmp_path) == Counter(f"c-{number}" for number in range(40))


@pytest.mark.req("A-34")
def test_a_worker_that_dies_in_its_view_leaves_an_outcome(tmp_path: Path) -> None:
    with gunicorn(tmp_path, "flask_app", "--workers", "2", "--threads", "2") as url:
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=url, timeout=WITHIN_S, limits=limits) as http:
            registered = register(http, "c-1", dies=True)
            with pytest.raises(httpx.TransportError):
                confirm(http, registered, "c-1")
            until = time.monotonic() + WITHIN_S
            while (answer := confirm(http, registered, "c-1")).headers.get(STATE) != "FAILED":
                assert time.monotonic() < until, answer.text
            assert (answer.status_code, answer.json()["code"]) == (500, "outcome_indeterminate")
    assert runs(tmp_path) == Counter({"c-1": 1})


def test_our_own_client_needs_to_know_nothing_of_it(tmp_path: Path) -> None:
    with gunicorn(tmp_path, "flask_app", "--threads", "2") as url:
        ledger = f"sqlite:///{tmp_path}/client.db"
        with TwoPhaseTransport(ledger=ledger, source="checkout", allow_insecure=True) as transport:
            http = httpx.Client(transport=transport, timeout=PATIENCE_S)
            answer = http.post(f"{url}/orders", json={"sku": "tea"})
            assert answer.extensions["twophp"]["phase"] == "COMMITTED"
            assert answer.json()["id"] == answer.extensions["twophp"]["client_correlation_id"]


@pytest.mark.req("P-5.2.2-a", "P-5.3.1-a", "A-31")
def test_django_has_it_in_its_list_of_middleware(tmp_path: Path) -> None:
    with (
        gunicorn(tmp_path, "django_app", "--threads", "2") as url,
        httpx.Client(base_url=url, timeout=WITHIN_S) as http,
    ):
        registered = register(http, "c-1")
        assert (registered.status_code, registered.headers[STATE]) == (200, "WAITING_CONFIRM")
        first = confirm(http, registered, "c-1")
        assert (first.status_code, first.headers[STATE], first.headers["content-type"]) == (
            200,
            "COMMITTED",
            "application/json",
        )
        assert first.json() == {"id": "c-1", "sent": '{"sku":"tea"}'}
        assert {cookie.name: cookie.value for cookie in http.cookies.jar} == {"basket": "7", "seen": "1"}
        again = confirm(http, registered, "c-1")
        assert (again.content, again.headers.get("set-cookie")) == (first.content, None)
        assert http.get("/pid").json() == {"plain": True}
    assert runs(tmp_path) == Counter({"c-1": 1})
