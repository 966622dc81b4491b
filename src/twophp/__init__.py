"""Two-Phase HTTP: a mutation is registered by both sides before it runs, and runs once."""

from twophp.core.errors import TwoPHPError
from twophp.core.policy import Policy

__version__ = "0.1.0"

__all__ = ["Policy", "TwoPHPError", "__version__"]
