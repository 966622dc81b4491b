"""Call trees, put together from rows alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.core.calls import FOURTEEN, T0, client_row, row, server_row
from twophp.core.calltree import MAX_DEPTH, CallTree, call_tree, related_ids
from twophp.core.entry import LedgerEntry

E01_TO_E14 = [f"P-10.3-E{number:02}" for number in range(1, 15)]


def outline(tree: CallTree) -> list[tuple[int, str]]:
    return [(call.depth, call.pair.client_correlation_id[-1]) for call in tree.calls()]


MEMBERS = [id_ for e in FOURTEEN for id_ in (e.client_correlation_id, e.server_correlation_id)]
WHOLE = [(0, "1"), (1, "2"), (1, "3"), (1, "4"), (2, "5"), (2, "6"), (2, "7")]


@pytest.mark.req("P-10.3-a", "P-10.3-b", "P-10.3-c", "P-10.4-a", "P-10.1-b", "A-53", "A-50", *E01_TO_E14)
@given(st.permutations(FOURTEEN), st.sampled_from(MEMBERS))
def test_the_worked_table_in_its_order_from_any_member(rows: list[LedgerEntry], member: str) -> None:
    tree = call_tree(rows, member)
    assert tree.rows() == FOURTEEN
    assert outline(tree) == WHOLE
    assert (tree.above, tree.too_deep) == (None, False)


def test_rows_of_other_trees_are_left_out() -> None:
    strangers = [client_row("client-8"), server_row("client-8")]
    assert call_tree(FOURTEEN + strangers, "client-corr-id5").rows() == FOURTEEN
    assert call_tree(FOURTEEN + strangers, "client-8").rows() == strangers
    assert call_tree(FOURTEEN, "nobody").roots == ()
    assert call_tree([], "nobody").above is None


def test_siblings_stand_in_the_order_they_were_made() -> None:
    late = {"client-corr-id2": T0 + 9}
    rows = [replace(e, phase_1_timestamp=late.get(e.client_correlation_id, T0)) for e in FOURTEEN]
    assert outline(call_tree(rows, "client-corr-id1"))[1:4] == [(1, "3"), (1, "4"), (1, "2")]


def test_without_the_callers_row_a_branch_is_a_tree_of_its_own() -> None:
    without_e03 = FOURTEEN[:2] + FOURTEEN[3:]
    assert outline(call_tree(without_e03, "client-corr-id5")) == [(0, "2"), (1, "5")]
    assert outline(call_tree(without_e03, "client-corr-id1")) == [(0, "1"), (1, "3"), (1, "4"), (2, "6"), (2, "7")]


def test_calls_for_a_call_that_has_no_row_stand_together() -> None:
    made_by_a = [FOURTEEN[2], FOURTEEN[4], FOURTEEN[6]]
    tree = call_tree(made_by_a, "server-corr-id3")
    assert (tree.above, tree.rows()) == ("client-corr-id1", made_by_a)
    assert call_tree(made_by_a, "client-corr-id1") == tree


@pytest.mark.req("A-53")
def test_a_loop_of_parents_ends() -> None:
    rows = [client_row(f"client-{mine}", parent=f"client-{parent}") for mine, parent in ("ab", "bc", "ca")]
    assert sorted(outline(call_tree(rows, "client-a"))) == [(0, "a"), (1, "c"), (2, "b")]


@pytest.mark.req("A-53", "A-32")
def test_pairs_that_share_a_client_id_are_told_apart() -> None:
    mine = [client_row(), server_row()]
    other = [
        row("client-1", "server", source="stock", callee="stock", server_correlation_id="server-x"),
        row("client-2", "client", source="stock", callee="mail", parent="client-1"),
    ]
    tree = call_tree(mine + other, "client-1")
    children = {call.pair.server_correlation_id: len(call.children) for call in tree.roots}
    assert children == {"server-1": 0, "server-x": 1}


@pytest.mark.req("A-53")
def test_no_depth_is_too_much_and_what_is_left_out_is_said() -> None:
    chain = [client_row(f"client-{n:05}", parent=f"client-{max(n - 1, 0):05}") for n in range(5_000)]
    tree = call_tree(chain, "client-00000")
    assert tree.too_deep
    assert len(list(tree.calls())) == MAX_DEPTH
    assert not call_tree(chain[:MAX_DEPTH], "client-00000").too_deep


def test_who_else_belongs_to_the_tree() -> None:
    assert related_ids([FOURTEEN[8]]) == {"client-corr-id5", "client-corr-id2"}
