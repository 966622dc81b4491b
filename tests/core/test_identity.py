"""The digests, against published vectors and an implementation that shares nothing with ours."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.profile import STEADY
from twophp.core.errors import Refused
from twophp.core.identity import intent_replay_key, payload_digest, principal_digest, replay_key

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs" / "vectors" / "replay_key.json").read_text(encoding="utf-8")
)
FIELDS: list[str] = VECTORS["field_order"]
PLAIN: dict[str, str] = VECTORS["replay_keys"][0]["fields"]


def independent(tag: str, fields: list[bytes]) -> str:
    """The published description and nothing else: pack everything, hash once."""
    packed = b"".join(struct.pack(">I", len(item)) + item for item in [tag.encode("ascii"), *fields])
    return hashlib.new("sha256", packed).hexdigest()


def named(kind: str) -> list[Any]:
    return [pytest.param(vector, id=vector["name"]) for vector in VECTORS[kind]]


@pytest.mark.req("REG-1-14", "A-85")
@pytest.mark.parametrize("vector", named("replay_keys"))
def test_replay_key_vectors(vector: dict[str, Any]) -> None:
    fields = [vector["fields"][name].encode("utf-8") for name in FIELDS]
    assert vector["replay_key"] == independent(VECTORS["tags"]["replay_key"], fields)
    assert vector["replay_key"] == replay_key(**vector["fields"])


@pytest.mark.req("A-82")
@pytest.mark.parametrize("vector", named("intent_replay_keys"))
def test_intent_replay_key_vectors(vector: dict[str, Any]) -> None:
    tags, who = VECTORS["tags"], vector["principal"]
    principal = independent(
        tags["principal"], [who[part].encode() for part in ("scheme", "issuer", "subject", "tenant")]
    )
    body = bytes.fromhex(vector["body_hex"])
    payload = independent(tags["payload"], [vector["content_type"].encode(), body])
    key, client_id = f"{principal}/{vector['client_correlation_id']}", vector["client_correlation_id"]
    bound = [VECTORS["protocol_version"], key, vector["method"], vector["target"], payload, principal, ""]
    assert vector["replay_key"] == independent(tags["replay_key"], [field.encode() for field in bound])
    assert (principal_digest(**who), payload_digest(vector["content_type"], body)) == (principal, payload)
    assert vector["replay_key"] == intent_replay_key(
        principal=principal,
        client_correlation_id=client_id,
        method=vector["method"],
        target=vector["target"],
        payload=payload,
    )


def test_no_two_vectors_have_one_digest() -> None:
    digests = [vector["replay_key"] for kind in ("replay_keys", "intent_replay_keys") for vector in VECTORS[kind]]
    assert len(digests) >= 8
    assert len(set(digests)) == len(digests)


@pytest.mark.req("REG-1-14")
@pytest.mark.parametrize("name", FIELDS)
def test_each_of_the_seven_fields_changes_the_digest(name: str) -> None:
    assert replay_key(**(PLAIN | {name: PLAIN[name] + "x"})) != replay_key(**PLAIN)


@pytest.mark.req("A-85")
@pytest.mark.parametrize("name", FIELDS)
def test_no_field_may_be_empty(name: str) -> None:
    with pytest.raises(Refused) as caught:
        replay_key(**(PLAIN | {name: ""}))
    assert caught.value.code == "incomplete_binding"


@pytest.mark.req("REG-1-15")
def test_neither_attempt_nor_nonce_is_a_field_of_the_digest() -> None:
    assert not {"attempt_id", "authorization_nonce"} & set(FIELDS)
    with pytest.raises(TypeError):
        replay_key(**PLAIN, attempt_id="a")  # type: ignore[call-arg]


texts = st.text(min_size=1, max_size=8).filter(lambda text: text.isprintable())


@given(st.lists(texts, min_size=7, max_size=7), st.lists(texts, min_size=7, max_size=7))
@STEADY
@pytest.mark.req("REG-1-14", "A-85")
def test_two_requests_have_one_digest_only_if_they_are_one(one: list[str], two: list[str]) -> None:
    keys = [replay_key(**dict(zip(FIELDS, values, strict=True))) for values in (one, two)]
    assert (keys[0] == keys[1]) == (one == two)


def test_a_kind_of_digest_never_stands_for_another() -> None:
    assert payload_digest("a", b"b") != principal_digest("a", "b", "", "")


def test_a_principal_is_who_and_not_what_it_showed() -> None:
    alice = principal_digest("bearer", "issuer", "alice", "t1")
    assert alice == principal_digest("bearer", "issuer", "alice", "t1")
    others = [("mtls", "issuer", "alice", "t1"), ("bearer", "x", "alice", "t1"), ("bearer", "issuer", "bob", "t1")]
    assert alice not in {principal_digest(*other) for other in others} | {principal_digest("bearer", "issuer", "alice")}
