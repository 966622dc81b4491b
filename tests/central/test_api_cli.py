"""``twophp central`` and ``twophp ledger`` against a central ledger, as people use them: a process, a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.central.rows import row
from tests.central.served import Central, central
from tests.cli.running import FOUND, OK, UNUSABLE, command, document, run
from tests.cli.world import NAMES, fan_out, participants
from tests.patience import PATIENCE_S
from twophp.central.ingest.pull import management_token
from twophp.central.proof.merkle import EMPTY_ROOT
from twophp.core.entry import Writer
from twophp.shipping.shipper import Shipper, Shipping
from twophp.stores.clock import mint_uuid
from twophp.wire.rows import encode_batch


async def _ship_all(folder: Path, here: Central) -> None:
    async with participants(folder, *NAMES) as who:
        for name, one in who.items():
            to = Shipping(url=here.url, token=here.token(name, "service"))
            writer = Writer(source=name, service_ledger_id=mint_uuid())
            await Shipper(one.store, writer, to, encode=encode_batch, mint=mint_uuid).ship()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Central]:
    """A central ledger that has the draft's fourteen rows."""
    folder = tmp_path_factory.mktemp("cli")
    asyncio.run(fan_out(folder))
    (folder / "c").mkdir()
    with central(folder / "c") as running:
        asyncio.run(_ship_all(folder, running))
        yield running


@pytest.fixture(autouse=True)
def operator(here: Central, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHP_OPERATOR_TOKEN", here.token("operator", "operations"))


@pytest.mark.req("P-10.4-a", "P-10.4-b", "P-10.4-c")
def test_the_ledger_commands_take_a_central_ledgers_url(here: Central) -> None:
    tree = run("ledger", "tree", "server-corr-id5", here.url, "--rows", "--json")
    assert tree.exit_code == OK, tree.output
    rows = document(tree)["rows"]
    assert len(rows) == 14
    assert (rows[0]["source"], rows[-1]["source"]) == ("client", "serviceE1")
    made = document(run("ledger", "initiated", "serviceA", here.url, "--json"))["rows"]
    assert [one["target"] for one in made] == ["serviceB1", "serviceB2", "serviceB3"]
    pairs = run("ledger", "pairs", here.url, "--json")
    assert pairs.exit_code == OK
    assert {one["verdict"] for one in document(pairs)["calls"]} == {"PAIRED"}
    shown = run("ledger", "show", "client-corr-id2", here.url)
    assert (shown.exit_code, "PAIRED" in shown.stdout) == (OK, True)
    assert run("ledger", "stalled", here.url).exit_code == OK
    assert len(document(run("ledger", "tail", here.url, "-n", 5, "--json"))["rows"]) == 5
    assert run("ledger", "tree", "nobody", here.url).exit_code == UNUSABLE


def test_rows_are_proven_and_a_rewritten_history_is_found(here: Central, tmp_path: Path) -> None:
    head = re.search(r"head (\S+)", run("ledger", "verify", here.url).stdout)
    assert head is not None
    noted = head[1]
    proof = tmp_path / "proof.json"
    made = run("ledger", "prove", "client-corr-id3", here.url, "--json")
    assert made.exit_code == OK, made.output
    proof.write_text(made.stdout)
    secret, guid = here.join("later")
    here.push(secret, [row("cli-later", guid, source="later")])
    later = run("ledger", "verify", here.url, "--expect", noted, "--proof", proof, "--json")
    assert (later.exit_code, document(later)["proven"]) == (OK, 2), later.output
    quick = run("ledger", "verify", here.url, "--quick", "--expect", noted)
    assert (quick.exit_code, "rows not looked at" in quick.stdout) == (OK, True)
    # The hashes contradict a claim that history was another, or that the row was another.
    size, _, root = noted.partition(":")
    other = f"{size}:{root[:-1]}{'0' if root[-1] != '0' else '1'}"
    assert run("ledger", "verify", here.url, "--expect", other).exit_code == FOUND
    assert run("ledger", "verify", here.url, "--quick", "--expect", other).exit_code == FOUND
    assert run("ledger", "verify", here.url, "--expect", f"{10**6}:{root}").exit_code == FOUND
    forged: dict[str, Any] = json.loads(made.stdout)
    forged["proofs"][0]["row"]["phase"] = forged["proofs"][0]["row"]["outcome"] = "FAILED"
    proof.write_text(json.dumps(forged))
    assert run("ledger", "verify", here.url, "--proof", proof).exit_code == FOUND
    forged["proofs"][0]["row"] = {"phase": "no row"}
    proof.write_text(json.dumps(forged))
    assert run("ledger", "verify", here.url, "--proof", proof).exit_code == FOUND
    for nothing in ([], [1], None):  # A document that proves nothing must not hold.
        proof.write_text(json.dumps({"head": noted, "proofs": nothing}))
        said = run("ledger", "verify", here.url, "--proof", proof)
        assert (said.exit_code, said.stderr.split(":")[0]) == (UNUSABLE, "error[bad_proof]")
    assert run("ledger", "verify", here.url, "--expect", f"0:{EMPTY_ROOT.hex()}").exit_code == OK
    for wrong in ("nonsense", ""):
        assert run("ledger", "verify", here.url, "--expect", wrong).exit_code == UNUSABLE


@pytest.mark.req("A-63")
def test_tokens_services_and_pulls_from_the_command_line(here: Central) -> None:
    made = document(run("central", "token", "create", "auditor", here.url, "--role", "audit", "--json"))
    assert here.ask("GET", "/v1/entries", secret=made["secret"]).status_code == 200
    assert made["token_id"] in run("central", "token", "list", here.url).stdout
    revoked = run("central", "token", "revoke", made["token_id"], here.url, "--json")
    assert (revoked.exit_code, document(revoked)) == (OK, {"token_id": made["token_id"], "revoked": True})
    assert here.ask("GET", "/v1/entries", secret=made["secret"]).status_code == 401
    assert run("central", "token", "revoke", "nobody", here.url).exit_code == UNUSABLE
    services = document(run("central", "services", here.url, "--json"))
    assert {one["name"] for one in services} >= set(NAMES)
    refused = run("central", "pull", "serviceA", here.url)
    assert (refused.exit_code, "no_pull_url" in refused.stderr) == (UNUSABLE, True)
    assert run("central", "pull", "nobody", here.url).exit_code == UNUSABLE


def test_who_asks_must_be_said(here: Central, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWOPHP_OPERATOR_TOKEN")
    assert "no_token" in run("ledger", "tail", here.url).stderr
    monkeypatch.setenv("TWOPHP_OPERATOR_TOKEN", "tphp_" + "0" * 64)
    assert "unauthenticated" in run("ledger", "tail", here.url).stderr


@pytest.mark.req("A-63")
def test_serve_prints_an_operators_token_once_and_keeps_its_key_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{tmp_path}/central.db"
    monkeypatch.delenv("TWOPHP_OPERATOR_TOKEN")

    def lines_of_a_run(ask: str = "") -> list[str]:
        process = subprocess.Popen(  # noqa: S603
            command("central", "serve", "--store", store, "--port", 0),
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        lines: list[str] = []
        try:
            while not lines or "central ledger on" not in lines[-1]:
                line = process.stdout.readline()
                assert line, "it ended before it listened"
                lines.append(line.strip())
            url = lines[-1].split()[-1]
            headers = {"Authorization": f"Bearer {ask or lines[0].split()[-1]}"}
            assert httpx.get(f"{url}/v1/tokens", headers=headers, timeout=PATIENCE_S).status_code == 200
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            process.stdout.close()
        return lines

    first = lines_of_a_run()
    secret = first[0].split()[-1]
    assert "shown this once" in first[0]
    assert len(lines_of_a_run(secret)) == 1, "the second start shows none"
    key = tmp_path / "central.db.management"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    said = run("central", "management-token", "orders", "--store", store)
    expected = management_token(key.read_bytes(), "orders")
    assert said.stdout.strip() == expected
    as_json = run("central", "management-token", "orders", "--store", store, "--json")
    assert document(as_json) == {"service": "orders", "management_token": expected}
    # With access to the database, a lost operator's token is no end.
    another = document(run("central", "token", "create", "again", store, "--role", "operations", "--json"))
    assert another["roles"] == ["operations"]


def test_a_port_that_is_taken_is_one_line_and_makes_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("central", "serve", "--store", f"sqlite:///{tmp_path}/central.db", "--port", port)
    assert (result.exit_code, result.stderr.split(":")[0]) == (UNUSABLE, "error[port_in_use]")
    assert "--port" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_other_machines_are_served_with_tls_or_on_demand(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/central.db"
    refused = run("central", "serve", "--store", store, "--host", "0.0.0.0", "--port", 0)  # noqa: S104
    assert (refused.exit_code, "tls_required" in refused.stderr) == (UNUSABLE, True)
