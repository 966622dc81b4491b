"""Short ways to say what the registrar's tests say often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.registrar.places import place_at
from twophp.registrar import Decision, Registrar, Registration, RegistrationRequest

T0 = 1_700_000_000_000
MINUTE = 60_000
YEAR = 365 * 24 * 60 * MINUTE
OWNER = "owner-1/approval-7"

KEPT = (
    "registrar_nonce",
    "registrar_consumed",
    "registrar_registration",
    "registrar_nonce_use",
    "registrar_verification",
    "registrar_compensation",
    "registrar_audit",
)
TABLES = (*KEPT, "registrar_gate", "registrar_fence", "journal", "meta")


class HandClock:
    """A clock that moves when a test says so."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> int:
        return self.now


class Scene:
    """A registrar with its gate open, and short ways to use it."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.path = url.removeprefix("sqlite:///")
        self.place = place_at(url)
        self.clock = HandClock()
        self.registrar = Registrar(url, clock=self.clock, **options)

    def nonce(self, owner: str = OWNER, secs: float = 60, **options: Any) -> str:
        return self.registrar.issue_nonce(owner, valid_for_secs=secs, **options)

    def asks(self, **fields: Any) -> RegistrationRequest:
        """A request with a fresh nonce, unless one is given."""
        known: dict[str, Any] = {
            "protocol_version": "RS/1",
            "logical_request_key": "lrk-1",
            "canonical_operation": "register",
            "canonical_target": "dot/artifact-1",
            "deployed_artifact_hash": "sha256:aa",
            "owner_or_approval_binding": OWNER,
            "run_id": "run-1",
            "attempt_id": "a-1",
        }
        if "authorization_nonce" not in fields:
            known["authorization_nonce"] = self.nonce()
        return RegistrationRequest(**(known | fields))

    def registered(self, **fields: Any) -> tuple[RegistrationRequest, Registration]:
        request = self.asks(**fields)
        decision = self.registrar.register(request)
        assert (decision.code, decision.admitted) == ("registered", True)
        assert decision.result is not None
        return request, decision.result

    def effects(self, key: str = "lrk-1") -> int:
        """How many inert rows there are for a key, by the only reader that counts."""
        if self.place is None:
            return 0 if self.registrar.find(key) is None else 1
        return int(self.query("SELECT count(*) FROM registrar_registration WHERE logical_request_key = ?", key))

    def query(self, sql: str, *bindings: Any) -> Any:
        assert self.place is not None
        return self.place.query(sql, *bindings)

    def rows(self) -> dict[str, int]:
        return {table: self.query(f"SELECT count(*) FROM {table}") for table in TABLES}  # noqa: S608 - our names

    def tampering(self, *statements: str) -> None:
        assert self.place is not None
        self.place.tamper(*statements)

    def elsewhere(self) -> str:
        """Where another registrar may live, of the same kind."""
        return {"memory": self.url, "sqlite": f"{self.url}.2"}.get(self.url.partition(":")[0], f"{self.url}_2")

    def close(self) -> None:
        self.registrar.close()


def short(decision: Decision) -> tuple[str, bool]:
    return decision.code, decision.admitted


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'effects.db'}"
