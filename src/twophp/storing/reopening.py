"""The next caller opens a store that stopped after a failed commit, also a caller that changes no intent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twophp.core.errors import StorePoisoned
from twophp.core.records import Key
from twophp.ports import Command, Store


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
