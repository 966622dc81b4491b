"""Certificates that a service or its proxy serves with."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from twophp.cli.doctor.findings import Finding, fail, ok, warn
from twophp.cli.output import counted
from twophp.core.records import Instant

SOON: Final = timedelta(days=30)
SMALL_RSA_BITS: Final = 2048


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
