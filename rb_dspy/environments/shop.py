"""A fictional shop in an SQLite database with codes that no table explains. Everything is drawn from a seed."""

from __future__ import annotations

import calendar
import functools
import itertools
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing

from rb_dspy.environments.generated import in_turn, mixed_seed, read_data
from rb_dspy.schema import Task

_STATES = ("open", "paid", "shipped", "returned", "cancelled")
_CHANNELS = ("web", "phone", "mail")
_GRADES = ("private", "business", "wholesale")
_CATEGORIES = ("tea", "coffee", "spice", "honey")
_MONTHS = ("January", "March", "May", "July", "August", "October")

_SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, grade INTEGER);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, kind TEXT, stock INTEGER);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, day INTEGER, via TEXT, state INTEGER, total INTEGER);
"""

_DATA = read_data("shop.json")

QUESTIONS: dict[str, str] = _DATA["questions"]
"""Template -> its wording."""

_QUERIES: dict[str, str] = _DATA["queries"]

_FACTS: dict[str, str] = _DATA["facts"]
"""Coded attribute -> the fact as a colleague says it."""


def codes(seed: int) -> dict[str, dict[str, str]]:
    """Return coded attribute -> value -> its code in the shop of ``seed``."""
    rng = random.Random(mixed_seed("shop", seed))
    letters = rng.sample("BDFGHJKLMNQRVXZ", len(_CHANNELS) + len(_CATEGORIES))
    return {
        "state": dict(zip(_STATES, map(str, rng.sample(range(11, 99), len(_STATES))), strict=True)),
        "channel": dict(zip(_CHANNELS, letters, strict=False)),
        "grade": dict(zip(_GRADES, map(str, rng.sample(range(1, 10), len(_GRADES))), strict=True)),
        "category": dict(zip(_CATEGORIES, letters[len(_CHANNELS) :], strict=True)),
    }


def tasks(seed: int, templates: Sequence[str]) -> Iterator[Task]:
    """Yield questions: templates in turn, values in a drawn order; a template ends when its values are used up."""
    known = codes(seed)
    rng = random.Random(mixed_seed("shop questions", seed))
    draws = (zip(itertools.repeat(template), _values(template, rng)) for template in templates)
    for number, (template, values) in enumerate(in_turn(draws), 1):
        query, evidence = _query(template, values, known)
        yield Task(
            id=f"sql/{seed}/{template}/{number}",
            instruction=QUESTIONS[template].format(**values),
            env="sql",
            env_args={"seed": seed, "query": query, "evidence": evidence},
            domain="data",
            template=template,
        )


@functools.lru_cache(maxsize=8)
def database(seed: int) -> bytes:
    """Return the shop of ``seed`` as an SQLite file."""
    rng = random.Random(mixed_seed("shop rows", seed))
    known = codes(seed)
    customers = [(id, f"customer {id}", int(rng.choice(list(known["grade"].values())))) for id in range(1, 41)]
    products = [
        (id, f"product {id}", rng.choice(list(known["category"].values())), rng.randint(1, 400)) for id in range(1, 31)
    ]
    orders = [
        (
            id,
            rng.randint(1, 40),
            20250000 + rng.randint(1, 12) * 100 + rng.randint(1, 28),
            rng.choice(list(known["channel"].values())),
            int(rng.choices(list(known["state"].values()), (5, 9, 12, 4, 3))[0]),
            rng.randint(500, 90_000),
        )
        for id in range(1, 301)
    ]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        connection.executemany("INSERT INTO customers VALUES (?, ?, ?)", customers)
        connection.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", products)
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", orders)
        connection.commit()
        return connection.serialize()


def _values(template: str, rng: random.Random) -> list[dict[str, str]]:
    """Return the values for the blanks of a template: at most 10 choices, in a drawn order."""
    choices = {"state": _STATES, "channel": _CHANNELS, "grade": _GRADES, "category": _CATEGORIES, "month": _MONTHS}
    blanks = [name for name in choices if f"{{{name}}}" in QUESTIONS[template]]
    every = [dict(zip(blanks, each, strict=True)) for each in itertools.product(*(choices[name] for name in blanks))]
    return rng.sample(every, min(len(every), 10))


def _query(template: str, values: dict[str, str], known: dict[str, dict[str, str]]) -> tuple[str, str]:
    """Return the gold query, and the knowledge that it needs besides the schema, as sentences with ``;``."""
    coded = {name: known[name][value] if name in known else _month(value) for name, value in values.items()}
    facts = [_FACTS[name].format(coded[name], value) for name, value in values.items() if name in _FACTS]
    query = _QUERIES[template].format(**coded)
    if "total" in query:
        facts.append("orders.total is in cents")
    if "day" in query:
        facts.append("orders.day is a number, year month day, such as 20250131")
    return query, "; ".join(facts)


def _month(name: str) -> str:
    return f"2025{list(calendar.month_name).index(name):02d}"
