"""The key ring: whether it is there, private, young enough, and opens everything that is sealed; and certificates."""

from __future__ import annotations

import stat
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from twophp.cli.doctor.findings import Finding, fail, failed_with, ok, warn
from twophp.cli.output import counted
from twophp.core.errors import ConfigError, TwoPHPError
from twophp.core.policy import DAY_MS
from twophp.core.records import Instant
from twophp.stores.keys import Keys, StoredRing
from twophp.stores.ring_file import KeysFile, RingFile
from twophp.stores.sqlite.reading import UNREADABLE, holds_seals, rows_by_key
from twophp.stores.urls import StoreUrl, ring_source
from twophp.stores.vault import KeyRing

SOON: Final = timedelta(days=30)
SMALL_RSA_BITS: Final = 2048
OLD_MS: Final = 365 * DAY_MS
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
RESTORE: Final = "put the ring back from its backup; without it no payload and no stored response opens"


def check_keys(path: str, keys: Keys | None, now: Instant) -> Iterator[Finding]:
    """Everything about the keys of the database at ``path``."""
    try:
        source = ring_source(StoreUrl("sqlite", path), keys)
    except ConfigError as error:
        yield failed_with("keys.ring", error, "correct the setting")
        return
    ring: KeyRing | None
    if isinstance(source, RingFile):
        stored = yield from _check_ring_file(source, path)
        if stored is not None:
            yield from _check_age(stored, path, now)
        ring = None if stored is None else stored.ring()
    elif isinstance(source, KeysFile):
        ring = yield from _check_keys_file(source)
    else:
        ring = source
        yield ok("keys.ring", f"{counted(len(ring.keys), 'key')} from the settings, {ring.active} seals")
    if ring is not None and Path(path).is_file():
        yield from _check_seals(path, ring)


def _check_ring_file(source: RingFile, path: str) -> Generator[Finding, None, StoredRing | None]:
    """Returns what it holds, if it can be read."""
    if not source.exists():
        yield _missing(source, path)
        return None
    try:
        stored = source.load()
    except ConfigError as error:
        remedy = f"chmod 600 {source.path}" if error.code == "ring_readable" else RESTORE
        yield failed_with("keys.ring", error, remedy)
        return None
    yield ok(
        "keys.ring", f"{source.path} is for its owner alone; {counted(len(stored.keys), 'key')}, {stored.active} seals"
    )
    return stored


def _missing(source: RingFile, path: str) -> Finding:
    try:
        needed = holds_seals(path)
    except TwoPHPError as error:
        return failed_with("keys.ring", error, "make it readable for whoever runs this, or name the service's own")
    if needed:
        return fail("keys.ring", f"{source.path} is missing, and the database holds sealed payloads", RESTORE)
    return ok("keys.ring", f"{source.path} is not there yet; the service makes it on its first start")


def _check_keys_file(source: KeysFile) -> Generator[Finding, None, KeyRing | None]:
    try:
        ring = source.ring()
        mode = stat.S_IMODE(source.path.stat().st_mode)
    except ConfigError as error:
        yield failed_with("keys.ring", error, "correct the file, or the setting that names it")
        return None
    if mode & OTHERS:
        means = f"{source.path} has mode {mode:04o}: others than its owner can read the keys"
        yield warn("keys.ring", means, f"chmod 600 {source.path}, or mount it so")
    else:
        yield ok("keys.ring", f"{source.path} is for its owner alone; {ring.active} seals")
    return ring


def _check_age(stored: StoredRing, path: str, now: Instant) -> Iterator[Finding]:
    if stored.rotating:
        yield warn("keys.age", "a rotation was cut short: some parts are sealed with an older key", _rotate(path))
        return
    active = next((key for key in stored.keys if key.name == stored.active), None)
    days = 0 if active is None else max(now - active.created_at, 0) // DAY_MS
    if days * DAY_MS >= OLD_MS:
        yield warn("keys.age", f"the active key is {counted(days, 'day')} old", _rotate(path))
    else:
        yield ok("keys.age", f"the active key is {counted(days, 'day')} old")


def _rotate(path: str) -> str:
    return f"twophp keys rotate {path}"


def _check_seals(path: str, ring: KeyRing) -> Iterator[Finding]:
    try:
        rows = rows_by_key(path)
    except TwoPHPError:
        return  # The store's own checks say why.
    strange = sorted(rows.keys() - set(ring.keys))
    lost = sum(rows[name] for name in strange)
    if not strange:
        yield ok("keys.seals", f"the ring has the keys of all {counted(sum(rows.values()), 'sealed part')}")
        return
    names = ", ".join("(not sealed bytes)" if name == UNREADABLE else name for name in strange)
    means = f"{counted(lost, 'sealed part')} cannot be opened: no key {names} in the ring"
    yield fail("keys.seals", means, f"put the missing keys back, then: twophp keys list {path}")


def check_certificate(path: str, now: Instant) -> Iterator[Finding]:
    """The first certificate of a PEM file, which is the one that is shown to clients."""
    check = f"certificate {path}"
    try:
        certificate = x509.load_pem_x509_certificates(Path(path).read_bytes())[0]
    except (OSError, ValueError) as error:
        yield fail(check, f"it cannot be read: {error}", "name a PEM file with the certificate first")
        return
    at = datetime.fromtimestamp(now / 1_000, UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    names = ", ".join(_names(certificate)) or "no name"
    if at >= end:
        yield fail(check, f"it expired on {end:%Y-%m-%d}", "renew it: no client connects")
    elif at < begin:
        yield fail(check, f"it is valid from {begin:%Y-%m-%d} on", "wait, or correct this machine's clock")
    elif end - at < SOON:
        yield warn(check, f"it expires in {counted((end - at).days, 'day')}", "renew it")
    else:
        yield ok(check, f"for {names}, until {end:%Y-%m-%d}")
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < SMALL_RSA_BITS:
        yield warn(check, f"its RSA key has {key.key_size} bits", f"use {SMALL_RSA_BITS} or more, or an elliptic curve")


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
