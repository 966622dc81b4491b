"""``twophp central``: run the central ledger, and manage its tokens, services and pulls.

``serve`` opens the database. Everything else asks a running central ledger by its URL, with an operator's token; only
``token`` also takes a database, for the day on which every operator token is lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from urllib.parse import quote

import click
import msgspec

from twophp.central.api.documents import TokenRequestDocument, token_of
from twophp.central.auth.access import Access
from twophp.central.ingest.pull import management_token
from twophp.central.ports import Role
from twophp.central.stores.opening import open_central
from twophp.central.stores.store import CentralStore
from twophp.cli.central_serve import CENTRAL_URL, KEY_VARIABLE, existing, management_key, serve
from twophp.cli.output import FOUND, counted, examples, out, print_json, progress_bar, show, table
from twophp.cli.remote import Remote, is_remote
from twophp.core.errors import ConfigError, Refused
from twophp.core.misfits import misfit
from twophp.core.policy import DAY_MS
from twophp.engine.environment import secret_in
from twophp.stores.clock import system_clock

T = TypeVar("T")

WHERE: Final = click.argument("central", envvar="TWOPHP_CENTRAL", metavar="CENTRAL")
TOKEN: Final = click.option("--token", help="An operator's token; also TWOPHP_OPERATOR_TOKEN or ..._FILE.")
JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
ROLES: Final = click.Choice([role.value for role in Role])


@click.group()
def central() -> None:
    """Run the central ledger, and manage its tokens, services and pulls.

    CENTRAL is its URL, or where a command says so its database.
    """


central.add_command(serve)


@central.group()
def token() -> None:
    """Make, list and revoke API tokens. CENTRAL is a URL, or the database itself."""


@token.command(
    "create",
    short_help="Make a token and print its secret, once.",
    epilog=examples(
        "central token create orders https://central.example --role service",
        "central token create alice sqlite:///central.db --role audit --expires-days 90",
    ),
)
@click.argument("name")
@WHERE
@click.option("--role", "roles", type=ROLES, multiple=True, required=True, help="May be given several times.")
@click.option("--expires-days", type=click.IntRange(1, 3650), help="Without it, the token is good until revoked.")
@TOKEN
@JSON
def create_token(
    name: str, central: str, roles: tuple[str, ...], expires_days: int | None, token: str | None, *, as_json: bool
) -> None:
    """Make a token for NAME and print its secret: it is shown this once, and kept nowhere.

    A service's token has the role service and the service's own name, and nothing else.
    """
    if is_remote(central):
        wanted = {"name": name, "roles": roles, "expires_in_days": expires_days}
        made = Remote(central, token).ask("POST", "/v1/tokens", wanted)
    else:
        made = _on(central, lambda store: _create(store, name, roles, expires_days))
    if as_json:
        print_json(made)
    else:
        out().print(f"token {made['token_id']} for {name}: {', '.join(made['roles'])}", markup=False)
        out().print(made["secret"], markup=False)


async def _create(store: CentralStore, name: str, roles: tuple[str, ...], days: int | None) -> dict[str, Any]:
    asked = {"name": name, "roles": roles, "expires_in_days": days}
    try:  # What the API asks of a name is asked here, too.
        wanted = msgspec.convert(asked, TokenRequestDocument)
    except msgspec.ValidationError as error:
        message = f"no token can be made like this: {misfit(error, TokenRequestDocument, asked)}"
        raise ConfigError(message, code="bad_parameter") from error
    expires_at = None if days is None else system_clock() + days * DAY_MS
    made, secret = await Access(store).create_token(wanted.name, set(wanted.roles), expires_at=expires_at)
    return token_of(made) | {"secret": secret}


@token.command("list", epilog=examples("central token list https://central.example"))
@WHERE
@TOKEN
@JSON
def list_tokens(central: str, token: str | None, *, as_json: bool) -> None:
    """List every token, without its secret."""
    found = Remote(central, token).get("/v1/tokens")["tokens"] if is_remote(central) else _on(central, _tokens)
    if as_json:
        print_json(found)
        return
    made = table("id", "name", "roles", "created", "expires", "revoked", "last used")
    for one in found:
        times = (one[name] or "" for name in ("created_at", "expires_at", "revoked_at", "last_used_at"))
        made.add_row(one["token_id"], one["name"], ", ".join(one["roles"]), *times)
    show(made)


async def _tokens(store: CentralStore) -> list[dict[str, Any]]:
    return [token_of(one) for one in await store.tokens()]


@token.command("revoke", epilog=examples("central token revoke 5f0c9a1e-... https://central.example"))
@click.argument("token_id")
@WHERE
@TOKEN
@JSON
def revoke_token(token_id: str, central: str, token: str | None, *, as_json: bool) -> None:
    """Revoke a token. It opens nothing from the next request on."""
    if is_remote(central):
        path = f"/v1/tokens/{quote(token_id, safe='')}"
        done = Remote(central, token).ask("DELETE", path)["token_id"] == token_id
    else:
        done = _on(central, lambda store: store.revoke_token(token_id, system_clock()))
    if not done:
        raise Refused(f"no token has the id {token_id}", code="not_found")
    if as_json:
        print_json({"token_id": token_id, "revoked": True})
    else:
        out().print(f"revoked {token_id}", markup=False)


@central.command(
    epilog=examples("central key https://central.example"), short_help="Print the key that signs tree heads."
)
@WHERE
@TOKEN
@JSON
def key(central: str, token: str | None, *, as_json: bool) -> None:
    """Print the public key that signs the tree's heads: note it where the operator of the central ledger cannot."""
    found = Remote(central, token).get("/v1/heads/key")["key"]
    if as_json:
        print_json({"key": found})
    else:
        out().print(found, markup=False)


@central.command(
    epilog=examples("central services https://central.example"),
    short_help="List every ledger and when it was last heard of.",
)
@WHERE
@TOKEN
@JSON
def services(central: str, token: str | None, *, as_json: bool) -> None:
    """List every registered ledger and when it was last heard of."""
    found = Remote(central, token).get("/v1/services")["services"]
    if as_json:
        print_json(found)
        return
    made = table("name", "service_ledger_id", "rows", "last sync", "can be pulled")
    for one in found:
        pulled = "yes" if one["can_be_pulled"] else "no"
        made.add_row(one["name"], one["service_ledger_id"], f"{one['rows']:,}", one["last_sync_at"] or "never", pulled)
    show(made)
    out().print(counted(len(found), "ledger"))


@central.command(
    epilog=examples("central pull orders https://central.example"), short_help="Pull what a service has not sent yet."
)
@click.argument("service")
@WHERE
@click.option("--correlation-id", help="Only the rows with this id, sent already or not.")
@TOKEN
@JSON
@click.pass_context
def pull(
    ctx: click.Context, service: str, central: str, correlation_id: str | None, token: str | None, *, as_json: bool
) -> None:
    """Pull what SERVICE, by its name or its id, has not sent yet. Exits with 1 if it could not be pulled completely."""
    remote = Remote(central, token)
    ids = [
        one["service_ledger_id"]
        for one in remote.get("/v1/services")["services"]
        if service in (one["name"], one["service_ledger_id"])
    ]
    if not ids:
        raise Refused(f"no ledger is registered as {service}", code="not_found")
    wanted = {} if correlation_id is None else {"correlation_id": correlation_id}
    pulled = []
    with progress_bar("pulling") as progress:
        for id_ in ids:
            pulled.append(remote.ask("POST", f"/v1/services/{id_}/pull", wanted))
            progress(len(pulled), len(ids))
    if as_json:
        print_json(pulled)
    else:
        for one in pulled:
            what = f"{counted(one['rows'], 'row')}, {one['stored']:,} of them new, {one['refused']:,} refused"
            out().print(f"{one['service_ledger_id']}: {what}", markup=False)
    complete = correlation_id is not None or all(one["complete"] for one in pulled)
    ctx.exit(0 if complete else FOUND)


@central.command(
    "management-token",
    short_help="Print the credential for pulls from a service.",
    epilog=examples("central management-token orders --store sqlite:///central.db"),
)
@click.argument("service")
@click.option("--store", default=CENTRAL_URL, show_default=True, help="The central ledger's database.")
@JSON
def management_token_(service: str, store: str, *, as_json: bool) -> None:
    """Print the credential that lets the central ledger pull from SERVICE: its management_token.

    It follows from the management key and the service's name, and is good for that service alone.
    """
    if not service:
        raise click.UsageError("an empty name is no service's")
    if secret_in(os.environ, KEY_VARIABLE) is None:
        existing(store)  # A key beside nothing opens nothing.
    made = management_token(management_key(store), service)
    if as_json:
        print_json({"service": service, "management_token": made})
    else:
        out().print(made, markup=False)


def _on(url: str, act: Callable[[CentralStore], Awaitable[T]]) -> T:
    async def run() -> T:
        store = await open_central(existing(url))
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(run())
