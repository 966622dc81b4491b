"""The ledger store on Redis, for services of several replicas (ADR 45)."""

from twophp.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
