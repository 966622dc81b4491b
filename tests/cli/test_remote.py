"""A URL that is not a central ledger's: one line that says so, and nothing taken for an answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import cycle

import msgspec
import pytest

from tests.central.rows import row
from tests.cli.running import UNUSABLE, run
from twophp.cli.sources import Watch
from twophp.wire.rows import row_document

COMMANDS = (
    ("ledger", "verify"),
    ("ledger", "tail"),
    ("ledger", "tail", "--follow"),
    ("ledger", "stalled"),
    ("ledger", "pairs"),
    ("ledger", "initiated", "orders"),
    ("ledger", "tree", "some-id"),
    ("ledger", "show", "some-id"),
    ("ledger", "prove", "some-id"),
    ("central", "services"),
    ("central", "pull", "orders"),
    ("central", "token", "list"),
    ("central", "token", "create", "--role", "audit", "alice"),
    ("central", "token", "revoke", "some-id"),
)


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHP_OPERATOR_TOKEN", "tphp_" + "0" * 64)


@contextmanager
def server(*answers: tuple[int, bytes]) -> Iterator[str]:
    """Answers like this, one after the other and round again."""
    told = cycle(answers)

    class Scripted(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            status, body = next(told)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 - the names that http.server looks for

        def log_message(self, *_arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Scripted) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_port}"
        finally:
            made.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"),
        (200, b'{"ok": true}'),
        (200, b"[1]"),
        (200, b"null"),
        (200, b""),
        (204, b""),
        (302, b""),
        (404, b'{"detail": "Not Found"}'),
        (404, b'{"status": 404, "code": "not_found", "title": "There is nothing here."}'),
        (500, b"\xff"),
    ],
)
def test_whoever_else_answers_is_found_out(status: int, body: bytes) -> None:
    with server((status, body)) as url:
        for arguments in COMMANDS:
            result = run(*arguments, url)
            assert (result.exit_code, result.stdout) == (UNUSABLE, ""), arguments
            assert result.stderr.startswith(("error[bad_answer]: ", "error[not_found]: ")), result.stderr


def test_nobody_there_and_plain_http_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    assert run("central", "services", url).stderr == f"error[delivery_failed]: {url} gave no answer: unreachable\n"
    assert "set TWOPHP_ALLOW_INSECURE=1" in run("central", "services", "http://central.example").stderr


def test_a_central_ledger_that_is_away_for_a_while_does_not_end_the_watch(capsys: pytest.CaptureFixture[str]) -> None:
    arrived = row_document(row(1, "6f1d0c5e-8a43-4f6b-9f5e-0d5a3a1f7c11")) | {"sequence": 1}
    away = 503, b'{"code": "store_unavailable", "title": "The central ledger\'s database does not answer."}'
    rows = 200, msgspec.json.encode({"rows": [arrived], "cursor": None})
    with server((200, b'{"size": 0}'), away, away, rows, away) as url:
        watch = Watch([url])
        looks = [[(entry.client_correlation_id, where) for entry, where in watch.look()] for _ in range(4)]
    assert looks == [[], [], [("client-1", url)], []]
    note = f"note: waiting: {url} answered 503: The central ledger's database does not answer.\n"
    assert capsys.readouterr().err == note * 2, "said once for each time that it is away"
