"""What every route of the central ledger can use, and the roles a route is open to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, cast

from fastapi import Depends
from fastapi.routing import APIRoute
from starlette.requests import Request

from twophp.central.api.problems import ApiProblem
from twophp.central.auth.access import Access, Principal, require
from twophp.central.ingest.pull import Puller
from twophp.central.ports import READERS, Role
from twophp.central.proof.heads import Heads
from twophp.central.questions import SILENT_MS, Questions
from twophp.central.stores.store import CentralStore
from twophp.identity.notes import Signer
from twophp.ports import Clock

if TYPE_CHECKING:
    from twophp.central.api.live import Metrics

SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
OPERATORS: Final = frozenset({Role.OPERATIONS})
SERVICES: Final = frozenset({Role.SERVICE})

MOST_BATCHES: Final = 16
"""At most this many batches are under way at once; the next is refused with Retry-After."""
MOST_OF_ONE: Final = 2
RETRY_AFTER_S: Final = 1
MOST_NAME_CHARS: Final = 64


class Gate:
    """Back-pressure: how many batches are under way, in all and of each credential."""

    def __init__(self, most: int = MOST_BATCHES, most_of_one: int = MOST_OF_ONE) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._under_way: Counter[str] = Counter()

    @asynccontextmanager
    async def through(self, credential: str) -> AsyncIterator[None]:
        """Count one more, or raise: 429 if this credential has too many, 503 if all together have."""
        if self._under_way[credential] >= self._most_of_one:
            raise ApiProblem("slow_down", retry_after_s=RETRY_AFTER_S)
        if self._under_way.total() >= self._most:
            raise ApiProblem("overloaded", retry_after_s=RETRY_AFTER_S)
        self._under_way[credential] += 1
        try:
            yield
        finally:
            self._under_way[credential] -= 1
            if not self._under_way[credential]:
                del self._under_way[credential]


class Central:
    """The parts of a running central ledger. Routes and pages find it as ``request.app.state.central``."""

    def __init__(
        self,
        store: CentralStore,
        access: Access,
        puller: Puller,
        clock: Clock,
        metrics: Metrics | None = None,
        silent_ms: int = SILENT_MS,
        *,
        signer: Signer,
    ) -> None:
        self.store = store
        self.heads = Heads(store, signer, clock)
        self.access = access
        self.puller = puller
        self.clock = clock
        self.metrics = metrics
        self.heard = puller.heard
        self.questions = Questions(store, clock, self.heard, silent_ms)
        self.gate = Gate()
        self.watchers = 0
        self.exports = 0
        self.arrival = asyncio.Event()
        self.stopping = asyncio.Event()

    def arrived(self) -> None:
        """Wake all that wait for rows. A later waiter gets a new event, for the next rows."""
        self.heads.arrived()
        self.arrival.set()
        self.arrival = asyncio.Event()


def central_of(request: Request) -> Central:
    """The service that answers this request."""
    return cast("Central", request.app.state.central)


def open_to(roles: Collection[Role]) -> Callable[[Request], Awaitable[Principal]]:
    """A dependency: who asks, if one of their roles is among these. A cookie is good for reading only."""

    async def principal(request: Request) -> Principal:
        access = central_of(request).access
        recognise = access.resolve_principal if request.method in SAFE_METHODS else access.by_bearer
        found = await recognise(request)
        require(found, roles)
        refuse_unknown_parameters(request)
        return found

    return principal


def refuse_unknown_parameters(request: Request) -> None:
    """Raise if the query has a name that the route's OpenAPI document does not.

    If a misspelled filter were ignored, the answer would be to another question, and the caller would not see it.
    """
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    operation = request.app.openapi()["paths"][route.path_format][request.method.lower()]
    known = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"}
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        raise ApiProblem("bad_parameter", f"query.{unknown[0][:MOST_NAME_CHARS]}: there is no such parameter")


CentralPart: TypeAlias = Annotated[Central, Depends(central_of)]
Reader: TypeAlias = Annotated[Principal, Depends(open_to(READERS))]
Operator: TypeAlias = Annotated[Principal, Depends(open_to(OPERATORS))]
ServiceOnly: TypeAlias = Annotated[Principal, Depends(open_to(SERVICES))]
