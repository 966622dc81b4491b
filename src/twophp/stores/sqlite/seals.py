"""Sealed parts as the database holds them, and what each of them is bound to."""

from __future__ import annotations

from typing import NamedTuple

from twophp.core.errors import Tampered, VaultError
from twophp.core.identity import intent_seal_context, seal_context
from twophp.core.records import Sealed
from twophp.ports import Vault


class SealRow(NamedTuple):
    """One sealed part and the facts of its record, in the order of the queries' columns.

    ``subject`` is the id of an obligation, a job or a call. The five facts after it are an intent's, or empty.
    """

    record: int
    part: str
    sealed: Sealed
    subject: str | None
    principal: str
    client_correlation_id: str
    server_correlation_id: str
    method: str
    path: str

    @property
    def name(self) -> str:
        """What a report calls the record."""
        return self.subject or self.server_correlation_id or f"record {self.record}"

    def contexts(self, service: str) -> tuple[bytes, ...]:
        """What it may be bound to, the newest form first. An intent's parts were once bound to its id alone."""
        if not self.server_correlation_id:
            return (seal_context(service, self.subject or "", self.part),)
        return (
            intent_seal_context(service, self, self.part),
            seal_context(service, self.server_correlation_id, self.part),
        )

    def opened(self, vault: Vault, service: str) -> bytes:
        """The part itself. Raises VaultError, as the newest form does."""
        first, *older = self.contexts(service)
        try:
            return vault.open(self.sealed, context=first)
        except Tampered:
            for context in older:
                return vault.open(self.sealed, context=context)
            raise

    def problem(self, vault: Vault, service: str) -> str | None:
        """Why the part does not open, or None."""
        try:
            self.opened(vault, service)
        except VaultError as error:
            return f"the {self.part} of {self.name}: {error.message}"
        return None
