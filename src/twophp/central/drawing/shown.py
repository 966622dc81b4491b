"""Which calls of a tree are drawn. A tree may have ten thousand; a picture that is read has two hundred at most.

Theory. A small tree is drawn whole. Of a large one the topmost call shows the calls it made, those with trouble first,
in the order they were made; further down a call shows only the calls that have trouble in them, and one without is
folded, and says how many calls there are below. What is left over of many calls stands together as one *rest*, which
tells how they ended and leads to a picture of its own. So nothing is ever left out silently, and trouble is the last
thing to be hidden.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Final

import msgspec

from twophp.central.drawing.words import INDETERMINATE, State
from twophp.core.calltree import Branch
from twophp.core.intent import Phase
from twophp.core.pairing import Pair, Verdict

MOST_CALLS: Final = 200
DRAWN_WHOLE: Final = 60
MOST_CHILDREN: Final = 12
MOST_AT_THE_TOP: Final = 60
"""The topmost call has room for more: a reader who follows a rest wants to see it."""

_FAILED: Final = frozenset({Phase.FAILED, INDETERMINATE})
_STALLED: Final = frozenset({Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED})
_SOUND: Final = frozenset({Verdict.PAIRED, Verdict.SERVER_ONLY_BY_DESIGN})


class Sum(msgspec.Struct, frozen=True):
    """What can be said of some calls together: how many, how they ended, how bad the worst is."""

    calls: int
    states: Mapping[State, int]
    trouble: int


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One place in the picture: a call, or (``call`` None) a rest of calls. ``below`` sums up all that hangs on it."""

    call: Branch | None
    below: Sum
    children: tuple[Shown, ...] = ()
    is_folded: bool = False  # There is more below than is drawn.
    rest_of: Pair | None = None  # Whose calls the rest is part of; None of the topmost ones.
    first: int = 0  # The number, among all of them in their order, where a picture of the rest should begin.


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: server ids of calls to fold, and which of the topmost call's children come first."""

    folded: Container[str] = frozenset()
    first: int = 0
    most: int = MOST_CALLS


def state_of(pair: Pair) -> State:
    """How far the call came. The server knows best (A-49)."""
    known = pair.server or pair.client
    assert known is not None, "a pair has a row"
    return INDETERMINATE if pair.indeterminate else known.phase


def trouble(pair: Pair) -> int:
    """How urgently an operator should look at it: 0 not at all, 3 at once."""
    if pair.is_alarm:
        return 3
    if state_of(pair) in _FAILED:
        return 2
    return 1 if state_of(pair) in _STALLED or pair.verdict not in _SOUND else 0


def shown(roots: Sequence[Branch], view: View) -> tuple[Shown, ...]:
    """The picture of these calls and what is below them."""
    sums = _sums(roots)
    if len(roots) == 1:
        top, rest = list(roots), None
    else:
        top, rest = _chosen(roots[view.first :], sums, MOST_AT_THE_TOP, None, view.first)
    opened = _opened(top, sums, view, is_single=len(roots) == 1)
    drawn = tuple(_nested(call, sums, opened) for call in top)
    return drawn if rest is None else (*drawn, rest)


def everything(calls: Sequence[Branch]) -> Sum:
    """All of a tree in one sum."""
    sums = _sums(calls)
    return _together([sums[id(call)] for call in calls])


class _Opened(msgspec.Struct, frozen=True):
    children: Sequence[Branch]
    rest: Shown | None


def _opened(top: Sequence[Branch], sums: Mapping[int, Sum], view: View, *, is_single: bool) -> dict[int, _Opened]:
    """Which children each call shows, by the call's identity, until the picture is full."""
    opened: dict[int, _Opened] = {}
    left, ahead = view.most - len(top), deque(top)
    is_small = sum(sums[id(call)].calls for call in top) <= DRAWN_WHOLE
    while ahead and left > 0:
        call = ahead.popleft()
        is_top = is_single and call is top[0]
        most = _most(call, sums, is_top=is_top, is_small=is_small)
        if not most or call.pair.server_correlation_id in view.folded:
            continue
        first, most = view.first if is_top else 0, min(most, left)
        children, rest = _chosen(call.children[first:], sums, most, call.pair, first)
        opened[id(call)] = _Opened(children, rest)
        ahead.extend(children)
        left -= len(children)
    return opened


def _most(call: Branch, sums: Mapping[int, Sum], *, is_top: bool, is_small: bool) -> int:
    """How many of its calls a call may show; 0: it is folded."""
    if is_top or not call.children:
        return MOST_AT_THE_TOP if call.children else 0
    if is_small:
        return MOST_CHILDREN
    return min(sum(sums[id(child)].trouble > 1 for child in call.children), MOST_CHILDREN)


def _chosen(
    calls: Sequence[Branch], sums: Mapping[int, Sum], most: int, parent: Pair | None, first: int
) -> tuple[list[Branch], Shown | None]:
    """The calls to show, in their order, and the rest. The picture of a rest begins at the first that is not here."""
    if len(calls) <= most + 1:  # A rest of one would take as much room as the one.
        return list(calls), None
    ranked = nsmallest(most, range(len(calls)), key=lambda place: (-sums[id(calls[place])].trouble, place))
    places = set(ranked)
    left_over = [place for place in range(len(calls)) if place not in places]
    below = _together([sums[id(calls[place])] for place in left_over])
    rest = Shown(call=None, below=below, rest_of=parent, first=first + left_over[0])
    return [calls[place] for place in sorted(places)], rest


def _nested(call: Branch, sums: Mapping[int, Sum], opened: Mapping[int, _Opened]) -> Shown:
    """Depth is bounded (``MAX_DEPTH``), so this may call itself."""
    here = opened.get(id(call))
    below = _together([sums[id(child)] for child in call.children])
    if here is None:
        return Shown(call=call, below=below, is_folded=bool(call.children))
    children = [_nested(child, sums, opened) for child in here.children]
    return Shown(call=call, below=below, children=(*children, *([here.rest] if here.rest else [])))


def _sums(roots: Sequence[Branch]) -> dict[int, Sum]:
    """Of every call, itself and all below it; from the leaves up."""
    sums: dict[int, Sum] = {}
    for call in reversed(list(_breadth_first(roots))):
        own = Sum(1, {state_of(call.pair): 1}, trouble(call.pair))
        sums[id(call)] = _together([own, *(sums[id(child)] for child in call.children)])
    return sums


def _breadth_first(roots: Sequence[Branch]) -> Iterator[Branch]:
    level = list(roots)
    while level:
        yield from level
        level = [child for call in level for child in call.children]


def _together(sums: Sequence[Sum]) -> Sum:
    if len(sums) == 1:
        return sums[0]
    states: dict[State, int] = {}
    for one in sums:
        for state, many in one.states.items():
            states[state] = states.get(state, 0) + many
    return Sum(sum(one.calls for one in sums), states, max((one.trouble for one in sums), default=0))
