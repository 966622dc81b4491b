"""Connections to PostgreSQL: opened durable, migrated once, and the one table that maps its errors onto ours."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from twophp.central.stores.statements import statements
from twophp.core.errors import (
    CommitUnknown,
    ConfigError,
    SchemaMismatch,
    StoreOverloaded,
    TwoPHPError,
)
from twophp.stores.named_sql import migrations_of
from twophp.stores.postgres.driver import THEIRS, asyncpg, translate

CONNECTIONS: Final = 10
CONNECT_S: Final = 10
ACQUIRE_S: Final = 10
STATEMENT_S: Final = 60

# Most questions are about a few ids, and the planner cannot know that: of a table that was not analysed yet, and of any
# recursion, it expects thousands of rows. So nothing that it does by such a guess may cost much. It would compile the
# statement, for a hundred times as long as that runs; lay out hash tables of megabytes for fourteen ids; plan anew for
# every id; and go on reading the whole table because it was small once. What does read much says so (SQL["survey"]).
_SETTINGS: Final = {
    "application_name": "twophp central",
    "synchronous_commit": "on",
    "jit": "off",
    "work_mem": "64kB",
    "hash_mem_multiplier": "1",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
}

SQL: Final = {name: re.sub(r"\?(?=\d)", "$", text) for name, text in statements(__package__).items()}


def is_taken(error: TwoPHPError) -> bool:
    """Whether a row was refused because its key is taken."""
    return isinstance(error.__cause__, asyncpg.UniqueViolationError)


@asynccontextmanager
async def _in_our_words() -> AsyncIterator[None]:
    try:
        yield
    except THEIRS as error:
        raise translate(error) from error


class Database:
    """A bounded pool of connections to one database."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @classmethod
    async def open(cls, url: str, *, read_only: bool = False) -> Database:
        """Connect, refuse what would not be durable, and migrate; or only look."""
        if asyncpg is None:
            raise ConfigError("PostgreSQL needs twophp[postgres]", code="no_driver")
        async with _in_our_words():
            pool = await asyncpg.create_pool(
                url,
                min_size=1,
                max_size=CONNECTIONS,
                timeout=CONNECT_S,
                command_timeout=STATEMENT_S,
                server_settings=_SETTINGS | ({"default_transaction_read_only": "on"} if read_only else {}),
                reset=_leave,
            )
        database = cls(pool)
        try:
            async with database.reading() if read_only else database.writing() as connection:
                if read_only:
                    await _insist_on_this_schema(connection)
                else:
                    await _insist_on_durability(connection)
                    await _migrate(connection)
        except TwoPHPError:
            await database.close()
            raise
        return database

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Any]:
        """A connection in a transaction that sees one moment."""
        async with (
            _in_our_words(),
            self._acquired() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield connection

    @asynccontextmanager
    async def surveying(self) -> AsyncIterator[Any]:
        """The same, for what may read many rows."""
        async with self.reading() as connection:
            await connection.execute(SQL["survey"])
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Any]:
        """A connection in a transaction; behind the block it is durable, or an error says what is known."""
        async with _in_our_words(), self._acquired() as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                yield connection
            except BaseException:
                await _roll_back(transaction)
                raise
            await _commit(transaction)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A connection for one statement, which is a transaction of its own."""
        async with _in_our_words(), self._acquired() as connection:
            yield connection

    async def close(self) -> None:
        """Wait for what is under way, then let go."""
        async with _in_our_words():
            await self._pool.close()

    @asynccontextmanager
    async def _acquired(self) -> AsyncIterator[Any]:
        try:
            connection = await self._pool.acquire(timeout=ACQUIRE_S)
        except TimeoutError as error:
            message = f"all {CONNECTIONS} connections to the database are busy"
            raise StoreOverloaded(message) from error
        try:
            yield connection
        finally:
            await self._pool.release(connection)


async def _leave(_connection: Any) -> None:
    """Reset nothing when a connection goes back to the pool: every setting ends with its transaction."""


async def _roll_back(transaction: Any) -> None:
    """Roll back. If the connection is lost, the server does it."""
    try:
        await transaction.rollback()
    except THEIRS:
        return


async def _commit(transaction: Any) -> None:
    try:
        await transaction.commit()
    except asyncpg.IntegrityConstraintViolationError:
        raise  # Certain: it was refused.
    except THEIRS as error:
        message = f"the commit failed and may still have happened: {error}"
        raise CommitUnknown(message) from error


async def _insist_on_durability(connection: Any) -> None:
    """Some set-ups trade what we promise for speed."""
    fsync, whole_pages, commit = await connection.fetchrow(SQL["durability"])
    if fsync != "on" or whole_pages != "on" or commit == "off":
        message = f"needs fsync and full_page_writes, got fsync={fsync}, full_page_writes={whole_pages}"
        raise ConfigError(message, code="weak_durability")


async def _insist_on_this_schema(connection: Any) -> None:
    newest = migrations_of(__package__)[-1][0]
    try:
        there = await connection.fetchval(SQL["schema_version"])
    except asyncpg.UndefinedTableError as error:
        raise SchemaMismatch("the database has no central ledger", code="foreign_database") from error
    if there != newest:
        message = f"schema {there} is not this twophp's ({newest}); `twophp central serve` migrates an older one"
        raise SchemaMismatch(message, code="schema_too_old" if there < newest else "schema_too_new")


async def _migrate(connection: Any) -> None:
    """Bring the schema to this version of twophp; another process that starts at the same time waits."""
    await connection.execute(SQL["lock_schema"])
    await connection.execute(SQL["make_schema_version"])
    there = await connection.fetchval(SQL["schema_version"])
    newest = migrations_of(__package__)[-1][0]
    if there > newest:
        message = f"schema {there} is newer than this twophp knows ({newest}); upgrade twophp"
        raise SchemaMismatch(message, code="schema_too_new")
    for number, script in migrations_of(__package__):
        if number > there:
            await connection.execute(script)
            await connection.execute(SQL["note_schema_version"], number)
