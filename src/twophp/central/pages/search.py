"""Search: by any id, service, endpoint, phase, verdict and time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from starlette.responses import Response

from twophp.central.drawing.words import PHASES
from twophp.central.pages.frame import Routes, Visit, reading, to
from twophp.central.pages.rendering import of_pair, url
from twophp.central.ports import RowFilter
from twophp.core.intent import Phase
from twophp.core.pairing import Verdict
from twophp.core.records import Instant, since_epoch

PER_PAGE: Final = 50
_TRUTH: Final = {"true": True, "false": False}


class SearchForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form's fields, as they were typed."""

    q: str
    source: str
    target: str
    endpoint: str
    actor: str
    phase: tuple[str, ...]
    verdict: tuple[str, ...]
    indeterminate: str
    since: str
    until: str

    @property
    def is_empty(self) -> bool:
        """Whether nothing was asked."""
        return not any(msgspec.structs.astuple(self))

    @property
    def is_id_alone(self) -> bool:
        """Whether the search is one pasted id."""
        return bool(self.q) and not any(msgspec.structs.astuple(self)[1:])


async def search(visit: Visit) -> Response:
    """The page. An id of exactly one call leads straight to it."""
    asked = _asked(visit)
    found = None
    if not asked.is_empty:
        verdicts = frozenset(Verdict(one) for one in asked.verdict if one in set(Verdict))
        found = await visit.central.questions.pairs(
            _wanted(asked), verdicts=verdicts, cursor=visit.asked("cursor") or None, limit=PER_PAGE
        )
        if asked.is_id_alone and len(found.pairs) == 1 and found.cursor is None:
            return to(of_pair(found.pairs[0]))
    return visit.page(
        "search.html",
        asked=asked,
        found=found,
        phases=PHASES,
        verdicts=list(Verdict),
        more=_more(asked, found.cursor) if found is not None and found.cursor is not None else None,
    )


def _asked(visit: Visit) -> SearchForm:
    names = ("q", "source", "target", "endpoint", "actor", "indeterminate", "since", "until")
    given: dict[str, Any] = {name: visit.asked(name) for name in names}
    for name, known in (("phase", {str(phase) for phase in PHASES}), ("verdict", {str(one) for one in Verdict})):
        given[name] = tuple(one for one in visit.request.query_params.getlist(name)[:10] if one in known)
    return SearchForm(**given)


def _wanted(asked: SearchForm) -> RowFilter:
    actor = asked.actor
    return RowFilter(
        correlation_id=asked.q or None,
        source=asked.source or None,
        target=asked.target or None,
        service_endpoint=asked.endpoint or None,
        actor="client" if actor == "client" else "server" if actor == "server" else None,
        phases=frozenset(Phase(phase) for phase in asked.phase),
        indeterminate=_TRUTH.get(asked.indeterminate),
        since=instant(asked.since),
        until=instant(asked.until),
    )


def _more(asked: SearchForm, cursor: str) -> str:
    return url("/search", **msgspec.structs.asdict(asked), cursor=cursor)


def instant(typed: str) -> Instant | None:
    """What a date field holds, taken as UTC; None if it is no date."""
    try:
        moment = datetime.fromisoformat(typed)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return since_epoch(moment)


ROUTES: Final[Routes] = (("/search", reading(search), ("GET",)),)
