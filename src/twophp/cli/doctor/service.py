"""What a service said when it added the middleware: who is believed, how long things take, what is never reached."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Sequence
from itertools import chain, product, repeat
from typing import Any, Final, TypeAlias

from twophp.asgi.settings import GUARD, Settings, unguarded
from twophp.cli.doctor.findings import Finding, fail, ok, warn
from twophp.cli.rows import lasted
from twophp.core.policy import HOUR_MS, SECOND_MS, Policy
from twophp.engine.endpoints import Endpoint, Endpoints
from twophp.identity.identify import anonymous

SHORT_TTL_MS: Final = SECOND_MS
LONG_TTL_MS: Final = HOUR_MS
SHORT_LEASE_MS: Final = 3 * SECOND_MS
LONG_LEASE_MS: Final = 600 * SECOND_MS
MOST_HOLES: Final = 4
NARROW_BITS: Final = {4: 16, 6: 48}
"""A network with a shorter prefix holds more machines than a service has proxies."""

# What a request could look like, for keys and routes that leave something open.
_FILLS: Final = ("zqx-nobody-calls-it-so", "1", "00000000-0000-4000-8000-000000000000")
_DEEP: Final = "/".join([_FILLS[0]] * 8)  # Deeper than any template.
_HOLE: Final = re.compile(r"\{[^}]*\}")

Samples: TypeAlias = Sequence[tuple[str, str]]
"""Methods and paths."""


def check_service(settings: Settings, routes: Sequence[Any]) -> Iterator[Finding]:
    """All findings about the settings and the application's routes."""
    yield from _check_identity(settings)
    yield from _check_tls(settings)
    late = dict(unguarded(settings))
    for endpoint in settings.endpoints:
        yield from _check_policy(endpoint, late.get(endpoint.name))
    yield from _check_matches(settings.endpoints, settings.methods, routes)


def _check_identity(settings: Settings) -> Iterator[Finding]:
    if settings.identify is anonymous:
        means = "every caller is anonymous: one that learns the two ids of an intent can confirm and read it"
        yield warn("identity", means, "say who asks: bearer_jwt, mutual_tls, scope_user or a callable of your own")
    else:
        yield ok("identity", "callers are identified")


def _check_tls(settings: Settings) -> Iterator[Finding]:
    if settings.allow_insecure:
        means = "allow_insecure: two-phase requests are taken without TLS, payloads and ids in clear"
        yield warn("tls.insecure", means, "leave allow_insecure to tests and loopback")
    else:
        yield ok("tls.insecure", "two-phase requests without TLS are refused")
    yield from _check_proxies(settings)
    yield from _check_outgoing(settings)


def _check_proxies(settings: Settings) -> Iterator[Finding]:
    wide = [network for network in settings.proxies.networks if network.prefixlen < NARROW_BITS[network.version]]
    if wide:
        means = f"all of {', '.join(map(str, wide))} is trusted: any machine there can say that it came by TLS"
        yield warn("tls.proxies", means, "name the addresses of your proxies, and no others, in trusted_proxies")
    elif settings.proxies.networks:
        yield ok("tls.proxies", f"trusted: {', '.join(map(str, settings.proxies.networks))}")
    else:
        yield ok("tls.proxies", "no proxy is trusted to say how a request came")


def _check_outgoing(settings: Settings) -> Iterator[Finding]:
    context, rules = settings.outgoing.ssl_context, settings.outgoing.rules
    if context is not None and (context.verify_mode is not ssl.CERT_REQUIRED or not context.check_hostname):
        means = "callbacks and hooks are sent without checking the receiver's certificate"
        yield fail("tls.outgoing", means, "leave ssl_context out, or let it require a certificate and check the name")
    elif rules.allow_insecure_loopback:
        means = "allow_insecure_loopback: a client's callback URL may reach services on this machine"
        yield warn("tls.outgoing", means, "leave it to tests and demos")
    else:
        yield ok("tls.outgoing", "callbacks and hooks go to checked receivers only")


def _check_policy(endpoint: Endpoint, late: str | None) -> Iterator[Finding]:
    check, policy = f"policy {endpoint.name}", endpoint.policy
    found = [*_check_times(check, policy), *_check_repeats(check, policy, late)]
    yield from found
    if not found:
        times = f"TTL {lasted(policy.ttl_ms)}, grace {lasted(policy.delta_ms)}, lease {lasted(policy.lease_ms)}"
        yield ok(check, f"{times}, {policy.mode}")


def _check_times(check: str, policy: Policy) -> Iterator[Finding]:
    ttl, lease = lasted(policy.ttl_ms), lasted(policy.lease_ms)
    if policy.ttl_ms < SHORT_TTL_MS:
        yield warn(check, f"a client has {ttl} to confirm: one slow round trip is too late", "lengthen ttl_ms")
    if policy.ttl_ms > LONG_TTL_MS:
        yield warn(check, f"an intent without a confirm is kept for {ttl}, with its payload", "shorten ttl_ms")
    if policy.delta_ms == 0:
        yield warn(check, "no grace: a confirm that arrives as the TTL ends finds its payload gone", "set delta_ms")
    if policy.delta_ms > policy.ttl_ms:
        means = f"the grace of {lasted(policy.delta_ms)} is longer than the TTL: no client learns of it"
        yield warn(check, means, "lengthen ttl_ms instead, which clients receive")
    if policy.lease_ms < SHORT_LEASE_MS:
        means = f"where no lock tells that it lives, a process that pauses for {lease} is taken for dead"
        yield warn(check, means, "lengthen lease_ms")
    if policy.lease_ms > LONG_LEASE_MS:
        means = f"where no lock tells that its process died, a call stays PROCESSING for {lease}"
        yield warn(check, means, "shorten lease_ms; it is renewed while a handler runs")


def _check_repeats(check: str, policy: Policy, late: str | None) -> Iterator[Finding]:
    """``late`` is what the server says of its late confirms when it starts, if it says anything."""
    if late is not None:
        yield warn(check, late, GUARD)
    if policy.on_crash == "rerun" and policy.effects != "transaction":
        means = "on_crash=rerun: after a crash the handler runs again, also if it had already acted"
        yield warn(
            check,
            means,
            'keep it only where the handler may run twice, or say effects="transaction" where all are in it',
        )


def _check_matches(endpoints: Endpoints, methods: frozenset[str], routes: Sequence[Any]) -> Iterator[Finding]:
    samples = {endpoint: list(_samples(endpoint, methods)) for endpoint in endpoints}
    unreached = [endpoint for endpoint in endpoints if not _is_reached(endpoints, endpoint, samples[endpoint])]
    for endpoint in unreached:
        means = "no request ever falls under it: other keys take them all"
        yield warn(f"policy {endpoint.name}", means, "remove it, or correct its method and path")
    for endpoint in endpoints:
        if endpoint not in unreached and routes and not _has_route(routes, endpoint, samples[endpoint]):
            means = "the application has no route for it: two-phase requests would be registered and then fail"
            yield warn(f"policy {endpoint.name}", means, "correct its method and path, or add the route")


def _is_reached(endpoints: Endpoints, endpoint: Endpoint, samples: Samples) -> bool:
    return any(endpoints.match(method, path) is endpoint for method, path in samples)


def _has_route(routes: Sequence[Any], endpoint: Endpoint, samples: Samples) -> bool:
    """Asked only of keys that name one path. A route that cannot say is given the benefit of the doubt."""
    if endpoint.name.endswith("*"):
        return True
    try:
        return any(_matches(route, method, path) for method, path in samples for route in routes)
    except Exception:  # noqa: BLE001 - a framework's own code
        return True


def _matches(route: Any, method: str, path: str) -> bool:
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": [], "query_string": b""}
    match, _child_scope = route.matches(scope)
    return bool(match.name == "FULL")


def _samples(endpoint: Endpoint, methods: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Requests that the key is about: each method it may mean, each way to fill what it leaves open."""
    method, _space, pattern = endpoint.name.rpartition(" ")
    if method:
        methods &= {method}
    path = f"/{_DEEP}" if pattern == "*" else f"{pattern[:-1]}{_DEEP}" if pattern.endswith("/*") else pattern
    holes = min(len(_HOLE.findall(path)), MOST_HOLES)
    for fills, name in product(product(_FILLS, repeat=holes), sorted(methods)):
        yield name, _filled(path, fills)


def _filled(path: str, fills: Sequence[str]) -> str:
    """The path with its holes filled, one after the other; what is left over is filled with anything."""
    ahead = chain(fills, repeat(_FILLS[0]))
    return _HOLE.sub(lambda _hole: next(ahead), path)
