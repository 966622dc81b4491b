"""Obligations: a tentative effect is reserved, then committed or rolled back, and never forgotten in between."""

from twophp.core.budget import BudgetExhausted
from twophp.core.fence import StaleToken
from twophp.core.obligation import ERRORS, EVENTS, FLOWS, Decision, Obligation, ObligationError, State, UnknownFlow
from twophp.engine.obligations.audit import AuditLine, LeakReport, as_json_line, check_chain
from twophp.engine.obligations.effects import Effect
from twophp.engine.obligations.fencing import Token
from twophp.engine.obligations.flow import Scanned
from twophp.obligations.asynchronous import AsyncGuard, AsyncObligationTracker
from twophp.obligations.tracker import Guard, ObligationTracker
from twophp.ports import Statement

__all__ = [
    "ERRORS",
    "EVENTS",
    "FLOWS",
    "AsyncGuard",
    "AsyncObligationTracker",
    "AuditLine",
    "BudgetExhausted",
    "Decision",
    "Effect",
    "Guard",
    "LeakReport",
    "Obligation",
    "ObligationError",
    "ObligationTracker",
    "Scanned",
    "StaleToken",
    "State",
    "Statement",
    "Token",
    "UnknownFlow",
    "as_json_line",
    "check_chain",
]
