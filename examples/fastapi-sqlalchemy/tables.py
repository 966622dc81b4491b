"""The shop's tables, and how a statement of SQLAlchemy is given to whoever takes SQL and parameters."""

from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import ClauseElement

DIALECT = sqlite.dialect(paramstyle="qmark")


class Base(DeclarativeBase):
    """What all tables have in common."""


class Account(Base):
    """What a customer has paid in and not spent."""

    __tablename__ = "accounts"
    __table_args__ = (CheckConstraint("balance >= 0"),)

    customer: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int]


class Order(Base):
    """What was sold. Its id is the intent's server correlation id, so there is one order for each intent."""

    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(ForeignKey("accounts.customer"))
    sku: Mapped[str]
    price: Mapped[int]


def sql(statement: ClauseElement) -> tuple[str, list[Any]]:
    """A statement as text with its parameters by position, as ``tx.execute`` and apsw take them."""
    compiled = statement.compile(dialect=DIALECT)
    assert isinstance(compiled, SQLCompiler)
    return str(compiled), [compiled.params[name] for name in compiled.positiontup or ()]
