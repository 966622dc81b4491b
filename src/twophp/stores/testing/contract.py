"""All parts of the contract as one class to derive from."""

from __future__ import annotations

from twophp.stores.testing.calls import CallContract
from twophp.stores.testing.changes import ChangeContract
from twophp.stores.testing.crowd import CrowdContract
from twophp.stores.testing.jobs import JobContract
from twophp.stores.testing.ledger import LedgerContract
from twophp.stores.testing.obligations import ObligationContract
from twophp.stores.testing.questions import QuestionContract
from twophp.stores.testing.quotas import QuotaContract
from twophp.stores.testing.timing import TimingContract


class StoreContract(
    ChangeContract,
    TimingContract,
    LedgerContract,
    QuestionContract,
    JobContract,
    ObligationContract,
    CallContract,
    QuotaContract,
    CrowdContract,
):
    """Derive from it, declare ``capabilities``, define the fixture ``open_store``: see the package's text."""
