"""``Store.submit`` for a store that never waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

from twophp.ports import Then

log: Final = logging.getLogger("twophp.store")


def call_back(transact: Callable[[], Any], then: Then) -> None:
    """Transact at once, and let the loop call ``then``, so that it never runs before ``submit`` has returned."""
    answer, failure = None, None
    try:
        answer = transact()
    except Exception as error:  # noqa: BLE001 - passed on to this caller.
        failure = error
    asyncio.get_running_loop().call_soon(_tell, then, answer, failure, context=Context())


def _tell(then: Then, answer: Any, failure: Exception | None) -> None:
    try:
        then(answer, failure)
    except Exception:
        log.exception("a callback of a change failed")
