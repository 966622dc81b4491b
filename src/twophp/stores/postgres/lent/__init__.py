"""Connections that the application lends: an intent is settled in its own transaction (ADR 44)."""

from twophp.stores.postgres.lent.transaction import Lending, LentTransaction

__all__ = ["Lending", "LentTransaction"]
