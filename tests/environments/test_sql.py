"""Questions to a database."""

import json
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rb_dspy.environments.query
from rb_dspy.environments.sql import Sql, read_questions
from rb_dspy.errors import InputError
from rb_dspy.schema import Task

SHOP = Sql()


def question(query: str, **arguments: object) -> Task:
    return Task(id="q", instruction="?", env="sql", env_args={"query": query, "seed": 5, **arguments})


def asked(task: Task, *actions: str):
    environment = SHOP.make(task)
    environment.reset(task)
    seen = [environment.step(action) for action in actions]
    return seen, environment.outcome().success


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("SELECT id FROM orders", "SELECT id FROM orders ORDER BY id DESC", True),
        ("SELECT 1", "SELECT 1.0", True),
        ("SELECT sum(total) / 100.0 FROM orders", "SELECT sum(total / 100.0) FROM orders", True),
        ("SELECT 1", "SELECT '1'", False),
        ("SELECT 1 UNION ALL SELECT 1", "SELECT 1", False),
        ("SELECT 1, 2", "SELECT 2, 1", False),
        ("SELECT 1", "SELECT nothing", False),
        ("SELECT id FROM orders WHERE id < 0", "SELECT id FROM orders WHERE id < 0", True),
        ("SELECT id FROM orders WHERE id < 0", "", False),
        ("SELECT id FROM orders WHERE id < 0", "-- I do not know", False),
        ("SELECT CAST(x'e9' AS TEXT)", "SELECT CAST(x'e9' AS TEXT)", True),
    ],
)
def test_an_answer_is_right_if_it_returns_the_rows_of_the_gold_query(gold, answer, right):
    assert asked(question(gold), answer)[1] is right


NINE = "a" * 9
TEXT = f"replace(replace(replace(replace('{NINE}{NINE}', 'a', '{NINE}'), 'a', '{NINE}'), 'a', '{NINE}'), 'a', '{NINE}')"
"""An expression whose value has 118,098 characters."""
NUMBERS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
NESTED = ", ".join(f"c{n} AS (SELECT 1 AS a FROM c{n - 1} x, c{n - 1} y)" for n in range(1, 40))
HOSTILE = {
    "writes": "DELETE FROM orders",
    "attaches": "ATTACH 'new.db' AS other",
    "loads code": "SELECT load_extension('x')",
    "two statements": "SELECT 1; DROP TABLE orders",
    "pragma": "PRAGMA writable_schema = 1",
    "vacuum": "VACUUM INTO 'new.db'",
    "endless": f"{NUMBERS} SELECT count(*) FROM c",
    "endless aggregate": f"{NUMBERS} SELECT json_group_array(x) FROM c",
    "endless sort": f"{NUMBERS} SELECT count(*) FROM (SELECT DISTINCT {TEXT} || x FROM c)",
    "rows that grow": f"{NUMBERS} SELECT {TEXT} FROM c",
    "concatenation": f"SELECT length(group_concat({TEXT})) FROM orders",
    "product": "SELECT count(*) FROM orders a, orders b, orders c, orders d",
    "nested in preparation": f"WITH c0 AS (SELECT 1 AS a), {NESTED} SELECT * FROM c39",
    "one long call": f"SELECT instr({' || '.join([TEXT] * 8)}, {' || '.join([TEXT] * 4)} || 'c')",
    "memory at once": "SELECT hex(zeroblob(900000000))",
    "memory by and by": f"{NUMBERS} SELECT randomblob(999999) FROM c",
    "format": "SELECT Printf('%.*c', 1000000000, 'a')",
    "deep": "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "no text": "SELECT '\ud800'",
    "NUL": "SELECT '\0'",
}


MEASURED = """
import resource, sys
from rb_dspy.environments import shop
from rb_dspy.environments.query import run_query
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    run_query(shop.database(0), sys.argv[1], 5)
except ValueError:
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""A query in a process of its own; prints the memory that it costs the caller, and what its own process took."""

CAPTURED = {"capture_output": True, "text": True, "check": True}


@pytest.mark.parametrize("query", HOSTILE.values(), ids=HOSTILE)
def test_a_query_only_reads_and_ends(query, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rb_dspy.environments.query, "SECONDS", 0.2)
    started = time.monotonic()
    [(observation, done)], success = asked(question("SELECT 1"), query)
    assert time.monotonic() - started < 10, "a fifth of a second, and what a busy machine adds"
    assert observation.startswith("Error")
    assert len(observation) < 500
    assert (done, success) == (True, False)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"task 'q': env_args\.query"):
        asked(question(query), "SELECT 1")


def test_memory_of_a_query_is_bounded_and_the_caller_keeps_its_own():
    for query in (HOSTILE["rows that grow"], HOSTILE["endless aggregate"]):
        (own, of_query) = map(int, subprocess.run([sys.executable, "-c", MEASURED, query], **CAPTURED).stdout.split())
        unit = 1 if sys.platform == "darwin" else 1024
        assert own * unit < 50_000_000
        assert of_query * unit < 600_000_000


@pytest.mark.parametrize(
    ("reveal", "said"), [("none", None), ("verdict", "wrong"), ("evidence", "1 means web"), ("query", "SELECT 7")]
)
def test_what_the_agent_is_told_after_its_answer(reveal, said):
    task = question("SELECT 7", reveal=reveal, evidence="1 means web")
    observation = asked(task, "SELECT 8")[0][0][0]
    for text in ("wrong", "1 means web", "SELECT 7"):
        assert (text in observation) is (text == said or (text == "wrong" and said is not None))


def test_with_several_queries_the_agent_looks_first_and_hands_one_in():
    task = question("SELECT 2", queries=3)
    assert asked(task, "SELECT 1", "ANSWER: SELECT 2") == (
        [("Result:\n1", False), ("Result:\n2\nThe result is right.", True)],
        True,
    )
    seen, success = asked(task, "SELECT 1", "SELECT 1", "SELECT 2", "SELECT 2")
    assert ([done for _, done in seen], success) == ([False, False, True, True], True)
    assert all(re.fullmatch(SHOP.make(task).action_pattern, text) for text in ("SELECT 1", "ANSWER: SELECT 1"))


def test_the_last_query_counts_if_the_agent_hands_none_in():
    environment = SHOP.make(question("SELECT 2", queries=3))
    environment.step("SELECT 2")
    assert (environment.answer(), environment.outcome().success) == ("SELECT 2", True)
    environment.step("SELECT 1")
    assert (environment.answer(), environment.outcome().success) == ("SELECT 1", False)


def test_long_results_are_shown_in_part():
    observation = asked(question("SELECT 1"), "SELECT id FROM orders")[0][0][0]
    assert "295 more rows" in observation


def test_the_codes_of_the_shop_differ_by_seed_and_are_needed_again():
    tasks = list(SHOP.tasks(seed=1))
    facts = [fact for task in tasks for fact in task.env_args["evidence"].split("; ")]
    assert len(tasks) >= 40
    assert len(facts) > 3 * len(set(facts))
    assert [task.env_args["evidence"] for task in tasks] != [task.env_args["evidence"] for task in SHOP.tasks(seed=2)]
    assert {lesson.content.rstrip(".") for lesson in SHOP.lessons(tasks)} == set(facts)
    assert all(any(SHOP.keeps_fact(task, each.content) for each in SHOP.lessons([task])) for task in tasks)
    assert not any(SHOP.keeps_fact(task, "Look at the codes.") for task in tasks)


@pytest.mark.parametrize(("key", "evidence"), [("query", {}), ("SQL", {"evidence": "big means above 10"})])
def test_the_published_files_of_spider_and_bird_are_read(tmp_path: Path, key: str, evidence: dict[str, str]):
    (tmp_path / "zoo").mkdir()
    with sqlite3.connect(tmp_path / "zoo" / "zoo.sqlite") as database:
        database.execute("CREATE TABLE animals (name TEXT, size INTEGER)")
        database.execute("INSERT INTO animals VALUES ('owl', 3), ('elk', 200)")
    database.close()
    file = tmp_path / "dev.json"
    row = {"db_id": "zoo", "question": "Big ones?", key: "SELECT name FROM animals WHERE size > 10", **evidence}
    file.write_text(json.dumps([row]))
    (task,) = read_questions(file, tmp_path)
    seen, success = asked(task, "SELECT * FROM animals", "ANSWER: SELECT name FROM animals WHERE size = 200")
    assert success
    assert seen[0] == ("Result:\n'owl', 3\n'elk', 200", False)
    assert ("big means" in seen[1][0]) is bool(evidence)


@pytest.mark.parametrize(
    "text", ["{}", "[1]", '[{"db_id": "x"}]', "no json", '[{"db_id": "x", "question": "?", "query": "q"}]']
)
def test_a_file_of_another_kind_is_refused(tmp_path, text):
    (tmp_path / "dev.json").write_text(text)
    with pytest.raises(InputError):
        read_questions(tmp_path / "dev.json", tmp_path)


def test_a_gold_query_that_cannot_be_run_is_named():
    for query in ("SELECT 1", "SELECT nothing"):
        with pytest.raises(InputError, match="'q'"):
            asked(question("SELECT nothing"), query)


def test_a_long_row_is_cut_and_a_database_that_is_none_is_named(tmp_path):
    assert len(asked(question("SELECT 1"), f"SELECT {TEXT}, {TEXT}")[0][0][0]) < 12_000
    (tmp_path / "x.sqlite").write_text("no database " * 100)
    with pytest.raises(InputError, match=r"x\.sqlite.*SQLite"):
        asked(question("SELECT 1", database=str(tmp_path / "x.sqlite")), "SELECT 1")
