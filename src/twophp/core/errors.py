"""Every error twophp raises, in one tree.

    TwoPHPError
      ConfigError            a setting cannot work; nothing was started
      WireError              a message breaks the header contract; nothing was stored
      Unauthenticated        the caller's identity is not known; nothing was stored
      Refused                a rule said no; ``code`` names the rule's answer
      StoreError
        StoreUnavailable     nothing was written; the same call may be made again
          StoreOverloaded    the queue in front of the store is full
        CommitUnknown        the change may or may not be durable; read the key to find out
        StorePoisoned        an fsync failed; this handle never writes again
        SchemaMismatch       the database belongs to another version of twophp
        JournalBroken        the hash chain does not hold
        ConstraintViolation  a rule of the database refuses these rows; nothing was written
      VaultError
        KeyMissing           sealed with a key that is not in the ring
        Tampered             authentication failed: the bytes or their row were changed
      PhaseError             a call did not come to its answer; ``advice`` says what may safely be done next
      EgressError
        EgressRefused        the gate let nothing out; ``reason`` names the rule, for logs and never for the wire
        DeliveryFailed       the attempt was made and did not succeed; the same call may be made again

Each carries a stable ``code`` (snake_case, or the exact spelling a source document gives) that programs may
compare, and a ``message`` for people; ``str`` gives both, ``[code] message``. A message never repeats its own code.
Adapters map foreign errors onto this tree in one table each; nothing else leaks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Final


class TwoPHPError(Exception):
    """The base of the tree."""

    default_code: ClassVar[str] = "twophp_error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"

    @property
    def message(self) -> str:
        """What it says, for places that tell the code by themselves: a problem document, a command's last line."""
        return str(self.args[0])


def words_of(error: BaseException) -> str:
    """What an error says, whoever's it is, without a code: for a message that is about something else as well."""
    return error.message if isinstance(error, TwoPHPError) else str(error)


class ConfigError(TwoPHPError):
    """A setting cannot work; nothing was started."""

    default_code = "bad_config"


class WireError(TwoPHPError):
    """A message breaks the header contract; nothing was stored."""

    default_code = "bad_request"

    def __init__(
        self, message: str, *, code: str | None = None, field: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.field = field
        self.status = status  # Where a service chose another 4xx than the code's own.


class Unauthenticated(TwoPHPError):
    """The caller's identity is not known; nothing was stored.

    The message is for the service's log and holds nothing of the credential. ``challenge`` is what the 401 says in
    ``WWW-Authenticate``, where the scheme has such a thing (RFC 9110 §11.6.1).
    """

    default_code = "unauthenticated"

    def __init__(self, message: str, *, code: str | None = None, challenge: str | None = None) -> None:
        super().__init__(message, code=code)
        self.challenge = challenge


class Refused(TwoPHPError):
    """A rule said no; ``code`` names the rule's answer."""

    default_code = "refused"


class StoreError(TwoPHPError):
    """The store could not do what was asked."""

    default_code = "store_error"


class StoreUnavailable(StoreError):
    """Nothing was written; the same call may be made again."""

    default_code = "store_unavailable"


class StoreOverloaded(StoreUnavailable):
    """The bounded queue in front of the store is full; nothing was written."""

    default_code = "store_overloaded"


class CommitUnknown(StoreError):
    """The change may or may not be durable; reading the key finds out."""

    default_code = "commit_unknown"


class StorePoisoned(StoreError):
    """An fsync failed, so this handle cannot know what is durable and never writes again."""

    default_code = "store_poisoned"


class SchemaMismatch(StoreError):
    """The database belongs to another version of twophp."""

    default_code = "schema_mismatch"


class RecordTampered(StoreError):
    """A record is not in the state that its history ends with. Nothing acts on it; ``ledger verify`` says more."""

    default_code = "record_tampered"


class JournalBroken(StoreError):
    """The journal's hash chain does not hold."""

    default_code = "journal_broken"


class ConstraintViolation(StoreError):
    """A rule of the database (a key, a CHECK, a foreign key, a trigger) refuses these rows; nothing was written."""

    default_code = "constraint"


class VaultError(TwoPHPError):
    """Sealed bytes cannot be opened."""

    default_code = "vault_error"


class KeyMissing(VaultError):
    """The bytes were sealed with a key that is not in the ring."""

    default_code = "key_missing"


class Tampered(VaultError):
    """Authentication failed: the sealed bytes, or the row they belong to, were changed."""

    default_code = "tampered"


OUTCOME_INDETERMINATE: Final = "outcome_indeterminate"
"""The code of a call that FAILED and may have had effects (A-34): a problem's, a PhaseError's, a reconciliation's."""


class Advice(StrEnum):
    """What a caller may safely do after a PhaseError."""

    RESUBMIT = "resubmit"  # Nothing ran and nothing will under these ids: the same call may be made anew.
    WAIT = "wait"  # It may be running. The reconciler finds out; a new call could be a second one.
    CHECK = "check"  # The protocol cannot know. Look at the business side before making it anew.
    DONE = "done"  # It ended as ``phase`` says; only its answer cannot be had.
    FIX = "fix"  # Nothing ran. A setting, a credential or the request has to change first.


class PhaseError(TwoPHPError):
    """A call did not come to its answer. Says how far it came, under which ids, and what may be done next.

    ``phase`` is the last one that the client received, None if it received none. ``response`` is the HTTP client's own
    answer, where one was the reason. It is deliberately no error of an HTTP library: code that retries on those would
    make a second call of one that may only be slow.
    """

    default_code = "phase_error"

    def __init__(
        self,
        message: str,
        *,
        code: str,
        advice: Advice,
        phase: str | None = None,
        client_correlation_id: str | None = None,
        server_correlation_id: str | None = None,
        response: Any = None,
    ) -> None:
        super().__init__(message, code=code)
        self.advice = advice
        self.phase = phase
        self.client_correlation_id = client_correlation_id
        self.server_correlation_id = server_correlation_id
        self.response = response


class EgressError(TwoPHPError):
    """An outgoing call did not succeed; ``reason`` says why, in one word that programs may compare."""

    default_code = "egress_error"

    def __init__(self, message: str, *, reason: str, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.reason = reason


class EgressRefused(EgressError):
    """The gate let nothing out. The reason is for logs: told to a caller, it would map the inner network (A-65)."""

    default_code = "egress_refused"


class DeliveryFailed(EgressError):
    """The attempt was made and did not succeed; ``status`` is what the other side answered, if it did (A-39)."""

    default_code = "delivery_failed"

    def __init__(self, message: str, *, reason: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message, reason=reason, code=code)
        self.status = status
