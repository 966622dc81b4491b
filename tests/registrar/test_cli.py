"""``twophp registrar``: what it prints, and the exit codes that scripts use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.registrar.scene import Scene
from tests.registrar.tables import IU_ROUTE_ATTEMPT, make
from twophp.cli import main
from twophp.registrar import Registrar

OK, FOUND, UNUSABLE = 0, 1, 2


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["registrar", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def document(result: Result) -> Any:
    return json.loads(result.stdout)


@pytest.mark.req("REG-RP-10", "REG-7-02")
def test_a_surface_is_judged_criterion_by_criterion(filed: Scene) -> None:
    make(filed.path, IU_ROUTE_ATTEMPT)
    fit = run("surface", filed.url, "registrar_consumed")
    assert fit.exit_code == OK
    assert fit.stdout.endswith("registrar_consumed: REPLAY_DOMAIN_READY_AS_CRITERIA\n")
    assert [line.split()[:2] for line in fit.stdout.splitlines()[1:9]] == [[letter, "yes"] for letter in "abcdefgh"]
    unfit = run("surface", filed.path, "iu_route_attempt", "--json")
    said = document(unfit)
    assert (unfit.exit_code, said["code"], said["fit"]) == (FOUND, "REPLAY_SURFACE_NOT_FIT", False)
    assert said["failed"] == list("abcdegh")  # There is an audit in this file.
    assert said["criteria"]["c"]["reasons"][0] == "route_kind is a column of routing"
    assert "no  " in run("surface", filed.path, "iu_route_attempt").stdout
    both = run("surface", filed.url, "registrar_consumed", "iu_route_attempt", "--json")
    assert (both.exit_code, [one["fit"] for one in document(both)]) == (FOUND, [True, False])
    every = run("surface", filed.url, "--json")
    assert (every.exit_code, sum(one["fit"] for one in document(every))) == (OK, 1)


@pytest.mark.req("REG-6-09")
def test_a_surface_that_cannot_be_probed_is_a_finding(tmp_path: Path) -> None:
    result = run("surface", f"sqlite:///{tmp_path}/none.db", "t")
    assert result.exit_code == FOUND
    assert "there is no database" in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("port", "code"), [("1", "store_cannot_open"), ("port", "bad_url")])
def test_a_database_that_cannot_be_reached_is_one_line(port: str, code: str) -> None:
    result = run("surface", f"postgresql://me:hush@127.0.0.1:{port}/app")
    assert (result.exit_code, result.stderr.split(":")[0]) == (UNUSABLE, f"error[{code}]")
    assert "hush" not in result.output


def test_a_look_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    """Nor does it need to: an auditor may have no right to write there."""
    path = tmp_path / "effects.db"
    with Registrar(f"sqlite:///{path}"):
        pass
    before = sorted(tmp_path.iterdir())
    for command in ("audit", "check"):
        assert run(command, path).exit_code == OK
        assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_has_no_tables_to_look_through_is_one_line(tmp_path: Path) -> None:
    missing = run("surface", tmp_path / "none.db")
    assert (missing.exit_code, missing.stderr.split(":")[0]) == (UNUSABLE, "error[no_such_database]")
    junk = tmp_path / "junk.db"
    junk.write_text("no database at all, " * 100, encoding="utf-8")
    for command in ("surface", "audit"):
        result = run(command, junk)
        assert (result.exit_code, result.stderr.split(":")[0]) == (UNUSABLE, "error[not_a_database]")


def test_a_table_that_demands_nothing_is_tried_with_a_row(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    make(str(path), "CREATE TABLE empty_t (a)")
    result = run("surface", path)
    assert result.exit_code == FOUND
    assert "syntax error" not in result.stdout
    assert "tried: UPDATE changes a" in result.stdout


@pytest.mark.req("REG-7-05", "A-94")
def test_the_gate_is_shown_opened_and_held(durable: Scene) -> None:
    assert run("gate", durable.url).stdout.startswith("REGISTRATION_OPEN: on the word of board-7\n")
    held = run("gate", durable.url, "--hold", "audit under way")
    assert (held.exit_code, held.stdout.splitlines()[0]) == (FOUND, "REGISTRATION_HOLD: audit under way")
    assert document(run("gate", durable.url, "--json"))["registration_can_proceed"] == "NO"
    opened = run("gate", durable.url, "--open", "board-8", "--json")
    assert (opened.exit_code, document(opened)["authority_ref"]) == (OK, "board-8")
    assert run("gate", durable.url, "--open", "x", "--hold", "y").exit_code == UNUSABLE
    assert run("gate", durable.url, "--open", " ").stderr.startswith("error[REGISTRATION_HOLD]: ")


@pytest.mark.req("A-96")
def test_a_key_is_resolved(durable: Scene) -> None:
    durable.registered()
    found = run("resolve", durable.url, "lrk-1")
    assert (found.exit_code, found.stdout.splitlines()[0]) == (OK, "lrk-1: CONSUMED, registered-closed")
    assert re.search(r"^registered_at +\d{4}-\d\d-\d\dT[\d:.]+Z *$", found.stdout, re.MULTILINE)
    absent = run("resolve", durable.url, "lrk-2", "--json")
    assert (absent.exit_code, document(absent)["code"]) == (FOUND, "ABSENT")
    assert durable.rows()["registrar_fence"] == 1


@pytest.mark.req("A-93")
def test_refusals_are_listed(durable: Scene) -> None:
    assert run("audit", durable.url).stdout == "nothing was refused\n"
    durable.registrar.register(durable.asks(authorization_nonce="junk"))
    durable.registrar.register(durable.asks(logical_request_key="lrk-2", authorization_nonce="junk"))
    assert "NONCE_UNBOUND" in run("audit", durable.url).stdout
    (line,) = document(run("audit", durable.url, "--key", "lrk-2", "--json"))
    assert (line["code"], line["logical_request_key"]) == ("NONCE_UNBOUND", "lrk-2")


@pytest.mark.req("REG-4-07")
def test_what_was_erased_is_found(durable: Scene) -> None:
    durable.registered()
    assert run("check", durable.url).stdout == "everything consumed is there\n"
    durable.tampering("DELETE FROM registrar_consumed")
    bad = run("check", durable.url)
    assert (bad.exit_code, bad.stdout) == (FOUND, "1 consumed key gone: lrk-1\n")
    assert document(run("check", durable.url, "--json")) == {"holds": False, "erased": ["lrk-1"]}


@pytest.mark.parametrize("command", [("gate",), ("resolve", "k"), ("audit",), ("check",)])
def test_a_database_that_is_not_there_is_not_made(tmp_path: Path, command: tuple[str, ...]) -> None:
    name, *rest = command
    result = run(name, tmp_path / "none.db", *rest)
    assert (result.exit_code, result.stderr.split(":")[0]) == (UNUSABLE, "error[no_such_database]")
    assert list(tmp_path.iterdir()) == []
