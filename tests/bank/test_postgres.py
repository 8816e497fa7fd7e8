"""What only a bank in PostgreSQL meets: servers that end, roles, other tables, connection strings, the index."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.store.postgres import PostgresDatabase
from rb_dspy.errors import EmbedderMismatch, InputError, SchemaTooNew, StorageError
from rb_dspy.protocols import Vectors
from rb_dspy.testing.embedder import HashEmbedder
from tests.bank.helpers import WRITER, add, check_writers, finish, open_bank, start
from tests.bank.postgres_server import PostgresServer


def refused(kind: type[Exception], words: str, url: str, **kwargs: object) -> None:
    """Opening raises this error, in one line without the password."""
    with pytest.raises(kind, match=words) as caught:
        open_bank(url, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    assert "s3cret" not in message
    assert len(message) < 500


def with_password(url: str, user: str = "postgres") -> str:
    return url.replace("//postgres@", f"//{user}:s3cret@")


# Opening


def test_opening_without_create_makes_nothing(bare_url: str, postgres_server: PostgresServer) -> None:
    refused(StorageError, "has no bank", with_password(bare_url), create=False)
    refused(StorageError, "has no bank", bare_url, at="then")
    assert postgres_server.execute("SELECT to_regnamespace('rb_dspy')", bare_url) == [(None,)]


def test_tables_of_others_are_left_alone(bare_url: str, postgres_server: PostgresServer) -> None:
    for table in ("items", "meta", "scopes"):
        postgres_server.execute(f"CREATE TABLE {table} (mine text)", bare_url)
    with open_bank(bare_url) as bank:
        add(bank)
        assert len(bank) == 1
        assert bank.doctor() == []
    assert postgres_server.execute("SELECT * FROM public.items", bare_url) == []


def test_a_newer_schema_is_refused(postgres_url: str, postgres_server: PostgresServer) -> None:
    postgres_server.execute("UPDATE rb_dspy.meta SET value = '99' WHERE key = 'schema'", postgres_url)
    refused(SchemaTooNew, "bank schema 99; .*upgrade", with_password(postgres_url))


@pytest.mark.parametrize("scheme", ["postgres", "postgresql+psycopg"])
def test_the_password_is_shown_nowhere(postgres_url: str, scheme: str) -> None:
    for url in (with_password(postgres_url), f"{postgres_url}&password=s3cret&application_name=x"):
        with open_bank(url.replace("postgresql", scheme, 1)) as bank:
            add(bank)
            fork = bank.fork()
            for shown in (repr(bank), repr(fork), str(vars(bank)), str(bank.stats())):
                assert "s3cret" not in shown
            with pytest.raises(InputError) as caught:
                bank.get("nothing")
            assert str(caught.value).startswith("postgresql://postgres@/test")
            assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "kind", "words"),
    [
        ("postgresql://me:s3cret@127.0.0.1:1/db", StorageError, "refused.*try again"),
        ("postgresql://me:s3cret@/db?host=/nowhere", StorageError, "try again"),
        ("postgresql://me:s3cret@host:port/db", InputError, "not a valid PostgreSQL URL"),
        ("postgresql://me@/db?host=/nowhere&password=s3cret", StorageError, "try again"),
    ],
)
def test_a_server_that_cannot_be_reached(url: str, kind: type[Exception], words: str) -> None:
    refused(kind, words, url)


def test_a_database_that_is_not_there(postgres_url: str) -> None:
    refused(StorageError, "does not exist", with_password(postgres_url).replace("/test", "/no_test"))


def test_roles(bare_url: str, postgres_server: PostgresServer) -> None:
    """The owner of a database makes a bank; who may only read, reads."""
    name = bare_url.split("/")[3].partition("?")[0]
    for role in ("owner", "reader"):
        postgres_server.execute(f"CREATE ROLE bank_{role} LOGIN")
    postgres_server.execute(f"ALTER DATABASE {name} OWNER TO bank_owner")
    postgres_server.execute("CREATE EXTENSION vector; REVOKE ALL ON SCHEMA public FROM PUBLIC", bare_url)
    reader_url = with_password(bare_url, "bank_reader")
    refused(StorageError, "permission denied", reader_url)
    with open_bank(with_password(bare_url, "bank_owner")) as bank:
        add(bank)
    refused(StorageError, "permission denied", reader_url)
    for grant in ("USAGE ON SCHEMA public, rb_dspy", "SELECT ON ALL TABLES IN SCHEMA rb_dspy"):
        postgres_server.execute(f"GRANT {grant} TO bank_reader", bare_url)
    with open_bank(reader_url) as bank:
        assert len(bank.retrieve("sort", mode="hybrid")) == 1
        assert bank.doctor() == []
        with pytest.raises(StorageError, match="permission denied"):
            add(bank, "t2")
    postgres_server.execute(f"ALTER DATABASE {name} OWNER TO postgres")
    for role in ("owner", "reader"):
        for command in ("REASSIGN OWNED BY {} TO postgres", "DROP OWNED BY {}", "DROP ROLE {}"):
            postgres_server.execute(command.format(f"bank_{role}"), bare_url)


def test_without_pgvector_it_says_what_to_do(bare_url: str, postgres_server: PostgresServer) -> None:
    """A role that may make tables, but no extension."""
    for command in ("CREATE ROLE maker LOGIN", "CREATE SCHEMA rb_dspy AUTHORIZATION maker"):
        postgres_server.execute(command, bare_url)
    refused(StorageError, r"needs pgvector 0\.8 or newer .*administrator", with_password(bare_url, "maker"))
    postgres_server.execute("CREATE EXTENSION vector", bare_url)
    postgres_server.execute("UPDATE pg_extension SET extversion = '0.7.4' WHERE extname = 'vector'", bare_url)
    refused(StorageError, r"has pgvector 0\.7\.4, needs 0\.8", with_password(bare_url, "maker"))
    assert postgres_server.execute("SELECT to_regclass('rb_dspy.meta')", bare_url) == [(None,)]
    postgres_server.execute("DROP SCHEMA rb_dspy; DROP ROLE maker", bare_url)


def test_a_bank_is_copied_with_the_tools_of_postgresql(
    postgres_url: str, bare_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    with open_bank(postgres_url) as bank:
        stored = [add(bank, f"t{n}", f"sort {n} numbers", lessons=2) for n in range(3)]
    copy = tmp_path / "copy.dump"
    subprocess.run(
        [postgres_server.programs / "pg_dump", "--schema=rb_dspy", "--format=custom", f"--file={copy}", postgres_url],
        check=True,
    )
    postgres_server.execute("CREATE EXTENSION vector", bare_url)
    subprocess.run([postgres_server.programs / "pg_restore", f"--dbname={bare_url}", copy], check=True)
    with open_bank(bare_url, create=False) as bank:
        assert bank.experiences() == stored
        assert bank.retrieve("sort 2 numbers", mode="hybrid")[0].task_id == "t2"
        assert add(bank, "t3").seq == 10


def test_a_bank_that_is_no_file_is_not_copied_as_one(tmp_path: Path) -> None:
    for call in (
        lambda: MemoryBank.backup("postgresql://me:s3cret@host/db", to=tmp_path / "copy"),
        lambda: MemoryBank.restore("postgresql://me:s3cret@host/db", copy=tmp_path / "copy"),
    ):
        with pytest.raises(InputError, match="pg_dump and pg_restore") as caught:
            call()
        assert "s3cret" not in str(caught.value)


def test_without_the_extra_only_postgresql_is_missing() -> None:
    code = """
import sys
sys.modules["psycopg"] = sys.modules["pgvector"] = None
import tests.bank.helpers as h
from rb_dspy.errors import MissingDependency
with h.open_bank() as bank:
    h.add(bank)
    assert bank.retrieve("sort")
try:
    h.open_bank("postgresql://host/db")
except MissingDependency as exc:
    print(exc)
"""
    assert "pip install 'rb-dspy[postgres]'" in finish(start(code))


# Writers


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that may be killed."""
    server = PostgresServer()
    yield server
    server.stop()


def kill_server(server: PostgresServer, folder: Path, rounds: int, pause: float, writers: int = 4) -> None:
    """Kill and start it under its writers."""
    url = server.url(server.new_database())
    open_bank(url).close()
    files = [folder / f"{writer}" for writer in range(writers)]
    processes = [start(WRITER, url, file.name, str(file)) for file in files]
    while not all(file.exists() and file.stat().st_size for file in files):
        time.sleep(0.05)
    for _ in range(rounds):
        time.sleep(pause * random.random())
        server.kill()
        server.start()
    time.sleep(pause)
    for writer in processes:
        writer.kill()
        _, error = writer.communicate()
        assert writer.returncode == -signal.SIGKILL, error
    assert len(check_writers(url, files)) > rounds


def test_a_server_is_killed_under_its_writers(own_server: PostgresServer, tmp_path: Path) -> None:
    kill_server(own_server, tmp_path, 1, 0.3, writers=2)


@pytest.mark.stress
def test_a_server_is_killed_fifty_times(own_server: PostgresServer, tmp_path: Path) -> None:
    kill_server(own_server, tmp_path, 50, 2.0)


def test_a_connection_that_is_lost_in_mid_append(postgres_url: str, postgres_server: PostgresServer) -> None:
    waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with open_bank(postgres_url) as bank:
        add(bank, "t0")
        with psycopg.connect(postgres_url) as other, ThreadPoolExecutor(1) as pool:
            other.execute("LOCK TABLE rb_dspy.journal IN SHARE MODE")  # the append has written its other rows by then
            lost = pool.submit(add, bank, "t1")
            while not postgres_server.execute(f"SELECT 1 {waiting}", postgres_url):
                time.sleep(0.01)
            postgres_server.execute(f"SELECT pg_terminate_backend(pid) {waiting}", postgres_url)
            with pytest.raises(StorageError, match="try again"):
                lost.result(30)
        assert bank.seen_tasks() == {"t0"}
        assert add(bank, "t1").seq == 3
        everyone = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
        postgres_server.execute(f"SELECT pg_terminate_backend(pid) {everyone}", postgres_url)
        assert len(bank.retrieve("sort", k=9)) == 2  # idle connections that were lost are replaced
        assert len(bank) == 2


def test_writers_of_one_scope_take_turns_and_others_do_not_wait(postgres_url: str) -> None:
    with open_bank(postgres_url, "one") as one, open_bank(postgres_url, "two") as two, ThreadPoolExecutor(2) as pool:
        for bank in (one, two):
            add(bank)
        database = PostgresDatabase(postgres_url)
        with database.writing(1):
            same = pool.submit(add, one, "t2")
            add(two, "t2")
            assert len(one.retrieve("sort", k=9)) == 1  # readers never wait
            assert not same.done()
        same.result(30)
        with database.writing():
            both = [pool.submit(add, bank, "t3") for bank in (one, two)]
            assert len(two.retrieve("sort", k=9)) == 2
            time.sleep(0.2)
            assert not any(each.done() for each in both)
        for each in both:
            each.result(30)
        assert (len(one), len(two)) == (3, 3)
    database.close()


def test_a_block_of_reads_is_of_one_moment(postgres_url: str) -> None:
    database = PostgresDatabase(postgres_url)
    with open_bank(postgres_url) as bank:
        with database.reading() as connection:
            counts = [connection.exec_driver_sql("SELECT count(*) FROM experiences").scalar_one()]
            add(bank)
            with database.reading() as same:
                assert same is connection
                counts.append(same.exec_driver_sql("SELECT count(*) FROM experiences").scalar_one())
        assert counts == [0, 0]
    database.close()


def test_two_scopes_are_bound_to_one_embedder_at_once(postgres_url: str) -> None:
    """Whoever is first decides; the other is refused, and nothing of it is stored."""
    names = [f"scope{n}" for n in range(6)]
    banks = [open_bank(postgres_url, name, embedder=HashEmbedder(8 + n % 2)) for n, name in enumerate(names)]
    barrier = threading.Barrier(len(banks))

    def append(bank: MemoryBank) -> bool:
        barrier.wait()
        try:
            return bool(add(bank))
        except EmbedderMismatch:
            return False

    with ThreadPoolExecutor(len(banks)) as pool:
        stored = list(pool.map(append, banks))
    assert stored in ([True, False] * 3, [False, True] * 3)
    assert [len(bank) for bank in banks] == [int(each) for each in stored]
    for bank in banks:
        bank.close()


# Search


class Odd(HashEmbedder):
    """Its id has everything that SQL and its drivers treat as special."""

    id = 'it\'s 50% :x ::y \\ "q" $1 %(z)s'


@pytest.mark.parametrize("embedder", [Odd(64), HashEmbedder(4_001)], ids=["odd id", "no index"])
def test_any_embedder(postgres_url: str, embedder: HashEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
    exact_up_to(0, monkeypatch)
    with open_bank(postgres_url, embedder=embedder) as bank:
        for n in range(10):
            add(bank, f"t{n}", f"sort {n} numbers")
        assert bank.retrieve("sort 7 numbers")[0].task_id == "t7"
        assert len(bank.retrieve("sort 7 numbers", k=5, unit="item", exclude_tasks=["t7"])) == 5
        assert bank.reindex(HashEmbedder(64, salt="new")) == 20
        assert bank.retrieve("sort 8 numbers")[0].task_id == "t8"
        assert bank.reindex(embedder) == 20
        assert bank.retrieve("sort 9 numbers")[0].task_id == "t9"
        assert bank.doctor() == []


def exact_up_to(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No index up to this number of a scope."""
    for module in ("search", "store"):
        monkeypatch.setattr(f"rb_dspy.bank.{module}.postgres.MAX_EXACT", number)


def test_the_index_is_made_when_a_scope_is_large(
    postgres_url: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact_up_to(8, monkeypatch)
    with open_bank(postgres_url) as bank, open_bank(postgres_url, "other") as other:
        for n in range(5):
            assert postgres_server.execute(INDEX, postgres_url) == []
            add(bank, f"t{n}", f"sort {n} numbers")
        add(other)  # the next write, in any scope
        assert len(postgres_server.execute(INDEX, postgres_url)) == 1
        assert bank.retrieve("sort 3 numbers")[0].task_id == "t3"
    with open_bank(postgres_url) as bank:
        add(bank, "t5", "sort 5 numbers")
        assert len(postgres_server.execute(INDEX, postgres_url)) == 1


def test_each_embedder_has_its_own_index(
    postgres_url: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact_up_to(0, monkeypatch)

    def indexes() -> set[str]:
        query = "SELECT indexname FROM pg_indexes WHERE tablename = 'vectors' AND indexdef LIKE '%hnsw%'"
        return {row[0] for row in postgres_server.execute(query, postgres_url)}

    with open_bank(postgres_url) as bank:
        assert indexes() == set()
        add(bank)
        first = indexes()
        bank.reindex(HashEmbedder(16))
        second = indexes()
        assert (len(first), len(second), first & second) == (2, 2, set())
        bank.reindex(HashEmbedder(4_001))
        assert indexes() == set()


HOSTILE = (
    *("退 款退'& |", "经理批准ผู้" * 300, "ｶﾞ・ーー"),
    *("'; DROP TABLE items; --", "a & | ! <-> b:* (", "\\", "%s %(x)s :x $1", "''", "the", "nul \0 half \ud800"),
    *("x" * 3_000, "ä" * 1_500, "word " * 10_000, " ".join(map(str, range(500))), "² ³ ٣ _ __ a_b"),
)


def test_a_commit_that_fails_is_one_error_and_stores_nothing(bare_url: str, postgres_server: PostgresServer) -> None:
    full = "BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END"
    with open_bank(bare_url) as bank:
        add(bank)
        postgres_server.execute(f"CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ {full} $$", bare_url)
        trigger = "AFTER INSERT ON rb_dspy.items DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fill()"
        postgres_server.execute(f"CREATE CONSTRAINT TRIGGER fill {trigger}", bare_url)
        with pytest.raises(StorageError, match="No space left on device"):
            add(bank, "t2")
        postgres_server.execute("DROP TRIGGER fill ON rb_dspy.items", bare_url)
        assert add(bank, "t3").seq == 3
        assert bank.doctor() == []


@pytest.mark.parametrize("unit", ["experience", "item"])
def test_hostile_queries_are_words(postgres_url: str, unit: Any) -> None:
    with open_bank(postgres_url) as bank:
        add(bank, "t", "mail ada@example.org about path-of/a_file.txt")
        for query in HOSTILE:
            for mode in ("lexical", "hybrid"):
                hits = bank.retrieve(query, unit=unit, mode=mode, exclude_tasks=[query])  # type: ignore[arg-type]
                assert len(hits) == 1 if mode == "hybrid" else len(hits) <= 1
        words = ("ada", "EXAMPLE", "mails", "a_file.txt", "path") if unit == "experience" else ("LESSONS", "pages")
        for word in words:
            assert len(bank.retrieve(word, unit=unit, mode="lexical")) == 1, word


class Directions(HashEmbedder):
    """A text that ends in a number points in that direction (radians), so that its neighbors are known."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        ends = (text.split()[-1] for text in texts)
        angles = np.array([float(end) if end[0].isdigit() else 0.0 for end in ends])
        rows: Vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        return rows


MANY = 20_000
FILL = f"""
INSERT INTO rb_dspy.experiences SELECT scope_id, n, 'e' || n, NULL, 't' || n, template, run_id, origin, distiller, note,
    label, CASE WHEN n % 2000 = 0 THEN 'failure' ELSE polarity END, 'turn to ' || n * 6.28 / {MANY}, created_at, level,
    reward, payload FROM rb_dspy.experiences, generate_series(3, {MANY}) AS n WHERE scope_id = 2;
INSERT INTO rb_dspy.items SELECT scope_id, n + {MANY}, 'm' || n, NULL, n + {MANY}, n, 't' || n,
    CASE WHEN n % 2000 = 0 THEN 'failure' ELSE polarity END, title,
    description, content, kind, data, origin, level FROM rb_dspy.items, generate_series(3, {MANY}) AS n
    WHERE scope_id = 2;
INSERT INTO rb_dspy.vectors
    SELECT 2, unit, n, embedder, CAST(ARRAY[cos(n * 6.28 / {MANY}), sin(n * 6.28 / {MANY})] AS halfvec)
    FROM rb_dspy.vectors, generate_series(3, {MANY}) AS n WHERE scope_id = 2 AND unit = 'experience';
UPDATE rb_dspy.scopes SET seq = 2 * {MANY} WHERE id = 2;
ANALYZE;
"""
INDEX = "SELECT indexname, indexdef FROM pg_indexes WHERE indexname LIKE 'vectors_nearest_experience%'"
USED = "SELECT idx_scan FROM pg_stat_all_indexes WHERE indexrelname LIKE 'vectors_nearest_experience%'"


@pytest.mark.stress
def test_ten_rows_beside_twenty_thousand_of_another_scope(
    postgres_url: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Directions(2)
    with (
        open_bank(postgres_url, "small", embedder=embedder) as small,
        open_bank(postgres_url, "large", embedder=embedder) as large,
    ):
        for n in range(10):
            add(small, f"s{n}", f"turn to {n / 10}")
        add(large, "t0", "turn to 0")
        postgres_server.execute(FILL, postgres_url)
        for n in range(2):  # the second makes the index
            add(large, f"late{n}", "turn to 0")
        assert len(postgres_server.execute(INDEX, postgres_url)) == 1
        for most in (10_000, 0):  # numbers of a scope up to which the index is not used
            exact_up_to(most, monkeypatch)
            for k in (5, 10):
                hits = small.retrieve("turn to 0.3", k=k)
                assert len(hits) == k
                assert [match.task_id for match in hits[:1]] == ["s3"]
            hits = large.retrieve("turn to 3", k=5)
            assert [abs(int(match.task_id[1:]) * 6.28 / MANY - 3) < 0.01 for match in hits] == [True] * 5
            assert [match.score for match in hits] == [1.0] * 5
            assert len(large.retrieve("turn to 3", k=5, polarity="failure")) == 5
            with large.fork() as fork:
                add(fork, "new", "turn to 3")
                assert fork.retrieve("turn to 3", k=5)[0].task_id == "new"
                assert len(fork.retrieve("turn to 3", k=100)) == 100
    ((used,),) = postgres_server.execute(USED, postgres_url)
    assert used > 0


def test_six_processes_make_a_bank_at_the_same_moment(bare_url: str) -> None:
    code = """
import sys
import tests.bank.helpers as h
print("ready", flush=True)
sys.stdin.readline()
with h.open_bank(sys.argv[1], "s" + sys.argv[2]) as bank:
    h.add(bank)
print("done", flush=True)
"""
    processes = [start(code, bare_url, str(number), stdin=subprocess.PIPE) for number in range(6)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [finish(process) for process in processes] == ["done\n"] * 6
    with open_bank(bare_url, "s0") as bank:
        assert bank.scopes() == [f"s{number}" for number in range(6)]


def test_a_connection_from_before_the_bank_was_made_learns_its_types(
    bare_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = PostgresDatabase._schema

    def late(self: PostgresDatabase, connection: Any) -> int:
        monkeypatch.setattr(PostgresDatabase, "_schema", look)
        open_bank(bare_url, "other").close()  # another process was first
        return look(self, connection)

    monkeypatch.setattr(PostgresDatabase, "_schema", late)
    with open_bank(bare_url) as bank:
        add(bank)
        assert len(bank.retrieve("sort", unit="item")) == 1


def test_a_new_bank_that_many_threads_open_at_once_is_made_once(bare_url: str) -> None:
    together, errors = threading.Barrier(24), list[Exception]()

    def opens(number: int) -> None:
        together.wait()
        try:
            open_bank(bare_url, scope=f"scope {number}").close()
        except StorageError as exc:
            errors.append(exc)

    threads = [threading.Thread(target=opens, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
