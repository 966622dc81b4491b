"""The middleware around a Flask application, through Flask's own test client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from flask import Flask, Response, jsonify, request
from flask.testing import FlaskClient

from twophp import Policy, anonymous, current_intent
from twophp.core.errors import ConfigError
from twophp.engine.endpoints import Policies
from twophp.stores.portal import Portal
from twophp.wsgi import TwoPhaseMiddleware

ENABLED = {"DTT-2PHP-Enabled": "true"}
CLIENT, SERVER, STATE = "DTT-2PHP-Client-Correlation-ID", "DTT-2PHP-Server-Correlation-ID", "DTT-2PHP-Phase-State"
POLICIES = {
    "POST /orders": Policy.standard(idempotency_key="accept"),
    "POST /reports": Policy.long_running(mode="async"),
    "POST /plain": Policy.standard(transparent=True),
}


class Shop:
    """A Flask application, its middleware and what its views have seen."""

    def __init__(self, folder: Path, view: Callable[[], Any], policies: Policies) -> None:
        self.app = Flask("shop")
        self.seen: list[dict[str, Any]] = []
        self.database = folder / "shop.db"
        self._view = view
        for path in ("/orders", "/reports", "/plain", "/other"):
            self.app.add_url_rule(path, path, self._viewed, methods=["GET", "POST"])
        self.middleware = TwoPhaseMiddleware(
            self.app.wsgi_app,
            service="shop",
            store=f"sqlite:///{self.database}",
            identify=anonymous,
            policies=policies,
            max_body_bytes=1_000,
            sweep_interval_s=3_600.0,
        )
        self.app.wsgi_app = self.middleware  # type: ignore[method-assign]

    def _viewed(self) -> Any:
        intent = current_intent()
        self.seen.append(
            {
                "path": request.path,
                "body": request.get_data(),
                "live": request.headers.get("X-Live"),
                "thread": threading.current_thread(),
                "intent": None if intent is None else intent.client_correlation_id,
            }
        )
        return self._view()

    @property
    def http(self) -> FlaskClient:
        return self.app.test_client()

    def post(self, path: str, headers: dict[str, str] = {}, data: bytes = b'{"sku": 1}') -> Any:  # noqa: B006 - never changed
        return self.http.post(
            path, headers=headers, data=data, content_type="application/json", base_url="https://shop.example"
        )

    def register(self, client_id: str = "c-1", path: str = "/orders", data: bytes = b'{"sku": 1}') -> Any:
        return self.post(path, {**ENABLED, CLIENT: client_id}, data)

    def confirm(self, registered: Any, client_id: str = "c-1", path: str = "/orders") -> Any:
        ids = {CLIENT: client_id, SERVER: registered.headers[SERVER]}
        return self.post(f"{path}/confirm", {**ENABLED, **ids, "X-Live": "1"}, b"")


Opened = Callable[..., Shop]


def created() -> Any:
    return jsonify(id="42"), 201


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    shops: list[Shop] = []

    def opens(view: Callable[[], Any], policies: Policies = POLICIES) -> Shop:
        shops.append(Shop(tmp_path, view, policies))
        return shops[-1]

    yield opens
    for shop in shops:
        shop.middleware.stop()


@pytest.mark.req("P-5.2.2-a", "P-5.3.1-a", "P-8.1-a")
def test_a_handshake_runs_the_view_once_and_repeats_its_answer(opened: Opened) -> None:
    shop = opened(created)
    registered = shop.register()
    assert (registered.status_code, registered.headers[STATE], shop.seen) == (200, "WAITING_CONFIRM", [])
    first, again = shop.confirm(registered), shop.confirm(registered)
    assert (first.status_code, first.headers[STATE], first.json) == (200, "COMMITTED", {"id": "42"})
    assert (again.status_code, again.data) == (first.status_code, first.data)
    (seen,) = shop.seen
    assert (seen["path"], seen["body"], seen["live"], seen["intent"]) == ("/orders", b'{"sku": 1}', "1", "c-1")


def test_a_view_runs_in_the_thread_of_the_request_that_confirms(opened: Opened) -> None:
    shop = opened(created)
    shop.confirm(shop.register())
    assert shop.seen[0]["thread"] is threading.current_thread()


def test_a_plain_request_never_meets_the_middleware(opened: Opened) -> None:
    shop = opened(created, {"POST /orders": Policy.standard()})
    assert shop.post("/other").status_code == 201
    assert shop.http.get("/orders").status_code == 201
    assert [seen["intent"] for seen in shop.seen] == [None, None]
    assert not shop.database.exists()


def test_a_plain_request_streams(opened: Opened) -> None:
    went = []

    def streams() -> Any:
        def chunks() -> Iterator[bytes]:
            for number in range(3):
                went.append(number)
                yield b"x"

        return Response(chunks())

    answer = opened(streams).http.get("/other", buffered=False)
    assert next(answer.iter_encoded()) == b"x"
    assert went == [0]
    answer.close()


@pytest.mark.req("P-5.5.6-a")
def test_a_transparent_endpoint_records_a_plain_request(opened: Opened) -> None:
    shop = opened(created)
    answer = shop.post("/plain")
    assert (answer.status_code, answer.json, answer.headers.get(STATE)) == (201, {"id": "42"}, None)
    assert shop.seen[0]["body"] == b'{"sku": 1}'
    assert _rows(shop) == [("transparent", "COMMITTED")]


def test_an_idempotency_key_runs_once(opened: Opened) -> None:
    shop = opened(created)
    first, again = (shop.post("/orders", {"Idempotency-Key": '"k-1"'}) for _time in range(2))
    assert (first.status_code, first.data) == (again.status_code, again.data) == (201, first.data)
    assert (again.headers["Idempotent-Replayed"], len(shop.seen)) == ("true", 1)


@pytest.mark.req("P-5.3.3-a")
def test_an_asynchronous_view_does_not_keep_its_request_waiting(opened: Opened) -> None:
    may_go_on = threading.Event()

    def waits() -> Any:
        may_go_on.wait(30)
        return created()

    shop = opened(waits)
    registered = shop.register(path="/reports")
    accepted = shop.confirm(registered, path="/reports")
    assert (accepted.status_code, accepted.headers[STATE]) == (202, "PROCESSING")
    may_go_on.set()
    ids = {**ENABLED, CLIENT: "c-1", SERVER: registered.headers[SERVER]}
    shop.middleware.stop()  # Waits for what runs.
    shop.middleware.start()
    read = shop.http.get(accepted.headers["Location"], headers=ids, base_url="https://shop.example")
    assert (read.status_code, read.headers[STATE]) == (200, "COMMITTED")
    assert shop.seen[0]["thread"] is not threading.current_thread()


def test_business_rows_are_written_with_the_outcome(opened: Opened) -> None:
    def inserts() -> Any:
        intent = current_intent()
        assert intent is not None
        with intent.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (?)", (intent.client_correlation_id,))
        return created()

    shop = opened(inserts)
    shop.middleware.start()
    with apsw.Connection(str(shop.database)) as database:
        database.execute("CREATE TABLE orders (id TEXT)")
    shop.confirm(shop.register())
    assert apsw.Connection(str(shop.database)).execute("SELECT id FROM orders").fetchall() == [("c-1",)]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_a_view_that_raises_has_failed_and_ends_no_thread(opened: Opened, error: BaseException) -> None:
    def raises() -> Any:
        raise error

    shop = opened(raises)
    shop.app.testing = True  # Flask raises, as under a debugger, in place of answering 500.
    answer = shop.confirm(shop.register())
    assert (answer.status_code, answer.headers[STATE], answer.json["code"]) == (500, "FAILED", "handler_failed")
    assert shop.register("c-2").headers[STATE] == "WAITING_CONFIRM"


@pytest.mark.req("A-16")
def test_a_body_that_is_too_large_is_refused_unread(opened: Opened) -> None:
    answer = opened(created).register(data=b"x" * 1_001)
    assert (answer.status_code, answer.json["code"]) == (413, "body_too_large")


def test_confirms_at_the_same_time_run_the_view_once(opened: Opened) -> None:
    shop = opened(created)
    registered = shop.register()
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(shop.confirm(registered))) for _number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(answer.status_code, answer.data) for answer in answers} == {(200, answers[0].data)}
    assert (len(answers), len(shop.seen)) == (8, 1)


def test_a_child_makes_its_own_of_what_its_parent_was_just_opening(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = opened(created)
    bridge, parents = shop.middleware._bridge, shop.middleware.asgi
    seen = []

    def forked(_portal: object, starting: Any, _undo: object) -> None:
        starting.close()
        bridge._forget()  # As in the child, where this call never returns.
        seen.append(bridge.middleware)

    with monkeypatch.context() as patched:
        patched.setattr(Portal, "open", forked)
        shop.middleware.start()
    assert seen[0] is not parents
    shop.middleware.stop()
    assert shop.register().headers[STATE] == "WAITING_CONFIRM"


def test_a_setting_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="did you mean service"):
        TwoPhaseMiddleware(Flask("shop").wsgi_app, servise="shop", identify=anonymous, policies=Policy.standard())


def _rows(shop: Shop) -> list[tuple[Any, ...]]:
    return apsw.Connection(str(shop.database)).execute("SELECT mode, phase FROM entry").fetchall()
