"""The central ledger on SQLite."""

from twophp.central.stores.sqlite.store import SqliteCentral

__all__ = ["SqliteCentral"]
