"""The draft's questions (§10.4) over HTTP. Every one of them is a read, open to audit, operations and compliance."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias, TypeVar

from fastapi import APIRouter, Depends, Path, Query
from starlette.responses import Response

from twophp.central.api.documents import (
    PairsDocument,
    RowsDocument,
    SlaDocument,
    StalledDocument,
    TreeDocument,
    call_of,
    json_answer,
    lease_of,
    row_of,
    tree_calls_of,
)
from twophp.central.api.problems import ApiProblem
from twophp.central.api.routes import describe
from twophp.central.api.state import OPERATORS, CentralPart, Reader
from twophp.central.auth.access import require
from twophp.central.ingest.told import key_of, leases_of
from twophp.central.ports import MOST_PER_PAGE, Page, RowFilter
from twophp.central.questions import Tree, aside
from twophp.core.entry import Actor
from twophp.core.intent import Phase
from twophp.core.pairing import Verdict
from twophp.core.policy import DAY_MS
from twophp.core.records import Instant
from twophp.wire.instant import format_instant, parse_instant

T = TypeVar("T", str, str | None)

SLA_DAYS: Final = 7
MOST_SLA_DAYS: Final = 400
DATE_TIME: Final = {"format": "date-time"}

router: Final = APIRouter(tags=["questions"])

IdText: TypeAlias = Annotated[str, Query(min_length=1, max_length=255)]
NameText: TypeAlias = Annotated[str, Query(min_length=1, max_length=256)]
EndpointText: TypeAlias = Annotated[str, Query(min_length=1, max_length=4096)]
InstantParameter: TypeAlias = Annotated[str | None, Query(max_length=40, json_schema_extra=DATE_TIME)]
Cursor: TypeAlias = Annotated[str | None, Query(max_length=256, description="Where an earlier page ended.")]
Limit: TypeAlias = Annotated[int, Query(ge=1, le=MOST_PER_PAGE)]


def read_instant(text: str | None, name: str) -> Instant | None:
    """An instant in a query; raises ApiProblem."""
    if text is None:
        return None
    # A plus sign that was not escaped arrives as a space.
    at = parse_instant(text.replace(" ", "+").encode("utf-8", "replace"))
    if at is None or at < 0:
        raise ApiProblem("bad_parameter", f"query.{name}: not an RFC 3339 instant since 1970")
    return at


def wanted(
    correlation_id: IdText | None = None,
    service_ledger_id: IdText | None = None,
    source: NameText | None = None,
    target: NameText | None = None,
    service_endpoint: EndpointText | None = None,
    actor: Annotated[Actor | None, Query()] = None,
    phase: Annotated[list[Phase], Query(max_length=7)] = [],  # noqa: B006 - FastAPI copies it.
    indeterminate: Annotated[
        bool | None, Query(description="Rows of which nobody knows whether the effects happened, or the others.")
    ] = None,
    since: InstantParameter = None,
    until: InstantParameter = None,
) -> RowFilter:
    """Which rows; everything that is said must hold."""
    texts = {
        "correlation_id": correlation_id,
        "service_ledger_id": service_ledger_id,
        "source": source,
        "target": target,
        "service_endpoint": service_endpoint,
    }
    if any("\0" in (text or "") for text in texts.values()):
        raise ApiProblem("bad_parameter", "a text has no character 0")
    since_at, until_at = read_instant(since, "since"), read_instant(until, "until")
    return RowFilter(
        actor=actor, phases=frozenset(phase), indeterminate=indeterminate, since=since_at, until=until_at, **texts
    )


Filter: TypeAlias = Annotated[RowFilter, Depends(wanted)]


def page_answer(page: Page) -> Response:
    """A page of rows."""
    return json_answer({"rows": [row_of(row) for row in page.rows], "cursor": page.cursor})


@router.get("/v1/entries", **describe(RowsDocument, 400))
async def entries(
    central: CentralPart, _principal: Reader, which: Filter, cursor: Cursor = None, limit: Limit = 100
) -> Response:
    """Rows by any id, service, endpoint, phase or time, newest arrival first."""
    return page_answer(await central.store.entries(which, cursor=cursor, limit=limit))


@router.get("/v1/trees/{client_correlation_id:path}", **describe(TreeDocument, 404))
async def tree(
    central: CentralPart,
    _principal: Reader,
    client_correlation_id: Annotated[str, Path(min_length=1, max_length=255)],
) -> Response:
    """The call tree that this id is in: up to its root, then everything below. Either id of any member will do."""
    found = await central.questions.tree(_plain(client_correlation_id))
    if not found.tree.roots:
        raise ApiProblem("not_found", "no row has this id")
    return await aside(found.rows, lambda: _tree_answer(found))


def _tree_answer(found: Tree) -> Response:
    document = {
        "calls": tree_calls_of(found.tree.calls(), found.missing),
        "rows": len(found.tree.rows()),
        "complete": not found.missing and found.tree.above is None and not found.tree.too_deep and not found.cut,
        "above": found.tree.above,
        "too_deep": found.tree.too_deep,
        "cut": found.cut,
    }
    return json_answer(document)


@router.get("/v1/pairs", **describe(PairsDocument, 400))
async def pairs(
    central: CentralPart,
    _principal: Reader,
    which: Filter,
    verdict: Annotated[list[Verdict], Query(max_length=5)] = [],  # noqa: B006 - FastAPI copies it.
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Dual registration: did both sides register, do they agree, and if one is missing, why (draft §10.4).

    A page may be short, even empty, though there are more: go on while `cursor` is not null.
    """
    found = await central.questions.pairs(which, verdicts=verdict, cursor=cursor, limit=limit)
    return json_answer({"pairs": [call_of(pair, found.missing) for pair in found.pairs], "cursor": found.cursor})


@router.get("/v1/stalled", **describe(StalledDocument, 400))
async def stalled(
    central: CentralPart,
    principal: Reader,
    source: NameText | None = None,
    processing_older_than_ms: Annotated[int | None, Query(ge=0, le=2**40)] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    *,
    ask_leases: Annotated[bool, Query(description="Ask the services whose lease has ended; operations only.")] = False,
) -> Response:
    """Rows in WAITING_CONFIRM or TTL_EXPIRED, as the draft has it; what is PROCESSING for long is listed apart (A-54).

    A row does not tell its lease. By default what has been running for longer than the central ledger's
    `--silent-after-s` is listed; with `ask_leases` its services say whose lease has ended.
    """
    if ask_leases:
        require(principal, OPERATORS)
    page = await central.questions.stalled(RowFilter(source=_plain(source)), cursor=cursor, limit=limit)
    silent = await central.questions.silent(source=source, limit=limit, older_than_ms=processing_older_than_ms)
    leases = await leases_of(central.puller, await central.store.services(), silent) if ask_leases else {}
    going_on = {key for key, lease in leases.items() if lease.state in {"held", "settled"}}
    document = {
        "rows": [row_of(row) for row in page.rows],
        "cursor": page.cursor,
        "processing_past_lease": [row_of(row) for row in silent if key_of(row.entry) not in going_on],
        "leases": [lease_of(key, lease) for key, lease in leases.items()] if ask_leases else None,
    }
    return json_answer(document)


@router.get("/v1/initiated/{source}", **describe(RowsDocument, 400))
async def initiated(
    central: CentralPart,
    _principal: Reader,
    source: Annotated[str, Path(min_length=1, max_length=256)],
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Every call that a service made: `source` is its name, and the rows are the caller's own."""
    return page_answer(await central.questions.initiated(_plain(source), cursor=cursor, limit=limit))


@router.get("/v1/reports/sla", **describe(SlaDocument))
async def sla(
    central: CentralPart, _principal: Reader, since: InstantParameter = None, until: InstantParameter = None
) -> Response:
    """Per endpoint and day: counts by outcome, confirmation rate, percentiles of Phase 1 to 2 and of 2 to settled."""
    end = read_instant(until, "until") or central.clock()
    begin = read_instant(since, "since")
    start = max(end - SLA_DAYS * DAY_MS, 0) if begin is None else begin
    if start > end or end - start > MOST_SLA_DAYS * DAY_MS:
        raise ApiProblem("bad_parameter", f"query.since: at most {MOST_SLA_DAYS} days before until")
    lines = await central.store.sla(start, end)
    return json_answer({"since": format_instant(start), "until": format_instant(end), "lines": lines})


def _plain(text: T) -> T:
    if "\0" in (text or ""):
        raise ApiProblem("bad_parameter", "a text has no character 0")
    return text
