"""The central ledger on PostgreSQL."""

from twophp.central.postgres.store import PostgresCentral

__all__ = ["PostgresCentral"]
