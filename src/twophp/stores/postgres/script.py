"""Every statement for one ledger's schema. Several over sets of rows may be sent as one: one trip, and one plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from twophp.stores.postgres.kinds import Statement, sql
from twophp.stores.sqlite.sql import migrations

_PLACE: Final = re.compile(r"\$(\d+)")
_OURS: Final = "twophp."


def _moved(by: int, place: re.Match[str]) -> str:
    return f"${int(place[1]) + by}"


class Script:
    """The statements of one ledger, spelled for its schema: nothing depends on what a session was told."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.begin = sql("begin")  # ``begin_pooled`` where no session can be set up.
        self._spelled: dict[str, str] = {}
        self._merged: dict[tuple[str, ...], str] = {}

    def named(self, name: str) -> str:
        """The statement of that name."""
        return self.spelled(sql(name))

    def spelled(self, text: str) -> str:
        """The statement, for this schema."""
        found = self._spelled.get(text)
        if found is None:
            found = self._spelled[text] = text.replace(_OURS, f"{self.schema}.")
        return found

    def migrations(self) -> list[tuple[int, str]]:
        """Number and text of every step."""
        return [(number, self.spelled(text)) for number, text in migrations(__package__)]

    def merged(self, statements: Sequence[Statement]) -> str:
        """All of them as one, which answers how many rows each has changed. All see what was there before."""
        key = tuple(one.text for one in statements)
        found = self._merged.get(key)
        if found is None:
            parts, used = [], 0
            for number, one in enumerate(statements):
                text = _PLACE.sub(partial(_moved, used), one.text)
                parts.append(f"s{number} AS ({text} RETURNING 1)")
                used += len(one.types)
            counts = ", ".join(f"(SELECT count(*) FROM s{number})" for number in range(len(parts)))  # noqa: S608
            together = sql("together").format(parts=", ".join(parts), counts=counts)
            found = self._merged[key] = self.spelled(together)
        return found
