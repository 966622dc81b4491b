"""The ledger store on PostgreSQL, for services of several replicas (ADR 38)."""

from twophp.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
