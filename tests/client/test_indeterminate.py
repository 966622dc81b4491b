"""A client whose server does not know what happened: it says so, records it, and makes no call anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import document, run
from tests.client.callers import caller
from tests.client.foreign import REGISTERED, answer, foreign
from tests.client.shop import Shop, pair, shop
from tests.client.test_reconciler import Later, crashed
from twophp.client import Advice, PhaseError, calling
from twophp.core.intent import Phase
from twophp.core.pairing import Verdict, pair_up
from twophp.stores.sqlite.verify import verify

INDETERMINATE = 3  # The exit code.


@pytest.mark.req("A-34", "A-49", "P-10.2-d")
@pytest.mark.parametrize("path", ["/unwritable", "/unwritable-later"])
def test_the_answer_and_both_rows_say_it(kind: str, path: str, orders: Shop, tmp_path: Path) -> None:
    with caller(kind, tmp_path, targets=lambda _origin: "orders", resubmit=3) as http:
        said = http.post(f"{orders.url}{path}")
    assert (said.status, said.headers["dtt-2php-message"]) == (500, "Outcome indeterminate.")
    assert said.json["code"] == "outcome_indeterminate"
    assert (said.info["phase"], said.info["indeterminate"]) == ("FAILED", True)
    assert orders.runs == ["unwritable"], "resubmit= makes nothing anew that may have happened"
    id_ = said.info["client_correlation_id"]
    client, server = pair(tmp_path / "checkout.db", id_), pair(tmp_path / "orders.db", id_)
    for row in (client, server):
        assert (row.phase, row.outcome, row.indeterminate) == (Phase.FAILED, Phase.FAILED, True)
    [both] = pair_up([client, server])
    assert (both.verdict, both.indeterminate, both.is_alarm) == (Verdict.PAIRED, True, False)
    assert verify(str(tmp_path / "checkout.db")).holds


@pytest.mark.req("A-34")
@pytest.mark.parametrize("path", ["/broken", "/invalid", "/orders"])
def test_an_ordinary_end_is_not_indeterminate(path: str, orders: Shop, tmp_path: Path) -> None:
    with caller("httpx2", tmp_path, targets=lambda _origin: "orders") as http:
        said = http.post(f"{orders.url}{path}")
    assert said.info["indeterminate"] is False
    assert pair(tmp_path / "checkout.db", said.info["client_correlation_id"]).indeterminate is False
    assert run("ledger", "pairs", tmp_path / "checkout.db", tmp_path / "orders.db").exit_code == 0


@pytest.mark.req("A-34", "A-42")
def test_the_reconciler_finds_it_and_tells_the_code(orders: Shop, tmp_path: Path) -> None:
    crashed(tmp_path, f"{orders.url}/unwritable", "after phase_2")
    with caller("httpx2", tmp_path, clock=Later()) as http:
        (found,) = http.reconcile().settled
    assert (found.phase, found.code, found.is_open) == ("FAILED", "outcome_indeterminate", False)
    assert pair(tmp_path / "checkout.db", "the-call").indeterminate is True
    assert orders.runs == ["unwritable"]


@pytest.mark.req("A-34", "A-42")
def test_asked_again_when_the_server_is_gone_it_still_says_check(tmp_path: Path) -> None:
    with shop(tmp_path) as orders, calling(client_correlation_id="one"), caller("httpx2", tmp_path) as http:
        http.post(f"{orders.url}/unwritable")
    with calling(client_correlation_id="one"), caller("httpx2", tmp_path) as http, pytest.raises(PhaseError) as caught:
        http.post(f"{orders.url}/unwritable")
    assert (caught.value.code, caught.value.advice) == ("outcome_indeterminate", Advice.CHECK)


@pytest.mark.req("A-34", "P-10.4-c")
def test_pairs_show_and_tree_say_it_and_exit_with_a_code_of_its_own(orders: Shop, tmp_path: Path) -> None:
    with caller("httpx2", tmp_path, targets=lambda _origin: "orders") as http:
        http.post(f"{orders.url}/orders")
        id_ = http.post(f"{orders.url}/unwritable").info["client_correlation_id"]
    ledgers = tmp_path / "checkout.db", tmp_path / "orders.db"
    for command in (("pairs",), ("show", id_), ("tree", id_)):
        told = run("ledger", *command, *ledgers)
        assert told.exit_code == INDETERMINATE, told.stdout
        assert "indeterminate" in told.stdout
    pairs = run("ledger", "pairs", *ledgers, "--indeterminate", "--json")
    assert (pairs.exit_code, document(pairs)["indeterminate"]) == (INDETERMINATE, 1)
    [call] = document(pairs)["calls"]
    assert (call["verdict"], call["indeterminate"], call["client_correlation_id"]) == ("PAIRED", True, id_)
    assert [call[side]["indeterminate"] for side in ("client", "server")] == [True, True]
    [shown] = document(run("ledger", "show", id_, *ledgers, "--json"))["calls"]
    lines = [line for told in shown["evidence"] for line in told["journal"] if line["event"] == "indeterminate"]
    assert sorted((line["kind"], line["after"]) for line in lines) == [("call", "FAILED"), ("intent", "FAILED")]
    assert "FAILED (indeterminate)" in run("ledger", "tail", *ledgers).stdout
    assert "FAILED (indeterminate)" in run("ledger", "initiated", "checkout", *ledgers).stdout


@pytest.mark.req("A-34", "A-49")
def test_a_client_that_has_not_heard_yet_hides_nothing(orders: Shop, tmp_path: Path) -> None:
    crashed(tmp_path, f"{orders.url}/unwritable", "after phase_2")
    pairs = run("ledger", "pairs", tmp_path / "checkout.db", tmp_path / "orders.db", "--json")
    [call] = document(pairs)["calls"]
    assert (call["client"]["outcome"], call["server"]["indeterminate"]) == (None, True)
    assert call["indeterminate"] is True
    assert run("ledger", "pairs", tmp_path / "orders.db").exit_code == INDETERMINATE


@pytest.mark.req("A-34", "A-42")
@pytest.mark.parametrize("name", ["httpx2", "httpx async", "requests"])
def test_an_answer_that_says_so_and_breaks_off_means_check(name: str, tmp_path: Path) -> None:
    """Its head has told it. ``done`` would be read as an ordinary failure."""
    whole = answer(500, "DTT-2PHP-Message: Outcome indeterminate.", body=b"nobody knows", phase="FAILED")
    with foreign(phase_1=[REGISTERED], phase_2=[whole[:-5]]) as server:
        with caller(name, tmp_path, patience_s=0) as http, pytest.raises(PhaseError) as caught:
            http.post(f"{server.url}/orders")
        (tmp_path / "later").mkdir()
        crashed(tmp_path / "later", f"{server.url}/orders", "before phase_2")
        with caller(name, tmp_path / "later", clock=Later()) as http:
            (found,) = http.reconcile().settled
    error = caught.value
    assert (error.code, error.advice, error.phase) == ("outcome_indeterminate", Advice.CHECK, "FAILED")
    assert (found.outcome, found.code, found.advice) == ("indeterminate", "outcome_indeterminate", Advice.CHECK)
