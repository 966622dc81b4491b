"""Signed heads: numbered, timed and kept, in a format that other tools read; and what the ledger said at a time."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.central.conftest import schema
from tests.central.rows import T0, row
from tests.central.served import Central, central
from tests.central.tampering import tamper
from tests.cli.running import FOUND, OK, UNUSABLE, document, run
from twophp.core.errors import ConfigError, Refused
from twophp.identity import notes
from twophp.wire.instant import format_instant


class Clock:
    """Time goes on when the test says so."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> int:
        return self.now


class Scene:
    def __init__(self, here: Central, clock: Clock, url: str) -> None:
        self.url = url
        self.here = here
        self.clock = clock
        self.secret, self.guid = here.join("orders")
        self.key = here.get("/v1/heads/key")["key"]

    def says(self, at: int, **facts: Any) -> notes.Head:
        """A row of call 1 arrives then, and a head is signed."""
        self.clock.now = at
        assert self.here.push(self.secret, [row(1, self.guid, **facts)]).status_code == 200
        return notes.head_of(self.latest(), notes.PublicKey.parse(self.key))

    def latest(self) -> str:
        return self.here.ask("GET", "/v1/heads/latest", role="audit").text


@pytest.fixture(params=["sqlite", "postgres"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    def served(url: str) -> Iterator[Scene]:
        clock = Clock()
        with central(tmp_path, store_url=url, clock=clock) as here:
            monkeypatch.setenv("TWOPHP_OPERATOR_TOKEN", here.token("auditor", "audit"))
            yield Scene(here, clock, url)

    if request.param == "sqlite":
        yield from served(f"sqlite:///{tmp_path}/central.db")
    else:
        with schema(request.getfixturevalue("postgres_url")) as url:
            yield from served(url)


def test_heads_are_numbered_timed_and_kept(scene: Scene) -> None:
    first = scene.says(T0 + 1_000)
    second = scene.says(T0 + 2_000, version=2, phase="COMMITTED")
    scene.clock.now = T0 + 3_000
    again = notes.read(scene.latest())
    assert again == second, "nothing has arrived, so nothing is signed anew"
    assert (second.number - first.number, first.size, second.size) == (1, 1, 2)
    assert (first.at, second.at) == (T0 + 1_000, T0 + 2_000)
    kept = scene.here.get("/v1/heads")["heads"]
    assert [(one["number"], one["size"]) for one in kept][:2] == [(second.number, 2), (first.number, 1)]
    assert scene.here.ask("GET", f"/v1/heads/{first.number}", role="audit").text == kept[1]["note"]
    assert scene.here.ask("GET", "/v1/heads/999", role="audit").status_code == 404
    then = scene.here.get("/v1/heads", at=format_instant(T0 + 1_999))["heads"]
    assert [one["number"] for one in then] == [first.number]
    assert scene.here.get("/v1/heads", at=format_instant(T0 - 1)) == {"heads": [], "next": None}
    page = scene.here.get("/v1/heads", limit=1)
    assert page["next"] == second.number
    assert scene.here.http.get(scene.here.url + "/v1/heads/key").json() == {"key": scene.key}, "it is no secret"


def test_a_head_is_verified_with_nothing_of_ours(scene: Scene) -> None:
    """As the documentation spells it, for any language."""
    scene.says(T0)
    note = scene.latest()
    text, _blank, signatures = note.rpartition("\n\n")
    name, key_id, encoded = scene.key.split("+", 2)
    raw = b64decode(encoded)
    assert sha256(name.encode() + b"\n" + raw).digest()[:4].hex() == key_id
    dash, signer, signature = signatures.strip().split(" ")
    assert (dash, signer, b64decode(signature)[:4].hex()) == ("—", name, key_id)
    Ed25519PublicKey.from_public_bytes(raw[1:]).verify(b64decode(signature)[4:], f"{text}\n".encode())
    origin, size, root, number, at = text.split("\n")
    assert (origin, size, at) == (name, "1", f"at {T0}")
    assert number.startswith("number ")
    assert b64decode(root).hex() == scene.here.get("/v1/proofs/head")["root"]


def test_what_did_it_say_then(scene: Scene, tmp_path: Path) -> None:
    """A proof is one file, which is verified without the ledger, of now and of a time."""
    scene.says(T0 + 1_000)
    scene.says(T0 + 60_000, version=2, phase="PROCESSING")
    scene.says(T0 + 120_000, version=3, phase="COMMITTED")
    said = {}
    for name, at in (("early", T0 + 59_999), ("later", T0 + 60_000), ("now", None)):
        asked = () if at is None else ("--at", format_instant(at))
        made = run("ledger", "prove", "client-1", scene.here.url, *asked)
        assert made.exit_code == OK, made.output
        (tmp_path / name).write_text(made.stdout)
        said[name] = [one["row"]["phase"] for one in document(made)["proofs"]]
    assert said == {"early": ["WAITING_CONFIRM"], "later": ["PROCESSING"], "now": ["COMMITTED"]}
    too_early = run("ledger", "prove", "client-1", scene.here.url, "--at", format_instant(T0 - 60_000))
    assert (too_early.exit_code, "not_found" in too_early.stderr) == (UNUSABLE, True)
    assert run("ledger", "prove", "client-1", scene.here.url, "--at", "yesterday").exit_code == UNUSABLE
    for name in said:
        alone = run("ledger", "verify", "--proof", tmp_path / name, "--key", scene.key)
        assert (alone.exit_code, "the proof holds: 1 row" in alone.stdout) == (OK, True), alone.output
        there = run("ledger", "verify", scene.here.url, "--proof", tmp_path / name, "--key", scene.key)
        assert there.exit_code == OK, there.output


def test_a_proof_of_another_signer_or_of_another_head_does_not_hold(scene: Scene, tmp_path: Path) -> None:
    scene.says(T0)
    made = document(run("ledger", "prove", "client-1", scene.here.url))
    proof = tmp_path / "proof.json"
    stranger = notes.Signer(made["key"].split("+")[0], bytes(32)).public
    proof.write_text(json.dumps(made))
    refused = run("ledger", "verify", "--proof", proof, "--key", stranger)
    assert (refused.exit_code, "is not signed by" in refused.stdout) == (FOUND, True)
    proof.write_text(json.dumps(made | {"note": made["note"].replace("\n1\n", "\n2\n", 1)}))
    assert run("ledger", "verify", "--proof", proof, "--key", scene.key).exit_code == FOUND
    proof.write_text(json.dumps({name: value for name, value in made.items() if name != "note"}))
    assert run("ledger", "verify", "--proof", proof, "--key", scene.key).exit_code == FOUND
    assert run("ledger", "verify", "--proof", proof, "--key", "nonsense").exit_code == UNUSABLE
    forged = made | {"proofs": [made["proofs"][0] | {"row": made["proofs"][0]["row"] | {"ttl_ms": 1}}]}
    proof.write_text(json.dumps(forged))
    assert run("ledger", "verify", "--proof", proof, "--key", scene.key).exit_code == FOUND


def test_a_rewritten_tree_is_not_signed(scene: Scene) -> None:
    scene.says(T0)
    tamper(scene.url, "UPDATE tile SET hashes = ?", bytes(32))
    answer = scene.here.ask("GET", "/v1/heads/latest", role="audit")
    assert (answer.status_code, answer.json()["code"]) == (409, "other_tree")


# The format itself. ---------------------------------------------------------------------------------------------------


def test_notes_are_those_of_other_implementations() -> None:
    """The example of golang.org/x/mod/sumdb/note."""
    private = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
    public = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
    text = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
    signer = notes.Signer.parse(private)
    assert (str(signer.public), str(signer)) == (public, private)
    signature = "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="
    assert signer.sign(text) == f"{text}\n— PeterNeumann {signature}\n"
    assert notes.is_signed(signer.sign(text), notes.PublicKey.parse(public))
    assert not notes.is_signed(signer.sign(text).replace("your", "my"), notes.PublicKey.parse(public))


def test_a_witness_signs_beside_the_ledger() -> None:
    ledger, witness = notes.Signer("ledger", bytes(32)), notes.Signer("witness", bytes([1]) * 32, notes.WITNESS)
    head = notes.Head(origin="ledger", size=3, root=bytes(32), number=7, at=T0)
    note = witness.cosign(ledger.sign(head.text()), 1_767_225_600)
    assert notes.head_of(note, ledger.public) == head
    assert notes.head_of(note, witness.public) == head
    assert not notes.is_signed(note.replace("number 7", "number 8"), witness.public)


@pytest.mark.parametrize("note", ["", "\n\n", "ledger\n1\n\n— x y\n", "ledger\n-1\nAAAA\n\n— x y\n", "x" * 20_000])
def test_what_is_no_note_says_nothing(note: str) -> None:
    with pytest.raises(Refused):
        notes.read(note)


@pytest.mark.parametrize("key", ["", "a+b", "a+00000000+AQ==", "a+zz+!!"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigError):
        notes.PublicKey.parse(key)
    with pytest.raises(ConfigError):
        notes.Signer.parse(f"PRIVATE+KEY+{key}")
