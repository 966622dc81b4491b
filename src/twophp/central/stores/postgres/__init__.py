"""The central ledger on PostgreSQL."""

from twophp.central.stores.postgres.store import PostgresCentral

__all__ = ["PostgresCentral"]
