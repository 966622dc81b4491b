"""What stands around the middleware in an application: for an edge that answers without calling those layers.

A layer is *honoured* where answering below it changes nothing, or where it can be seen from a request that it would:
such a request is not answered below. Every other layer would be bypassed, and is named.

    Starlette, FastAPI          note themselves in the scope; FastAPI its root_path as well. So does ``Surrounding``.
    the frameworks' own         act on exceptions alone: what raises goes through all layers.
    ExposeFields                acts on requests with an ``Origin``: those go through all layers.

Where a service lets CORSMiddleware be bypassed (it adds ``Vary`` to every answer), a browser's requests go through it.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator, Sequence
from typing import Any, Final

from twophp.asgi.messages import Scope
from twophp.asgi.middleware import TwoPhaseMiddleware

MOST_LAYERS: Final = 100
_INNER: Final = ("app", "asgi_app", "application", "inner", "wrapped", "_app", "__wrapped__")
"""The attributes under which wrappers keep what they wrap."""
_ON_ERRORS: Final = frozenset(
    {
        "starlette.middleware.errors.ServerErrorMiddleware",
        "fastapi.telemetry._asgi.ExceptionTelemetryMiddleware",
    }
)
_ON_ORIGIN: Final = "twophp.asgi.cors.ExposeFields"
_CORS: Final = "starlette.middleware.cors.CORSMiddleware"
_STARLETTE: Final = "starlette.applications.Starlette.__call__"
_FASTAPI: Final = "fastapi.applications.FastAPI.__call__"


class Surrounding:
    """The layers between a server and the middleware of one application, outermost first."""

    def __init__(self, outer: Sequence[Any], middleware: TwoPhaseMiddleware) -> None:
        self.middleware = middleware
        self.outer = tuple(outer)
        self._frameworks = [layer for layer in outer if _called(layer) in (_STARLETTE, _FASTAPI)]
        self._noting = [(app, _called(app) == _FASTAPI) for app in self._frameworks]
        self.acts_on_origin = any(name_of(layer) in (_ON_ORIGIN, _CORS) for layer in outer)

    def bypassed(self) -> list[Any]:
        """The layers that would not see a request that is answered below them, and might have acted on it."""
        return [layer for layer in self.outer if not self._is_honoured(layer)]

    def _is_honoured(self, layer: Any) -> bool:
        return any(layer is app for app in self._frameworks) or name_of(layer) in _ON_ERRORS | {_ON_ORIGIN}

    def note(self, scope: Scope) -> None:
        """What the frameworks around the middleware note in a scope before it is called."""
        for app, names_root in self._noting:
            if names_root and app.root_path:
                scope["root_path"] = app.root_path
            scope["app"] = app

    def is_traced(self) -> bool:
        """Whether a framework records requests by itself just now: FastAPI does, once OpenTelemetry is set up."""
        recorders = (getattr(app, "_native_telemetry", None) for app in self._frameworks)
        return any(recorder is not None and recorder.enabled() for recorder in recorders)


def surrounding_of(app: Any) -> Surrounding | None:
    """Where the outermost two-phase middleware of an application stands; None if there is none in front of it.

    A middleware behind a router, as inside a mount, is not in front: the router decides which requests it gets.
    """
    paths: list[tuple[Any, ...]] = [(app,)]
    seen: set[int] = set()
    while paths and len(seen) < MOST_LAYERS:
        path = paths.pop(0)
        layer = path[-1]
        if isinstance(layer, TwoPhaseMiddleware):
            return Surrounding(path[:-1], layer)
        if id(layer) not in seen:
            seen.add(id(layer))
            paths += [(*path, inner) for inner in _inner(layer)]
    return None


def name_of(layer: Any) -> str:
    """A layer as its author would look for it: the name of its class, or of the function."""
    named = layer if isinstance(layer, types.FunctionType | types.MethodType) else type(layer)
    return f"{named.__module__}.{named.__qualname__}"


def _called(layer: Any) -> str:
    call = type(layer).__call__
    return f"{getattr(call, '__module__', '')}.{getattr(call, '__qualname__', '')}"


def _inner(layer: Any) -> Iterator[Any]:
    """The applications that a layer may pass requests to."""
    if isinstance(layer, types.FunctionType):
        yield from (value for value in inspect.getclosurevars(layer).nonlocals.values() if callable(value))
    elif isinstance(layer, types.MethodType):
        yield layer.__self__
    elif isinstance(layer, functools.partial):
        yield from (part for part in (layer.func, *layer.args, *layer.keywords.values()) if callable(part))
    elif hasattr(layer, "build_middleware_stack"):
        if layer.middleware_stack is None:  # As Starlette does when it is first called.
            layer.middleware_stack = layer.build_middleware_stack()
        yield layer.middleware_stack
    else:
        yield from (inner for name in _INNER if callable(inner := getattr(layer, name, None)))
