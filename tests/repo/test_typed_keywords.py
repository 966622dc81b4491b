"""A type checker sees every setting: one that is misspelt or of the wrong type is an error before anything runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from tools import docs
from twophp.asgi import settings as server
from twophp.client import settings as client
from twophp.core.policy import Policy, PolicyChanges

PREAMBLE = """\
from typing import Any

from starlette.applications import Starlette

from twophp import Policy, Quota, RunningIntent, Transaction, anonymous, current_intent
from twophp.asgi import (
    BoundObligations, EgressRules, Intent, Outgoing, PhaseEvent, ReconcileResult, Tries, TwoPhaseMiddleware, on_phase
)
from twophp.client import AsyncTwoPhaseTransport, CallbackReceiver, TwoPhaseTransport, calling
from twophp.client.requests import TwoPhaseAdapter
from twophp.obligations import AsyncObligationTracker, ObligationTracker
from twophp.registrar import AsyncRegistrar, Registrar

async def app(scope: Any, receive: Any, send: Any) -> None: ...

async def reconcile(intent: Intent) -> ReconcileResult:
    return "COMMITTED", intent.server_correlation_id

def tell(event: PhaseEvent) -> None: ...

def note(tx: Transaction) -> None:
    tx.execute("INSERT INTO note VALUES (?)", ("x",))

async def handler(intent: RunningIntent) -> None:
    bound: BoundObligations = intent.obligations
    async with intent.transaction() as tx:
        note(tx)

star = Starlette()
"""
RIGHT = [
    "TwoPhaseMiddleware(app, identify=anonymous, policies={}, reconcile=reconcile)",
    'on_phase("FAILED")(tell)',
    "current: RunningIntent | None = current_intent()",
    'Policy(ttl_ms=5_000, replay="REUSE")',
    'Policy.low_latency(ttl_ms=5_000, mode="async")',
    'Policy.standard(replay="REUSE", require=True)',
    'Policy.long_running(on_crash="rerun", horizon_ms=10**9)',
    "TwoPhaseMiddleware(app, identify=anonymous, policies={}, max_body_bytes=1)",
    "star.add_middleware(TwoPhaseMiddleware, identify=anonymous, policies={}, max_body_bytes=1)",
    'TwoPhaseTransport(ledger="memory:", source="checkout", patience_s=1.5)',
]
WRONG = [
    ('Policy(ttl="x")', "call-arg"),
    ('Policy(ttl_ms="x")', "arg-type"),
    ('Policy.low_latency(ttl="x")', "call-arg"),
    ('Policy.low_latency(ttl_ms="x")', "arg-type"),
    ('Policy.standard(ttl="x")', "call-arg"),
    ('Policy.standard(ttl_ms="x")', "arg-type"),
    ('Policy.standard(mode="asynch")', "arg-type"),
    ('Policy.long_running(ttl="x")', "call-arg"),
    ("Policy.long_running(replay=None)", "arg-type"),
    ("Quota(open_intent=1)", "call-arg"),
    ('Tries(attempts="5")', "arg-type"),
    ("Outgoing(hook=None)", "call-arg"),
    ("EgressRules(host=None)", "call-arg"),
    ("TwoPhaseMiddleware(app, identify=anonymous, policies={}, reconsile=None)", "call-arg"),
    ('TwoPhaseMiddleware(app, identify=anonymous, policies={}, max_body_bytes="1")', "arg-type"),
    ("star.add_middleware(TwoPhaseMiddleware, identify=anonymous, policies={}, reconsile=None)", "call-arg"),
    ('star.add_middleware(TwoPhaseMiddleware, identify=anonymous, policies={}, max_body_bytes="1")', "arg-type"),
    ("TwoPhaseTransport(patience=1)", "call-arg"),
    ('TwoPhaseTransport(patience_s="1")', "arg-type"),
    ("AsyncTwoPhaseTransport(patience=1)", "call-arg"),
    ('AsyncTwoPhaseTransport(patience_s="1")', "arg-type"),
    ("TwoPhaseAdapter(patience=1)", "call-arg"),
    ("CallbackReceiver(patience=1)", "call-arg"),
    ('calling(paren="x")', "call-arg"),
    ('ObligationTracker("memory:", effect=None)', "call-arg"),
    ('AsyncObligationTracker("memory:", effect=None)', "call-arg"),
    ('Registrar("memory:", verifer=None)', "call-arg"),
    ('AsyncRegistrar("memory:", verifer=None)', "call-arg"),
]
ERROR = re.compile(r"^\S+?:(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)


def test_a_type_checker_refuses_what_nobody_knows(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    lines = [*PREAMBLE.splitlines(), *RIGHT, *(line for line, _code in WRONG)]
    snippet.write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run(  # noqa: S603 - our own snippet
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), snippet.name],
        cwd=tmp_path,  # Where no configuration of ours is found: as a user would run it.
        env=os.environ | {"MYPYPATH": str(docs.ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [(lines[int(number) - 1], code) for number, code in ERROR.findall(done.stdout)]
    assert found == WRONG, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("keywords", "value", "said_elsewhere"),
    [
        (PolicyChanges, Policy, {"bad_code"}),  # It is no setting but the class's own.
        (
            server.Options,
            server.Settings,
            {"service", "identify", "endpoints", "proxies", "stored_headers", "methods"},
        ),
        (client.Options, client.Settings, {"ledger", "source"}),
    ],
    ids=["policy", "server", "client"],
)
def test_the_keywords_are_the_settings_with_their_types(keywords: type, value: type, said_elsewhere: set[str]) -> None:
    settings: dict[str, Any] = get_type_hints(value)
    assert get_type_hints(keywords) == {name: kind for name, kind in settings.items() if name not in said_elsewhere}
