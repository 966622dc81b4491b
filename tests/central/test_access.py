"""Who may do what at the central ledger: every route for every role, tokens, sessions, identity providers, the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.central.provider import AUDIENCE, CLIENT, Provider, provider
from tests.central.rows import row
from tests.central.served import READING, Central, central
from tests.patience import PATIENCE_S
from twophp.central.auth.access import COOKIE, hash_of
from twophp.central.auth.oidc import Oidc
from twophp.central.auth.oidc import Provider as Settings
from twophp.central.pages.frame import CSP
from twophp.central.ports import Role
from twophp.core.errors import StoreUnavailable

READERS = frozenset(READING)
OPERATIONS = frozenset({"operations"})
SERVICE = frozenset({"service"})
NOBODY_NEEDED = frozenset({"livez", "readyz", "v1/heads/key"})

# Every route of the API and who it is open to. A route that is not here fails the test below.
ROLES: dict[tuple[str, str], frozenset[str]] = {
    ("post", "/v1/services"): SERVICE,
    ("get", "/v1/services"): READERS,
    ("post", "/v1/entries"): SERVICE,
    ("get", "/v1/entries"): READERS,
    ("get", "/v1/trees/{client_correlation_id}"): READERS,
    ("get", "/v1/pairs"): READERS,
    ("get", "/v1/stalled"): READERS,
    ("get", "/v1/initiated/{source}"): READERS,
    ("get", "/v1/reports/sla"): READERS,
    ("get", "/v1/export"): READERS,
    ("get", "/v1/proofs/head"): READERS,
    ("get", "/v1/proofs/inclusion/{sequence}"): READERS,
    ("get", "/v1/proofs/consistency"): READERS,
    ("get", "/v1/proofs/leaves"): READERS,
    ("get", "/v1/proofs/rows"): READERS,
    ("get", "/v1/heads"): READERS,
    ("get", "/v1/heads/latest"): READERS,
    ("get", "/v1/heads/{number}"): READERS,
    ("get", "/v1/alarms"): READERS,
    ("get", "/v1/events"): READERS,
    ("post", "/v1/services/{service_ledger_id}/pull"): OPERATIONS,
    ("get", "/v1/intents/{client_correlation_id}/{server_correlation_id}"): OPERATIONS,
    ("get", "/v1/tokens"): OPERATIONS,
    ("post", "/v1/tokens"): OPERATIONS,
    ("delete", "/v1/tokens/{token_id}"): OPERATIONS,
}
DENIED = (401, 403)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "here" in metafunc.fixturenames:
        metafunc.parametrize("store_url", ("sqlite", "postgres"), indirect=True, scope="module")


@pytest.fixture(scope="module")
def issuer() -> Iterator[Provider]:
    with provider() as running:
        yield running


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, issuer: Provider, store_url: str | None) -> Iterator[Central]:
    oidc = Oidc(Settings(issuer=issuer.issuer, audience=AUDIENCE, client_id=CLIENT))
    with central(tmp_path_factory.mktemp("access"), store_url=store_url, oidc=oidc) as running:
        yield running


def status(here: Central, method: str, path: str, **headers: str) -> int:
    """Only the status is read: the live feed has no end."""
    parameters = {"old_size": 0} if path.endswith("consistency") else {}
    body: dict[str, Any] = {"json": {}} if method == "post" else {}
    names = ("client_correlation_id", "server_correlation_id", "source", "service_ledger_id", "token_id")
    url = here.url + path.format(sequence=1, number=1, **dict.fromkeys(names, "x"))
    with here.http.stream(method, url, headers=headers, params=parameters, **body) as answer:
        return answer.status_code


@pytest.mark.req("P-13.5-a", "A-63")
def test_every_route_is_open_to_its_roles_and_to_nobody_else(here: Central) -> None:
    document = httpx.get(here.url + "/openapi.json", timeout=PATIENCE_S).json()
    routes = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert {(method, path) for method, path in routes if path.strip("/") not in NOBODY_NEEDED} == set(ROLES)
    secrets = {role.value: here.token(f"matrix {role}", role) for role in Role}
    wrong: list[Any] = []
    for (method, path), allowed in ROLES.items():
        anonymous = status(here, method, path)
        if anonymous != 401:
            wrong.append((method, path, "nobody", anonymous))
        for role, secret in secrets.items():
            got = status(here, method, path, Authorization=f"Bearer {secret}")
            if (got in DENIED) == (role in allowed):
                wrong.append((method, path, role, got))
    assert not wrong


def kept_of_tokens(here: Central) -> str:
    """All that the database has, and as text: what is binary is in hexadecimal digits."""
    if (here.folder / "central.db").exists():
        return here.database().hex() + here.database().decode("latin-1")
    rows: list[Any] = here.do(here.state.store._fetch("SELECT token::text FROM token", (), str))
    return "".join(rows)


@pytest.mark.req("A-63")
def test_only_a_hash_of_a_token_is_kept_and_expiry_and_revocation_hold_at_once(here: Central) -> None:
    secret = here.token("temporary", "audit")
    assert here.ask("GET", "/v1/entries", secret=secret).status_code == 200
    kept = kept_of_tokens(here)
    assert hash_of(secret).hex() in kept
    assert secret.removeprefix("tphp_") not in kept
    assert secret.removeprefix("tphp_").encode().hex() not in kept
    (mine,) = [one for one in here.get("/v1/tokens")["tokens"] if one["name"] == "temporary"]
    assert here.ask("DELETE", f"/v1/tokens/{mine['token_id']}").status_code == 200
    assert here.ask("GET", "/v1/entries", secret=secret).status_code == 401
    expired = here.token("expired", "audit", expires_at=here.state.clock())
    assert here.ask("GET", "/v1/entries", secret=expired).status_code == 401
    assert here.ask("DELETE", "/v1/tokens/nobody").status_code == 404


@pytest.mark.req("A-63")
def test_an_operator_makes_tokens_and_the_secret_is_told_once(here: Central) -> None:
    wanted = {"name": "auditor", "roles": ["audit", "compliance"], "expires_in_days": 30}
    made = here.ask("POST", "/v1/tokens", json=wanted).json()
    assert here.ask("GET", "/v1/pairs", secret=made["secret"]).status_code == 200
    listed = here.ask("GET", "/v1/tokens").text
    assert made["token_id"] in listed
    assert made["secret"] not in listed
    mixed = here.ask("POST", "/v1/tokens", json={"name": "both", "roles": ["service", "audit"]})
    assert (mixed.status_code, mixed.json()["code"]) == (422, "bad_roles")


@pytest.mark.req("A-63", "P-13.5-a")
def test_every_read_is_logged_with_who_and_what_and_so_is_a_refusal(here: Central) -> None:
    service = here.token("nosy", "service")
    here.ask("GET", "/v1/entries", role="compliance", params={"source": "orders"})
    here.ask("GET", "/v1/entries", secret=service)
    lines = here.do(here.state.store.accesses(limit=2))
    assert [(line.who.split(" (")[0], line.role, line.path, line.status) for line in lines] == [
        ("nosy", "service", "/v1/entries", 403),
        ("somebody in compliance", "compliance", "/v1/entries?source=orders", 200),
    ]


@pytest.mark.req("A-63")
def test_what_cannot_be_logged_is_not_told(here: Central, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_lines: object) -> None:
        raise StoreUnavailable("the log is full")

    secret, guid = here.join("hidden")
    here.push(secret, [row("secret-row", guid, source="hidden")])
    monkeypatch.setattr(here.state.store, "log_access", broken)
    answer = here.ask("GET", "/v1/entries", params={"source": "hidden"})
    assert answer.status_code == 503
    assert "secret-row" not in answer.text


BAD_HEADERS = {
    "no scheme": "tphp_" + "0" * 64,
    "another scheme": "Basic dXNlcjpwYXNz",
    "an unknown secret": "Bearer tphp_" + "0" * 64,
    "nothing": "Bearer",
    "a token of no principal": "Bearer a.b.c",
}


@pytest.mark.parametrize("value", BAD_HEADERS.values(), ids=list(BAD_HEADERS))
def test_what_is_no_credential_is_nobody(here: Central, value: str) -> None:
    answer = httpx.get(here.url + "/v1/entries", headers={"Authorization": value}, timeout=PATIENCE_S)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.req("A-63")
def test_a_session_reads_and_changes_nothing_and_ends_with_its_token(here: Central) -> None:
    secret = here.token("browser", "operations")
    session = here.do(here.state.access.login(secret))
    with httpx.Client(cookies={COOKIE: session.secret}, timeout=PATIENCE_S) as browser:
        assert browser.get(here.url + "/v1/tokens").status_code == 200
        made = browser.post(here.url + "/v1/tokens", json={"name": "forged", "roles": ["audit"]})
        assert made.status_code == 401, "a cookie alone is what any other site can send"
        (mine,) = [one for one in here.get("/v1/tokens")["tokens"] if one["name"] == "browser"]
        here.ask("DELETE", f"/v1/tokens/{mine['token_id']}")
        assert browser.get(here.url + "/v1/tokens").status_code == 401
    assert session.secret not in repr(session)


@pytest.mark.req("A-63")
def test_claims_of_an_identity_provider_map_to_roles_and_to_none_by_default(here: Central, issuer: Provider) -> None:
    def status_with(**claims: Any) -> int:
        return here.ask("GET", "/v1/entries", secret=issuer.sign(**claims)).status_code

    assert status_with(roles=["audit"]) == 200
    assert status_with(roles="compliance operations") == 200
    assert status_with() == 403
    assert status_with(roles=["admin", 7]) == 403
    assert status_with(roles=["service"]) == 403
    assert status_with(roles=["service", "audit"]) == 401
    assert status_with(roles=["audit"], aud="another audience") == 401
    assert status_with(roles=["audit"], iss="https://elsewhere.example") == 401
    assert status_with(roles=["audit"], exp=1) == 401


def test_a_service_of_an_identity_provider_pushes_its_own_rows(here: Central, issuer: Provider) -> None:
    token = issuer.sign(sub="stock", roles=["service"])
    guid = here.ask("POST", "/v1/services", secret=token, json={}).json()["service_ledger_id"]
    again = here.ask("POST", "/v1/services", secret=issuer.sign(sub="stock", roles=["service"]), json={})
    assert again.json()["service_ledger_id"] == guid
    answer = here.push(token, [row("of-stock", guid, source="stock")])
    assert [ack["outcome"] for ack in answer.json()["acks"]] == ["stored"]


def test_a_new_key_is_fetched_when_a_token_names_it_but_not_for_every_stranger(
    tmp_path: Path,
) -> None:
    with provider() as issuer:
        now = [1_000_000_000_000]
        oidc = Oidc(Settings(issuer=issuer.issuer, audience=AUDIENCE), clock=lambda: now[0])
        with central(tmp_path, oidc=oidc) as here:
            assert here.ask("GET", "/v1/entries", secret=issuer.sign(roles=["audit"])).status_code == 200
            issuer.rotate()
            fresh = issuer.sign(roles=["audit"])
            assert here.ask("GET", "/v1/entries", secret=fresh).status_code == 401
            asked = issuer.asked_for_keys
            now[0] += 31_000
            assert here.ask("GET", "/v1/entries", secret=fresh).status_code == 200
            assert issuer.asked_for_keys == asked + 1
            for _ in range(3):
                assert here.ask("GET", "/v1/entries", secret="a.b.c").status_code == 401
            assert issuer.asked_for_keys == asked + 1


def test_the_pages_login_goes_to_the_provider_and_comes_back_with_a_session(here: Central, issuer: Provider) -> None:
    with httpx.Client(base_url=here.url, timeout=PATIENCE_S) as browser:
        begun = browser.get("/login/oidc")
        assert begun.status_code == 303
        back = httpx.get(begun.headers["location"], timeout=PATIENCE_S).headers["location"]
        done = browser.get(back)
        assert done.status_code == 200, done.text
        cookie = done.headers.get_list("set-cookie")[-1].lower()
        assert all(word in cookie for word in (COOKIE, "httponly", "samesite=strict"))
        assert browser.get("/v1/entries").status_code == 200
        assert browser.get("/v1/tokens").status_code == 403
        assert browser.get(back).status_code == 401, "a code and a state are used once"
    with httpx.Client(base_url=here.url, timeout=PATIENCE_S) as stranger:
        begun = httpx.get(here.url + "/login/oidc", timeout=PATIENCE_S)
        back = httpx.get(begun.headers["location"], timeout=PATIENCE_S).headers["location"]
        assert stranger.get(back).status_code == 401, "a login that another browser began is not finished here"
    issuer.who = {"sub": "robot", "roles": ["service"]}
    with httpx.Client(base_url=here.url, timeout=PATIENCE_S) as browser:
        back = httpx.get(browser.get("/login/oidc").headers["location"], timeout=PATIENCE_S).headers["location"]
        assert browser.get(back).status_code == 403


@pytest.mark.parametrize(
    ("wanted", "goes_to"),
    [
        ("/tree?id=a%26b", "/tree?id=a%26b"),
        ('/search?q="><script>', "/search?q=&#34;&gt;&lt;script&gt;"),
        ("//elsewhere.example/", "/"),
        ("https://elsewhere.example/", "/"),
        ("/\\elsewhere.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/" + "x" * 3_000, "/"),
    ],
)
def test_after_the_provider_one_is_where_one_wanted_to_be_and_never_elsewhere(
    here: Central, issuer: Provider, wanted: str, goes_to: str
) -> None:
    issuer.who = {"sub": "grace", "roles": ["audit"]}
    with httpx.Client(base_url=here.url, timeout=PATIENCE_S) as browser:
        begun = browser.get("/login/oidc", params={"next": wanted}).headers["location"]
        assert "next" not in begun, "the provider does not learn of it"
        done = browser.get(httpx.get(begun, timeout=PATIENCE_S).headers["location"])
    assert f'content="0; url={goes_to}"' in done.text


def test_whoever_has_a_browser_is_told_with_a_page_and_a_program_with_a_problem(
    here: Central, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    page = here.http.get(f"{here.url}/nowhere", headers=browser)
    assert (page.status_code, page.headers["content-security-policy"]) == (404, CSP)
    assert "Nothing here" in page.text
    assert here.http.delete(f"{here.url}/stalled", headers=browser).status_code == 405
    assert "Log in first" in here.http.get(f"{here.url}/login/oidc/back?state=x", headers=browser).text
    for path, headers in (("/nowhere", {"Accept": "*/*"}), ("/v1/nowhere", browser), ("/v1/entries", browser)):
        answer = here.http.get(f"{here.url}{path}", headers=headers)
        assert answer.headers["content-type"] == "application/problem+json"

    async def fail() -> None:
        raise RuntimeError("a secret of the database")

    monkeypatch.setattr(here.state.store, "services", fail)
    wrong = here.ask("GET", "/services", headers=browser)
    assert wrong.status_code == 500
    assert "Something went wrong here" in wrong.text
    assert "secret of the database" not in wrong.text
