"""Tokens that identify, and every kind that must not."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import OctKey, RSAKey

from tests.core.profile import STEADY
from tests.identity.heads import NOW, head
from tests.identity.tokens import (
    AUDIENCE,
    CLAIMS,
    ISSUER,
    NOW_S,
    SECRET,
    bearing,
    ec,
    forge,
    jwks,
    part,
    pem,
    rsa,
    sign,
    sign_secret,
)
from twophp.core.errors import ConfigError, Unauthenticated
from twophp.core.identity import principal_digest
from twophp.identity.identify import Principal, bearer_jwt, principal_of

ALICE = Principal("bearer", ISSUER, "alice")


def by_secret(**settings: Any) -> Any:
    known: dict[str, Any] = {"keys": SECRET, "algorithms": ["HS256"], "issuer": ISSUER, "audience": AUDIENCE}
    return bearer_jwt(**(known | settings))


def by_rsa(**settings: Any) -> Any:
    return by_secret(**({"keys": pem(rsa()), "algorithms": ["RS256"]} | settings))


def refusal(identify: Any, request: Any) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as caught:
        identify(request)
    error = caught.value
    assert (error.code, error.challenge) == ("unauthenticated", "Bearer")
    assert error.__cause__ is None
    return error


@pytest.mark.req("A-60")
@pytest.mark.parametrize(
    ("keys", "algorithm", "token"),
    [
        pytest.param(SECRET, "HS256", sign_secret, id="secret"),
        pytest.param(SECRET.decode(), "HS256", sign_secret, id="secret as text"),
        pytest.param(lambda: jwks(rsa(), ec()), "RS256", lambda: sign("RS256", rsa(), kid="r1"), id="RSA in a set"),
        pytest.param(lambda: jwks(rsa(), ec()), "ES256", lambda: sign("ES256", ec(), kid="e1"), id="EC in a set"),
        pytest.param(lambda: jwks(rsa()), "PS256", lambda: sign("PS256", rsa()), id="a set of one needs no kid"),
    ],
)
def test_a_signed_token_identifies_its_subject(keys: Any, algorithm: str, token: Any) -> None:
    assert by_secret(keys=keys, algorithms=[algorithm])(bearing(token())) == ALICE


def test_a_pem_is_a_key_too() -> None:
    for public in (pem(rsa()), pem(rsa()).decode()):
        assert by_rsa(keys=public)(bearing(sign("RS256", rsa(), kid="whatever"))) == ALICE
    assert by_secret(keys=pem(ec()), algorithms=["ES256"])(bearing(sign("ES256", ec()))) == ALICE


@pytest.mark.req("A-60")
def test_a_rotated_token_is_the_same_principal() -> None:
    """Another key, another lifetime, other scopes and another session: the same subject of the same issuer."""
    identify = by_secret(keys=jwks(rsa(), ec()), algorithms=["RS256", "ES256"])
    first = identify(bearing(sign("RS256", rsa(), kid="r1", jti="1", scope="read", sid="a")))
    later = bearing(
        sign("ES256", ec(), kid="e1", jti="2", iat=NOW_S + 3000, exp=NOW_S + 4000), received_at=NOW + 3_600_000
    )
    assert principal_of(first) == principal_of(identify(later)) == principal_digest("bearer", ISSUER, "alice")


@pytest.mark.req("A-60")
def test_subject_issuer_and_tenant_each_make_another_principal() -> None:
    with_tenant = by_secret(tenant_claim="org")
    elsewhere = by_secret(issuer="https://other.example")
    people = [
        by_secret()(bearing(sign_secret())),
        by_secret()(bearing(sign_secret(sub="bob"))),
        elsewhere(bearing(sign_secret(iss="https://other.example"))),
        with_tenant(bearing(sign_secret(org="acme"))),
        with_tenant(bearing(sign_secret(org="umbrella"))),
    ]
    assert len({principal_of(who) for who in people}) == 5
    for org in (None, "", 7, ["acme"]):
        refusal(with_tenant, bearing(sign_secret(org=org)))


@pytest.mark.req("A-60")
@pytest.mark.parametrize(
    "changes",
    [
        {"exp": None},
        {"exp": NOW_S},
        {"exp": NOW_S - 1},
        {"exp": "tomorrow"},
        {"exp": True},
        {"exp": float("nan")},
        {"exp": float("inf")},
        {"nbf": NOW_S + 1},
        {"nbf": "now"},
        {"iat": NOW_S + 1},
        {"iat": "now"},
        {"iss": None},
        {"iss": "https://evil.example"},
        {"iss": ISSUER + "/"},
        {"iss": [ISSUER]},
        {"aud": None},
        {"aud": "payments"},
        {"aud": ["payments"]},
        {"aud": []},
        {"aud": {"orders": True}},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
    ],
    ids=str,
)
def test_a_claim_that_does_not_hold_is_refused(changes: dict[str, Any]) -> None:
    refusal(by_secret(), bearing(sign_secret(**changes)))


def test_what_holds_is_accepted() -> None:
    for changes in ({"aud": ["payments", AUDIENCE]}, {"nbf": NOW_S}, {"iat": None}, {"exp": NOW_S + 1}):
        assert by_secret()(bearing(sign_secret(**changes))) == ALICE


@pytest.mark.req("A-29", "A-60")
def test_a_token_is_judged_by_the_machines_clock_after_that_was_set() -> None:
    """The store's time does not follow the step; the issuer's clock is where the machine's is."""
    hours = 2 * 3_600
    fresh = sign_secret(iat=NOW_S + hours, nbf=NOW_S + hours, exp=NOW_S + hours + 60)
    assert by_secret()(bearing(fresh, wall_ahead_ms=hours * 1_000)) == ALICE
    refusal(by_secret(), bearing(sign_secret(exp=NOW_S + 60), wall_ahead_ms=hours * 1_000))


def test_leeway_bends_each_of_the_three_times() -> None:
    for changes in ({"exp": NOW_S - 4}, {"nbf": NOW_S + 5}, {"iat": NOW_S + 5}):
        refusal(by_secret(), bearing(sign_secret(**changes)))
        assert by_secret(leeway_s=5)(bearing(sign_secret(**changes))) == ALICE
    refusal(by_secret(leeway_s=5), bearing(sign_secret(exp=NOW_S - 5)))


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(lambda: forge({"alg": "none"}, CLAIMS) + "AA", id="none"),
        pytest.param(lambda: forge({"alg": "none"}, CLAIMS, b"any"), id="none, signed"),
        pytest.param(lambda: forge({"alg": "None"}, CLAIMS, b"any"), id="None"),
        pytest.param(lambda: forge({"alg": "HS256"}, CLAIMS, pem(rsa())), id="public key as secret"),
        pytest.param(lambda: forge({"alg": "HS256", "kid": "r1"}, CLAIMS, pem(rsa())), id="and its kid"),
        pytest.param(lambda: forge({"alg": "RS256"}, CLAIMS, pem(rsa())), id="HMAC called RS256"),
        pytest.param(lambda: forge({}, CLAIMS, SECRET), id="no alg"),
        pytest.param(lambda: forge({"alg": ["RS256"]}, CLAIMS, SECRET), id="a list of algs"),
        pytest.param(lambda: forge({"alg": {}}, CLAIMS, SECRET), id="an object as alg"),
        pytest.param(lambda: forge({"alg": "RS256", "crit": ["exp"], "exp": 1}, CLAIMS, SECRET), id="crit"),
        pytest.param(lambda: forge({"alg": "RS256", "crit": 1}, CLAIMS, SECRET), id="crit is no list"),
        pytest.param(lambda: forge({"alg": "RS256", "kid": 7}, CLAIMS, SECRET), id="kid is a number"),
        pytest.param(
            lambda: forge({"alg": "RS256", "jwk": jwks(rsa("evil"))["keys"][0]}, CLAIMS, SECRET), id="own key"
        ),
        pytest.param(lambda: sign("RS256", rsa("evil")), id="another key"),
        pytest.param(lambda: sign("PS256", rsa()), id="an algorithm that was not named"),
        pytest.param(lambda: sign("ES256", ec()), id="another kind of key"),
        pytest.param(lambda: sign("RS256", rsa())[:-4] + "AAAA", id="another signature"),
        pytest.param(lambda: ".".join([*sign("RS256", rsa()).split(".")[:2], "AA"]), id="a short signature"),
        pytest.param(lambda: altered(sign("RS256", rsa())), id="other claims"),
        pytest.param(lambda: "a.b.c", id="no token"),
        pytest.param(lambda: forge([], CLAIMS, SECRET), id="header is a list"),
        pytest.param(lambda: forge({"alg": "RS256", "x": "y" * 600}, CLAIMS, SECRET), id="long header"),
        pytest.param(lambda: "W1tbW1tb" * 60 + ".AA.AA", id="deep header"),
    ],
)
@pytest.mark.parametrize("keys", ["pem", "set"])
def test_a_forged_token_is_refused(keys: str, forged: Any) -> None:
    refusal(by_rsa(keys=pem(rsa()) if keys == "pem" else jwks(rsa())), bearing(forged()))


def altered(token: str) -> str:
    header, _, signature = token.split(".")
    return f"{header}.{part(CLAIMS | {'sub': 'root'})}.{signature}"


def test_a_signed_text_that_is_no_object_is_refused() -> None:
    others: list[Any] = [[], "alice", 7, None]
    for claims in others:
        refusal(by_secret(), bearing(forge({"alg": "HS256"}, claims, SECRET)))
    half = by_secret()(bearing(forge({"alg": "HS256"}, CLAIMS | {"sub": "\ud800"}, SECRET)))
    with pytest.raises(Unauthenticated):
        principal_of(half)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        ["Basic YTpi"],
        ["{token}"],
        ["Bearer {token} x"],
        ["Bearer {token}, Bearer {token}"],
        ["Bearer {token}", "Bearer {token}"],
        ["Bearer {token}", "Basic YTpi"],
        ["Bearer {token}."],
        ["Bearer {token}\u00e9"],
        ["Bearer\u00a0{token}"],
        ["Bearer {token}" + " " * 10 + "x"],
        ["Bearer " + " " * 20_000 + "{token}"],
    ],
)
def test_exactly_one_bearer_token_is_wanted(lines: list[str]) -> None:
    token = sign_secret()
    request = head(*(("Authorization", line.format(token=token)) for line in lines))
    assert "one bearer token" in str(refusal(by_secret(), request))


def test_the_schemes_name_has_no_case() -> None:
    for name in ("bearer", "BEARER", "Bearer "):
        assert by_secret()(head(("authorization", f"{name} {sign_secret()}"))) == ALICE


def test_nothing_of_a_token_is_in_an_error() -> None:
    token = sign("RS256", rsa("evil"), sub="canary-subject", kid="canary-kid")
    for keys in (pem(rsa()), jwks(rsa())):
        error = refusal(by_rsa(keys=keys), bearing(token))
        told = f"{error!r} {error} {error.__cause__!r}"
        assert error.__suppress_context__
        assert not [piece for piece in [*token.split("."), "canary"] if piece in told]


def test_keys_that_were_replaced_are_forgotten() -> None:
    sets = [jwks(rsa("r1")), jwks(rsa("r2"))]
    identify = by_rsa(keys=lambda: sets[0])
    old, new = (bearing(sign("RS256", rsa(kid), kid=kid)) for kid in ("r1", "r2"))
    assert identify(old) == ALICE
    imported = identify._key()
    assert (identify(old), identify._key() is imported) == (ALICE, True)
    refusal(identify, new)
    del sets[0]
    assert identify(new) == ALICE
    refusal(identify, old)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"algorithms": []}, "bad_identify"),
        ({"algorithms": "HS256"}, "bad_identify"),
        ({"algorithms": ["none"]}, "bad_identify"),
        ({"algorithms": ["HS256", "none"]}, "bad_identify"),
        ({"algorithms": ["HS256", "RS256"]}, "bad_identify"),
        ({"issuer": ""}, "bad_identify"),
        ({"audience": ""}, "bad_identify"),
        ({"keys": b"short"}, "bad_key"),
        ({"keys": b""}, "bad_key"),
        ({"algorithms": ["HS256", "HS512"]}, "bad_key"),
        ({"keys": lambda: pem(rsa())}, "bad_key"),
        ({"algorithms": ["RS256"]}, "bad_key"),
        ({"keys": lambda: pem(ec()), "algorithms": ["RS256"]}, "bad_key"),
        ({"keys": lambda: pem(rsa()), "algorithms": ["RS256", "ES256"]}, "bad_key"),
        ({"keys": {}}, "bad_key"),
        ({"keys": {"keys": []}}, "bad_key"),
        ({"keys": {"keys": [{"kty": "oct", "k": "c2hvcnQgYnV0IGxvbmcgZW5vdWdo"}]}}, "bad_key"),
    ],
)
@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_what_cannot_work_is_refused_at_the_start(settings: dict[str, Any], code: str) -> None:
    if callable(settings.get("keys")):
        settings = settings | {"keys": settings["keys"]()}
    with pytest.raises(ConfigError) as caught:
        by_secret(**settings)
    assert caught.value.code == code
    assert SECRET.decode() not in str(caught.value)


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_a_short_rsa_key_is_refused() -> None:
    weak = RSAKey.generate_key(1024)
    for keys in (pem(weak), jwks(weak)):
        with pytest.raises(ConfigError, match="too short"):
            by_rsa(keys=keys)


def test_without_the_extra_it_says_which_one_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    monkeypatch.delitem(sys.modules, "twophp.identity.bearer")
    with pytest.raises(ConfigError, match=r"twophp\[jwt\]") as caught:
        by_secret()
    assert caught.value.code == "missing_extra"


@STEADY
@given(st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=60))
def test_any_text_is_refused_and_raises_nothing_else(text: str) -> None:
    for request in (bearing(text), head(("Authorization", text))):
        refusal(by_secret(), request)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=3)


@STEADY
@given(st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jku", "x5c"]), JSON), JSON)
def test_any_header_and_any_claims_are_refused_and_raise_nothing_else(header: dict[str, Any], claims: Any) -> None:
    for algorithm in ({}, {"alg": "HS256"}):
        refusal(by_secret(), bearing(forge(header | algorithm, claims, SECRET)))
    key = OctKey.import_key(SECRET)
    refusal(by_secret(keys={"keys": [dict(key.as_dict())]}), bearing(forge(header | {"alg": "HS256"}, claims, SECRET)))
