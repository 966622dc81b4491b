"""A quota on the wire: 429, nothing stored, and room again when something has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.observability.calls import Caller, calling, shop
from twophp import Policy, Quota, anonymous
from twophp.asgi import TwoPhaseMiddleware
from twophp.core.errors import ConfigError


def test_one_too_many_is_told_to_come_again(tmp_path: Path) -> None:
    async def scenario(caller: Caller, _two_phase: Any) -> None:
        first = await caller.register("POST", "/orders")
        await caller.register("POST", "/orders")
        refused = await caller.http.post("/orders", headers=caller.ids())
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["cache-control"] == "no-store"
        repeated = {name: value for name, value in first.items() if "Server" not in name}
        assert (await caller.http.post("/orders", headers=repeated)).status_code == 200
        assert (await caller.confirm("/orders", first)).status_code == 200
        assert (await caller.call("POST", "/orders")).status_code == 200

    calling(tmp_path, scenario, quota=Quota(open_intents=2))


@pytest.mark.req("A-37", "P-11-a")
def test_plain_requests_know_no_quota(tmp_path: Path) -> None:
    async def scenario(caller: Caller, _two_phase: Any) -> None:
        await caller.register("POST", "/orders")
        for _ in range(3):
            assert (await caller.http.post("/orders")).status_code == 201

    policies = Policy.standard(transparent=True)
    calling(tmp_path, scenario, quota=Quota(open_intents=1), policies=policies)


def test_a_quota_below_the_largest_body_is_a_mistake() -> None:
    quota = Quota(open_bytes=1_000)
    with pytest.raises(ConfigError, match="max_body_bytes"):
        TwoPhaseMiddleware(
            shop, service="shop", store="memory:", identify=anonymous, policies=Policy.standard(), quota=quota
        )
