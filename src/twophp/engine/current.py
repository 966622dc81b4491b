"""The intent that is being executed, for the handler that executes it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context, ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, overload
from uuid import UUID

from twophp.core.errors import ConfigError, Refused
from twophp.core.intent import Intent, Mode
from twophp.engine.own import OwnScope
from twophp.observability.conditions import ids_of, named
from twophp.ports import OwnTransaction, Statement
from twophp.storing.statements import refuse_reading

if TYPE_CHECKING:
    from twophp.engine.obligations.bound import BoundObligations

log: Final = logging.getLogger("twophp.execution")

Bind: TypeAlias = "Callable[[Intent], BoundObligations]"
TryOut: TypeAlias = Callable[[Intent, tuple[Statement, ...]], Coroutine[Any, Any, None]]
Join: TypeAlias = Callable[[object], OwnTransaction]
Trial: TypeAlias = tuple[asyncio.AbstractEventLoop, TryOut, Join | None]
"""The loop that a store belongs to, what runs statements there and undoes them, and how it joins a transaction."""

_binding: Final = threading.Lock()


class Transaction:
    """Business rows that become durable in the very commit that settles the intent: both, or neither.

    Statements are gathered while the handler thinks and run in order when the intent is settled, so a slow handler
    holds no lock. They run against the service's own ledger database. At the end of the block they are tried and
    undone: what the database refuses is raised there, where the handler can answer it (``ConstraintViolation``).
    """

    def __init__(self) -> None:
        self.statements: list[Statement] = []

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Add one statement, with its parameters by position. A SELECT is refused: its rows could not be returned."""
        refuse_reading(sql)
        self.statements.append(Statement(sql=sql, rows=[_by_position(parameters)]))

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add one statement, to be run for every row."""
        refuse_reading(sql)
        self.statements.append(Statement(sql=sql, rows=[_by_position(row) for row in rows]))


def _by_position(parameters: Sequence[Any]) -> tuple[Any, ...]:
    """Refuse a mapping, which would give its names, and a text, which would give its letters: both are mistakes."""
    if isinstance(parameters, Mapping | str | bytes):
        raise ConfigError("parameters are a sequence, by position", code="bad_parameters")
    return tuple(parameters)


class _Scope:
    """``async with intent.transaction() as tx``: what was gathered counts only if the block ends well."""

    def __init__(self, running: RunningIntent) -> None:
        self._running = running
        self._transaction = Transaction()

    async def __aenter__(self) -> Transaction:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        statements = self._transaction.statements
        if kind is None:
            try:
                await self._running.try_out(statements)
            except BaseException:
                self._running.left(statements, well=False)
                raise
        self._running.left(statements, well=kind is None)

    def __enter__(self) -> Transaction:
        self._running.entered()
        return self._transaction

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        statements = self._transaction.statements
        if kind is None:
            try:
                self._running.try_out_from_a_thread(statements)
            except BaseException:
                self._running.left(statements, well=False)
                raise
        self._running.left(statements, well=kind is None)


class RunningIntent:
    """What a handler may know and say about the intent it executes."""

    resource_id: str | None = None
    transaction_reference: str | None = None
    has_answered = False  # What it has answered counts on the rows of every block that is still open.
    is_broken = False  # Such a block ended badly: there are no rows, so there must be no success either.
    own: OwnTransaction | None = None  # The application's, whose block has ended well: it settles the intent (ADR 44).
    _has_own_block = False
    _bound: BoundObligations | None = None  # Made when the handler first asks for it.
    _is_closed = False
    _open_blocks = 0
    _all_left: Callable[[], object] | None = None  # Called when no block is open any more.
    _is_fenced = False  # Another process has taken the intent over.

    def __init__(
        self,
        intent: Intent,
        *,
        provisional_resource_id: str,
        takes_statements: bool,
        bind: Bind | None = None,
        trial: Trial | None = None,
    ) -> None:
        self.provisional_resource_id = provisional_resource_id
        self.statements: list[Statement] = []
        self._takes_statements = takes_statements
        self._intent = intent
        self._bind = bind
        self._trial = trial

    # Looked up when a handler asks: one is made for every execution, and most handlers ask for none of these.

    @property
    def client_correlation_id(self) -> str:
        """The client's id of the intent."""
        return self._intent.client_correlation_id

    @property
    def server_correlation_id(self) -> str:
        """The server's id of the intent."""
        return self._intent.server_correlation_id

    @property
    def service_endpoint(self) -> str:
        """The service and the path that the intent was registered at."""
        return self._intent.service_endpoint

    @property
    def mode(self) -> Mode:
        """How its two phases travel."""
        return self._intent.mode

    @property
    def obligations(self) -> BoundObligations:
        """Effects to reserve, which are committed with the intent or rolled back with it."""
        with _binding:  # Two threads of one handler must not each have their own.
            if self._bound is None:
                if self._bind is None:
                    raise Refused("there is nothing to bind an obligation to", code="intent_not_running")
                self._bound = self._bind(self._intent)
            return self._bound

    def close(self) -> BoundObligations | None:
        """The handler has answered: from here on nothing new is bound. What was is to be settled with the intent."""
        with _binding:
            self._close()
            return self._bound

    def has_more_to_settle(self) -> bool:
        """Close; whether anything but an answer is to be settled with the intent: rows, obligations, a reference."""
        with _binding:
            self._bind, self._is_closed, self._all_left = None, True, None
            return bool(
                self._bound is not None
                or self.statements
                or self._open_blocks
                or self.own is not None
                or self.is_broken
                or self.transaction_reference is not None
            )

    def close_unless_open(self, all_left: Callable[[], object]) -> bool:
        """Close, unless a transaction's block is open: then ``all_left`` is called, in any thread, when none is."""
        with _binding:  # Or a block could be entered between the look and the closing, and its rows would be lost.
            if self._open_blocks:
                self._all_left = all_left
                return False
            self._close()
            return True

    def _close(self) -> None:
        self._bind, self._is_closed, self._all_left = None, True, None

    @property
    def has_rows(self) -> bool:
        """Whether business rows are to become durable with the intent."""
        return bool(self.statements) or self.own is not None

    @overload
    def transaction(self) -> _Scope: ...
    @overload
    def transaction(self, source: object) -> OwnScope: ...
    def transaction(self, source: object = None) -> _Scope | OwnScope:
        """Settle business rows together with the intent. Needs a store that runs SQL.

        Without an argument statements are gathered. ``source`` is where the application has its connections: an engine
        or sessionmaker of SQLAlchemy, a pool of psycopg or asyncpg, Django's connection. Then the block works with a
        live session or connection of that library, and what it writes is committed when the handler has answered.
        """
        if source is not None:
            self._refuse_if_fenced()
            return OwnScope(self, self._joined(source), None if self._trial is None else self._trial[0])
        if not self._takes_statements:
            message = "this store cannot run business statements in the settling commit; use SQLite or PostgreSQL"
            raise ConfigError(message, code="no_transactions")
        self._refuse_if_fenced()
        return _Scope(self)

    def fenced(self) -> None:
        """Another process has taken the intent over: no row can be written with it any more."""
        self._is_fenced = True

    def _refuse_if_fenced(self) -> None:
        if self._is_fenced:
            raise Refused("another process has taken the intent over", code="intent_not_running")

    def _joined(self, source: object) -> OwnTransaction:
        join = None if self._trial is None else self._trial[2]
        if join is None:
            message = (
                "this store cannot settle in a transaction of yours (a file of SQLite takes one SQLite library in a"
                " process): use intent.transaction() without an argument, or a ledger in PostgreSQL"
            )
            raise ConfigError(message, code="no_own_transaction")
        return join(source)

    def entered(self, *, own: bool = False) -> None:
        """A transaction's block has begun: the outcome waits for its rows."""
        self._refuse_if_fenced()
        with _binding:
            if self._is_closed:
                raise _too_late()
            if self._has_own_block or self.own is not None or (own and (self._open_blocks or self.statements)):
                message = "an intent has one transaction of yours, in one block, and no other rows beside it"
                raise Refused(message, code="transaction_open")
            self._open_blocks += 1
            self._has_own_block = own

    async def try_out(self, statements: Sequence[Statement]) -> None:
        """Raise what refuses these statements after those of earlier blocks, or that the intent was taken over."""
        if self._trial is None or self._is_closed:  # ``left`` says that it is too late.
            return
        loop, tried = self._trial[0], self._trial[1](self._intent, (*self.statements, *statements))
        if asyncio.get_running_loop() is loop:
            await tried
        else:  # A store belongs to one loop: a caller on another loop waits for it there.
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(tried, loop))

    def try_out_from_a_thread(self, statements: Sequence[Statement]) -> None:
        """The same for a ``with`` in a thread. On the loop's own thread nothing can wait: the settlement will tell."""
        if self._trial is None or self._is_closed or _is_running(self._trial[0]):
            return
        tried = self._trial[1](self._intent, (*self.statements, *statements))
        asyncio.run_coroutine_threadsafe(tried, self._trial[0]).result()

    def left(self, statements: list[Statement], *, well: bool, own: OwnTransaction | None = None) -> None:
        """A transaction's block has ended. One that ends after the intent was settled says so: its rows are lost."""
        with _binding:
            self._open_blocks -= 1
            self._has_own_block = False
            if well and (statements or own is not None) and self._is_closed:
                raise _too_late()
            if well:
                self.statements.extend(statements)
                self.own = own
            elif self.has_answered:
                self.is_broken = True
            all_left = None if self._open_blocks else self._all_left
            if all_left is not None:
                self._all_left = None
        if all_left is not None:
            all_left()

    def created(self, resource_id: str | int) -> Self:
        """Name the resource; without it the answer's Location, its JSON ``id`` or the path tells (A-05)."""
        if not isinstance(resource_id, str | int):  # Said here, where the handler can still do something about it.
            raise ConfigError("a resource's id is a text or a number", code="bad_resource_id")
        self.resource_id = resource_id if isinstance(resource_id, str) else str(resource_id)
        return self


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this is the loop's own thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _too_late() -> Refused:
    return Refused("the intent is settled; no business row can be written with it", code="intent_not_running")


def reference_of(said: object, intent: Intent) -> str | None:
    """What a handler calls its own transaction, as a text. One that cannot be stored must not cost the outcome."""
    if isinstance(said, int | UUID):
        return str(said)
    if said is None or (isinstance(said, str) and said.isprintable()):  # Half a character is not printable.
        return said
    message = "a transaction_reference is a printable text: it is left out (%s)"
    log.warning(message, named(intent), extra=ids_of(intent))
    return None


_UNSET: Final = object()
_current: Final[ContextVar[RunningIntent | None]] = ContextVar("twophp_current_intent", default=None)


def current_intent() -> RunningIntent | None:
    """The intent being executed here, or None outside a handshake. Follows into tasks and ``to_thread``."""
    return _current.get()


def make_current(running: RunningIntent) -> None:
    """Make ``running`` the current intent for the rest of this task."""
    _current.set(running)


def take_over(context: Context) -> None:
    """Set here the variables that a handler has set in a task of its own, as if it had run here; not the intent."""
    for variable, value in context.items():
        if variable is not _current and variable.get(_UNSET) is not value:
            variable.set(value)


class executing:  # noqa: N801 - used as a statement: ``with executing(running):``
    """Make ``running`` the current intent for a while."""

    def __init__(self, running: RunningIntent) -> None:
        self._running = running

    def __enter__(self) -> RunningIntent:
        self._token = _current.set(self._running)
        return self._running

    def __exit__(self, *_exc_info: object) -> None:
        _current.reset(self._token)
