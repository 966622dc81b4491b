"""A certificate authority of our own, and a TLS server on loopback that does what a test says."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Authority:
    """Signs certificates that nobody else trusts."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("twophp tests")
        unsigned = _builder(self._name, self._name, self._key.public_key())
        unsigned = unsigned.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = unsigned.sign(self._key, hashes.SHA256())

    def trusted(self) -> ssl.SSLContext:
        """What a client of ours uses."""
        pem = self._certificate.public_bytes(serialization.Encoding.PEM).decode()
        return ssl.create_default_context(cadata=pem)

    def server(self, folder: Path, *names: str) -> ssl.SSLContext:
        """What a server with a certificate for these names uses."""
        key = ec.generate_private_key(ec.SECP256R1())
        unsigned = _builder(_name(names[0]), self._name, key.public_key())
        unsigned = unsigned.add_extension(x509.SubjectAlternativeName([_subject(n) for n in names]), critical=False)
        certificate = unsigned.sign(self._key, hashes.SHA256())
        path = folder / f"{names[0]}.pem"
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


@asynccontextmanager
async def serving(behave: Behaviour, context: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Serve on a free port of loopback, which is yielded."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await behave(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head and the body of one request with a Content-Length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
    return head, await reader.readexactly(length)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _subject(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
    )
