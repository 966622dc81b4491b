"""An identity provider that is slow, away, or signs with more than we know: its people are not called strangers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from tests.central.provider import AUDIENCE, CLIENT, Provider, provider
from tests.central.served import central
from tests.postgres import free_port
from twophp.central.auth.oidc import SOONEST_MS, Oidc
from twophp.central.auth.oidc import Provider as Settings
from twophp.stores.clock import system_clock

pytestmark = pytest.mark.req("A-63")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def carrying(token: str) -> Request:
    headers = [(b"host", b"central.example"), (b"authorization", f"Bearer {token}".encode())]
    return Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers})


async def names(oidc: Oidc, token: str, now: int) -> list[str]:
    """What eight who come at the same time are called."""
    found = await asyncio.gather(*(oidc.principal(carrying(token), now) for _ in range(8)))
    return [principal.name for principal in found]


@pytest.mark.anyio
async def test_all_who_come_while_keys_are_fetched_wait_for_them() -> None:
    with provider() as issuer:
        now = [system_clock()]
        oidc = Oidc(Settings(issuer=issuer.issuer, audience=AUDIENCE), clock=lambda: now[0])
        assert await names(oidc, issuer.sign(roles=["audit"]), now[0]) == ["alice"] * 8
        issuer.rotate()
        now[0] += SOONEST_MS
        assert await names(oidc, issuer.sign(roles=["audit"]), now[0]) == ["alice"] * 8
        assert issuer.asked_for_keys == 2


def test_a_provider_that_is_away_is_said_to_be_and_is_asked_again(tmp_path: Path) -> None:
    now = [system_clock()]
    with provider() as issuer:
        token = issuer.sign(roles=["audit"])
        nowhere = f"http://127.0.0.1:{free_port()}"
        oidc = Oidc(Settings(issuer=nowhere, audience=AUDIENCE, client_id=CLIENT), clock=lambda: now[0])
        with central(tmp_path, oidc=oidc) as here:
            for path in ("/v1/entries", "/login/oidc"):
                answer = here.ask("GET", path, secret=token)
                assert (answer.status_code, answer.json()["code"]) == (502, "no_provider")
            page = here.ask("GET", "/stalled", secret=token)
            assert (page.status_code, "identity provider" in page.text) == (502, True)
            oidc.provider = Settings(issuer=issuer.issuer, audience=AUDIENCE)
            oidc._api = oidc._bearer(AUDIENCE)
            assert here.ask("GET", "/v1/entries", secret=token).status_code == 502, "not with every request"
            now[0] += SOONEST_MS
            assert here.ask("GET", "/v1/entries", secret=token).status_code == 200


class Strange:
    """A key as the provider publishes it, of a kind that it alone knows."""

    kid = "strange"

    def __init__(self, **document: Any) -> None:
        self.document = document

    def as_dict(self, *, private: bool) -> dict[str, Any]:  # noqa: ARG002
        return {"kid": self.kid, **self.document}


STRANGE = {
    "of a kind nobody here knows": Strange(kty="AKP", alg="ML-DSA-44", pub="AAAA"),
    "without a kind": Strange(use="sig"),
    "a secret": Strange(kty="oct", k="AAAA"),
}


def answer_with(tmp_path: Path, issuer: Provider) -> httpx.Response:
    oidc = Oidc(Settings(issuer=issuer.issuer, audience=AUDIENCE))
    with central(tmp_path, oidc=oidc) as here:
        return here.ask("GET", "/v1/entries", secret=issuer.sign(roles=["audit"]))


@pytest.mark.parametrize("key", STRANGE.values(), ids=list(STRANGE))
def test_a_key_that_we_do_not_know_is_passed_over(tmp_path: Path, key: Any) -> None:
    with provider() as issuer:
        issuer.keys.append(key)
        assert answer_with(tmp_path, issuer).status_code == 200


def test_keys_that_cannot_be_used_are_the_providers_fault(tmp_path: Path) -> None:
    with provider() as issuer:
        issuer.keys.append(Strange(kty="EC", crv="P-256", x="!", y="!"))  # type: ignore[arg-type]
        answer = answer_with(tmp_path, issuer)
        assert (answer.status_code, answer.json()["code"]) == (502, "no_provider")
