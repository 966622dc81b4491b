"""SQLite through apsw, with group commit."""

from twophp.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
