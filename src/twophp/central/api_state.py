"""What every route of the central ledger has at hand, and the roles a route is open to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Annotated, Final, TypeAlias, cast

from fastapi import Depends
from starlette.requests import Request

from twophp.central.access import Access, Principal, require
from twophp.central.missing import Heard
from twophp.central.ports import READERS, CentralStore, Role
from twophp.central.pull import Puller
from twophp.central.questions import Questions
from twophp.ports import Clock

SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
OPERATORS: Final = frozenset({Role.OPERATIONS})
SERVICES: Final = frozenset({Role.SERVICE})


class Central:
    """The parts of a running central ledger. Routes and pages find it as ``request.app.state.central``."""

    def __init__(self, store: CentralStore, access: Access, puller: Puller, clock: Clock) -> None:
        self.store = store
        self.access = access
        self.puller = puller
        self.clock = clock
        self.heard = puller.heard
        self.questions = Questions(store, clock, self.heard)


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
        return found

    return principal


CentralPart: TypeAlias = Annotated[Central, Depends(central_of)]
Reader: TypeAlias = Annotated[Principal, Depends(open_to(READERS))]
Operator: TypeAlias = Annotated[Principal, Depends(open_to(OPERATORS))]
ServiceOnly: TypeAlias = Annotated[Principal, Depends(open_to(SERVICES))]

__all__ = ["Central", "CentralPart", "Heard", "Operator", "Reader", "ServiceOnly", "central_of", "open_to"]
