"""Whose ledger a store holds: the service's name and the GUID it writes rows under, kept from the first start on."""

from __future__ import annotations

from twophp.core.entry import LEDGER_ID, Writer
from twophp.core.errors import ConfigError
from twophp.ports import Maintenance, MintId


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
