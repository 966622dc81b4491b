"""A database for the pages that take one for granted."""

from __future__ import annotations

from tests.postgres import postgres_url

__all__ = ["postgres_url"]
