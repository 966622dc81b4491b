"""The connection that Django's ORM uses in this thread.

The block is one of Django's ``atomic``. When it ends, the database connection is taken out of Django's wrapper with its
open transaction, and settled in another thread. Django opens another one if the view goes on with its ORM.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from twophp.core.errors import ConfigError, Refused
from twophp.stores.postgres.lent.connection import ThroughDriver
from twophp.stores.postgres.lent.of_psycopg import Raw

log: Final = logging.getLogger("twophp.store")


class OfDjango(ThroughDriver):
    """See ``LentConnection``."""

    is_blocking = True
    _django: Any
    _atomic: Any
    _taken: Any = None

    def __init__(self, source: Any) -> None:
        self._source = source
        self._hooks: list[Any] = []

    async def begin(self, first: str) -> tuple[Any, int | None]:
        """See ``LentConnection.begin``."""
        from django.db import connections, transaction  # noqa: PLC0415 - whoever lends us its connection has it.

        self._django = django = connections[self._source.alias]  # This thread's.
        if django.vendor != "postgresql" or not hasattr(django.Database, "pq"):
            message = (
                "a transaction of yours needs PostgreSQL through psycopg 3, and not " + django.settings_dict["ENGINE"]
            )
            raise ConfigError(message, code="unknown_connection")
        if django.in_atomic_block:
            message = "Django has a transaction open already (atomic, ATOMIC_REQUESTS, TestCase): begin before it"
            raise Refused(message, code="transaction_open")
        self._atomic = transaction.atomic(using=django.alias)
        self._atomic.__enter__()
        try:
            self._driver = Raw(django.connection)
            [[number]] = await self._driver.fetch(first)
        except BaseException as error:
            self._atomic.__exit__(type(error), error, error.__traceback__)
            raise
        return django, number

    async def flush(self) -> None:
        """Take the connection out of Django, whose ``connect`` sets everything else up anew."""
        django = self._django
        django.validate_no_broken_transaction()
        self._hooks, self._taken = django.run_on_commit, django.connection
        django.connection, django.in_atomic_block, django.run_on_commit = None, False, []

    async def commit(self) -> None:
        """See ``LentConnection.commit``."""
        self._taken.commit()

    async def undo(self) -> None:
        """See ``LentConnection.undo``."""
        if self._taken is not None:
            self._give_back()
            return
        error = Undone()
        self._atomic.__exit__(Undone, error, None)

    async def close(self) -> None:
        """Give the connection back, and do what waits for the commit (``transaction.on_commit``)."""
        self._give_back()
        for _savepoints, hook, _is_robust in self._hooks:
            try:
                hook()
            except Exception:
                log.exception("a function of transaction.on_commit failed; the commit is durable")
        if self._hooks:
            from django.db import connections  # noqa: PLC0415

            connections.close_all()  # Of this thread, which Django does not look after.

    def _give_back(self) -> None:
        """What a pool gets back is rolled back by it, if need be; and by the server, if it is closed."""
        pool = getattr(self._taken, "_pool", None)
        if pool is None:
            self._taken.close()
        else:
            pool.putconn(self._taken)


class Undone(Exception):
    """Tells Django's block that it ends badly."""
