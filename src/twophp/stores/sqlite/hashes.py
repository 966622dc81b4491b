"""The hashes under which intents are indexed. They lead to rows and prove nothing: the reader compares the ids.

An index of integers is a quarter of the size of one on the ids, and it is the only index that random ids go into.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Final

import apsw

FUNCTION: Final = "twophp_hash"
"""The SQL function that gives ``client_hash``, on every connection of ours."""


def client_hash(client_correlation_id: str) -> int:
    """63 bits of a client's correlation id."""
    return int.from_bytes(blake2b(client_correlation_id.encode(), digest_size=8).digest(), "big") >> 1


@lru_cache(maxsize=4_096)
def who_hash(principal: str) -> int:
    """31 bits of a principal."""
    return int.from_bytes(blake2b(principal.encode(), digest_size=4).digest(), "big") >> 1


def teach(connection: apsw.Connection) -> None:
    """Give the connection the function that our statements use."""
    connection.create_scalar_function(
        FUNCTION, lambda *texts: client_hash(*map(str, texts)), 1, deterministic=True, flags=apsw.SQLITE_INNOCUOUS
    )
