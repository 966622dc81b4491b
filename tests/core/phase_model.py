"""The phase rules once more, told from the requirements and not from the table.

The model knows one call: when it came, whether it was confirmed, how it ended. It has no table, no signals and no
shared code with ``twophp.core.phase``; it answers a command with the word the requirement uses. ``World`` gives the
same command to both and compares everything that can be seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from twophp.core.intent import Intent, Mode
from twophp.core.intent_commands import Command, Confirm, Register, Renew, Settle, Tick
from twophp.core.machine import Goto, Ignore, Refuse, Replay
from twophp.core.phase import IntentDecision, decide
from twophp.core.policy import DAY_MS, Policy

GO, SAME, NOTHING, FOLLOWS = "go", "replay", "nothing", "follows"
LATE, STRANGER, UNKNOWN = "ttl_expired", "other_identity", "unknown_intent"


def policies() -> list[Policy]:
    """Small times, so that a walk meets every boundary; the horizon has its floor (A-83)."""
    times: dict[str, Any] = {
        "ttl_ms": 100,
        "delta_ms": 20,
        "processing_timeout_ms": 50,
        "lease_ms": 60,
        "payload_retention_ms": 500,
        "horizon_ms": DAY_MS,
    }
    return [
        Policy(**times),
        Policy(**times, replay="REUSE"),
        Policy(**times, literal_ttl_reject=True, allow_shorter_ttl=True),
        Policy(**(times | {"delta_ms": 0, "payload_retention_ms": 0}), replay="REUSE"),
        Policy(**(times | {"payload_retention_ms": DAY_MS}), literal_ttl_reject=True, replay="REUSE"),
    ]


@dataclass
class Call:
    """One call as the draft's prose tells it."""

    meant: str
    mode: str
    callback: str
    principal: str
    path: str
    came_at: int
    ttl: int
    policy: Policy
    phase: str = "WAITING_CONFIRM"
    confirmed_at: int | None = None
    ended_at: int | None = None
    lease_until: int | None = None
    owner: str | None = None
    fence: int = 0
    payload_kept: bool = True
    purged_at: int | None = None
    runs: int = 0
    server_id: str = ""
    status: int | None = None
    indeterminate: bool = False

    @property
    def deadline(self) -> int:
        return self.came_at + self.ttl

    @property
    def end_of_grace(self) -> int:
        return self.deadline + self.policy.delta_ms

    @property
    def due_at(self) -> int | None:
        """When the next thing happens by itself."""
        if self.phase == "WAITING_CONFIRM":
            return self.deadline
        if self.phase == "TTL_EXPIRED":
            return self.end_of_grace
        if self.phase == "PROCESSING":
            return self.lease_until
        assert self.ended_at is not None
        if self.payload_kept:
            return self.ended_at + self.policy.payload_retention_ms
        return max(self.ended_at + self.policy.horizon_ms, self.purged_at or 0)

    def run(self, now: int, owner: str, *, confirmed_at: int | None) -> str:
        self.phase, self.confirmed_at, self.ended_at, self.owner = "PROCESSING", confirmed_at, None, owner
        self.lease_until = now + self.policy.lease_ms
        self.fence += 1
        self.runs += 1
        return GO

    def grow_old(self, now: int) -> None:
        """Unconfirmed: expired from the deadline on, abandoned from the end of the grace on (half-open)."""
        if now >= self.end_of_grace:
            self.phase, self.ended_at, self.payload_kept = "ABANDONED", self.end_of_grace, False
        elif now >= self.deadline:
            self.phase, self.ended_at = "TTL_EXPIRED", self.deadline

    @property
    def unconfirmed(self) -> bool:
        return self.phase in {"WAITING_CONFIRM", "TTL_EXPIRED"}

    def again(self, command: Register, now: int) -> str:
        """T2."""
        if command.replay_key != self.meant:
            return FOLLOWS if self.is_followed_by(command) else "fingerprint_mismatch"
        if (command.mode.value, command.callback) != (self.mode, self.callback):
            return "mode_mismatch"
        if self.unconfirmed:
            self.grow_old(now)
        return LATE if self.phase in {"TTL_EXPIRED", "ABANDONED"} else SAME

    def is_followed_by(self, command: Register) -> bool:
        """T2-7: it did nothing but send its client there."""
        by_server = {"auto_confirm", "transparent"}
        alike = command.callback == self.callback and (command.mode.value in by_server) == (self.mode in by_server)
        return self.phase == "FAILED" and self.status == 307 and command.follows == self.server_id and alike

    def confirm(self, command: Confirm, now: int) -> str:
        """T1, rows 5 to 11."""
        if command.principal != self.principal:
            return STRANGER
        early = command.arrived_at < self.deadline
        if self.phase == "ABANDONED":
            return LATE
        if not self.unconfirmed:
            return LATE if self.policy.literal_ttl_reject and not early else SAME
        if now < self.end_of_grace and early:
            return self.run(now, command.owner, confirmed_at=command.arrived_at)
        self.grow_old(now)
        if now < self.end_of_grace and self.policy.replay == "REUSE" and command.guard_passed:
            return self.run(now, command.owner, confirmed_at=command.arrived_at)
        return LATE

    def work(self, command: Settle | Renew, now: int) -> str:
        """Only the holder of the newest fence has a say, and only once."""
        if self.phase in {"WAITING_CONFIRM", "TTL_EXPIRED", "ABANDONED"}:
            return "not_processing"
        if command.fence != self.fence:
            return "fence_lost"
        if isinstance(command, Renew):
            return self._renew(now)
        wanted = "COMMITTED" if command.succeeded else "FAILED"
        if self.phase != "PROCESSING":
            return SAME if self.phase == wanted else "already_settled"
        self.phase, self.ended_at, self.lease_until, self.status = wanted, now, None, command.status
        self.indeterminate, self.owner = command.indeterminate, None
        return GO

    def _renew(self, now: int) -> str:
        if self.phase != "PROCESSING":
            return "already_settled"
        self.lease_until = now + self.policy.lease_ms
        return GO

    def attend(self, command: Tick, now: int) -> str:
        """Do one due step a visit; take over a dead owner's intent at once."""
        left_behind = self.phase == "PROCESSING" and self.owner == command.dead_owner
        if not left_behind and (self.due_at is None or now < self.due_at):
            return NOTHING
        lives = self.phase == "PROCESSING" and not left_behind and self.owner == command.live_owner
        if lives and self.owner != command.owner and now < (self.lease_until or 0) + self.policy.lease_ms:
            return NOTHING  # Its owner goes first.
        if self.unconfirmed:
            self.grow_old(now)
        elif self.phase == "PROCESSING":
            self.lease_until = now + self.policy.lease_ms
            if left_behind or self.owner != command.live_owner:  # An owner that is known to live is not taken over.
                self.fence, self.owner = self.fence + 1, command.owner
        elif self.payload_kept:
            self.payload_kept, self.purged_at = False, now
        else:
            self.phase = "ABSENT"
        return GO


EDGES = {
    ("ABSENT", "WAITING_CONFIRM"),
    ("WAITING_CONFIRM", "PROCESSING"),
    ("WAITING_CONFIRM", "TTL_EXPIRED"),
    ("TTL_EXPIRED", "ABANDONED"),
    ("TTL_EXPIRED", "PROCESSING"),
    ("PROCESSING", "COMMITTED"),
    ("PROCESSING", "FAILED"),
    ("PROCESSING", "PROCESSING"),
    ("COMMITTED", "COMMITTED"),
    ("FAILED", "FAILED"),
    ("COMMITTED", "ABSENT"),
    ("FAILED", "ABSENT"),
    ("ABANDONED", "ABSENT"),
}


@dataclass
class World:
    """Several intents, one clock, and the model beside the machine."""

    now: int = 1_000
    steps: int = 0
    intents: dict[str, Intent] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)

    def do(self, name: str, command: Command, policy: Policy) -> str:
        """Give ``command`` for the intent ``name`` to both, compare, and return the word."""
        self.steps += 1
        before, call = self.intents.get(name), self.calls.get(name)
        policy = call.policy if call is not None else policy
        decision = decide(before, command, self.now, policy)
        word = self._ask_model(name, command, policy)
        assert word_of(decision) == word, (command, before, call)
        self._check(name, before, decision)
        return word

    def _ask_model(self, name: str, command: Command, policy: Policy) -> str:
        call = self.calls.get(name)
        now = max(self.now, command.arrived_at) if isinstance(command, Register | Confirm) else self.now
        if isinstance(command, Register):
            word = call.again(command, now) if call else FOLLOWS
            return self._register(name, command, policy, now) if word == FOLLOWS else word
        if isinstance(command, Confirm):
            known = call is not None and (name, call.path) == (command.client_correlation_id, command.path)
            return call.confirm(command, now) if call and known else UNKNOWN
        if isinstance(command, Tick):
            return call.attend(command, now) if call else NOTHING
        return call.work(command, now) if call else UNKNOWN

    def _register(self, name: str, command: Register, policy: Policy, now: int) -> str:
        wish, ttl = command.requested_ttl_ms, policy.ttl_ms
        by_server = command.mode in {Mode.AUTO_CONFIRM, Mode.TRANSPARENT}
        if wish is not None and wish > 0 and not by_server:
            ttl = min(wish, policy.max_ttl_ms) if wish > ttl or policy.allow_shorter_ttl else ttl
        told = (command.replay_key, command.mode.value, command.callback, command.principal, command.path)
        call = self.calls[name] = Call(*told, command.arrived_at, ttl, policy)
        call.server_id = command.server_correlation_id
        if by_server:
            call.run(now, command.owner, confirmed_at=None)
        return GO

    def _check(self, name: str, before: Intent | None, decision: IntentDecision) -> None:
        call, found = self.calls.get(name), decision.intent
        if call is None or found is None:
            assert not decision.changed
            return
        check_like(found, call)
        check_steps(before, decision)
        assert call.runs <= 1, "the handler was entered twice"
        if call.phase == "ABSENT":
            del self.intents[name], self.calls[name]
        else:
            self.intents[name] = found


def word_of(decision: IntentDecision) -> str:
    verdict = decision.verdict
    if isinstance(verdict, Refuse):
        return verdict.code
    return {Goto: GO, Replay: SAME, Ignore: NOTHING}[type(verdict)]


def check_like(found: Intent, call: Call) -> None:
    """Everything of an intent that can be seen is as the model says."""
    assert found.phase.value == call.phase
    assert (found.deadline_at, found.abandoned_at) == (call.deadline, call.end_of_grace)
    assert (found.confirmed_at, found.fence) == (call.confirmed_at, call.fence)
    if call.phase == "ABSENT":
        return
    assert (found.has_payload, found.due_at) == (call.payload_kept, call.due_at)
    assert found.settled_at == call.ended_at
    assert (found.lease_until, found.owner) == (call.lease_until, call.owner)
    assert found.indeterminate is call.indeterminate


def check_steps(before: Intent | None, decision: IntentDecision) -> None:
    """One change is one version, its steps form an unbroken chain of legal edges, and no change leaves no trace."""
    found = decision.intent
    assert found is not None
    if not decision.changed:
        assert (found, decision.steps) == (before, ())
        return
    is_new = before is None or before.server_correlation_id != found.server_correlation_id
    assert found.version == (0 if is_new or before is None else before.version) + 1
    trail = [(step.before, step.after) for step in decision.steps]
    assert all(edge in EDGES for edge in trail)
    assert all(one[1] == two[0] for one, two in pairwise(trail))
    assert all(step.at <= step.observed_at for step in decision.steps)
    start = "ABSENT" if before is None else before.phase.value
    if trail:
        assert (trail[0][0], trail[-1][1]) == (start, found.phase.value)
    else:
        assert start == found.phase.value == "PROCESSING"  # A heartbeat: the one change without a step.
