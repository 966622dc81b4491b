"""Finding the middleware in an application, without starting the application."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from twophp.asgi import TwoPhaseMiddleware
from twophp.core.errors import ConfigError

MOST_WRAPPERS: Final = 100


def load_app(spelled: str) -> Any:
    """The application that ``module:attribute`` names. Importing it runs the module, as its server would."""
    module_name, colon, attribute = spelled.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"{spelled!r} is not module:attribute, such as shop.main:app", code="bad_app")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # Where servers look, too.
    try:
        with redirect_stdout(sys.stderr):  # What it prints is none of our results.
            return attrgetter(attribute)(importlib.import_module(module_name))
    except (Exception, SystemExit) as error:  # An exit while it is imported is no verdict of ours.
        message = f"{spelled} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(message, code="bad_app") from error


def middlewares(app: Any) -> list[TwoPhaseMiddleware]:
    """Every two-phase middleware around an application, outermost first.

    Wrappers are seen through by their attribute ``app``. What Starlette's ``add_middleware`` has only noted is made
    here, over nothing: making one opens nothing.
    """
    logging.getLogger("twophp").addHandler(logging.NullHandler())  # Its warnings are our findings.
    found: list[TwoPhaseMiddleware] = []
    for _wrapper in range(MOST_WRAPPERS):
        if app is None:
            break
        if isinstance(app, TwoPhaseMiddleware):
            found.append(app)
        found += [_made(noted) for noted in _noted(app) if _is_ours(noted)]
        app = getattr(app, "app", None)
    return found


def routes_of(app: Any) -> Sequence[Any]:
    """The routes of the innermost application that has some, as Starlette and FastAPI keep them; else none."""
    routes: Sequence[Any] = ()
    for _wrapper in range(MOST_WRAPPERS):
        if app is None:
            break
        own = getattr(app, "routes", None)
        if isinstance(own, list) and all(hasattr(route, "matches") for route in own):
            routes = own
        app = getattr(app, "app", None)
    return routes


def _noted(app: Any) -> Sequence[Any]:
    noted = getattr(app, "user_middleware", ())
    return noted if isinstance(noted, list) else ()


def _is_ours(noted: Any) -> bool:
    return isinstance(cls := getattr(noted, "cls", None), type) and issubclass(cls, TwoPhaseMiddleware)


def _made(noted: Any) -> TwoPhaseMiddleware:
    made: TwoPhaseMiddleware = noted.cls(_nothing, *noted.args, **noted.kwargs)
    return made


async def _nothing(_scope: Any, _receive: Any, _send: Any) -> None:
    """An application that is never called."""
