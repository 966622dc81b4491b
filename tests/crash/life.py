"""What one life of a server is told before it begins: the test process writes it, the maker of servers reads it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from twophp.core.policy import HOUR_MS, SECOND_MS, CrashPolicy, Effects, ServeMode

LEASE_MS: Final = 30 * SECOND_MS
TTL_MS: Final = HOUR_MS
DELTA_MS: Final = 60 * SECOND_MS
LATER_MS: Final = LEASE_MS + SECOND_MS
"""How much later each life begins by its own clock: past every lease of the last one, so nobody has to wait for it."""


class Life(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One server process, from its fork to its death."""

    folder: str
    listener: int  # The number of the socket it serves.
    ahead_ms: int = 0  # How far its clock is ahead of the machine's.
    on_crash: CrashPolicy = "fail"
    effects: Effects = "anywhere"
    mode: ServeMode = "sync"
    lease_ms: int = LEASE_MS
    reconciles: bool = False
    effect: Literal["mark", "row"] = "mark"
    gated: bool = False  # Whether the handler waits at the gate before it has its effect.
    dies_at: str = ""  # Where it kills itself; see ``fate``.

    @property
    def database(self) -> str:
        return f"{self.folder}/orders.db"

    @property
    def marks(self) -> str:
        """The file that says what ran: a line for every run of the handler, synced before it goes on."""
        return f"{self.folder}/marks"

    @property
    def gate(self) -> str:
        """A FIFO: a handler that waits at it goes on when somebody opens the other end."""
        return f"{self.folder}/gate"


class Errand(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One process that calls a server through the client's transport, one call after the other, until it is killed."""

    folder: str
    port: int
    told: int  # The pipe it writes a byte to after every call.
    name: str  # What its calls are named after.
    ahead_ms: int = 0
    is_blocking: bool = False  # Its callers are threads, not tasks.
    only_reconciles: bool = False  # Make no call; take what was left open to its outcome, and end.

    @property
    def ledger(self) -> str:
        return f"{self.folder}/checkout.db"

    @property
    def answers(self) -> str:
        """The file of what its callers were told: a line for every call that was answered."""
        return f"{self.folder}/answers"


class Link(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One participant of a chain of services: it serves, and its handler calls on."""

    folder: str
    listener: int
    name: str
    calls: dict[str, int] = {}  # The services that its handler calls, and their ports.
    ahead_ms: int = 0

    @property
    def ledger(self) -> str:
        return f"{self.folder}/{self.name}.db"

    @property
    def marks(self) -> str:
        """See ``Life.marks``."""
        return f"{self.folder}/{self.name}.marks"


class Order(msgspec.Struct, frozen=True):
    """A call from the test process: begin a life, or end one."""

    verb: Literal["begin", "kill", "stop", "wait"]
    life: Life | Errand | Link | None = None
    pid: int = 0
