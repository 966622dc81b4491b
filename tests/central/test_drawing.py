"""Pictures: everything in them is there, nothing covers anything else, and nothing from outside gets out of a text."""

from __future__ import annotations

import gzip
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.calls import FOURTEEN, client_row, server_row
from tools import traffic
from twophp.central.drawing import words
from twophp.central.drawing.charts import (
    Chart,
    Series,
    log_ticks,
    percentile_lines,
    proportions,
    spark,
    stacked_bars,
    thinned,
    ticks,
)
from twophp.central.drawing.layout import WIDTH, Place, laid_out
from twophp.central.drawing.shown import DRAWN_WHOLE, MOST_CALLS, Shown, View, everything, shown
from twophp.central.drawing.svg import element, printable
from twophp.central.drawing.tree import Drawing, tree_picture
from twophp.central.missing import Missing
from twophp.central.pages.tree import Looking
from twophp.core.calltree import CallTree, call_tree
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Phase

HOSTILE = "<script>alert(1)</script>\"'&\x00\u202e"


def drawn(tree: CallTree, member: str = "", *, view: View | None = None, missing: Missing | None = None) -> str:
    tops = shown(tree.roots, view or View())
    reasons = {} if missing is None else {call.pair.key: missing for call in tree.calls()}
    return tree_picture(Drawing(tops=tops, missing=reasons, member=member, summary="tree"), Looking(id=member))


def parsed(picture: str) -> ET.Element:
    return ET.fromstring(picture)  # noqa: S314 - Our own.


def texts(picture: str) -> str:
    return " ".join(parsed(picture).itertext())


def large(many: int) -> CallTree:
    rows = [row for call in traffic.wide_tree(0, many) for row in call.rows()]
    return call_tree(rows, traffic.WIDE_ROOT)


def places(one: Shown) -> int:
    return 1 + sum(places(child) for child in one.children)


# Trees.


@pytest.mark.req("P-10.3-a")
def test_the_worked_example_is_drawn_whole() -> None:
    picture = drawn(call_tree(FOURTEEN, "client-corr-id5"), "client-corr-id5")
    told = texts(picture)
    for service in ("serviceA", "serviceB1", "serviceB2", "serviceB3", "serviceC1", "serviceD1", "serviceE1"):
        assert f"{service}/orders" in told
    assert told.count("Committed") == 7
    assert told.count("confirm  3\N{NO-BREAK SPACE}ms") == 7
    links = [link for link in parsed(picture).iter("a") if link.get("class") == "call"]
    assert links[0].get("href") == "/intent?client=client-corr-id1&server=server-corr-id1"
    assert all("Committed" in (link.get("aria-label") or "") for link in links)


@pytest.mark.req("A-48")
@pytest.mark.parametrize(
    ("rows", "gone", "missing", "why"),
    [
        ([client_row()], "no server row", Missing.NOT_SYNCED_YET, "not synced yet"),
        ([client_row()], "no server row", Missing.LOST, "lost: should be here"),
        ([server_row(phase=Phase.TTL_EXPIRED)], "no client row", Missing.EXPIRED, "never confirmed, answer lost"),
        ([server_row()], "no client row", Missing.NEVER_REGISTERED, "ledger not registered here"),
    ],
)
def test_a_missing_side_is_drawn_with_its_reason(
    rows: list[LedgerEntry], gone: str, missing: Missing, why: str
) -> None:
    picture = drawn(call_tree(rows, "client-1"), missing=missing)
    assert gone in texts(picture)
    assert why in texts(picture)
    (card,) = [link for link in parsed(picture).iter("a") if link.get("class") == "call"]
    assert gone in (card.get("aria-label") or "")
    assert why in (card.get("aria-label") or "")


def test_what_comes_from_outside_stays_text() -> None:
    rows = [client_row(source=HOSTILE, callee=HOSTILE), server_row(source=HOSTILE, callee=HOSTILE)]
    picture = drawn(call_tree(rows, "client-1"))
    assert "<script" not in picture
    assert parsed(picture).find(".//script") is None
    assert "<script>" in texts(picture)
    assert "\x00" not in picture
    assert "\u202e" not in picture


@pytest.mark.parametrize("many", [1, 40, DRAWN_WHOLE - 1, 900, 4_999])
def test_no_picture_is_too_large_and_none_leaves_out_silently(many: int) -> None:
    tree = large(many)
    tops = shown(tree.roots, View())
    assert sum(places(top) for top in tops) <= 2 * MOST_CALLS  # Each call may have a rest beside its children.
    assert counted(tops) == everything(tree.roots).calls == many + 1
    assert len(gzip.compress(drawn(tree).encode())) < 40_000


def counted(tops: tuple[Shown, ...]) -> int:
    """Every call: drawn, folded into one that is drawn, or in a rest."""
    total = 0
    for one in tops:
        if one.call is None:
            total += one.below.calls
        else:
            total += 1 + (one.below.calls if one.is_folded else counted(one.children))
    return total


def test_trouble_is_shown_before_anything_else() -> None:
    tree = large(900)
    drawn_calls = [one for top in shown(tree.roots, View()) for one in flat(top) if one.call is not None]
    failed = [one for one in drawn_calls if one.call is not None and one.call.pair.server.phase is Phase.FAILED]  # type: ignore[union-attr]
    assert len(failed) == everything(tree.roots).states[Phase.FAILED] == 6


def flat(one: Shown) -> list[Shown]:
    return [one, *(below for child in one.children for below in flat(child))]


def test_a_call_that_is_folded_says_what_is_below() -> None:
    tree = call_tree(FOURTEEN, "client-corr-id1")
    (top,) = shown(tree.roots, View(folded={"server-corr-id1"}))
    assert (top.is_folded, top.children, top.below.calls) == (True, (), 6)
    assert "+6" in texts(drawn(tree, view=View(folded={"server-corr-id1"})))


def test_the_links_of_a_picture_fold_unfold_and_lead_on() -> None:
    tree = call_tree(FOURTEEN, "client-corr-id1")
    pair = tree.roots[0].pair
    looking = Looking(id="x", opened=("server-corr-id1",))
    assert looking.fold(pair) == "/tree?id=x&fold=server-corr-id1"
    assert Looking(id="x", folded=("server-corr-id1",)).fold(pair) == "/tree?id=x"
    assert Looking(id="x").fold(pair) == "/tree?id=x&at=server-corr-id1"
    assert looking.rest(pair, 12) == "/tree?id=x&at=server-corr-id1&first=12"


SHAPES = st.recursive(st.just(0), lambda below: st.lists(below, max_size=4), max_leaves=40)


@given(SHAPES)
def test_no_card_covers_another_and_children_stand_beside_their_parent(shape: object) -> None:
    rows: list[LedgerEntry] = []

    def grow(at: object, parent: str | None) -> None:
        name = f"client-{len(rows)}"
        rows.append(client_row(name, parent=parent or name))
        for below in at if isinstance(at, list) else []:
            grow(below, name)

    grow(shape, None)
    picture = laid_out(shown(call_tree(rows, "client-0").roots, View()), left=100, margin=10)
    assert not [pair for pair in combinations(picture.places, 2) if overlap(*pair)]
    for place in picture.places:
        assert place.x + WIDTH <= picture.width
        assert place.y >= 0
        assert place.y + place.height <= picture.height
        if place.parent is not None:
            assert picture.places[place.parent].x + WIDTH < place.x


def overlap(one: Place, other: Place) -> bool:
    return one.x == other.x and one.y < other.y + other.height and other.y < one.y + one.height


# Charts.


def chart(*values: float | None) -> Chart:
    labels = [f"t{place}" for place in range(len(values))]
    one = Series(name="p50", class_="p50", values=values)
    return Chart(summary="in words", labels=labels, titles=labels, series=[one], words=words.count)


@pytest.mark.parametrize("draw", [stacked_bars, percentile_lines])
@pytest.mark.parametrize("values", [(), (0,), (None,), (5,), (1, None, 3), (1, 2, None), (0.2, 90_000)])
def test_charts_of_anything_are_pictures_in_words_and_in_bounds(draw: object, values: tuple[float | None, ...]) -> None:
    picture = parsed(draw(chart(*values)))  # type: ignore[operator]
    assert (picture.get("role"), picture.get("aria-label")) == ("img", "in words")
    for shape in picture.iter("rect"):
        assert float(shape.get("height", "0")) >= 0
        assert float(shape.get("y", "0")) >= 0


def test_a_bar_says_its_numbers_to_who_points_at_it() -> None:
    assert "t1: p50 3" in texts(stacked_bars(chart(1, 3)))


def test_small_pictures() -> None:
    assert parsed(spark([1, None, 3], "trend", "calls")).get("aria-label") == "calls"
    assert "Failed: 25 %" in texts(proportions([("Done", "a", 3), ("Failed", "b", 1)], "shares"))
    assert parsed(proportions([], "shares")).find("rect") is not None


@given(st.floats(min_value=0, max_value=1e9))
def test_ticks_reach_and_are_few(high: float) -> None:
    made = ticks(high)
    assert made[0] == 0
    assert made[-1] >= high * (1 - 1e-9)
    assert 2 <= len(made) <= 7


@given(st.floats(min_value=0.01, max_value=1e7), st.floats(min_value=1, max_value=1e4))
def test_steps_of_powers_of_ten_reach(low: float, times: float) -> None:
    made = log_ticks(low, low * times)
    assert made[0] <= max(low, 0.1) * (1 + 1e-9)
    assert made[-1] >= low * times * (1 - 1e-9)
    assert made == sorted(set(made))
    assert 2 <= len(made) <= 13


@given(st.integers(0, 500), st.integers(1, 20))
def test_labels_are_few_and_the_last_is_there(count: int, most: int) -> None:
    chosen = list(thinned(count, most))
    assert len(chosen) <= most
    assert not count or chosen[-1] == count - 1


# Words.


@pytest.mark.parametrize(
    ("ms", "said"),
    [(0.4, "0.4 ms"), (38, "38 ms"), (999, "999 ms"), (1_250, "1.2 s"), (90_000, "1.5 min"), (7_300_000, "2 h"),
     (200_000_000, "2.3 d"), (-5, "-5 ms")],
)  # fmt: skip
def test_durations(ms: float, said: str) -> None:
    assert words.duration(ms).replace("\N{NO-BREAK SPACE}", " ") == said


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [(0, 0, "\N{EN DASH}"), (0, 9, "0.0 %"), (1, 100_000, "< 0.1 %"), (99_999, 100_000, "> 99.9 %"), (3, 3, "100.0 %")],
)
def test_rates_never_round_to_all_or_none(part: float, whole: float, said: str) -> None:
    assert words.rate(part, whole).replace("\N{NO-BREAK SPACE}", " ") == said


@given(st.text())
def test_elements_are_well_formed_whatever_they_hold(anything: str) -> None:
    made = ET.fromstring(element("g", anything, data_call=anything))  # noqa: S314 - Our own.
    assert made.text in (printable(anything), None if not anything else printable(anything))
    assert made.get("data-call") == printable(anything)
