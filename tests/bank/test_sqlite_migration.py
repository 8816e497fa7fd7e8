"""Files of earlier schemas: what they hold is kept, what they were stays beside them, nothing is done by halves."""

import errno
import hashlib
import json
import os
import signal
import sqlite3
import stat
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.admission import text_digest
from rb_dspy.bank.parts import Source
from rb_dspy.bank.sqlite.migrations import APPLICATION_ID, MIGRATIONS
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import SchemaTooNew, StorageError
from rb_dspy.schema import Step, Task, Trajectory, Verdict
from tests.bank.helpers import start
from tests.bank.store_cases import DIMENSION, append, embed, lesson, new, vector

TEXTS = ("Read first", "when a page is long", "Read the whole page.")


def a_digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode("ascii")).hexdigest()[:20]


class First:
    """A file as the first version of the library wrote it."""

    def __init__(self, path: Path) -> None:
        engine = sa.create_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            MIGRATIONS[0](connection)
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.exec_driver_sql("PRAGMA user_version = 1")
        engine.dispose()
        self.database = sqlite3.connect(path)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.executemany(
            "INSERT INTO meta VALUES (?, ?)", [("embedder", "test"), ("dimension", str(DIMENSION))]
        )
        self.seqs = {1: 0, 2: 0}
        self.database.executemany("INSERT INTO scopes VALUES (?, ?, 0)", [(1, "s"), (2, "other")])

    def add(
        self,
        task_id: str,
        *,
        scope: int = 1,
        lessons: int = 2,
        state: str = "distilled",
        run_id: str = "r",
        label: str = "success",
        shown: tuple[str, ...] = (),
    ) -> tuple[str, Trajectory]:
        """An experience, as ``append`` stored it; its id, and what happened in it."""
        name = {1: "s", 2: "other"}[scope]
        task = Task(id=task_id, instruction=f"solve {task_id}", template="sums")
        rollout = Trajectory(task_id=task_id, steps=(Step(action="look", observation="ok"),), answer="42")
        verdict = Verdict(label=label, reasons="seen")
        attempt: Any = run_id or [rollout.model_dump(exclude={"usage"})]
        extra = ["recorded"] if state == "recorded" else []
        id = f"e{a_digest('experience', name, attempt, task_id, ['0'], *extra)}"
        payload = {"v": 1, "task": task.model_dump(), "trajectories": [rollout.model_dump()]}
        packed = zlib.compress(
            json.dumps({**payload, "verdicts": [verdict.model_dump()]}, separators=(",", ":")).encode("ascii")
        )
        seq = self.seqs[scope] + 1
        self.seqs[scope] += 1 + lessons
        self.database.execute(
            f"INSERT INTO experiences VALUES ({', '.join('?' * 12)})",
            (scope, seq, id, task_id, "sums", task.instruction, label, run_id, state, "a note", "2026-01-01", packed),
        )
        polarity = "success" if label == "success" else "failure"
        for number in range(lessons):
            texts = (f"{TEXTS[0]} {number} of {task_id}", *TEXTS[1:])
            values = (f"m{a_digest('item', id, *texts)}", text_digest(*texts), *texts, polarity, "lm")
            self.database.execute(
                f"INSERT INTO items VALUES ({', '.join('?' * 10)})", (scope, seq + 1 + number, seq, *values)
            )
            self._vector(scope, "item", seq + 1 + number, seq, texts[0])
        if lessons:
            self._vector(scope, "experience", seq, seq, task.instruction)
        self.database.executemany(
            "INSERT INTO exposures VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(scope, item_id, seq, task_id, run_id, label, "2026-01-01") for item_id in shown],
        )
        self.database.execute("UPDATE scopes SET seq = ? WHERE id = ?", (self.seqs[scope], scope))
        return id, rollout

    def _vector(self, scope: int, unit: str, seq: int, experience_seq: int, text: str) -> None:
        data = vector(text).astype("<f4").tobytes()
        self.database.execute("INSERT INTO vectors VALUES (?, ?, ?, ?, ?)", (scope, unit, seq, experience_seq, data))

    def close(self) -> None:
        self.database.commit()
        self.database.close()


def rows(path: Path) -> dict[str, list[Any]]:
    """All that a file of the first schema holds."""
    database = sqlite3.connect(path)
    names = ("meta", "scopes", "experiences", "items", "vectors", "exposures")
    found = {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in names}
    found["version"] = database.execute("PRAGMA user_version").fetchall()
    database.close()
    return found


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "bank.sqlite"
    first = First(path)
    seen = first.add("t1")[0]
    item_id = first.database.execute("SELECT id FROM items LIMIT 1").fetchone()[0]
    first.add("t2", label="failure", lessons=3, shown=(item_id, "gone"))
    first.add("t3", state="recorded", lessons=0)
    first.add("t4", state="recorded", lessons=0, run_id="")
    first.add("t1", scope=2)
    first.add("t5", state="recorded", lessons=0)
    first.add("t5", lessons=1)
    first.add("t6", label="unknown", lessons=0)
    first.close()
    assert seen.startswith("e")
    return path


@pytest.fixture
def moved(old: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(old)
    assert store.bind("test", DIMENSION) == ("test", DIMENSION)
    yield store
    store.close()


def test_what_was_learned_is_kept(old: Path) -> None:
    before = rows(old)
    store = SqliteStore(old)
    store.bind("test", DIMENSION)
    learned = [row for row in before["experiences"] if row[0] == 1 and row[8] == "distilled"]
    assert [(e.seq, e.id, e.task.id, e.note, e.created_at) for e in store.experiences("s", after=0, limit=99)] == [
        (row[1], row[2], row[3], row[9], row[10]) for row in learned
    ]
    assert [(i.seq, i.id, i.title, i.polarity, i.provenance.distiller) for i in store.items("s")] == [
        (row[1], row[3], row[5], row[8], row[9]) for row in before["items"] if row[0] == 1
    ]
    assert store.mark("s") == before["scopes"][0][2]
    assert store.scopes() == ["other", "s"]
    assert len(store.items("other")) == 2
    store.close()


def test_vectors_are_halved_and_still_point_the_same_way(moved: SqliteStore) -> None:
    added = moved.changes("s", "experience", after=0, limit=99).added
    assert added.seqs.tolist() == [1, 4, 11]
    assert added.successes.tolist() == [True, False, True]
    expected = embed(["solve t1", "solve t2", "solve t5"])
    assert np.einsum("ij,ij->i", added.vectors, expected) == pytest.approx(1, abs=1e-5)
    assert moved.changes("s", "item", after=0, limit=99).added.seqs.tolist() == [2, 3, 5, 6, 7, 12]


def test_the_journal_is_made_up_and_bears_out_what_is_stored(moved: SqliteStore) -> None:
    (made,) = [e for e in moved.experiences("s", after=0, limit=99) if e.task.id == "t2"]
    assert [(change.seq, change.kind) for change in moved.history("s", made.id)] == [(4, "append")]
    assert moved.digest("s", moved.mark("s")) != moved.digest("s", 1) != ""
    assert [found for found in moved.check() if found.severity == "error"] == []
    assert made.shown[1] == "gone"
    assert moved.stats("s").exposures == 2


def test_what_was_only_recorded_waits_to_be_learned_from(moved: SqliteStore) -> None:
    waiting = moved.pending("s")
    assert [(row.task.id, row.key.run_id) for row in waiting] == [("t3", "r"), ("t4", "")]
    assert all(row.trajectory.task_id == row.task.id for row in waiting)
    assert moved.task_ids("s") == {"t1", "t2", "t5", "t6"}


def test_it_is_a_bank_like_any_other(moved: SqliteStore) -> None:
    first = moved.items("s")[0]
    source = Source("experience", first.provenance.experience_id)
    gone = moved.remove("s", kind="rollback", source=source, descendants=True, note="")
    assert len(gone.experiences) == 2  # the one that was shown an item of the other as well
    assert [found for found in moved.check() if found.severity == "error"] == []


def test_the_file_as_it_was_stands_beside_it(old: Path) -> None:
    before = rows(old)
    SqliteStore(old).close()
    backup = old.with_name("bank.sqlite.backup-v1")
    assert rows(backup) == before
    assert sorted(file.name for file in old.parent.iterdir()) == ["bank.sqlite", "bank.sqlite.backup-v1"]


def test_a_backup_is_never_written_over(old: Path) -> None:
    kept = old.with_name("bank.sqlite.backup-v1")
    kept.write_text("mine")
    before = rows(old)
    SqliteStore(old).close()
    assert kept.read_text() == "mine"
    assert rows(old.with_name("bank.sqlite.backup-v1-2")) == before


def test_a_copy_of_one_is_restored_up_to_date_and_stays_as_it_is(old: Path) -> None:
    before, new = old.read_bytes(), old.with_name("new.sqlite")
    MemoryBank.restore(new, copy=old)
    assert old.read_bytes() == before
    assert sorted(file.name for file in old.parent.iterdir()) == [old.name, new.name]
    store = SqliteStore(new, create=False)
    assert [found for found in store.check() if found.severity == "error"] == []
    assert [experience.task.id for experience in store.experiences("s", after=0, limit=99)] == ["t1", "t2", "t5", "t6"]
    store.close()


@pytest.mark.parametrize("where", ["after-backup", "mid-migration"])
def test_interrupted(old: Path, where: str) -> None:
    before = rows(old)
    code = f"""
import os, sys
from pathlib import Path
os.environ["RB_DSPY_FAILPOINT"] = {where!r}
from rb_dspy.bank.sqlite.store import SqliteStore
SqliteStore(Path(sys.argv[1]))
"""
    killed = start(code, str(old))
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert rows(old) == before
    backup = old.with_name("bank.sqlite.backup-v1")
    assert rows(backup) == before
    store = SqliteStore(old)
    assert len(store.items("s")) == 6
    store.close()
    assert not old.with_name("bank.sqlite.backup-v1-2").exists()  # the one that is there says the same


def test_without_a_backup_nothing_is_migrated(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows(old)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"cannot be brought up to date without a backup.*No space"):
        SqliteStore(old)
    assert rows(old) == before
    monkeypatch.undo()
    assert [file.name for file in old.parent.iterdir() if "backup" in file.name] == []
    SqliteStore(old).close()


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_the_backup_is_as_private_as_the_bank(old: Path, mode: int) -> None:
    old.chmod(mode)
    SqliteStore(old).close()
    assert stat.S_IMODE(old.with_name("bank.sqlite.backup-v1").stat().st_mode) == mode


def test_where_folders_cannot_be_synced_it_is_migrated(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    SqliteStore(old).close()
    assert old.with_name("bank.sqlite.backup-v1").exists()


def test_an_interrupted_backup_leaves_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = rows(old)
    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            SqliteStore(old)
    assert [file.name for file in old.parent.iterdir() if "backup" in file.name or file.suffix == ".part"] == []
    assert rows(old) == before


def test_damaged_rows_are_carried_over_and_named(old: Path) -> None:
    database = sqlite3.connect(old)
    ids = [row[0] for row in database.execute("SELECT id FROM experiences WHERE scope_id = 1 ORDER BY seq")]
    items = [row[0] for row in database.execute("SELECT id FROM items WHERE scope_id = 1 ORDER BY seq")]
    database.execute("UPDATE experiences SET payload = substr(payload, 1, 40) WHERE id = ?", (ids[0],))
    database.execute("UPDATE experiences SET payload = x'00' WHERE id = ?", (ids[2],))  # only recorded
    database.execute("UPDATE items SET content = 'something else' WHERE id = ?", (items[1],))
    database.execute("UPDATE items SET content = CAST(x'ff' AS TEXT) WHERE id = ?", (items[2],))
    database.execute("UPDATE vectors SET data = x'00' WHERE scope_id = 1 AND unit = 'item' AND seq = 2")
    database.commit()
    database.close()
    store = SqliteStore(old)
    store.bind("test", DIMENSION)
    named = {found.where for found in store.check() if found.severity == "error"}
    assert named == {
        f"scope 's': {what}"
        for what in (
            f"experience {ids[0]}",
            f"experience {ids[2]}",
            f"item {items[0]}",
            f"item {items[1]}",
            f"item {items[2]}",
        )
    }
    assert len(store.items("s")) == 4
    store.close()


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    SqliteStore(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew, match=r"bank schema 99; this one knows 5"):
        SqliteStore(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_migrations_make_the_tables_that_a_new_file_has(tmp_path: Path, old: Path) -> None:
    new = tmp_path / "new.sqlite"
    made = []
    for path in (new, old):
        SqliteStore(path).close()
        engine = sa.create_engine(f"sqlite:///{path}")
        found = sa.inspect(engine)
        made.append({name: [column["name"] for column in found.get_columns(name)] for name in found.get_table_names()})
        engine.dispose()
    assert made[0] == made[1]
    assert {"scopes", "experiences", "items", "snapshots", "pending_rollouts"} <= made[0].keys()


_FOURTH = """DROP TABLE pending_rollouts;
        CREATE TABLE ingestions (
            position INTEGER PRIMARY KEY, scope_id INTEGER NOT NULL REFERENCES scopes (id), id TEXT NOT NULL,
            run_id TEXT NOT NULL, origin TEXT NOT NULL, stage INTEGER NOT NULL, payload BLOB NOT NULL,
            UNIQUE (scope_id, id));
        """
"""Makes the tables of the fourth schema of those of the fifth."""


def second(path: Path) -> dict[str, str]:
    """A file as the second version of the library wrote it, with an item that was edited; ids of its items by title."""
    store = SqliteStore(path)
    store.bind("test", DIMENSION)
    for scope in ("s", "other"):
        store.add_scope(scope)
        append(store, scope, [new("e1", "a", "b", scope=scope)])
    edited = store.items("s")[0].id
    store.edit("s", edited, lesson("z", id=edited), vector("z"), note="")
    append(store, "s", [new("e2", "a")])  # whose usual id was taken
    found = {item.title: item.id for item in store.items("s")}
    store.close()
    database = sqlite3.connect(path)
    database.executescript(
        _FOURTH
        + """ALTER TABLE scopes RENAME COLUMN chain TO head;
        CREATE TABLE old (
            key INTEGER PRIMARY KEY, scope_id INTEGER NOT NULL, id TEXT NOT NULL, ended INTEGER,
            experience INTEGER NOT NULL REFERENCES experiences (key), digest TEXT NOT NULL, title TEXT NOT NULL,
            description TEXT NOT NULL, content TEXT NOT NULL);
        INSERT INTO old SELECT key, scope_id, id, ended, experience, digest, title, description, content FROM items;
        DROP TABLE items;
        ALTER TABLE old RENAME TO items;
        DROP TABLE ids;
        DROP TABLE recent_ids;
        CREATE INDEX items_of_id ON items (scope_id, id, ended);
        CREATE INDEX items_of_text ON items (scope_id, digest, ended);
        CREATE INDEX items_of_experience ON items (experience, ended);
        PRAGMA user_version = 2;"""
    )
    database.close()
    return found


def test_items_of_the_second_schema_are_still_found_by_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    ids = second(path)
    assert sorted(ids) == ["On a", "On b", "On z"]
    assert lesson("a").id == ids["On z"] != ids["On a"]
    store = SqliteStore(path)
    store.bind("test", DIMENSION)
    digests = {title: lesson(title[-1]).digest for title in ids}
    assert store.items_with("s", list(digests.values())) == {digests[title]: id for title, id in ids.items()}
    (stored,) = append(store, "s", [new("e3", "z", "b", "a", "c")])
    assert [item.id for item in stored.items[:3]] == [ids["On z"], ids["On b"], ids["On a"]]
    assert [len(item.provenances) for item in stored.items] == [2, 2, 2, 1]
    assert store.items_with("other", [lesson("a").digest]) == {lesson("a").digest: lesson("a", "other").id}
    assert list(store.check()) == []
    store.close()
    assert (tmp_path / "bank.sqlite.backup-v2").exists()


def test_rows_of_the_third_schema_are_found_by_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    third(path)
    store = SqliteStore(path)
    store.bind("test", DIMENSION)
    assert (tmp_path / "bank.sqlite.backup-v3").exists()
    assert store.have("s", ["e1", "e2", "e9"]) == {"e1", "e2"}
    found = {item.id: [source.experience_id for source in item.provenances] for item in store.items("s")}
    assert sorted(found.values()) == [["e1", "e2"], ["e2"]]
    for id, sources in found.items():
        item = store.item("s", id)
        assert item is not None
        assert [source.experience_id for source in item.provenances] == sources
        assert [giving.provenance.experience_id for giving in store.item_rows("s", "item", id)] == sources
    assert store.count("s") == len(found) == store.stats("s").items
    assert store.stats("s").by_polarity == {"success": 2}
    assert store.experience("other", "e1") is not None
    assert append(store, "s", [new("e1", "z")])[0].items == store.experiences("s", after=0, limit=1)[0].items
    assert list(store.check()) == []
    store.close()


def test_items_with_one_hash_stay_two_items(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    one, two = "id d473f09", "id 23b3ee2b"
    assert zlib.crc32(one.encode()) == zlib.crc32(two.encode())
    third(path, one, two)
    store = SqliteStore(path)
    store.bind("test", DIMENSION)
    assert [item.id for id in (one, two) if (item := store.item("s", id))] == [one, two]
    assert store.count("s") == store.stats("s").items == 4
    store.close()
    database = sqlite3.connect(path)
    again = {id for (id,) in database.execute("SELECT id FROM items WHERE again IS NOT NULL")}
    database.close()
    assert again == {lesson("a").id}  # which two experiences gave; of the others each has one row


def third(path: Path, *given: str) -> None:
    """A file as the third version of the library wrote it: two experiences gave one lesson, one of them another."""
    store = SqliteStore(path)
    store.bind("test", DIMENSION)
    for scope in ("s", "other"):
        store.add_scope(scope)
        append(store, scope, [new("e1", "a", scope=scope)])
    append(store, "s", [new("e2", "a", "b")])
    for number, id in enumerate(given):  # as another bank can have named its items
        append(store, "s", [replace(new(f"given {number}", "x"), items=(lesson(f"given {number}", id=id),))])
    store.close()
    database = sqlite3.connect(path)
    database.executescript(
        _FOURTH
        + """ALTER TABLE scopes RENAME COLUMN chain TO head;
        DROP INDEX items_again;
        ALTER TABLE items DROP COLUMN again;
        DROP TABLE ids;
        DROP TABLE recent_ids;
        CREATE UNIQUE INDEX experiences_of_id ON experiences (scope_id, id);
        CREATE INDEX items_of_id ON items (scope_id, id, ended);
        PRAGMA user_version = 3;"""
    )
    database.close()


def test_only_texts_under_other_ids_are_indexed(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    ids = second(path)
    SqliteStore(path).close()
    database = sqlite3.connect(path)
    found = database.execute("SELECT scope_id, id, title FROM items WHERE apart = 1 AND ended IS NULL").fetchall()
    database.close()
    assert sorted(found) == sorted([(1, ids["On a"], "On a"), (1, ids["On z"], "On z")])


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE experiences SET scope_id = 99 WHERE key = (SELECT min(key) FROM experiences)",
        "UPDATE experiences SET scope_id = 1 << 45 WHERE key = (SELECT min(key) FROM experiences)",
        "UPDATE experiences SET key = key + 500 WHERE key = (SELECT min(key) FROM experiences)",
        "DELETE FROM experiences WHERE key = (SELECT min(key) FROM experiences)",
        "UPDATE items SET scope_id = 1 << 45 WHERE key = (SELECT min(key) FROM items)",
        "UPDATE items SET experience = experience + 500 WHERE key = (SELECT min(key) FROM items)",
        "INSERT INTO exposures VALUES (5, 0, 'm')",
        "DELETE FROM scopes WHERE name = 'other'",
    ],
)
def test_a_file_with_damaged_rows_is_brought_up_to_date(tmp_path: Path, damage: str) -> None:
    """What refers to nothing stays, is told of, and keeps nobody from the rest; what is written later is checked."""
    path = tmp_path / "bank.sqlite"
    third(path)
    database = sqlite3.connect(path)
    database.execute(damage)
    database.commit()
    database.close()
    store = SqliteStore(path)
    store.bind("test", DIMENSION)
    assert "e2" in store.have("s", ["e1", "e2"])
    assert lesson("b").id in {item.id for item in store.items("s")}
    assert list(store.check())
    assert append(store, "s", [new("e3", "c")])[0].id == "e3"
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1
    store.close()


def test_a_version_that_knows_no_ids_cannot_write_any_more(tmp_path: Path) -> None:
    """One that opened the file before it was brought up to date: it would leave rows that nobody finds."""
    path = tmp_path / "bank.sqlite"
    third(path)
    before = sqlite3.connect(path)
    before.execute("SELECT id, seq, head FROM scopes").fetchall()
    SqliteStore(path).close()
    with pytest.raises(sqlite3.OperationalError, match="no such column: head"):  # which all of its writes begin with
        before.execute("SELECT id, seq, head FROM scopes")
    before.close()
