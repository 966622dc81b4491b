"""``twophp witness``: an operator who rewrites everything, and signs anew, is found by whoever remembers a head."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.central.rows import row
from tests.central.served import Central, central
from tests.central.tampering import tamper
from tests.cli.running import FOUND, OK, UNUSABLE, document, run
from twophp.central.proof import merkle
from twophp.identity import notes


class Scene:
    def __init__(self, here: Central, folder: Path) -> None:
        self.here = here
        self.url = f"sqlite:///{folder}/central.db"
        self.store = folder / "witness.json"
        self.key = here.get("/v1/heads/key")["key"]
        self.secret, self.guid = here.join("orders")
        self.push(*range(20))

    def push(self, *numbers: int) -> None:
        assert self.here.push(self.secret, [row(n, self.guid) for n in numbers]).status_code == 200

    def looks(self, *options: object) -> Result:
        return run("witness", self.here.url, "--key", self.key, "--store", self.store, *options)

    def rewrite(self) -> None:
        """A row, the tree over it, and the root that was signed: nothing in the database tells."""
        tamper(self.url, "UPDATE entry SET transaction_reference = 'forged' WHERE sequence = 7")
        page = self.here.do(self.here.state.store.leaves(1, 256))
        tiles = merkle.appended(0, {}, [merkle.hash_of_row(leaf) for _number, leaf in page.newest])
        tamper(self.url, "UPDATE tile SET hashes = ? WHERE level = 0", tiles[0, 0])
        tamper(self.url, "UPDATE head_history SET root = ?", merkle.root_of(page.size, tiles))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with central(tmp_path) as here:
        monkeypatch.setenv("TWOPHP_OPERATOR_TOKEN", here.token("witness", "audit"))
        yield Scene(here, tmp_path)


def test_a_witness_signs_what_continues_what_it_saw(scene: Scene, tmp_path: Path) -> None:
    first = scene.looks()
    assert first.exit_code == OK, first.output
    scene.push(30, 31)
    second = document(scene.looks("--json"))
    witness, ledger = notes.PublicKey.parse(second["witness"]), notes.PublicKey.parse(scene.key)
    for note, size in ((first.stdout, 20), (second["note"], 22)):
        assert notes.head_of(note, ledger).size == notes.head_of(note, witness).size == size
    assert stat.S_IMODE(scene.store.stat().st_mode) == 0o600, "its key is in there"
    (tmp_path / "head.note").write_text(first.stdout)
    held = run("ledger", "verify", scene.here.url, "--expect", tmp_path / "head.note")
    assert (held.exit_code, "holds what it held" in held.stdout) == (OK, True), held.output


def test_a_rewritten_history_that_was_signed_anew_is_a_fork(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = scene.looks()
    scene.rewrite()
    scene.push(40)
    assert run("ledger", "verify", scene.here.url).exit_code == OK, "the database says nothing"
    with _webhook() as (url, told):
        alarm = scene.looks("--webhook", url)
    assert (alarm.exit_code, "fork: head" in alarm.stdout) == (FOUND, True), alarm.output
    assert [record.levelname for record in caplog.records if record.name == "twophp.witness"] == ["ERROR"]
    assert [one["what"] for one in told] == ["fork"]
    evidence = json.loads(scene.store.read_text())["alarms"][0]
    ledger = notes.PublicKey.parse(scene.key)
    assert all(notes.is_signed(evidence[name], ledger) for name in ("seen", "now")), "signed by the ledger, both"
    assert scene.looks().exit_code == FOUND, "nothing is co-signed from then on"
    (tmp_path / "head.note").write_text(kept.stdout)
    found = document(run("ledger", "verify", scene.here.url, "--expect", tmp_path / "head.note", "--json"))
    assert [one["what"] for one in found["findings"]] == ["other_history"]


def test_a_database_that_was_put_back_is_a_roll_back(scene: Scene) -> None:
    scene.looks()
    scene.push(50, 51)
    scene.looks()
    for statement in (
        "DELETE FROM entry WHERE sequence > 20",
        "UPDATE tile SET hashes = substr(hashes, 1, 640)",
        "UPDATE head SET size = 20",
        "DELETE FROM head_history WHERE size > 20",
    ):
        tamper(scene.url, statement)
    alarm = document(scene.looks("--json"))
    assert alarm["what"] == "roll_back"


def test_a_ledger_that_does_not_sign_its_own_tree_is_an_alarm(scene: Scene) -> None:
    scene.looks()
    tamper(scene.url, "UPDATE tile SET hashes = ?", bytes(20 * 32))
    alarm = scene.looks()
    assert (alarm.exit_code, "does not continue" in alarm.stdout) == (FOUND, True), alarm.output


def test_another_signer_is_not_believed(scene: Scene) -> None:
    other = notes.Signer(scene.key.split("+")[0], bytes(32)).public
    refused = run("witness", scene.here.url, "--key", other, "--store", scene.store)
    assert (refused.exit_code, "bad_signature" in refused.stderr) == (UNUSABLE, True)
    assert not scene.store.exists()
    scene.store.write_text("something else")
    assert (scene.looks().exit_code, scene.store.read_text()) == (UNUSABLE, "something else")


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("--webhook", "http://alarms.example/hook", "tls_required"),
        ("--webhook", "https://alarms.example/hook?token=1", "bad_url"),
        ("--name", "our witness", "bad_key_name"),
    ],
)
def test_an_option_that_cannot_work_is_refused_before_the_first_look(
    scene: Scene, option: str, value: str, code: str
) -> None:
    refused = scene.looks(option, value)
    assert (refused.exit_code, code in refused.stderr, scene.store.exists()) == (UNUSABLE, True, False), refused.output


def test_a_webhook_that_refuses_an_alarm_is_named(scene: Scene) -> None:
    scene.looks()
    scene.rewrite()
    scene.push(40)
    with _webhook(404) as (url, _told):
        alarm = scene.looks("--webhook", url)
    assert (alarm.exit_code, "the webhook was not told: The other side answered 404" in alarm.stderr) == (FOUND, True)


class _webhook:  # noqa: N801 - It reads as what it is.
    """A receiver, and what it was told."""

    def __init__(self, status: int = 204) -> None:
        self._status = status

    def __enter__(self) -> tuple[str, list[Any]]:
        told: list[Any] = []
        status = self._status

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Receiver)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}/alarm", told

    def __exit__(self, *_exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
