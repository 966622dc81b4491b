"""A tea shop. An order and its charge become durable in the one commit that makes the call COMMITTED."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import apsw
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import insert, select, update
from sqlalchemy.dialects.sqlite import insert as insert_or
from sqlalchemy.schema import CreateTable

from tables import DIALECT, Account, Base, Order, sql
from twophp import ConstraintViolation, Policy, anonymous, current_intent
from twophp.asgi import TwoPhaseMiddleware

PRICES = {"tea": 3, "samovar": 250}


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Make the tables before the first request, and alice's account."""
    database = apsw.Connection("shop.db")  # The ledger's own file; the middleware has made it by now.
    for table in Base.metadata.sorted_tables:
        database.execute(str(CreateTable(table, if_not_exists=True).compile(dialect=DIALECT)))
    database.execute(*sql(insert_or(Account).values(customer="alice", balance=100).on_conflict_do_nothing()))
    database.close()
    yield


app = FastAPI(lifespan=lifespan)
app.add_middleware(
    TwoPhaseMiddleware,
    service="shop",
    store="sqlite:///shop.db",
    identify=anonymous,
    # All that the handler does is in its intent's transaction, so after a crash it may run again.
    policies={"POST /orders": Policy.standard(require=True, on_crash="rerun")},
    allow_insecure=True,  # Loopback.
)


class Wanted(BaseModel):
    """What a customer asks for."""

    customer: str
    sku: str


@app.post("/orders", status_code=201)
async def order(wanted: Wanted) -> dict[str, object]:
    """Enter the order and charge it: both, or neither."""
    intent = current_intent()
    assert intent is not None  # The policy says require=True.
    price = PRICES[wanted.sku]
    row = {"id": intent.server_correlation_id, "customer": wanted.customer, "sku": wanted.sku, "price": price}
    charge = update(Account).where(Account.customer == wanted.customer).values(balance=Account.balance - price)
    try:
        async with intent.transaction() as tx:
            tx.execute(*sql(insert(Order).values(row)))
            tx.execute(*sql(charge))
    except ConstraintViolation:
        raise HTTPException(402, "the account does not cover it") from None
    return receipt(row)


def receipt(row: dict[str, object]) -> dict[str, object]:
    """What the customer is told."""
    return {"id": row["id"], "charged": row["price"]}


@app.get("/accounts/{customer}")
def account(customer: str) -> dict[str, int]:
    """Read with apsw: SQLAlchemy's engine would bring a second SQLite into the process, which is refused."""
    found = apsw.Connection("shop.db").execute(*sql(select(Account.balance).where(Account.customer == customer))).get
    if found is None:
        raise HTTPException(404)
    return {"balance": found}
