"""The call tree as a picture: a card for each call, the times on the line that leads to it.

A card shows the phase by colour, symbol and word, and both sides of the call: a row that is not there is drawn as an
empty, dashed place, with the reason below. Every card is a link and says all of it to those who cannot see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec
from markupsafe import Markup

from twophp.central.drawing import words
from twophp.central.drawing.layout import BETWEEN, HEIGHT, TALL, WIDTH, Picture, Place, children_of, laid_out
from twophp.central.drawing.shown import Shown, state_of, trouble
from twophp.central.drawing.svg import cut, element, icon, line, number, text
from twophp.central.missing import Missing
from twophp.core.calltree import Branch
from twophp.core.entry import LedgerEntry
from twophp.core.pairing import Pair, PairKey, Verdict

MARGIN: Final = 16
CALLER_WIDTH: Final = 132
CALLER_HEIGHT: Final = 34
LEFT: Final = MARGIN + CALLER_WIDTH + BETWEEN
SIDE_WIDTH: Final = 120
STUB: Final = 18
TURN: Final = 6
"""How round the corners of a line are."""


class Links(Protocol):
    """Where a click leads."""

    def intent(self, pair: Pair) -> str:
        """To all about one call."""
        ...

    def fold(self, pair: Pair) -> str:
        """To this picture with what is below the call folded, or unfolded again."""
        ...

    def rest(self, of: Pair | None, first: int) -> str:
        """To a picture of the calls that did not fit."""
        ...


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn: the shown calls, why sides are missing, which id was asked for, and the summary in words."""

    tops: Sequence[Shown]
    missing: Mapping[PairKey, Missing]
    member: str
    summary: str
    above: str | None = None


def tree_picture(drawing: Drawing, links: Links) -> Markup:
    """The whole picture in its natural size; a page scales it."""
    picture = laid_out(drawing.tops, left=LEFT, margin=MARGIN)
    marks = [
        *_caller(drawing, picture),
        *(mark for parent, below in children_of(picture) for mark in _lines(parent, below)),
        *(_card(place, drawing, links) for place in picture.places),
    ]
    size = {"width": picture.width, "height": picture.height}
    view_box = f"0 0 {number(picture.width)} {number(picture.height)}"
    return element("svg", *marks, class_="tree", view_box=view_box, role="group", aria_label=drawing.summary, **size)


# Who began it.


def _caller(drawing: Drawing, picture: Picture) -> list[Markup]:
    """The first client, which serves no call, or what can be said of it."""
    tops = [place for place in picture.places if place.parent is None]
    if not tops:
        return []
    middle = (tops[0].middle + tops[-1].middle) / 2 if picture.height <= TALL else tops[0].middle
    name, is_known = _caller_name(drawing)
    box = element(
        "rect", x=MARGIN, y=middle - CALLER_HEIGHT / 2, width=CALLER_WIDTH, height=CALLER_HEIGHT, rx=CALLER_HEIGHT / 2,
        class_="caller" if is_known else "caller missing",
    )  # fmt: skip
    label = text(cut(name, CALLER_WIDTH - 24, 13), MARGIN + CALLER_WIDTH / 2, middle + 4.5, "name", anchor="middle")
    shape = element("g", element("title", name), box, label)
    return [*_bus(MARGIN + CALLER_WIDTH, middle, tops), shape]


def _caller_name(drawing: Drawing) -> tuple[str, bool]:
    if drawing.above is not None:
        return f"no row of {drawing.above}", False
    calls = [top.call for top in drawing.tops if top.call is not None]
    client = calls[0].pair.client if calls else None
    if client is not None:
        return client.source, True
    is_plain = bool(calls) and calls[0].pair.verdict is Verdict.SERVER_ONLY_BY_DESIGN
    return ("plain client" if is_plain else "caller unknown"), False


# Lines, with the times on them.


def _lines(parent: Place, below: Sequence[Place]) -> list[Markup]:
    return _bus(parent.x + WIDTH, parent.middle, below)


def _bus(x: float, middle: float, below: Sequence[Place]) -> list[Markup]:
    """A stub out of the parent, a spine along its children, and from there to each child an edge with its times."""
    spine, ends = x + STUB, [place.middle - _turn(place.middle - middle) for place in below]
    path = f"M{number(x)} {number(middle)}H{number(spine)}"
    if max(abs(end - middle) for end in ends) >= 1:
        path += f"M{number(spine)} {number(min(*ends, middle))}V{number(max(*ends, middle))}"
    trunk = element("path", d=path, class_="edge")
    return [trunk, *(mark for place in below for mark in (_edge(spine, middle, place), *_times(place)))]


def _edge(spine: float, middle: float, to: Place) -> Markup:
    """From the spine to the card, around a corner."""
    turn = _turn(to.middle - middle)
    r = number(abs(turn))
    corner = f"q0 {number(turn)} {r} {number(turn)}" if turn else ""
    path = f"M{number(spine)} {number(to.middle - turn)}{corner}H{number(to.x)}"
    call = to.shown.call
    is_loose = call is not None and (call.pair.server is None or call.pair.client is None)
    return element("path", d=path, class_=f"edge{' loose' if is_loose else ''}{_alarm(to.shown)}")


def _turn(drop: float) -> float:
    """How far before its end a line that goes so far up or down begins to turn."""
    return min(TURN, abs(drop) / 2) * (1 if drop > 0 else -1)


def _times(to: Place) -> list[Markup]:
    """Over the line how long it took to confirm, under it how long it ran."""
    if to.shown.call is None:
        return []
    known = to.shown.call.pair.server or to.shown.call.pair.client
    assert known is not None, "a pair has a row"
    middle = to.x - (BETWEEN - STUB) / 2 + 1
    told = [
        (words.confirmed_after_ms(known), "confirm", to.middle - 5),
        (words.ran_for_ms(known), "run", to.middle + 14),
    ]
    return [
        element("text", element("tspan", f"{name} ", class_="unit"), words.duration(took), x=middle, y=y,
                class_="time", text_anchor="middle")
        for took, name, y in told if took is not None
    ]  # fmt: skip


def _alarm(one: Shown) -> str:
    is_alarm = one.call is not None and one.call.pair.is_alarm
    return " alarm" if is_alarm else ""


# Cards.


def _card(place: Place, drawing: Drawing, links: Links) -> Markup:
    call = place.shown.call
    if call is None:
        return _rest(place, links)
    missing = drawing.missing.get(call.pair.key)
    body = element(
        "a",
        *_face(place, call, missing),
        href=links.intent(call.pair),
        class_="call",
        aria_label=spoken(place.shown, missing),
    )
    is_member = drawing.member in call.pair.key
    classes = f"card {words.CLASSES[state_of(call.pair)]}{_alarm(place.shown)}{' member' if is_member else ''}"
    return element(
        "g",
        body,
        *_knob(place, links),
        class_=classes,
        data_call=call.pair.client_correlation_id,
        data_column=place.column,
    )


def _face(place: Place, call: Branch, missing: Missing | None) -> list[Markup]:
    x, y, pair = place.x, place.y, call.pair
    known = pair.server or pair.client
    assert known is not None, "a pair has a row"
    state = state_of(pair)
    marks = [
        element("title", known.service_endpoint),
        element("rect", x=x, y=y, width=WIDTH, height=place.height, rx=7, class_="face"),
        element("rect", x=x + 0.5, y=y + 9, width=3.5, height=place.height - 18, rx=1.7, class_="bar"),
        icon(words.CLASSES[state], x + 13, y + 10, 14, "state"),
        text(cut(known.service_endpoint, WIDTH - 59 - 7 * len(words.LABELS[state]), 13.5), x + 33, y + 21.5, "name"),
        text(words.LABELS[state], x + WIDTH - 12, y + 21.5, "phase", anchor="end"),
        *_side("client", pair.client, x + 13, y + 35),
        *_side("server", pair.server, x + 13 + SIDE_WIDTH + 7, y + 35),
    ]
    if why := words.reason(pair, missing):
        marks.append(icon("broken", x + 13, y + HEIGHT - 1.5, 12, "why"))
        marks.append(text(cut(why, WIDTH - 44, 11.5), x + 30, y + HEIGHT + 8, "why"))
    return marks


def _side(actor: str, row: LedgerEntry | None, x: float, y: float) -> list[Markup]:
    """One side of the call: who wrote the row, or an empty place."""
    box = element(
        "rect", x=x, y=y, width=SIDE_WIDTH, height=22, rx=4, class_="side" if row is not None else "side missing"
    )
    if row is None:
        return [box, text(f"no {actor} row", x + SIDE_WIDTH / 2, y + 15, "gone", anchor="middle")]
    mark = text("C" if actor == "client" else "S", x + 10, y + 15, "actor", anchor="middle")
    divider = line(x + 19.5, y, x + 19.5, y + 22, "divider")
    return [box, divider, mark, text(cut(row.source, SIDE_WIDTH - 30, 11.5), x + 26, y + 15, "source")]


def _knob(place: Place, links: Links) -> list[Markup]:
    """The knob that folds or unfolds what is below a call. A folded one shows how many calls it hides."""
    one = place.shown
    if one.call is None or not one.call.children:
        return []
    folded = one.is_folded
    label = f"+{words.count(one.below.calls)}" if folded else "\N{MINUS SIGN}"
    width = 12 + 6.5 * len(label) if folded else 16
    x = place.x + WIDTH - (0 if folded else 8)
    spoken_label = f"{'Show' if folded else 'Fold'} what is below: {_calls(one.below.calls)}"
    return [
        element(
            "a",
            element("title", spoken_label + (f", {told(one.below.states)}" if folded else "")),
            element("rect", x=x, y=place.middle - 8, width=width, height=16, rx=8, class_="knob"),
            text(label, x + width / 2, place.middle + 4, "knob-label", anchor="middle"),
            href=links.fold(one.call.pair),
            class_="fold",
            aria_label=spoken_label,
        )
    ]


def _rest(place: Place, links: Links) -> Markup:
    one = place.shown
    label = f"{words.count(one.below.calls)} more call{'' if one.below.calls == 1 else 's'}"
    return element(
        "a",
        element("title", f"{label}: {told(one.below.states)}"),
        element("rect", x=place.x + 4, y=place.y + 4, width=WIDTH, height=place.height - 4, rx=7, class_="stack"),
        element("rect", x=place.x, y=place.y, width=WIDTH, height=place.height - 4, rx=7, class_="face"),
        text(label, place.x + 13, place.y + 16, "name"),
        text(cut(told(one.below.states), WIDTH - 26, 11.5), place.x + 13, place.y + 30, "source"),
        href=links.rest(one.rest_of, one.first),
        class_="rest" + (" alarm" if one.below.trouble > 1 else ""),
        aria_label=f"{label}: {told(one.below.states)}",
    )


def _calls(many: int) -> str:
    return f"{words.count(many)} call{'' if many == 1 else 's'}"


def told(states: Mapping[words.State, int]) -> str:
    """``980 committed, 8 failed``: worst first."""
    found = [(state, states[state]) for state in (*words.STATES[1:], words.STATES[0]) if states.get(state)]
    return ", ".join(f"{words.count(many)} {words.LABELS[state].lower()}" for state, many in found)


def spoken(one: Shown, missing: Missing | None) -> str:
    """All that a card shows, as a sentence."""
    assert one.call is not None
    pair = one.call.pair
    known = pair.server or pair.client
    assert known is not None, "a pair has a row"
    caller = pair.client.source if pair.client is not None else "an unknown client"
    parts = [f"{known.service_endpoint}, called by {caller}: {words.LABELS[state_of(pair)]}"]
    parts += [f"no {actor} row" for actor, row in (("client", pair.client), ("server", pair.server)) if row is None]
    if why := words.reason(pair, missing):
        parts.append(why)
    for took, name in ((words.confirmed_after_ms(known), "confirmed after"), (words.ran_for_ms(known), "ran for")):
        if took is not None:
            parts.append(f"{name} {words.duration(took)}")
    if trouble(pair) == 3:  # noqa: PLR2004 - An alarm.
        parts.append("alarm")
    return ", ".join(parts)
