"""What a handler's status says of its work.

A 2xx has done it, and so has 303: "see other" is how a POST shows what it made (RFC 9110 §15.4.4). Every other 3xx
points elsewhere or says that there is nothing new, so nothing was done here. A 4xx or 5xx has failed (A-08).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twophp.core.intent import CONFIRMED_BY_SERVER, Intent, Phase

if TYPE_CHECKING:
    from twophp.core.intent_commands import Register

SUCCESS_END: Final = 300
SEE_OTHER: Final = 303
FAILURE_STATUS: Final = 400
REDIRECTS: Final = frozenset({301, 302, 307, 308})
"""They name a place where the same request may be made again (RFC 9110 §15.4)."""
INDETERMINATE: Final = "indeterminate"
"""The event of the line that settles an intent of which nobody knows whether its effects happened (A-34)."""


def has_succeeded(status: int) -> bool:
    """Whether the handler did what it was asked to do."""
    return status < SUCCESS_END or status == SEE_OTHER


def has_failed(status: object) -> bool:
    """Whether the handler said that it failed. What is no status at all says nothing."""
    return type(status) is int and not has_succeeded(status)


def was_redirected(intent: Intent) -> bool:
    """Whether the handler did nothing but send the client elsewhere."""
    return intent.phase is Phase.FAILED and intent.status in REDIRECTS


def is_followed_by(intent: Intent, command: Register) -> bool:
    """T2 row 7: the same request once more, at the place it was sent to. Only that place differs."""
    return (
        was_redirected(intent)
        and command.follows == intent.server_correlation_id
        and command.method == intent.method
        and command.request_digest == intent.request_digest
        and command.callback == intent.callback
        and (command.mode in CONFIRMED_BY_SERVER) == (intent.mode in CONFIRMED_BY_SERVER)
    )
