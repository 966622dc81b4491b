"""Fencing tokens against a store: acquire, check, release. See ``core.fence`` for what they are good for."""

from __future__ import annotations

from typing import Any

import msgspec

from twophp.core.errors import ConfigError
from twophp.core.fence import FENCING, Fence, StaleToken, by_resource, is_current, raised
from twophp.core.obligation import Commit, Decision, Rollback, admitted, by_flow_and_key
from twophp.core.records import Instant
from twophp.engine.obligations.flow import Obligations
from twophp.ports import Change, Put, Statement, Store


class Token(msgspec.Struct, frozen=True):
    """Proof of holding ``resource`` until ``held_until``. Every later holder has a higher ``number``."""

    resource: str
    number: int
    obligation_id: str
    held_until: Instant


class Fencing:
    """The resources of one service. Any number of processes may share them."""

    def __init__(self, store: Store, obligations: Obligations) -> None:
        self._store = store
        self._obligations = obligations

    async def acquire(
        self, resource: str, trace_id: str, *, payload: Any = None, timeout_ms: int | None = None
    ) -> Token:
        """Hold a resource, with a token higher than any before. Raises ERR_OBL_DUPLICATE_RESERVE while another does."""
        if not resource:
            raise ConfigError("a resource needs a name", code="bad_resource")
        wanted = self._obligations.reserving(FENCING, payload, trace_id, resource, timeout_ms)
        key = by_resource(resource)
        wanted.keys = (*wanted.keys, key)
        wanted.then = lambda records, made: _with_token(records.get(key), resource, made)
        decision = admitted(await self._obligations.make(wanted), f"resource {resource!r}")
        held = decision.obligation
        assert held is not None
        # Without a step it was made before, by a try of unknown outcome: then its token is in the store.
        number = decision.steps[-1].fence if decision.steps else await self._number_of(resource, held.obligation_id)
        return Token(resource, number, held.obligation_id, held.overdue_at)

    async def _number_of(self, resource: str, obligation_id: str) -> int:
        (fence,) = await self._store.read((by_resource(resource),))
        if fence is None or fence.obligation_id != obligation_id:
            raise StaleToken(f"another has held {resource!r} since it was acquired")
        number: int = fence.token
        return number

    async def check(self, resource: str, number: int) -> None:
        """Raise StaleToken unless this very token holds the resource now. What the resource protects calls it."""
        fence, held = await self._store.read((by_resource(resource), by_flow_and_key(FENCING, resource)))
        if not is_current(fence, number, held, self._store.now()):
            raise StaleToken(f"token {number} does not hold {resource!r}")

    async def release(self, token: Token, trace_id: str, *, apply: tuple[Statement, ...] = ()) -> Decision:
        """Release the resource after the work is done. ``apply`` is written only if the token still holds it."""
        wanted = self._obligations.settling(token.obligation_id, Commit(trace_id=trace_id), apply)
        return admitted(await self._obligations.make(wanted), f"token {token.number} of {token.resource!r}")

    async def give_up(self, token: Token, trace_id: str) -> Decision:
        """Release the resource without having done the work. Always succeeds for a token that was not released."""
        wanted = self._obligations.settling(token.obligation_id, Rollback(trace_id=trace_id))
        return admitted(await self._obligations.make(wanted), f"token {token.number} of {token.resource!r}")


def _with_token(fence: Fence | None, resource: str, made: Change) -> Change:
    """The same change, in which the token rises as well; the audit line of the reserve shows it."""
    decision: Decision = made.answer
    held = decision.obligation
    if not decision.changed or held is None or decision.code is not None:
        return made
    after = raised(fence, resource, held.obligation_id)
    line = msgspec.structs.replace(decision.steps[-1], fence=after.token)
    puts = (msgspec.structs.replace(put, journal=(line,)) if put.record is held else put for put in made.puts)
    told = msgspec.structs.replace(decision, steps=(*decision.steps[:-1], line))
    return msgspec.structs.replace(made, answer=told, puts=(*puts, Put(record=after)))
