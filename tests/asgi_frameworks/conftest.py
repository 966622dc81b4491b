"""Where the applications keep their ledgers."""

from __future__ import annotations

from tests.memory import tmp_path

__all__ = ["tmp_path"]
