"""The central ledger on SQLite."""

from twophp.central.sqlite.store import SqliteCentral

__all__ = ["SqliteCentral"]
