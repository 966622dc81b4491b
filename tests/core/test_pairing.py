"""Pair verdicts, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.core.calls import FOURTEEN, T0, client_row, server_row
from twophp.core.entry import CLIENT_PHASES, LedgerEntry
from twophp.core.intent import Mode, Phase
from twophp.core.pairing import KNOWN_TO_SERVER, WORDS, Reason, Verdict, pair_up

ALL_READ = frozenset({"orders", "shop"})


def verdict(*rows: LedgerEntry, read: frozenset[str] = ALL_READ) -> tuple[str, str, bool]:
    (pair,) = pair_up(rows, read=read)
    return pair.verdict, pair.reason, pair.is_alarm


@pytest.mark.req("P-10.4-c", "P-10.2-d", "P-3.2-a")
def test_the_worked_example_has_seven_pairs() -> None:
    pairs = pair_up(FOURTEEN)
    assert [pair.verdict for pair in pairs] == [Verdict.PAIRED] * 7
    assert [row for pair in pairs for row in pair.rows] == FOURTEEN


@pytest.mark.req("P-10.4-c")
@pytest.mark.parametrize("missing", range(14))
def test_without_one_row_one_pair_is_one_sided(missing: int) -> None:
    rows = FOURTEEN[:missing] + FOURTEEN[missing + 1 :]
    verdicts = sorted(pair.verdict for pair in pair_up(rows))
    one_sided = Verdict.SERVER_ONLY if FOURTEEN[missing].actor == "client" else Verdict.CLIENT_ONLY
    assert verdicts == sorted([one_sided] + [Verdict.PAIRED] * 6)


@pytest.mark.req("A-46", "P-5.5.8-c")
def test_a_transparent_call_is_one_sided_by_design() -> None:
    for facts in ({"mode": Mode.TRANSPARENT}, {"mode": Mode.AUTO_CONFIRM, "client_id_is_proxy": True}):
        assert verdict(server_row(**facts)) == ("SERVER_ONLY_BY_DESIGN", "transparent", False)
    assert verdict(server_row(mode=Mode.TRANSPARENT), client_row(mode=Mode.TRANSPARENT)) == ("PAIRED", "", False)


@pytest.mark.req("A-48")
@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"phase": Phase.WAITING_CONFIRM}, "answer_under_way"),
        ({"phase": Phase.TTL_EXPIRED}, "answer_lost"),
        ({"phase": Phase.ABANDONED}, "answer_lost"),
        ({"phase": Phase.PROCESSING}, "client_unread"),
        ({"phase": Phase.COMMITTED}, "client_unread"),
        ({"phase": Phase.FAILED}, "client_unread"),
        ({"phase": Phase.COMMITTED, "mode": Mode.AUTO_CONFIRM}, "callback_lost"),
    ],
)
def test_a_server_alone_is_legal(facts: dict[str, Any], reason: str) -> None:
    assert verdict(server_row(**facts)) == ("SERVER_ONLY", reason, False)


@pytest.mark.req("A-48")
def test_a_client_alone_is_an_alarm_once_the_servers_ledger_was_read() -> None:
    assert verdict(client_row(), read=frozenset({"shop"})) == ("CLIENT_ONLY", "server_unread", False)
    assert verdict(client_row()) == ("CLIENT_ONLY", "server_row_missing", True)


@pytest.mark.req("A-49")
@pytest.mark.parametrize("told", sorted(CLIENT_PHASES))
@pytest.mark.parametrize("is_", sorted(set(Phase) - {Phase.ABSENT}))
def test_a_client_never_knows_more_than_the_server(told: Phase, is_: Phase) -> None:
    # In which order a server may pass through its phases; the client is somewhere on that way, not beyond its end.
    ways = ["WAITING_CONFIRM PROCESSING COMMITTED", "WAITING_CONFIRM PROCESSING FAILED"]
    expiring = ["WAITING_CONFIRM TTL_EXPIRED ABANDONED"]
    on_the_way = any(told in way[: way.index(is_) + 1] for text in ways + expiring if is_ in (way := text.split()))
    by_its_own_clock = told is Phase.TTL_EXPIRED and is_ is Phase.WAITING_CONFIRM
    expected = ("PAIRED", "", False) if on_the_way or by_its_own_clock else ("CONFLICT", "phase_contradicts", True)
    assert verdict(client_row(phase=told), server_row(phase=is_)) == expected


def test_every_phase_of_a_client_has_its_rule() -> None:
    assert set(KNOWN_TO_SERVER) == CLIENT_PHASES
    assert set(WORDS) == set(Reason)


@pytest.mark.req("A-55", "P-9.8-04")
def test_rows_that_name_different_endpoints_or_services_conflict() -> None:
    assert verdict(client_row(service_endpoint="orders/other"), server_row()) == ("CONFLICT", "endpoint_differs", True)
    assert verdict(client_row(target="order"), server_row()) == ("CONFLICT", "callee_differs", True)


def test_what_was_sent_must_be_what_was_received_where_both_say() -> None:
    mine, other = client_row(request_digest="a"), server_row(request_digest="b")
    assert verdict(mine, other) == ("CONFLICT", "request_differs", True)
    assert verdict(mine, server_row(request_digest="a")) == ("PAIRED", "", False)
    assert verdict(mine, server_row()) == ("PAIRED", "", False)


@pytest.mark.req("A-34", "A-49")
@pytest.mark.parametrize(
    ("client", "server", "indeterminate"),
    [
        ({"phase": Phase.FAILED, "indeterminate": True}, {"phase": Phase.FAILED, "indeterminate": True}, True),
        ({"phase": Phase.FAILED}, {"phase": Phase.FAILED, "indeterminate": True}, True),  # An older client.
        ({"phase": Phase.FAILED, "indeterminate": True}, {"phase": Phase.FAILED}, True),  # An older server.
        ({"phase": Phase.PROCESSING}, {"phase": Phase.FAILED, "indeterminate": True}, True),  # It has not heard yet.
        ({"phase": Phase.WAITING_CONFIRM}, {"phase": Phase.FAILED, "indeterminate": True}, True),
        ({"phase": Phase.FAILED}, {"phase": Phase.FAILED}, False),
        ({"phase": Phase.PROCESSING}, {"phase": Phase.PROCESSING}, False),
    ],
)
def test_a_call_is_indeterminate_if_either_side_says_so(
    client: dict[str, Any], server: dict[str, Any], indeterminate: bool
) -> None:
    (pair,) = pair_up([client_row(**client), server_row(**server)])
    assert (pair.verdict, pair.indeterminate) == (Verdict.PAIRED, indeterminate)


@pytest.mark.req("A-34")
def test_one_side_alone_says_it_too_and_a_server_that_committed_knows_better() -> None:
    lost: dict[str, Any] = {"phase": Phase.FAILED, "indeterminate": True}
    for rows in ([client_row(**lost)], [server_row(**lost)], [server_row(**lost, mode=Mode.TRANSPARENT)]):
        assert pair_up(rows)[0].indeterminate is True
    (pair,) = pair_up([client_row(**lost), server_row(phase=Phase.COMMITTED)])
    assert (pair.verdict, pair.reason, pair.indeterminate) == (Verdict.CONFLICT, Reason.PHASE_CONTRADICTS, False)


@pytest.mark.req("A-34", "A-57")
def test_a_copy_that_dropped_the_field_is_not_an_altered_one() -> None:
    own = server_row(phase=Phase.FAILED, indeterminate=True)
    copy = replace(own, indeterminate=False, sync_timestamp=T0)
    for rows in ((own, copy), (copy, own)):
        (pair,) = pair_up(rows)
        assert (pair.verdict, pair.rivals, pair.indeterminate) == (Verdict.SERVER_ONLY, (), True)


@pytest.mark.req("A-57")
def test_one_row_may_come_in_several_versions_and_the_newest_counts() -> None:
    old, new = server_row(phase=Phase.WAITING_CONFIRM), server_row(version=3)
    synced = replace(new, sync_timestamp=T0)
    for rows in ((old, new, synced), (synced, new, old)):
        (pair,) = pair_up((client_row(), *rows))
        assert (pair.verdict, pair.rivals) == ("PAIRED", ())
        assert pair.server is not None
        assert pair.server.version == 3


@pytest.mark.req("A-57")
def test_one_version_with_two_contents_is_an_altered_copy() -> None:
    copy = replace(server_row(), transaction_reference="forged")
    assert verdict(client_row(), server_row(), copy) == ("CONFLICT", "altered_copy", True)
    assert verdict(server_row(), copy) == ("CONFLICT", "altered_copy", True)


def test_two_ledgers_with_the_same_side_conflict() -> None:
    other = server_row(service_ledger_id="another")
    assert verdict(client_row(), server_row(), other) == ("CONFLICT", "two_writers", True)
    (pair,) = pair_up((other, server_row(), client_row()))
    assert len(pair.rows) == 3


@given(st.permutations([*FOURTEEN[:-1], server_row(), replace(FOURTEEN[0], version=2), client_row("client-9")]))
def test_the_order_of_rows_does_not_matter(rows: list[LedgerEntry]) -> None:
    assert pair_up(rows) == pair_up(sorted(rows, key=str))
