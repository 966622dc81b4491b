"""What operations may do: pull, ask services about a call, make and revoke tokens; and the alarms, for every reader."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from twophp.central.api.bodies import read_document
from twophp.central.api.documents import (
    AlarmsDocument,
    IntentDocument,
    NewTokenDocument,
    PullRequestDocument,
    RevokedDocument,
    TokenRequestDocument,
    TokensDocument,
    alarm_of,
    call_of,
    json_answer,
    token_of,
    told_of,
)
from twophp.central.api.problems import ApiProblem
from twophp.central.api.routes import describe
from twophp.central.api.state import CentralPart, Operator, Reader
from twophp.central.ingest.pull import Pulled
from twophp.central.ingest.told import keepers, told_about
from twophp.central.ports import MOST_PER_PAGE
from twophp.core.policy import DAY_MS

router: Final = APIRouter(tags=["operations"])

Key: TypeAlias = tuple[str, str]
"""A call: both of its ids."""
IdInPath: TypeAlias = Annotated[str, Path(min_length=1, max_length=255, pattern=r"^[!-~]+$")]


@router.post(
    "/v1/services/{service_ledger_id}/pull",
    **describe(Pulled, 404, 409, 413, body=PullRequestDocument),
)
async def pull(request: Request, central: CentralPart, _principal: Operator, service_ledger_id: IdInPath) -> Response:
    """Pull a service's local ledger now (draft §9.6): what it has not sent yet, or every row with one id."""
    wanted = await read_document(request, PullRequestDocument, empty=PullRequestDocument())
    for service in await central.store.services():
        if service.service_ledger_id == service_ledger_id:
            return json_answer(await central.puller.pull(service, correlation_id=wanted.correlation_id))
    raise ApiProblem("not_found", "no service has this id")


def pair_in_path(
    request: Request,
    client_correlation_id: IdInPath,  # noqa: ARG001 - These two describe and bound the path.
    server_correlation_id: IdInPath,  # noqa: ARG001
) -> Key:
    """Both ids. They are read from the raw path: an id may hold a slash, which a client sends as %2F (A-13)."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    _, client_id, server_id = raw.decode("latin-1").partition("?")[0].rsplit("/", 2)
    return unquote(client_id), unquote(server_id)


@router.get("/v1/intents/{client_correlation_id:path}/{server_correlation_id:path}", **describe(IntentDocument, 404))
async def intent(central: CentralPart, _principal: Operator, key: Annotated[Key, Depends(pair_in_path)]) -> Response:
    """One call with all that the services on both sides tell about it now: journal, attempts, lease, obligations.

    They are asked with the management credential, as for a pull, and nothing is kept here. A service that cannot be
    asked is told as such.
    """
    found = await central.questions.pair(key)
    if not found.pairs:
        raise ApiProblem("not_found", "no row of this call is here")
    pair = found.pairs[0]
    asked = keepers(pair.rows, await central.store.services())
    told = await told_about(central.puller, asked, key)
    return json_answer({"call": call_of(pair, found.missing), "told": [told_of(one) for one in told]})


@router.get("/v1/alarms", **describe(AlarmsDocument))
async def alarms(
    central: CentralPart, _principal: Reader, limit: Annotated[int, Query(ge=1, le=MOST_PER_PAGE)] = 100
) -> Response:
    """The newest alarms: a version with two contents, a row in another writer's name."""
    return json_answer({"alarms": [alarm_of(alarm) for alarm in await central.store.alarms(limit=limit)]})


@router.get("/v1/tokens", **describe(TokensDocument))
async def tokens(central: CentralPart, _principal: Operator) -> Response:
    """Every token, without its secret."""
    return json_answer({"tokens": [token_of(token) for token in await central.store.tokens()]})


@router.post("/v1/tokens", **describe(NewTokenDocument, 413, body=TokenRequestDocument))
async def create_token(request: Request, central: CentralPart, _principal: Operator) -> Response:
    """Make a token. Its secret is in this answer and nowhere else."""
    wanted = await read_document(request, TokenRequestDocument)
    days = wanted.expires_in_days
    expires_at = None if days is None else central.clock() + days * DAY_MS
    token, secret = await central.access.create_token(wanted.name, set(wanted.roles), expires_at=expires_at)
    return json_answer(token_of(token) | {"secret": secret})


@router.delete("/v1/tokens/{token_id}", **describe(RevokedDocument, 404))
async def revoke_token(central: CentralPart, _principal: Operator, token_id: IdInPath) -> Response:
    """Revoke a token, from the next request on. Revoking twice is revoking once."""
    if not await central.store.revoke_token(token_id, central.clock()):
        raise ApiProblem("not_found", "no token has this id")
    return json_answer({"token_id": token_id})
