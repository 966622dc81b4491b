"""``twophp central serve``: the central ledger as a process."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import click

from twophp.central.auth.access import Access
from twophp.central.ingest.pull import MIN_KEY_BYTES
from twophp.central.ports import Role
from twophp.central.stores.opening import open_central
from twophp.central.stores.store import CentralStore
from twophp.cli.output import examples
from twophp.core.errors import ConfigError
from twophp.delivery.egress_addresses import is_loopback, read_address
from twophp.engine.environment import secret_in
from twophp.identity.notes import Signer
from twophp.stores.ring_file import sync_folder
from twophp.stores.vault import mint_key

SQLITE: Final = "sqlite:///"
CENTRAL_URL: Final = f"{SQLITE}central.db"
KEY_VARIABLE: Final = "TWOPHP_CENTRAL_MANAGEMENT_KEY"
SIGNING_VARIABLE: Final = "TWOPHP_CENTRAL_SIGNING_KEY"
SIGNER: Final = "twophp-central"
KEY_SUFFIX: Final = ".management"
OPERATOR: Final = "operator"
PORT: Final = 8700


@click.command(
    short_help="Run the central ledger: API, pages and database.",
    epilog=examples(
        "central serve",
        "central serve --store postgresql://ledger@db/central --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem",
    ),
)
@click.option("--store", default=CENTRAL_URL, show_default=True, envvar="TWOPHP_CENTRAL_STORE", help="The database.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65_535))
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="A certificate chain in PEM.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Its key.")
@click.option("--allow-insecure", is_flag=True, help="Serve plain HTTP to other machines: behind a proxy with TLS.")
@click.option(
    "--silent-after-s",
    default=60,
    show_default=True,
    type=click.IntRange(1, 7 * 86_400),
    envvar="TWOPHP_CENTRAL_SILENT_AFTER_S",
    help="How long a call may be PROCESSING before it is listed as silent.",
)
@click.option("--oidc-issuer", help="An identity provider whose tokens are taken.")
@click.option("--oidc-audience", help="What its tokens must be for.")
@click.option("--oidc-roles-claim", default="roles", show_default=True, help="The claim that names roles.")
@click.option("--oidc-role", "oidc_roles", multiple=True, metavar="VALUE=ROLE", help="What a value of it means.")
@click.option(
    "--oidc-client-id", help="With one, the page offers the provider's login; ..._CLIENT_SECRET is a variable."
)
def serve(store: str, host: str, port: int, *, allow_insecure: bool, **more: Any) -> None:
    """Run the central ledger: the API, its pages and the database.

    The first start prints an operator's token, once. Every other token is made with it.
    """
    cert, key = more["tls_cert"], more["tls_key"]
    if (cert is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    if cert is None and not allow_insecure and not _is_this_machine(host):
        raise ConfigError("other machines need TLS; give a certificate, or say --allow-insecure", code="tls_required")
    if cert is not None:
        _check_certificate(cert, key)
    oidc = _oidc(allow_insecure=allow_insecure, **more)
    with ExitStack() as stack, suppress(KeyboardInterrupt):  # Ctrl-C is how it is meant to end.
        listeners = [stack.enter_context(one) for one in _listen(host, port)]
        asyncio.run(_serve(store, host, listeners, oidc, allow_insecure=allow_insecure, **more))


def _check_certificate(cert: str, key: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except OSError as error:  # What TLS says is one, too.
        message = f"{cert} and {key} are no certificate and its key in PEM: {error}"
        raise ConfigError(message, code="bad_certificate") from error


def _listen(host: str, port: int) -> list[socket.socket]:
    """Every address of the host, or an error that says why not."""
    opened: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((one[0], one[4]) for one in _addresses(host, port)):
            opened.append(socket.create_server(address[:2], family=family))
    except OSError as error:
        if opened and error.errno == errno.EADDRNOTAVAIL:
            return opened  # A machine may have a name for an address that it has not.
        for one in opened:
            one.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} is taken; choose another with --port", code="port_in_use") from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error}", code="cannot_listen") from error
    return opened


def _addresses(host: str, port: int) -> list[Any]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return sorted(found, key=lambda one: one[0] != socket.AF_INET)


async def _serve(
    url: str, host: str, listeners: list[socket.socket], oidc: Any, *, allow_insecure: bool, **more: Any
) -> None:
    import uvicorn  # noqa: PLC0415 - Of the extra twophp[central]; the rest of the command line does without.

    from twophp.central.app import create_app  # noqa: PLC0415

    store = await open_central(url)
    app = create_app(
        store,
        oidc=oidc,
        management_key=management_key(url),
        signer=signer_of(url),
        allow_insecure=allow_insecure,
        silent_ms=more["silent_after_s"] * 1_000,
    )
    config = uvicorn.Config(
        app,
        ssl_certfile=more["tls_cert"],
        ssl_keyfile=more["tls_key"],
        access_log=False,  # Who read what is in the database.
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=5,
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:  # Not before: a first token must not be made unless it is shown.
                actual = self.servers[0].sockets[0].getsockname()[1]
                _announce("https" if more["tls_cert"] else "http", host, actual, await first_token(store))

        def handle_exit(self, sig: int, frame: Any) -> None:
            app.state.central.stopping.set()  # Live feeds then end by themselves and are not cut off.
            super().handle_exit(sig, frame)

    await Server(config).serve(sockets=listeners)


def _announce(scheme: str, host: str, port: int, secret: str | None) -> None:
    """Print the address once requests are answered, so that a script that waits for the line can begin."""
    shown = f"[{host}]" if ":" in host else host
    if secret is not None:
        click.echo(f"operator token, shown this once: {secret}")
    click.echo(f"central ledger on {scheme}://{shown}:{port}")


async def first_token(store: CentralStore) -> str | None:
    """The secret of an operator's token where there is no token at all yet, else None."""
    if await store.tokens():
        return None
    _token, secret = await Access(store).create_token(OPERATOR, {Role.OPERATIONS})
    return secret


def management_key(url: str) -> bytes:
    """The key that services' management credentials are derived from.

    Said by the environment, or beside a SQLite database in a file that only its owner reads, made when it is needed.
    """
    said = secret_in(os.environ, KEY_VARIABLE)
    path = url.removeprefix(SQLITE)
    if said is not None:
        where, key = KEY_VARIABLE, said.encode()
    elif path != url:
        where, key = path + KEY_SUFFIX, _key_beside(Path(path + KEY_SUFFIX))
    elif url == "memory:":
        return mint_key()[1]
    else:
        message = f"set {KEY_VARIABLE} or {KEY_VARIABLE}_FILE: {MIN_KEY_BYTES} characters or more"
        raise ConfigError(message, code="no_key")
    if len(key) < MIN_KEY_BYTES:
        raise ConfigError(f"the management key in {where} needs {MIN_KEY_BYTES} characters", code="bad_key")
    return key


def signer_of(url: str) -> Signer:
    """Who signs tree heads: the key that the environment says, or else the one that follows from the management key."""
    said = secret_in(os.environ, SIGNING_VARIABLE)
    return Signer.derived(management_key(url), SIGNER) if said is None else Signer.parse(said)


def _key_beside(path: Path) -> bytes:
    try:
        if not path.exists():
            _make_key(path)
        return path.read_bytes().strip()
    except OSError as error:
        message = f"the management key {path} cannot be had: {error.strerror}"
        raise ConfigError(message, code="no_key") from error


def _make_key(path: Path) -> None:
    """All of it or nothing: no other process reads a key that is still being written, no crash leaves half of one."""
    with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent) as file:  # Its owner's alone.
        file.write(mint_key()[1].hex().encode())
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):  # Another process was quicker.
            os.link(file.name, path)
    sync_folder(path)


def existing(url: str) -> str:
    """The URL of a central ledger's database, unless it is a file that is not there: only ``serve`` makes one."""
    path = url.removeprefix(SQLITE)
    if url == "memory:" or (path != url and not Path(path).is_file()):
        message = f"there is no database {path}; `twophp central serve` makes it"
        raise ConfigError(message, code="no_such_database")
    return url


def _oidc(*, allow_insecure: bool, **more: Any) -> Any:
    if more["oidc_issuer"] is None:
        return None
    from twophp.central.auth.oidc import Oidc, Provider  # noqa: PLC0415

    if not more["oidc_audience"]:
        raise click.UsageError("--oidc-issuer needs --oidc-audience")
    return Oidc(
        Provider(
            issuer=more["oidc_issuer"],
            audience=more["oidc_audience"],
            roles_claim=more["oidc_roles_claim"],
            roles=dict(_role_of(pair) for pair in more["oidc_roles"]),
            client_id=more["oidc_client_id"],
            client_secret=secret_in(os.environ, "TWOPHP_OIDC_CLIENT_SECRET"),
            allow_insecure=allow_insecure,
        )
    )


def _role_of(pair: str) -> tuple[str, Role]:
    value, _equals, role = pair.rpartition("=")
    if not value or role not in set(Role):
        raise click.UsageError(f"--oidc-role is VALUE=ROLE, a role being one of {', '.join(Role)}")
    return value, Role(role)


def _is_this_machine(host: str) -> bool:
    address = read_address(host)
    return host == "localhost" or (address is not None and is_loopback(address))
