"""SQL's own indexes: which of those that a new bank has a file lacks, and how they are made again."""

from __future__ import annotations

import re
import sqlite3
from functools import cache

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from rb_dspy.bank.sqlite import files
from rb_dspy.bank.sqlite.migrations import migrate

_INDEXES = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"


def lacking(connection: sqlite3.Connection) -> dict[str, str]:
    """Names of those that are not there, and the statements that make them.

    By what they are over: a re-index gives some another name.
    """
    there = {_over(sql) for _, sql in connection.execute(_INDEXES).fetchall()}
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()}
    return {
        name: sql
        for name, sql in _of_a_new_bank().items()
        if (over := _over(sql)) not in there and over.partition("(")[0] in tables
    }


def make(connection: sqlite3.Connection) -> None:
    """Make those that are not there. Inside the caller's transaction."""
    for name, sql in lacking(connection).items():
        connection.execute(f"DROP INDEX IF EXISTS {name}")  # one of this name over something else
        connection.execute(sql)


def _over(sql: str) -> str:
    """The part of a statement after the index's name, however it is quoted and set."""
    _, _, over = re.sub(r'["\s]+', " ", sql).partition(" ON ")
    return over.replace(" ", "").casefold()


@cache
def _of_a_new_bank() -> dict[str, str]:
    engine = sa.create_engine("sqlite://", poolclass=StaticPool)
    try:
        with engine.begin() as connection:
            migrate(connection, ":memory:")
            return dict(files.driver(connection).execute(_INDEXES).fetchall())
    finally:
        engine.dispose()
