"""The pages of the central ledger: plain HTML that can be read without a script, and shared by its address.

``install(app)`` adds them. They ask the same questions of the same parts as the API does (``app.state.central``), under
the same roles, and every read is in the same access log.
"""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI

from twophp.central.pages.assets import ROUTES as ASSETS
from twophp.central.pages.frame import page_of_problem
from twophp.central.pages.intent import ROUTES as INTENT
from twophp.central.pages.login import ROUTES as LOGIN
from twophp.central.pages.overview import ROUTES as OVERVIEW
from twophp.central.pages.search import ROUTES as SEARCH
from twophp.central.pages.services import ROUTES as SERVICES
from twophp.central.pages.sla import ROUTES as SLA
from twophp.central.pages.stalled import ROUTES as STALLED
from twophp.central.pages.tokens import ROUTES as TOKENS
from twophp.central.pages.tree import ROUTES as TREE

PARTS: Final = (OVERVIEW, STALLED, SEARCH, TREE, INTENT, SERVICES, SLA, TOKENS, LOGIN, ASSETS)


def install(app: FastAPI) -> None:
    """Add every page to the application, and refusals as pages for browsers.

    ``app.state.central`` must be there before the first request.
    """
    app.state.page_of_problem = page_of_problem
    for part in PARTS:
        for path, endpoint, methods in part:
            app.router.add_route(path, endpoint, methods=list(methods), include_in_schema=False)
