"""Who writes rows here, when they last did, and the button that asks them for more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from twophp.central.api.problems import ApiProblem
from twophp.central.auth.access import own_address
from twophp.central.drawing.words import MINUTE_MS
from twophp.central.pages.frame import Routes, Visit, changing, first, reading, to
from twophp.central.ports import Role, Service
from twophp.core.errors import Refused
from twophp.core.records import Instant

FRESH_MS: Final = 5 * MINUTE_MS
QUIET_MS: Final = 60 * MINUTE_MS


def freshness(service: Service, now: Instant) -> str:
    """``fresh``, ``quiet`` or ``silent``: how long ago a row arrived. A service with nothing to send is quiet, too."""
    if service.last_sync_at is None:
        return "silent"
    since_ms = now - service.last_sync_at
    return "fresh" if since_ms < FRESH_MS else "quiet" if since_ms < QUIET_MS else "silent"


async def services(visit: Visit) -> Response:
    """The page."""
    known = await visit.central.store.services()
    drained = {one.service_ledger_id: visit.central.heard.drained_at(one.service_ledger_id) for one in known}
    return visit.page(
        "services.html",
        services=known,
        drained=drained,
        freshness={one.service_ledger_id: freshness(one, visit.now) for one in known},
        rows=sum(one.rows for one in known),
    )


async def pull(visit: Visit, fields: Mapping[str, list[str]]) -> Response:
    """Ask a service for its rows, all that have not come or those of one call, then look again."""
    wanted, back = first(fields, "service_ledger_id"), own_address(first(fields, "next") or "/services")
    one_call = first(fields, "correlation_id") or None
    service = next((one for one in await visit.central.store.services() if one.service_ledger_id == wanted), None)
    if service is None:
        raise Refused("there is no such service", code="not_found")
    try:
        pulled = await visit.central.puller.pull(service, correlation_id=one_call)
    except ApiProblem as problem:
        return to(_with(back, problem.code if problem.code in {"no_pull_url", "pull_failed"} else "pull_failed", 0))
    said = "pulled_call" if one_call else "pulled" if pulled.complete else "pulled_in_part"
    return to(_with(back, said, pulled.rows))


def _with(address: str, said: str, number: int) -> str:
    """The address, with a word about what was done: one of a few that the page knows."""
    bare = address.split("#", 1)[0]
    kept = "&".join(part for part in bare.partition("?")[2].split("&") if part and not part.startswith(("said=", "n=")))
    path = bare.partition("?")[0]
    return f"{path}?{kept + '&' if kept else ''}said={said}&n={number}"


ROUTES: Final[Routes] = (
    ("/services", reading(services), ("GET",)),
    ("/pull", changing(pull, {Role.OPERATIONS}), ("POST",)),
)
