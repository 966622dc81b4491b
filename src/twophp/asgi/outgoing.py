"""What the middleware sends by itself: acknowledgements of auto-confirm, and compensation hooks."""

from __future__ import annotations

import ssl
from collections.abc import Iterable

import msgspec

from twophp.core.errors import EgressRefused, WireError
from twophp.core.intent import Intent
from twophp.core.records import Instant
from twophp.engine.callbacks import callback_deliverer, callback_letter, signed_post
from twophp.engine.effects import act_deliverer
from twophp.engine.egress import Resolver, Rules, check_url, system_resolver
from twophp.engine.hooks import HOOKS, Hooks, hook_deliverer
from twophp.engine.obligation_rules import Rules as ObligationRules
from twophp.engine.observe import SILENT, Observer
from twophp.engine.outbox import Barrier, Letter, Outbox, Owing
from twophp.engine.webhooks import Secret, read_secret
from twophp.ports import Store, Vault
from twophp.wire.callback import Acknowledgement, encode


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """How a service's own calls leave it. ``TwoPhaseMiddleware(..., outgoing=Outgoing(...))`` changes the defaults."""

    rules: Rules = Rules()
    webhook_secrets: tuple[str, ...] = ()
    hooks: Hooks = HOOKS
    fire_barrier: Barrier = "started"  # "sent" also waits, bounded, until the bytes are written.
    ssl_context: ssl.SSLContext | None = None
    resolver: Resolver = system_resolver

    def secrets(self) -> list[Secret]:
        """The keys callbacks are signed with; the first signs, all verify at a receiver that rotates."""
        return _secrets(self.webhook_secrets)

    def check(self, url: str) -> None:
        """Refuse a callback before anything is stored (A-65). Addresses are judged again at every attempt."""
        try:
            check_url(url, rules=self.rules)
        except EgressRefused as error:
            raise WireError("the callback may not be called", code="bad_callback") from error

    def outbox(
        self, store: Store, vault: Vault, service: str, obligations: ObligationRules, observer: Observer = SILENT
    ) -> Outbox:
        """The outbox of one service, with everything that can be owed."""
        send = signed_post(self.rules, self.secrets(), self.ssl_context, self.resolver)
        callbacks = callback_deliverer(self.rules, self.secrets(), self.ssl_context, self.resolver)
        deliver = {
            "callback": callbacks,
            "hook": hook_deliverer(self.hooks, send),
            "effect": act_deliverer(obligations.effects),
            "release": act_deliverer(obligations.releases),
        }
        return Outbox(store, vault, service, deliver=deliver, observer=observer)


def acknowledgement(outbox: Outbox, url: str) -> Owing:
    """The callback that an auto-confirmed request owes (draft §5.5.3): durable with the PONR, begun before the work."""

    def letter(intent: Intent, now: Instant) -> Letter:
        body = encode(
            Acknowledgement(
                server_correlation_id=intent.server_correlation_id,
                client_correlation_id=intent.client_correlation_id,
                dispatched_at=now,
            )
        )
        return callback_letter(intent.server_correlation_id, url, body)

    return outbox.owing(letter)


def _secrets(texts: Iterable[str]) -> list[Secret]:
    return [read_secret(text) for text in texts]
