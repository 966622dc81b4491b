"""A call tree: the picture, and the table behind it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import msgspec
from starlette.responses import Response

from twophp.central.drawing.shown import MOST_CALLS, Shown, View, everything, shown
from twophp.central.drawing.tree import Drawing, told, tree_picture
from twophp.central.drawing.words import STATES, count
from twophp.central.pages.frame import Routes, Visit, not_found, reading
from twophp.central.pages.rendering import of_pair, url
from twophp.central.questions import Tree, aside
from twophp.core.calltree import Branch
from twophp.core.entry import LedgerEntry
from twophp.core.pairing import Pair

ROWS_PER_PAGE: Final = 200
MOST_FOLDED: Final = 50


class Looking(msgspec.Struct, frozen=True, kw_only=True):
    """Where the picture begins and what is folded: all of it is in the address. Also the links in the picture."""

    id: str
    at: str = ""
    first: int = 0
    folded: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()

    def intent(self, pair: Pair) -> str:
        """To all about one call."""
        return of_pair(pair)

    def fold(self, pair: Pair) -> str:
        """Fold it, or unfold it again. A call that was folded for want of room gets a picture of its own."""
        server_id = pair.server_correlation_id
        if server_id in self.opened:  # The call is drawn with what is below it.
            return self._address(folded=(*self.folded, server_id)[-MOST_FOLDED:])
        if server_id in self.folded:
            return self._address(folded=tuple(one for one in self.folded if one != server_id))
        return url("/tree", id=self.id, at=server_id)

    def rest(self, of: Pair | None, first: int) -> str:
        """A picture that begins with the call whose children did not fit."""
        return url("/tree", id=self.id, at=of.server_correlation_id if of is not None else None, first=first)

    def top(self) -> str:
        """The whole tree again."""
        return url("/tree", id=self.id)

    def rows(self, page: int) -> str:
        """Another page of the table."""
        return f"{self._address(folded=self.folded, page=page)}#rows"

    def _address(self, *, folded: Sequence[str], page: int = 0) -> str:
        return url("/tree", id=self.id, at=self.at, first=self.first or None, fold=list(folded), page=page or None)


async def tree(visit: Visit) -> Response:
    """The page."""
    asked = visit.asked("id")
    found = await visit.central.questions.tree(asked)
    if not found.tree.roots:
        return not_found(visit, "No row with this id has arrived here. It may not be synced yet: search, or pull.")
    return await aside(found.rows, lambda: _page(visit, asked, found))


def _page(visit: Visit, asked: str, found: Tree) -> Response:
    calls = list(found.tree.calls())
    looking = _looking(visit, asked)
    focus = next((call for call in calls if looking.at and call.pair.server_correlation_id == looking.at), None)
    tops = (focus,) if focus is not None else found.tree.roots
    drawn = shown(tops, View(folded=frozenset(looking.folded), first=looking.first))
    looking = msgspec.structs.replace(looking, opened=tuple(_opened(drawn)))
    sums = everything(found.tree.roots)
    picture = tree_picture(
        Drawing(
            tops=drawn,
            missing=found.missing,
            member=asked,
            summary=f"Call tree of {count(sums.calls)} calls: {told(sums.states)}. The table below has every row.",
            above=None if focus is not None else found.tree.above,
        ),
        looking,
    )
    return visit.page(
        "tree.html",
        asked=asked,
        found=found,
        calls=len(calls),
        roots=found.tree.roots,
        sums=sums,
        states=STATES,
        told=told(sums.states),
        alarms=[call.pair for call in calls if call.pair.is_alarm],
        is_whole=len(calls) <= MOST_CALLS,
        picture=picture,
        looking=looking,
        focus=focus,
        **_table(visit, found, looking),
    )


def _looking(visit: Visit, asked: str) -> Looking:
    first = visit.asked("first")
    return Looking(
        id=asked,
        at=visit.asked("at"),
        first=int(first) if first.isascii() and first.isdigit() and len(first) < 6 else 0,  # noqa: PLR2004
        folded=tuple(visit.request.query_params.getlist("fold")[:MOST_FOLDED]),
    )


def _opened(drawn: Sequence[Shown]) -> list[str]:
    """Server ids of the calls that are drawn with what is below them."""
    found, ahead = [], list(drawn)
    while ahead:
        one = ahead.pop()
        if one.children and one.call is not None:
            found.append(one.call.pair.server_correlation_id)
        ahead += one.children
    return found


def _table(visit: Visit, found: Tree, looking: Looking) -> dict[str, Any]:
    """One page of the draft's table (§10.3), each row with its number in it."""
    asked = visit.asked("page")
    page = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 4 else 1  # noqa: PLR2004
    start = (max(page, 1) - 1) * ROWS_PER_PAGE
    rows = list(islice(_numbered(found), start, start + ROWS_PER_PAGE + 1))
    return {
        "rows": rows[:ROWS_PER_PAGE],
        "before": looking.rows(page - 1) if page > 1 else None,
        "after": looking.rows(page + 1) if len(rows) > ROWS_PER_PAGE else None,
    }


def _numbered(found: Tree) -> list[tuple[int, Branch, LedgerEntry]]:
    rows = [(call, row) for call in found.tree.calls() for row in call.pair.rows]
    return [(number, call, row) for number, (call, row) in enumerate(rows, 1)]


ROUTES: Final[Routes] = (("/tree", reading(tree), ("GET",)),)
