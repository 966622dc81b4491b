"""What the middleware sends by itself: acknowledgements of auto-confirm, and compensation hooks."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Collection, Mapping
from types import NoneType
from typing import Final, get_args

import msgspec
from msgspec.structs import force_setattr

from twophp.core.errors import (
    ConfigError,
    EgressRefused,
    StoreOverloaded,
    Unauthenticated,
    WireError,
)
from twophp.core.intent import Intent
from twophp.core.job import DEFAULT_TRIES, Tries
from twophp.core.records import Instant
from twophp.core.settings import Kinds, SettingsStruct, check_kinds, several
from twophp.delivery.callbacks import callback_deliverer, callback_letter, signed_post
from twophp.delivery.egress import Lines, Lookups, Resolver, Rules, check_url, system_resolver
from twophp.delivery.hooks import HOOKS, Hooks, hook_deliverer
from twophp.delivery.outbox import Barrier, Outbox, OutboxMessage, PendingAcknowledgement
from twophp.delivery.webhooks import MAX_SIGNATURES, Secret, read_secret
from twophp.engine.environment import names, secret_in
from twophp.engine.obligations.effects import act_deliverer
from twophp.engine.obligations.rules import Rules as ObligationRules
from twophp.identity.identify import Who, principal_of
from twophp.observability.observe import SILENT, Observer
from twophp.ports import LedgerStore, Vault
from twophp.wire.callback import Acknowledgement, encode

log: Final = logging.getLogger("twophp.server")

SECRETS_VARIABLE: Final = "TWOPHP_WEBHOOK_SECRETS"


class Outgoing(SettingsStruct, frozen=True, kw_only=True):
    """How a service's own calls leave it. ``TwoPhaseMiddleware(..., outgoing=Outgoing(...))`` changes the defaults."""

    rules: Rules = Rules()
    hosts_of: Mapping[Who, Collection[str]] = {}  # Which of the hosts an identity may name; others: all of the rules'.
    tries: Tries = DEFAULT_TRIES  # five attempts within ten minutes.
    webhook_secrets: Collection[str] = ()
    hooks: Hooks = HOOKS
    fire_barrier: Barrier = "started"  # "sent" also waits, bounded, until the bytes are written.
    ssl_context: ssl.SSLContext | None = None
    resolver: Resolver = system_resolver

    def __post_init__(self) -> None:
        check_kinds(self, _KINDS)
        if not callable(self.resolver):
            raise ConfigError(f"resolver must be a callable, not {self.resolver!r}", code="bad_setting")
        if self.fire_barrier not in get_args(Barrier):
            raise ConfigError("fire_barrier is 'started' or 'sent'", code="bad_setting")
        force_setattr(self, "hosts_of", {who: _own_hosts(who, hosts) for who, hosts in self.hosts_of.items()})
        force_setattr(self, "webhook_secrets", several("webhook_secrets", self.webhook_secrets))
        _secrets(self.webhook_secrets)

    def secrets(self) -> list[Secret]:
        """The keys callbacks are signed with; the first signs, all verify at a receiver that rotates.

        The environment is asked here and not when the value is made: the defaults are made with the module.
        """
        return _secrets(self.webhook_secrets or names(secret_in(os.environ, SECRETS_VARIABLE) or ""))

    def lets_out(self, url: str, principal: str) -> bool:
        """Whether a callback may be called, by its text alone (A-65): the rules, then what the identity may name.

        No name is looked up and no address is judged here. Each attempt does both. A request is therefore answered
        alike for every callback: one at a public host, at an inner one or at none.
        """
        try:
            check_url(url, rules=self.rules)
            hosts = {principal_of(who): hosts for who, hosts in self.hosts_of.items()}.get(principal)
            if hosts is not None:
                check_url(url, rules=msgspec.structs.replace(self.rules, hosts=hosts))
        except EgressRefused as refusal:
            log.info("a callback may not be called: %s", refusal.reason)  # The answer does not say the reason.
            return False
        return True

    def outbox(
        self, store: LedgerStore, vault: Vault, service: str, obligations: ObligationRules, observer: Observer = SILENT
    ) -> Outbox:
        """The outbox of one service, with everything that can be owed."""
        self.hooks.check(self.rules)
        lines, lookups = Lines(), Lookups(self.resolver)
        send = signed_post(self.rules, self.secrets(), self.ssl_context, lookups, lines=lines)
        deliver = {
            "callback": callback_deliverer(send),
            "hook": hook_deliverer(self.hooks, send),
            "effect": act_deliverer(obligations.effects),
            "release": act_deliverer(obligations.releases),
        }
        return Outbox(store, vault, service, deliver=deliver, tries=self.tries, observer=observer, after=lines.close)


_KINDS: Final[Kinds] = (
    (("rules",), (Rules,), "an EgressRules(...)"),
    (("hosts_of",), (Mapping,), "a mapping of identities to hosts"),
    (("tries",), (Tries,), "a Tries(...)"),
    (("hooks",), (Hooks,), "a Hooks()"),
    (("ssl_context",), (ssl.SSLContext, NoneType), "an ssl.SSLContext, or None"),
)


def _own_hosts(who: Who, hosts: Collection[str]) -> Collection[str]:
    """The hosts of an identity, read like those of the rules. An identity that no client can have is a mistake."""
    try:
        principal_of(who)
    except Unauthenticated as error:
        message = f"hosts_of: {who!r} is no identity that identify can return"
        raise ConfigError(message, code="bad_setting") from error
    found = Rules(hosts=hosts).hosts
    if found is None:
        raise ConfigError(f"hosts_of: say which hosts {who!r} may name", code="bad_setting")
    return found


def bad_callback() -> WireError:
    """The same answer for every fault of a callback, so that the client learns nothing about our network."""
    return WireError("the callback may not be called", code="bad_callback")


def acknowledgement(outbox: Outbox, url: str, principal: str, *, may_go_out: bool) -> PendingAcknowledgement:
    """The callback that an auto-confirmed request owes (draft §5.5.3): durable with the PONR, begun before the work.

    One that may not go out, or for which there is no room, is refused when it would be owed, inside the transaction,
    so nothing is stored (A-65). A repeat of a request that was registered before owes nothing any more. It gets its
    outcome, even if the rules, the name or the outbox would now refuse the callback (A-30).
    """

    def letter(intent: Intent, now: Instant) -> OutboxMessage:
        if not may_go_out:
            raise bad_callback()
        if outbox.is_full_for(principal):
            raise StoreOverloaded("too many callbacks are under way")
        body = encode(
            Acknowledgement(
                server_correlation_id=intent.server_correlation_id,
                client_correlation_id=intent.client_correlation_id,
                dispatched_at=now,
            )
        )
        client_id = intent.client_correlation_id
        server_id = intent.server_correlation_id
        return callback_letter(server_id, url, body, client_correlation_id=client_id, principal=principal)

    return outbox.owing(letter, principal)


def _secrets(texts: Collection[str]) -> list[Secret]:
    if len(texts) > MAX_SIGNATURES:  # Nothing could be signed: a receiver looks at no more of them.
        raise ConfigError(f"webhook_secrets are {MAX_SIGNATURES} at most", code="bad_webhook_secret")
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError("webhook_secrets are texts", code="bad_webhook_secret")
    return [read_secret(text) for text in texts]
