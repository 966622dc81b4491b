"""The receiver of auto-confirm's callbacks: a TLS server on loopback that says yes to everything.

``python -m bench.receiver PEM PORT`` serves with the key and the certificate that ``write_certificate`` has made.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"
YES = b"HTTP/1.1 204 No Content\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


def write_certificate(path: Path) -> None:
    """A key and a self-signed certificate for loopback, good for a day. A client that trusts the file trusts it."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "twophp bench")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(certificate.public_bytes(Encoding.PEM) + secret)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:  # As any server does: one call after the other, until the caller hangs up.
            length = LENGTH.search(await reader.readuntil(b"\r\n\r\n"))
            await reader.readexactly(int(length[1]) if length else 0)
            writer.write(YES)
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass  # A client that hangs up is not counted here.
    writer.close()


async def _serve(pem: str, port: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server = await asyncio.start_server(_answer, HOST, port, ssl=context)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
