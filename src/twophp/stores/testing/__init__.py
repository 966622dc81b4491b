"""The contract every store must meet, as tests that third parties can run over a store of their own.

Write one class. Its fixture returns a function that opens the store with a given clock; opening again, later or at the
same time, opens the *same* backing store, and every test gets a fresh one:

    from twophp.stores.testing import DURABLE, SHARED, OpenStore, StoreContract

    class TestMyStore(StoreContract):
        capabilities = frozenset({DURABLE, SHARED})

        @pytest.fixture
        def open_store(self, tmp_path) -> OpenStore:
            return lambda clock: MyStore(tmp_path / "my.db", clock=clock)     # an async context manager

Then run pytest. What a store cannot do it does not declare; nothing is skipped for any other reason. The tests drive
the real machines (intents, obligations, jobs) by the rules of ``twophp.core``, and each says in ``__requirements__``
which rows of ``docs/requirements`` it shows.

It needs pytest, which twophp itself does not: ``pip install pytest``.
"""

from __future__ import annotations

try:
    import pytest
except ModuleNotFoundError as error:  # pragma: no cover - a machine without pytest
    raise ModuleNotFoundError(
        "twophp.stores.testing needs pytest, which twophp does not install", name="pytest"
    ) from error

# Before these are imported: a failed assertion should show its values in a third party's run as well.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "calls",
            "changes",
            "crowd",
            "jobs",
            "ledger",
            "obligations",
            "questions",
            "quotas",
            "scene",
            "timing",
        )
    )
)

from twophp.stores.testing.capability import DURABLE, SHARED, SQL_STATEMENTS, Capability  # noqa: E402
from twophp.stores.testing.contract import StoreContract  # noqa: E402
from twophp.stores.testing.scene import AuditableStore, OpenStore  # noqa: E402

__all__ = ["DURABLE", "SHARED", "SQL_STATEMENTS", "AuditableStore", "Capability", "OpenStore", "StoreContract"]
