"""Where the calls of a picture stand: a column for each level, a parent halfway beside its children.

In a picture that is too tall for a screen a parent stands beside its first child instead, or it would be out of sight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from twophp.central.drawing.shown import Shown

WIDTH: Final = 272
HEIGHT: Final = 68
REASON_HEIGHT: Final = 18
"""A call that is not whole says why, on a line more."""
REST_HEIGHT: Final = 40
GAP: Final = 14
TALL: Final = 900
BETWEEN: Final = 116
"""Between two columns; the times of a call are written there."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One card: its upper left corner, and the place of the call it was made for in the list."""

    shown: Shown
    column: int
    x: float
    y: float
    height: float
    parent: int | None

    @property
    def middle(self) -> float:
        """The height at which lines come in and go out."""
        return self.y + self.height / 2


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """All cards, parents before children, and how much room they take."""

    places: tuple[Place, ...]
    width: float
    height: float


def height_of(one: Shown) -> float:
    """A card's height."""
    if one.call is None:
        return REST_HEIGHT
    return HEIGHT + (REASON_HEIGHT if one.call.pair.reason else 0)


def laid_out(tops: Sequence[Shown], *, left: float, margin: float) -> Picture:
    """Give each call its place. ``left`` keeps room before the first column."""
    picture = _laid_out(tops, left, margin, is_centred=True)
    return picture if picture.height <= TALL else _laid_out(tops, left, margin, is_centred=False)


def _laid_out(tops: Sequence[Shown], left: float, margin: float, *, is_centred: bool) -> Picture:
    places: list[Place] = []
    foot = margin
    for top in tops:
        foot, _middle = _place(top, 0, None, foot, left, places, is_centred=is_centred)
    columns = max((place.column for place in places), default=0) + 1
    width = left + columns * WIDTH + (columns - 1) * BETWEEN + margin + GAP
    return Picture(places=tuple(places), width=width, height=max(foot - GAP, margin) + margin)


def _place(
    one: Shown, column: int, parent: int | None, top: float, left: float, places: list[Place], *, is_centred: bool
) -> tuple[float, float]:
    """Place it and what is below it; return where the next one may begin, and its own middle."""
    number, height = len(places), height_of(one)
    places.append(
        Place(shown=one, column=column, x=left + column * (WIDTH + BETWEEN), y=top, height=height, parent=parent)
    )
    foot, middles = top, list[float]()
    for child in one.children:
        foot, middle = _place(child, column + 1, number, foot, left, places, is_centred=is_centred)
        middles.append(middle)
    beside = (middles[0] + middles[-1]) / 2 if middles and is_centred else top
    middle = max(beside, top + height / 2)
    places[number] = msgspec.structs.replace(places[number], y=middle - height / 2)
    return max(foot, middle + height / 2 + GAP), middle


def children_of(picture: Picture) -> Iterator[tuple[Place, list[Place]]]:
    """Each card with those that hang on it."""
    below: dict[int, list[Place]] = {}
    for place in picture.places:
        if place.parent is not None:
            below.setdefault(place.parent, []).append(place)
    for number, place in enumerate(picture.places):
        if number in below:
            yield place, below[number]
