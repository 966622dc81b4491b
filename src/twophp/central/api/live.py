"""The live feed for open pages, and what a machine that runs the service asks: alive, ready, metrics."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from twophp.central.api.documents import HealthDocument, json_answer, row_of
from twophp.central.api.problems import ApiProblem
from twophp.central.api.routes import describe, refusal
from twophp.central.api.state import Central, CentralPart, Reader, open_to
from twophp.central.ports import READERS
from twophp.core.errors import StoreError, TwoPHPError

log: Final = logging.getLogger("twophp.central")

POLL_S: Final = 1.0
KEEP_ALIVE_S: Final = 15.0
PAGE: Final = 200
MOST_WATCHERS: Final = 200
MOST_SEQUENCE: Final = 2**53 - 1

router: Final = APIRouter(tags=["live"])

_encode: Final = msgspec.json.Encoder().encode


@router.get("/v1/events", **describe(None))
async def events(
    request: Request,
    central: CentralPart,
    _principal: Reader,
    after: Annotated[int | None, Query(ge=0, le=MOST_SEQUENCE)] = None,
) -> Response:
    """Server-sent events: `row` for every row that arrives from now on, or after the sequence `after`.

    An event's id is its sequence, so a browser that was cut off goes on where it stopped (`Last-Event-ID`).
    """
    last = request.headers.get("last-event-id", "")
    if last.isascii() and last.isdigit() and len(last) < 16:  # noqa: PLR2004 - Below 2**53.
        after = int(last)
    if central.watchers >= MOST_WATCHERS:
        raise ApiProblem("overloaded", retry_after_s=5)
    start = (await central.store.head()).size if after is None else after
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_feed(request, central, start), headers=headers, media_type="text/event-stream")


async def _feed(request: Request, central: Central, sequence: int) -> AsyncIterator[bytes]:
    """Rows as they arrive. An ingest wakes the feed; a poll finds rows that another process took in.

    The credential is checked again before more rows are sent: a token that was revoked ends its streams. So does
    a database that is away: the client connects again, and goes on where it was.
    """
    central.watchers += 1
    try:
        yield b": here\n\n"
        quiet_s = 0.0
        while not central.stopping.is_set():
            arrival = central.arrival
            rows = await central.store.after(sequence, PAGE)
            if rows and not await _may_still_read(request):
                return
            for row in rows:
                yield b"event: row\nid: %d\ndata: %b\n\n" % (row.sequence, _encode(row_of(row)))
            if rows:
                sequence, quiet_s = rows[-1].sequence, 0.0
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await arrival.wait()
            quiet_s += POLL_S
            if quiet_s >= KEEP_ALIVE_S:
                quiet_s = 0.0
                yield b": still here\n\n"
    except StoreError as error:
        log.warning("a live feed ends: %s", error)
    finally:
        central.watchers -= 1


async def _may_still_read(request: Request) -> bool:
    try:
        await open_to(READERS)(request)
    except TwoPHPError:
        return False
    return True


@router.get("/livez", **(describe(HealthDocument) | {"responses": {200: describe(HealthDocument)["responses"][200]}}))
async def livez() -> Response:
    """The process answers."""
    return json_answer({"status": "ok"})


@router.get(
    "/readyz",
    **(describe(HealthDocument) | {"responses": {200: describe(HealthDocument)["responses"][200], 503: refusal(503)}}),
)
async def readyz(central: CentralPart) -> Response:
    """The database answers, too."""
    await central.store.ready()
    return json_answer({"status": "ok"})


@router.get(
    "/metrics",
    include_in_schema=False,
)
async def metrics(central: CentralPart) -> Response:
    """For Prometheus, where its client is installed (``twophp[metrics]``). Counts only: no name, no id."""
    if central.metrics is None:
        raise ApiProblem("not_found", "metrics need the extra twophp[metrics]")
    return Response(central.metrics.render(), media_type=central.metrics.content_type)


class Metrics:
    """Counters of this process."""

    def __init__(self) -> None:
        client: Any = importlib.import_module("prometheus_client")
        self._client = client
        self._registry = client.CollectorRegistry()
        self.content_type: str = client.CONTENT_TYPE_LATEST
        self._rows = client.Counter(
            "twophp_central_rows", "Rows of batches, by what became of them.", ["outcome"], registry=self._registry
        )
        self._answers = client.Counter(
            "twophp_central_answers", "Answers, by method and status.", ["method", "status"], registry=self._registry
        )

    @classmethod
    def if_installed(cls) -> Metrics | None:
        """None without the client."""
        try:
            return cls()
        except ModuleNotFoundError:
            return None

    def took(self, outcome: str) -> None:
        """One row of a batch."""
        self._rows.labels(outcome).inc()

    def answered(self, method: str, status: int) -> None:
        """One answer."""
        self._answers.labels(method, status).inc()

    def render(self) -> bytes:
        """The page that Prometheus reads."""
        return bytes(self._client.generate_latest(self._registry))
