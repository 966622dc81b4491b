"""Registration and ingest: what a service's credential is for, and all it is for (A-63, P-12.4)."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from twophp.central.api.bodies import read_document, read_packed
from twophp.central.api.documents import (
    AcksDocument,
    BatchDocument,
    ClaimDocument,
    ServiceDocument,
    ServicesDocument,
    ack_of,
    json_answer,
    service_of,
)
from twophp.central.api.problems import ApiProblem
from twophp.central.api.routes import describe
from twophp.central.api.state import Central, CentralPart, Reader, ServiceOnly
from twophp.central.auth.access import OIDC, Principal
from twophp.central.ingest.pull import check_pull_url
from twophp.central.ports import MOST_IN_A_BATCH, Service
from twophp.core.errors import ConfigError
from twophp.wire.rows import decode_batch

router: Final = APIRouter(tags=["services"])


@router.post("/v1/services", **describe(ServiceDocument, 413, body=ClaimDocument))
async def register(request: Request, central: CentralPart, principal: ServiceOnly) -> Response:
    """Register a ledger and learn its `service_ledger_id`. Idempotent per credential; a claimed GUID is confirmed.

    The service's name is its credential's. With `pull_url` the ledger can be pulled on demand.
    """
    claim = await read_document(request, ClaimDocument)
    if claim.name not in (None, principal.name):
        raise ApiProblem("other_name")
    if claim.pull_url is not None:
        try:
            check_pull_url(claim.pull_url, allow_insecure=central.puller.allow_insecure)
        except ConfigError as error:
            raise ApiProblem("bad_parameter", error.message) from error
    service = await central.store.register(
        principal.name, claim.service_ledger_id, principal.credential, central.clock(), pull_url=claim.pull_url
    )
    return json_answer(service_of(service))


@router.get("/v1/services", **describe(ServicesDocument))
async def services(central: CentralPart, _principal: Reader) -> Response:
    """Every registered ledger, with its last sync."""
    return json_answer({"services": [service_of(service) for service in await central.store.services()]})


@router.post("/v1/entries", **describe(AcksDocument, 400, 413, 415, 429, body=BatchDocument))
async def ingest(request: Request, central: CentralPart, principal: ServiceOnly) -> Response:
    """Take up a batch of rows, gzip or not. Idempotent and order-tolerant by row version (A-57).

    Every row is acknowledged on its own: `stored`, `known` (this very version is here), `older` (a newer one is) or
    `refused`, with a code. All but `refused` are durable.
    """
    async with central.gate.through(principal.credential):
        writer = await _writer(central, principal)
        batch = decode_batch(await read_packed(request), most=MOST_IN_A_BATCH)
        at = central.clock()
        acks = await central.store.take_up(writer, batch.rows, at)
        if batch.drained:
            central.heard.drained(writer.service_ledger_id, at)
        central.arrived()
        if central.metrics is not None:
            for ack in acks:
                central.metrics.took(ack.outcome)
    given = None if batch.head is None else await central.heads.given(batch.head)
    return json_answer({"acks": [ack_of(ack) for ack in acks], "head": given})


async def _writer(central: Central, principal: Principal) -> Service:
    """The service that pushes. A token names its own; a subject of an identity provider is registered again."""
    if principal.credential.startswith(OIDC):
        return await central.store.register(principal.name, None, principal.credential, central.clock())
    if principal.service_ledger_id is None:
        raise ApiProblem("unregistered")
    found = (s for s in await central.store.services() if s.service_ledger_id == principal.service_ledger_id)
    service = next(found, None)
    if service is None:
        raise ApiProblem("unregistered")
    return service
