"""Two-Phase HTTP: a mutation is registered by both sides before it runs, and runs once."""

from twophp.core.errors import TwoPHPError
from twophp.core.policy import Policy
from twophp.core.quota import Quota
from twophp.engine.current import current_intent
from twophp.engine.identify import anonymous, bearer_jwt, mutual_tls, scope_user

__version__ = "0.1.0"

__all__ = [
    "Policy",
    "Quota",
    "TwoPHPError",
    "__version__",
    "anonymous",
    "bearer_jwt",
    "current_intent",
    "mutual_tls",
    "scope_user",
]
