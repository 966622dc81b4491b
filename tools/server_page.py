"""docs/reference/server.md: prose from server_page.md beside this file, tables from the code and the last bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from bench.bars import HEAD, rows
from tools.diagrams import markdown
from twophp.asgi.settings import Settings
from twophp.core.policy import Policy
from twophp.engine.environment import SERVER, flag, names, number, whole
from twophp.wire.problem import PROBLEMS

PROSE = Path(__file__).with_name("server_page.md")
LATEST = Path(__file__).parents[1] / "bench" / "latest.json"

POLICY = {
    "ttl_ms": "how long an intent may be confirmed",
    "delta_ms": "the server's own grace after that; no client learns of it",
    "max_ttl_ms": "the most that `DTT-2PHP-Requested-TTL` can ask for; 0 stands for four times the TTL",
    "mode": "`sync`, or `async`: the confirm does not wait for the handler",
    "replay": "`REJECT`, or `REUSE`: a confirm within the grace is let in, if the guard agrees",
    "on_crash": "what becomes of an intent whose handler died with its process: `fail` or `rerun`",
    "effects": "where the handler acts: `anywhere`, or in the intent's `transaction` and `obligations` alone",
    "transparent": "plain requests are recorded too; their answers stay as they are",
    "require": "a plain mutation is refused with 428 and does not run; not together with `transparent`",
    "idempotency_key": "`accept` or `require` that field ([how](../how-to/idempotency-key.md)), or ignore it",
    "allow_shorter_ttl": "a client may ask for less than the TTL",
    "literal_ttl_reject": "also what is settled is refused after its TTL, as draft §8.2 reads literally",
    "processing_timeout_ms": "how long a second confirm waits for the first; the timeout of what a handler reserves",
    "lease_ms": "how long a handler is taken for alive where no lock shows that its process lives; it is renewed",
    "payload_retention_ms": "how long a settled intent's request is kept",
    "horizon_ms": "how long a settled intent answers repeats",
}
SETTINGS = {
    "allow_insecure": "take two-phase requests without TLS: for tests and loopback",
    "confirm_suffix": "what a confirm's path ends with",
    "strict_uuid": "refuse client ids that are no UUID",
    "methods": "what can be registered",
    "prevalidate": "looks at a request before it is registered",
    "late_confirm_guard": "extra proof for a late confirm",
    "reconcile": "asks how a crashed execution ended",
    "resource_id": "finds the resource's id in an answer, in place of its JSON `id`",
    "success_status": "`200`, or `passthrough`: the handler's own status below 400",
    "expose_replay_policy": "tell clients `DTT-2PHP-Replay-Policy`",
    "expose_server_id": "add the server id to answers of opted-in requests in transparent mode (draft §5.5.6)",
    "max_body_bytes": "the largest request",
    "body_timeout_s": "how long a body may take to arrive",
    "max_result_bytes": "the largest answer that is stored",
    "replay_wait_ms": "how long a second confirm waits for the first; by default `processing_timeout_ms`",
    "sweep_interval_s": "how often expired, abandoned and crashed intents are looked for",
    "drain_timeout_s": "how long a shutdown waits for handlers",
    "tune_collector": "quiet Python's garbage collector while the service runs ([below](#the-garbage-collector))",
    "quota": "what one principal may have open",
    "outgoing": "hooks, secrets, and the rules of what may leave",
    "obligations": "what obligations bound to an intent do ([obligations](obligations.md))",
    "ledger_retention_ms": "how long a row is kept here after the central ledger has it ([the store](store.md))",
    "central": "where the central ledger is; also `TWOPHP_CENTRAL`",
    "central_token": "the service's token there; also `TWOPHP_CENTRAL_TOKEN`",
    "central_interval_s": "how often rows are sent",
    "central_events": "send each row as soon as it is written; also `TWOPHP_CENTRAL_EVENTS=1`",
    "management_token": "lets the central ledger pull; also `TWOPHP_MANAGEMENT_TOKEN`",
    "pull_url": "where it can; also `TWOPHP_PULL_URL`",
}
READ = {str: "", whole: "a whole number", number: "a number", flag: "`1` or `0`", names: "separated by commas"}
# Not a keyword of their own, or described in the prose.
ELSEWHERE = {"service", "identify", "endpoints", "proxies", "stored_headers"}


def server_page() -> str:
    """The whole page. A setting without a description, or the other way round, is an error."""
    policy = msgspec.structs.asdict(Policy.standard())
    parts = {
        "policy": markdown(("Setting", "Standard", ""), _described(POLICY, policy)),
        "problems": markdown(
            ("Status", "Code", "Title"),
            ((str(kind.status), f"`{code}`", kind.title) for code, kind in PROBLEMS.items()),
        ),
        "variables": markdown(
            ("Variable", "Setting", ""),
            ((f"`{name}`", f"`{one.setting}=`", READ[one.read]) for name, one in SERVER.items()),
        ),
        "bars": markdown(HEAD, rows(json.loads(LATEST.read_text(encoding="utf-8")))),
        "settings": markdown(("Setting", "Default", ""), _described(SETTINGS, _defaults(Settings))),
    }
    text = PROSE.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->\n", part)
    return text


def _defaults(kind: type[msgspec.Struct]) -> dict[str, Any]:
    fields = msgspec.structs.fields(kind)
    return {field.name: field.default for field in fields if field.name not in ELSEWHERE}


def _described(says: dict[str, str], values: dict[str, Any]) -> list[tuple[str, str, str]]:
    assert says.keys() == values.keys(), says.keys() ^ values.keys()
    return [(f"`{name}`", _shown(values[name]), text) for name, text in says.items()]


def _shown(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case frozenset():
            return " ".join(sorted(value))
        case int():
            return f"{value:,}"
        case str() | float():
            return f"{value}"
    return ""  # A whole object; its own page tells.
