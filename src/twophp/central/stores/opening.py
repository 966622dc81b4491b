"""Central ledger URLs: ``memory:``, ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``postgresql://…``."""

from __future__ import annotations

from typing import Final

from twophp.central.stores.postgres import PostgresCentral
from twophp.central.stores.sqlite import SqliteCentral
from twophp.central.stores.store import CentralStore
from twophp.core.errors import ConfigError
from twophp.ports import MintId
from twophp.stores.clock import mint_uuid
from twophp.stores.urls import parse_store_url

POSTGRES: Final = frozenset({"postgresql", "postgres"})
SUPPORTED: Final = "sqlite:///relative.db, sqlite:////absolute.db or postgresql://user@host/database"


async def open_central(url: str, *, mint: MintId = mint_uuid, read_only: bool = False) -> CentralStore:
    """The database that ``url`` names, opened and migrated; a SQLite file is made if it is not there.

    With ``read_only`` nothing is made, migrated or held up, and what would write fails.
    """
    if url.partition("://")[0] in POSTGRES:
        return await PostgresCentral.open(url, mint=mint, read_only=read_only)
    where = parse_store_url(url, supported=SUPPORTED)
    if where.kind == "redis":
        raise ConfigError(
            f"a central ledger lies in a database that answers SQL; use {SUPPORTED}", code="unknown_store"
        )
    return SqliteCentral(where.path or None, mint=mint, read_only=read_only)
