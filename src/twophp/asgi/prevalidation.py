"""The service's own look at a Phase 1 request, before anything is stored (A-07)."""

from __future__ import annotations

import inspect

from twophp.asgi.answers import INTERNAL_ERROR
from twophp.asgi.settings import Prevalidate
from twophp.core.errors import WireError
from twophp.core.outcome import FAILURE_STATUS
from twophp.identity.head import Head


async def prevalidated(prevalidate: Prevalidate, head: Head, body: bytes) -> None:
    """Call it, and raise WireError where it refuses. Any other error goes to the framework, which answers it."""
    try:
        verdict = prevalidate(head, body)
        if inspect.isawaitable(verdict):
            await verdict
    except ValueError as error:  # Validators raise it, pydantic's too. Its text may quote the payload: not sent.
        raise WireError("prevalidate refused the request", code="invalid_request") from error
    except Exception as error:
        status = getattr(error, "status_code", None)  # What the frameworks' own refusals have.
        if not isinstance(status, int) or not FAILURE_STATUS <= status < INTERNAL_ERROR:
            raise
        raise WireError("prevalidate refused the request", code="invalid_request", status=status) from error
