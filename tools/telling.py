"""A service that answers made-up facts about any call, for pictures: its journal, attempts, obligations and leases."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from twophp.core.records import Instant
from twophp.ports import Clock
from twophp.wire.instant import format_instant

PATH: Final = "/_2php/ledger"
CHARGE: Final = "8d0b7e61-2f0a-4f4e-8a57-1d7a0c9be3f4"
QUOTA: Final = "c41e2f90-6b1d-4d0e-9b1c-53c0b3a4d215"
OWNER: Final = "4c1f9d1e-55a0-4b0c-9d1b-7a4d3f1e2b6a"
# After how many milliseconds, what about, the event, from, to, the fence, an error.
LINES: Final = (
    (0, "intent", "{0}", "WAITING_CONFIRM", "ABSENT", "WAITING_CONFIRM", 0, ""),
    (12, "intent", "{0}", "PROCESSING", "WAITING_CONFIRM", "PROCESSING", 1, ""),
    (31, "obligation", CHARGE, "OBL-001", "Absent", "Reserved", 0, "publish"),
    (58, "obligation", QUOTA, "OBL-001", "Absent", "Reserved", 0, "fencing"),
    (402, "intent", "{0}", "COMMITTED", "PROCESSING", "COMMITTED", 1, ""),
    (402, "obligation", CHARGE, "OBL-002", "Reserved", "Committed", 0, "publish"),
    (402, "obligation", QUOTA, "OBL-003", "Reserved", "RolledBack", 0, "fencing"),
    (402, "job", "{0}/tell-warehouse/COMMITTED", "PENDING", "ABSENT", "PENDING", 0, ""),
    (420, "job", "{0}/tell-warehouse/COMMITTED", "RUNNING", "PENDING", "RUNNING", 1, ""),
    (1_940, "job", "{0}/tell-warehouse/COMMITTED", "attempt_failed", "RUNNING", "PENDING", 1, "timeout"),
    (6_310, "job", "{0}/tell-warehouse/COMMITTED", "RUNNING", "PENDING", "RUNNING", 2, "timeout"),
    (6_395, "job", "{0}/tell-warehouse/COMMITTED", "DELIVERED", "RUNNING", "DELIVERED", 2, ""),
)


def telling(clock: Clock, began: Instant) -> FastAPI:
    """The service. Every call that it is asked about began then."""
    app = FastAPI()

    async def ledger(request: Request) -> Response:
        asked = await request.json()
        answer: dict[str, Any] = {"name": "orders", "rows": [], "drained": False}
        if "about" in asked:
            answer["evidence"] = _evidence(asked["about"][1], began, clock())
        answer["leases"] = [_lease(pair, clock()) for pair in asked.get("leases", ())]
        return JSONResponse(answer)

    app.router.add_route(PATH, ledger, methods=["POST"])
    return app


def _evidence(server_id: str, began: Instant, now: Instant) -> dict[str, Any]:
    def at(after_ms: int) -> str:
        return format_instant(began + after_ms)

    intent: dict[str, Any] = {
        "phase": "COMMITTED",
        "version": 3,
        "mode": "standard",
        "received_at": at(0),
        "deadline_at": at(30_000),
    }
    intent |= {"confirmed_at": at(12), "settled_at": at(402), "status": 201, "owner": None, "lease_until": None}
    job: dict[str, Any] = {"job_id": f"{server_id}/tell-warehouse/COMMITTED", "work": "hook", "name": "tell-warehouse"}
    job |= {"state": "DELIVERED", "attempts": 2, "created_at": at(402), "due_at": None, "last_error": ""}
    return {
        "at": format_instant(now),
        "intent": intent | {"fence": 1, "has_payload": True},
        "call": None,
        "journal": [_line(number, line, server_id, at(line[0])) for number, line in enumerate(LINES, 48_213)],
        "jobs": [job],
        "obligations": [
            _obligation(CHARGE, "publish", "Committed", at(31), at(30_031), at(402)),
            _obligation(QUOTA, "fencing", "RolledBack", at(58), at(30_058), at(402)),
        ],
    }


def _line(number: int, line: tuple[Any, ...], server_id: str, at: str) -> dict[str, Any]:
    _after_ms, kind, subject, event, before, after, fence, detail = line
    facts = {"seq": number, "kind": kind, "subject": subject.format(server_id), "event": event, "before": before}
    facts |= {"after": after, "at": at, "observed_at": at, "fence": fence, "detail": detail}
    return facts | {"digest": sha256(f"{number}{server_id}".encode()).hexdigest()}


def _obligation(id_: str, flow: str, state: str, reserved_at: str, overdue_at: str, settled_at: str) -> dict[str, Any]:
    facts = {"obligation_id": id_, "flow": flow, "state": state, "resolution": "caller", "reserved_at": reserved_at}
    return facts | {"overdue_at": overdue_at, "settled_at": settled_at}


def _lease(pair: tuple[str, str], now: Instant) -> dict[str, Any]:
    ends_at = now + (21_400 if pair[0][0] in "01234" else -94_000)
    facts: dict[str, Any] = {"client_correlation_id": pair[0], "server_correlation_id": pair[1], "phase": "PROCESSING"}
    facts |= {"owner": OWNER, "lease_until": format_instant(ends_at), "fence": 1, "at": format_instant(now)}
    return facts
