"""PostgreSQL through asyncpg: what an URL says, a pool that promises durability, and the one table of its errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from twophp.core.errors import (
    ConfigError,
    ConstraintViolation,
    Refused,
    StoreError,
    StoreOverloaded,
    StoreUnavailable,
    TwoPHPError,
)
from twophp.stores.postgres.kinds import sql

try:
    import asyncpg  # type: ignore[import-untyped]
except ImportError:  # pragma: no cover - the extra is part of what the tests install.
    asyncpg = None
    UNHEARD: tuple[Any, ...] = ()
    THEIRS: tuple[Any, ...] = ()
else:
    # The server said nothing, or was cut off in the middle of a word: the driver then finds its own state impossible.
    UNHEARD = (asyncpg.InternalClientError, OSError, TimeoutError)
    # An interface error is a closed connection or a statement that was used wrongly: the connection tells which.
    THEIRS = (asyncpg.PostgresError, asyncpg.InterfaceError, *UNHEARD)

__all__ = ["THEIRS", "asyncpg", "translate"]  # What the central ledger takes from here.

SCHEMA: Final = "twophp"
CONNECTIONS: Final = 6
CONNECT_S: Final = 10
STATEMENT_S: Final = 60

# Nearly every statement finds a few rows by their keys. The planner cannot know that, least of all of a table that has
# just grown, so nothing that it does by a guess may cost much. Behind a pooler each transaction says so itself.
# A replica that stands still in the middle of a batch must not hold its rows from the others for ever.
_SETTINGS: Final = {
    "application_name": "twophp",
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "20s",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
_AWAY: Final = ("08", "53", "57", "58", "XX")
"""Classes of SQLSTATE that say how the server is: its connections, its resources, its operator, its files, itself."""
_READ_ONLY: Final = "25006"
CANCELED: Final = "57014"  # One statement was ended, by somebody or by a time limit. The server is well.
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,39}")


class Place(msgspec.Struct, frozen=True):
    """Where a ledger lies: a database, and a schema in it."""

    dsn: str
    schema: str = SCHEMA
    is_pooled: bool = False  # The URL says that PgBouncer, or the like, stands between.


def place_of(url: str) -> Place:
    """What a URL says. ``schema`` and ``pgbouncer`` are ours, every other option is the driver's."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema, pooled = options.pop("schema", SCHEMA), options.pop("pgbouncer", "0")
    if not _NAME.fullmatch(schema):
        message = f"schema={schema} is no name for a schema: small letters, digits and _, not more than 40"
        raise ConfigError(message, code="bad_store_url")
    if pooled not in ("0", "1"):
        raise ConfigError("pgbouncer is 1 or 0", code="bad_store_url")
    return Place(urlunsplit(parts._replace(query=urlencode(options))), schema, pooled == "1")


def translate(error: Exception) -> TwoPHPError:
    """Our error for one of theirs."""
    if isinstance(error, TwoPHPError):
        return error
    for theirs, ours, code, message in _errors():
        if isinstance(error, theirs):
            return ours(f"{message}: {error}", code=code)
    return StoreError(f"the change cannot be written: {error!r}", code="bad_change")


def _errors() -> tuple[tuple[Any, type[TwoPHPError], str, str], ...]:
    """What PostgreSQL and its driver say -> what we say. The first match counts."""
    said = asyncpg.exceptions
    return (
        (said.DataError, StoreError, "bad_change", "the database takes no such value"),
        (said.DiskFullError, StoreUnavailable, "disk_full", "the database's disk is full"),
        (said.ReadOnlySQLTransactionError, StoreUnavailable, "store_read_only", "the database cannot be written"),
        (said.TooManyConnectionsError, StoreOverloaded, "store_overloaded", "the database takes no more connections"),
        ((said.CharacterNotInRepertoireError, said.UntranslatableCharacterError), Refused, "bad_text", "no such text"),
        (said.InsufficientPrivilegeError, ConfigError, "no_privilege", "the database refuses"),
        (said.InvalidAuthorizationSpecificationError, ConfigError, "no_privilege", "the database knows us not"),
        (said.InvalidCatalogNameError, ConfigError, "no_such_database", "there is no such database"),
        (said.IntegrityConstraintViolationError, ConstraintViolation, "constraint", "the change breaks a constraint"),
        (
            (said.PostgresConnectionError, said.OperatorInterventionError, asyncpg.InterfaceError, *UNHEARD),
            StoreUnavailable,
            "store_unavailable",
            "the database does not answer",
        ),
        ((said.TransactionRollbackError, said.LockNotAvailableError), StoreUnavailable, "store_busy", "others hold it"),
        ((said.PLPGSQLError, said.ProgramLimitExceededError), StoreError, "bad_change", "the database takes it not"),
        (said.PostgresError, StoreError, "store_error", "the database failed"),
    )


def is_gone(connection: Any) -> bool:
    """Whether nothing can be said on it any more. A pool takes what was cut off back by itself."""
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        return True


def is_cut(error: BaseException) -> bool:
    """Whether the session has ended, by whomever. An interface error says so only if the connection does."""
    said = asyncpg.exceptions
    if isinstance(error, said.QueryCanceledError):
        return False
    return isinstance(error, (*UNHEARD, said.PostgresConnectionError, said.OperatorInterventionError))


def is_outage(error: BaseException) -> bool:
    """Whether the database serves nobody now. Any other error is about what was asked of it."""
    if not isinstance(error, asyncpg.PostgresError):
        return isinstance(error, UNHEARD)
    return is_state_of_outage(str(error.sqlstate or ""))


def is_state_of_outage(state: str) -> bool:
    """The same of an SQLSTATE, whichever library it comes through."""
    return state != CANCELED and (state[:2] in _AWAY or state == _READ_ONLY)


def is_certain(error: Exception) -> bool:
    """Whether an error that answers COMMIT says that all of it was rolled back."""
    return isinstance(error, asyncpg.PostgresError) and not is_outage(error) and error.sqlstate != CANCELED


def is_standby(error: Exception) -> bool:
    """Whether BEGIN was refused because it wants to write."""
    return isinstance(error, asyncpg.exceptions.FeatureNotSupportedError)


def may_be_decided_again(error: Exception) -> bool:
    """Whether somebody else was quicker: what is decided on what is there now may succeed."""
    said = asyncpg.exceptions
    return isinstance(error, said.UniqueViolationError | said.TransactionRollbackError)


def is_rolled_back(error: Exception) -> bool:
    """Whether the database gave up this transaction for another one's sake."""
    return isinstance(error, asyncpg.exceptions.TransactionRollbackError)


def is_without_savepoint(error: Exception) -> bool:
    """Whether the transaction in which a savepoint was set has ended."""
    said = asyncpg.exceptions
    return isinstance(error, said.InvalidSavepointSpecificationError | said.NoActiveSQLTransactionError)


def is_taken(error: Exception) -> bool:
    """Whether a key is another row's."""
    return isinstance(error, asyncpg.exceptions.UniqueViolationError)


def is_of_the_chain(error: Exception, schema: str) -> bool:
    """Whether a link of this number is there already: somebody has written in this writer's name."""
    if not isinstance(error, asyncpg.exceptions.UniqueViolationError):
        return False
    return (error.schema_name, error.table_name) == (schema, "link")


def of_a_statement(error: Exception) -> TwoPHPError:
    """Our error for what a caller's own statement has raised: it alone is to blame, whatever was wrong with it."""
    ours = translate(error)
    if isinstance(error, asyncpg.InterfaceError) or ours.code in ("store_error", "no_privilege", "store_unavailable"):
        return StoreError(f"the database refuses the statement: {error}", code="bad_change")
    return ours


@asynccontextmanager
async def in_our_words() -> AsyncIterator[None]:
    """Whatever they raise becomes ours."""
    try:
        yield
    except THEIRS as error:
        raise translate(error) from error


async def open_pool(place: Place, *, most: int = CONNECTIONS) -> tuple[Any, bool]:
    """Connect, and find out whether a pooler stands between: it hands out sessions that cannot be set up or kept."""
    if asyncpg is None:
        raise ConfigError("PostgreSQL needs twophp[postgres]", code="no_driver")
    if not place.is_pooled:
        with suppress(asyncpg.exceptions.ProtocolViolationError):  # PgBouncer takes no such settings.
            pool = await _pool(place, most, cache=100, settings=_SETTINGS)
            connection = await pool.acquire()
            try:
                is_direct = await connection.fetchval(sql("backend")) == connection.get_server_pid()
            finally:
                await pool.release(connection)
            if is_direct:
                return pool, False
            await pool.close()
    return await _pool(place, most, cache=0, settings={"application_name": "twophp"}), True


async def _pool(place: Place, most: int, *, cache: int, settings: dict[str, str]) -> Any:
    return await asyncpg.create_pool(
        place.dsn,
        min_size=0,  # No log of attempts while the database is away: whoever needs a connection is told.
        max_size=most,
        timeout=CONNECT_S,
        command_timeout=STATEMENT_S,
        statement_cache_size=cache,
        server_settings=settings,
        reset=_leave,
    )


async def close_pool(pool: Any) -> None:
    """Wait for what is under way, but not for a server that says nothing."""
    try:
        await asyncio.wait_for(pool.close(), CONNECT_S)
    except THEIRS:
        pool.terminate()


async def _leave(_connection: Any) -> None:
    """Nothing is to be undone when a connection goes back: all that is ever set ends with its transaction."""
