"""The contract notes which requirements its tests show; here the notes become marks, as our other tests have them."""

from __future__ import annotations

import pytest

from tests.postgres import postgres_url
from tests.redis import redis_cluster_url, redis_url
from tests.stores.schemas import schema

__all__ = ["postgres_url", "redis_cluster_url", "redis_url", "schema"]


def pytest_itemcollected(item: pytest.Item) -> None:
    shown = getattr(getattr(item, "function", None), "__requirements__", ())
    if shown:
        item.add_marker(pytest.mark.req(*shown))
