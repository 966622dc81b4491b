"""Signed POSTs from the outbox: the acknowledgement of auto-confirm, and every other letter to a URL.

What is sent is sealed with the job, so every attempt sends the same bytes to the same place (A-39). Only the signature
is of its attempt, as receivers expect: an old timestamp would look like a replay.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from twophp.delivery.connectors import require_committed
from twophp.delivery.egress import TIMEOUT_S, Lines, Lookups, Rules, check_url, default_tls, post
from twophp.delivery.outbox import Deliver, Delivery, OutboxMessage
from twophp.delivery.webhooks import Secret, sign


class Call(msgspec.Struct, frozen=True):
    """The payload of a callback: the whole request, except for what is of one attempt alone."""

    url: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)
    client_correlation_id: str = ""  # Not sent: the outbox names it in its log.
    principal: str = ""  # Not sent: whose share of the look-ups it takes. Empty for the service's own calls.


SignedPost: TypeAlias = Callable[[str, Call, Delivery], Awaitable[None]]
"""One attempt to send a call under a webhook id."""

_CALL: Final = msgspec.msgpack.Decoder(Call)


def callback_letter(
    server_correlation_id: str, url: str, body: bytes, *, client_correlation_id: str = "", principal: str = ""
) -> OutboxMessage:
    """The acknowledgement of draft §5.5.4. The caller encodes its body: the wire is not known here."""
    call = Call(url, body, client_correlation_id=client_correlation_id, principal=principal)
    return OutboxMessage(
        job_id=f"{server_correlation_id}/callback",
        work="callback",
        subject=server_correlation_id,
        payload=msgspec.msgpack.encode(call),
    )


def signed_post(
    rules: Rules,
    secrets: Sequence[Secret],
    ssl_context: ssl.SSLContext | None,
    lookups: Lookups,
    *,
    timeout_s: float = TIMEOUT_S,
    lines: Lines | None = None,
) -> SignedPost:
    """Through the gate, judged anew at every attempt. Signed if there are secrets (A-66).

    ``lines`` are kept from call to call. They are for this ``ssl_context`` alone, and their maker closes them.
    """

    async def send(webhook_id: str, call: Call, delivery: Delivery) -> None:
        require_committed(delivery.obligation)
        target = check_url(call.url, rules=rules)
        signature = sign(webhook_id, call.body, secrets=secrets, now=delivery.now) if secrets else ()
        await post(
            target,
            call.body,
            (*call.headers, *signature),
            ssl_context=ssl_context or default_tls(),
            timeout_s=timeout_s,
            resolver=lookups.of(call.principal),
            lines=lines,
            on_sent=delivery.sent,
        )

    return send


def callback_deliverer(send: SignedPost) -> Deliver:
    """Delivers ``callback`` jobs. The webhook's id is the server correlation id: receivers drop repeats by it."""

    async def deliver(delivery: Delivery) -> None:
        await send(delivery.job.subject, _CALL.decode(delivery.payload), delivery)

    return deliver
