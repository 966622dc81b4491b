"""A two-phase request that could not be served: the answer to its client, and the log line."""

from __future__ import annotations

import logging
from typing import Final

from twophp.asgi import answers
from twophp.asgi.messages import Answer, Scope
from twophp.asgi.runs import NOT_SETTLED
from twophp.core.errors import StoreError, TwoPHPError
from twophp.core.intent import Intent
from twophp.observability.conditions import Conditions, ids_of, named

log: Final = logging.getLogger("twophp.server")
audit: Final = logging.getLogger("twophp.audit")


def failed(error: TwoPHPError, scope: Scope, conditions: Conditions) -> Answer:
    """The answer. A failure of ours is logged as well."""
    answer = answers.of_error(error)
    if answer.status >= answers.INTERNAL_ERROR:
        if isinstance(error, StoreError):
            conditions.known(logging.WARNING, "a two-phase request was refused", error=error)
        elif error.code != NOT_SETTLED:  # The execution that settles has logged it.
            log.error("a two-phase request failed", exc_info=error)
    return answers.closing(answer, scope) if error.code == "body_too_slow" else answer


def audited(what: str, intent: Intent) -> None:
    """Log a client that holds both ids of another's intent (draft §13.2): its state stays, an operator should know."""
    message = "%s by another identity was refused: %s (%s)"
    audit.warning(message, what, intent.service_endpoint, named(intent), extra=ids_of(intent))
