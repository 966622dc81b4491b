"""Two-Phase HTTP: a mutation is registered by both sides before it runs, and runs once."""

from twophp.core.errors import ConstraintViolation, TwoPHPError, Unauthenticated
from twophp.core.policy import Policy
from twophp.core.quota import Quota
from twophp.engine.current import RunningIntent, Transaction, current_intent
from twophp.engine.logs import JsonFormatter
from twophp.identity.guards import fresh_credential, hmac_guard, late_confirm_signature
from twophp.identity.head import Head
from twophp.identity.identify import Principal, anonymous, bearer_jwt, mutual_tls, scope_user
from twophp.stores.keys import dev_ephemeral_key
from twophp.stores.vault import KeyRing

__version__ = "0.1.0"

__all__ = [
    "ConstraintViolation",
    "Head",
    "JsonFormatter",
    "KeyRing",
    "Policy",
    "Principal",
    "Quota",
    "RunningIntent",
    "Transaction",
    "TwoPHPError",
    "Unauthenticated",
    "__version__",
    "anonymous",
    "bearer_jwt",
    "current_intent",
    "dev_ephemeral_key",
    "fresh_credential",
    "hmac_guard",
    "late_confirm_signature",
    "mutual_tls",
    "scope_user",
]
