"""The environment ``sql``: questions to an SQLite database. The answer is a query; only memory knows the codes."""

from __future__ import annotations

import functools
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from rb_dspy.environments import shop
from rb_dspy.environments.generated import TaskArgs, select_templates
from rb_dspy.environments.query import Row, run_query
from rb_dspy.errors import InputError
from rb_dspy.protocols import Environment, EnvironmentFamily
from rb_dspy.schema import MemoryDraft, Outcome, Task
from rb_dspy.text import normalize, summary_line

ANSWER = "ANSWER:"
"""Prefix of the query that is submitted, if a task allows several."""

ROWS = 5
"""Maximum rows of a result that the agent is shown."""

MAX_ROWS = 10_000
"""A result with more rows is wrong."""

MAX_SHOWN = 10_000
"""Maximum length of a row as the agent reads it, in characters."""

_TABLES = "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL"


class _Args(TaskArgs):
    """The ground truth of one question."""

    query: str
    database: str = ""
    """Path of the SQLite file; empty: the shop of ``seed``."""
    seed: int = 0
    evidence: str = ""
    """Knowledge that is needed besides the schema."""
    reveal: Literal["none", "verdict", "evidence", "query"] = "evidence"
    """Feedback to the agent after its answer."""
    queries: int = 1
    """How many queries the agent may run; the last one, or the one that it submits, is its answer."""


class Sql(EnvironmentFamily):
    """Questions about a database; the answer is a query. Success: it returns the rows of the gold query, in any order.

    ``tasks`` are about a fictional shop: its codes for states, channels, grades and categories are drawn from the seed,
    totals are in cents and days are numbers, and no table explains this. After the answer the agent is told, as a
    colleague would, what the codes of the question mean: it can only guess them the first time, and needs them again
    later. ``read_questions`` reads the published files of Spider and BIRD.
    """

    name = "sql"

    def templates(self) -> Sequence[str]:
        return tuple(shop.QUESTIONS)

    def tasks(self, *, seed: int, templates: Sequence[str] | None = None) -> Iterator[Task]:
        return shop.tasks(seed, select_templates(self.name, self.templates(), templates))

    def make(self, task: Task) -> Environment:
        return _Question(_Args.of(task), task.id)

    def oracle(self, task: Task) -> Sequence[str]:
        return (_Args.of(task).query,)

    def random_action(self, environment: Environment, task: Task, rng: random.Random) -> str:
        """Return a query of a random table that needs no knowledge."""
        tables = [name for name, _ in _tables(_Args.of(task))]
        return f'SELECT {rng.choice(("count(*)", "*", "1"))} FROM "{rng.choice(tables)}"'

    def lessons(self, tasks: Sequence[Task]) -> Sequence[MemoryDraft]:
        """Return the lessons of a perfect memory: the evidence of ``tasks``, each sentence once."""
        sentences = [each.strip() for task in tasks for each in _Args.of(task).evidence.split(";")]
        return [
            MemoryDraft(title=fact[:80], description="When a query needs it.", content=f"{fact}.")
            for fact in dict.fromkeys(filter(None, sentences))
        ]

    def keeps_fact(self, task: Task, lesson: str) -> bool:
        """Whether ``lesson`` contains a code of ``task`` and its meaning."""
        words = set(re.findall(r"\w+", lesson.casefold()))
        pairs = re.findall(r"\b(\w+)'? means (\w+)", _Args.of(task).evidence.casefold())
        return any(words.issuperset(pair) for pair in pairs)


def read_questions(
    file: str | Path, databases: str | Path, *, reveal: str = "evidence", queries: int = 5
) -> list[Task]:
    """Read the questions of Spider or BIRD, as published: a JSON list, beside a folder ``NAME/NAME.sqlite``.

    Args:
        file: The list, such as ``dev.json``, with ``db_id``, ``question``, and ``query`` (Spider) or ``SQL`` and
            ``evidence`` (BIRD).
        databases: The folder, such as ``database`` or ``dev_databases``.
        reveal: Feedback to the agent after its answer: none, verdict, evidence or query.
        queries: How many queries the agent may run per question.

    Raises:
        InputError: The file is not such a list, or a database is missing.
    """
    try:
        rows = json.loads(Path(file).read_text(encoding="utf-8"))
        tasks = []
        if not isinstance(rows, list):
            raise TypeError
        for number, row in enumerate(rows, 1):
            database = Path(databases) / row["db_id"] / f"{row['db_id']}.sqlite"
            if not database.is_file():
                raise InputError(f"{file}: question {number}: there is no database {database}; check the folder")
            arguments = {
                "database": str(database.absolute()),
                "query": row.get("query") or row["SQL"],
                "evidence": row.get("evidence", ""),
                "reveal": reveal,
                "queries": queries,
            }
            id, name = f"sql/{row['db_id']}/{number}", row["db_id"]
            task = Task(id=id, instruction=row["question"], env="sql", env_args=arguments, domain="data", template=name)
            tasks.append(task)
    except OSError as exc:
        raise InputError(f"{file}: cannot be read: {exc.strerror}") from exc
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(
            f"{file}: expected a JSON list with db_id, question, and query or SQL in each object"
        ) from None
    return tasks


def confined(task: Task, file: Path, folders: Sequence[Path]) -> Task:
    """Return a task that was read from ``file``, with the path of its database, which must lie in one of ``folders``.

    A file of tasks may come from anywhere, and the agent sees what its databases hold.
    """
    database = task.env_args.get("database")
    if task.env != "sql" or not isinstance(database, str) or not database:
        return task
    found = next((path for each in folders if (path := each / database).is_file()), folders[0] / database)
    inside = "\0" not in database and any(_real(found).is_relative_to(_real(each)) for each in folders)
    if not inside:
        raise InputError(
            f"{file}: task {task.id!r}: env_args.database {database!r:.200} is not in the folder of the file; move"
            " it there, or confirm its folder: --files FOLDER, in Python files=FOLDER"
        )
    return task.model_copy(update={"env_args": {**task.env_args, "database": str(found)}})


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


class _Question(Environment):
    """One question to one database. Every query runs in a process of its own and can only read."""

    action_rules = ""

    def __init__(self, args: _Args, task_id: str) -> None:
        self._args = args
        self._task_id = task_id
        self._count = 0
        self._closed = False
        self._answer: str | None = None
        self._rows: list[Row] | None = None
        several = f", at most {args.queries} of them; '{ANSWER} ' and a query hands it in, else the last one counts"
        self.action_rules = "Your action is one SELECT statement of SQLite" + several * (args.queries > 1) + "."
        self.action_pattern = rf"^({ANSWER} )?SELECT .*$" if args.queries > 1 else "^SELECT .*$"

    def reset(self, task: Task) -> str:
        self._count, self._closed, self._answer, self._rows = 0, False, None, None
        return "The tables:\n" + "\n".join(sql for _, sql in _tables(self._args))

    def step(self, action: str) -> tuple[str, bool]:
        if self._closed:
            return "The question is closed: a query was handed in.", True
        self._count += 1
        self._answer = action.strip().removeprefix(ANSWER).strip()
        try:
            self._rows = _rows(self._args, self._answer)
            result = _shown(self._rows)
        except ValueError as exc:
            self._rows, result = None, f"Error: {summary_line(exc, 500)}"
        self._closed = action.strip().startswith(ANSWER) or self._count >= self._args.queries
        return (f"{result}\n{self._feedback()}".strip() if self._closed else result), self._closed

    def answer(self) -> str | None:
        return self._answer

    def outcome(self) -> Outcome:
        """Compare the last query's rows with those of the gold query. Raises ``InputError`` if that cannot be run."""
        rows, gold = self._rows, self._gold
        right = rows is not None and len(gold) <= MAX_ROWS and Counter(map(_key, rows)) == Counter(map(_key, gold))
        return Outcome(reward=float(right), success=right)

    @functools.cached_property
    def _gold(self) -> list[Row]:
        try:
            return _rows(self._args, self._args.query)
        except ValueError as exc:
            raise InputError(
                f"task {self._task_id!r}: env_args.query cannot be run: {summary_line(exc, 500)}"
            ) from None

    def _feedback(self) -> str:
        args, right = self._args, self.outcome().success
        if args.reveal == "none":
            return ""
        verdict = f"The result is {'right' if right else 'wrong'}."
        if args.reveal == "query":
            return f"{verdict} The right query is: {args.query}"
        return f"{verdict} To know: {args.evidence}." if args.reveal == "evidence" and args.evidence else verdict


def _rows(args: _Args, query: str = _TABLES) -> list[Row]:
    """At most ``MAX_ROWS`` + 1 rows. Raises ``ValueError`` for the query, ``InputError`` for the database."""
    if args.database and not Path(args.database).is_file():
        raise InputError(f"env_args.database: there is no file {args.database}; check the path")
    uri = f"{Path(args.database).absolute().as_uri()}?mode=ro"
    return run_query(uri if args.database else shop.database(args.seed), query, MAX_ROWS + 1)


def _tables(args: _Args) -> list[Row]:
    """Name and CREATE statement of every table."""
    try:
        return _rows(args)
    except ValueError as exc:
        raise InputError(f"env_args.database: {args.database} cannot be read: {exc}; expected an SQLite file") from None


def _shown(rows: list[Row]) -> str:
    """The result of a query as the agent reads it."""
    lines = [normalize(", ".join(map(repr, row)), MAX_SHOWN) for row in rows[:ROWS]]
    more = f"... and {len(rows) - ROWS} more rows" if len(rows) > ROWS else ""
    return "\n".join(filter(None, ["Result:", *(lines or ["no rows"]), more]))


def _key(row: Row) -> Row:
    """Return a key that is equal for rows that count as the same: 3 is 3.0, and rounding makes no difference."""
    return tuple(round(float(value), 6) if isinstance(value, int | float) else value for value in row)
