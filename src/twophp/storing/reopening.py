"""Whose ledger a store holds; and a store that stopped after a failed commit, which the next caller opens again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twophp.core.entry import LEDGER_ID, Writer
from twophp.core.errors import ConfigError, StorePoisoned
from twophp.core.records import Key
from twophp.ports import Command, Maintenance, MintId, Store


async def transacted(store: Store, command: Command) -> Any:
    """See ``Store.transact``. A store that has stopped wrote nothing of this command, so it is safe to repeat it.

    The reopened store knows for good what an earlier commit of unknown outcome became.
    """
    try:
        return await store.transact(command)
    except StorePoisoned:
        await store.reopen()
        return await store.transact(command)


async def found(store: Store, keys: Sequence[Key]) -> Sequence[Any]:
    """See ``Store.read``. A store that has stopped is reopened first, so that the result is final."""
    try:
        return await store.read(keys)
    except StorePoisoned:
        await store.reopen()
        return await store.read(keys)


async def proved(store: Store) -> None:
    """See ``Store.prove``. A store that has stopped is reopened, which proves it as well."""
    try:
        await store.prove()
    except StorePoisoned:
        await store.reopen()


async def open_ledger(store: Maintenance, service: str, mint: MintId) -> Writer:
    """The writer of this store's rows. The first start mints the GUID and claims it; central confirms later (A-59).

    A store of another service is refused: sealed payloads are bound to the service's name and would not open, and
    rows of two services in one ledger could not be told apart.
    """
    if not service:
        message = "the service needs a name"
        raise ConfigError(message, code="no_service")
    owner = await store.get_or_set_meta("service", service)
    if owner != service:
        message = f"the store belongs to the service {owner!r}, not to {service!r}; give each service its own"
        raise ConfigError(message, code="other_service")
    return Writer(source=service, service_ledger_id=await store.get_or_set_meta(LEDGER_ID, mint()))
