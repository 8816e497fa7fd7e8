"""A cell may hold a value of any type, and a path another file: neither ends in an error that is not ours."""

import json
import logging
import math
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic
import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.parts import Finding, Source
from rb_dspy.bank.sqlite.compression import compressed, decompressed
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import CorruptBank, RBError, StorageError
from rb_dspy.schema import RoleUsage
from tests.bank.helpers import a_draft, a_rollout, a_task, add, finish, open_bank, start
from tests.bank.store_cases import (
    DIMENSION,
    SCOPE,
    append,
    contents,
    give,
    lesson,
    names,
    new,
    pending_id,
    rollout,
    vector,
    waiting,
)

EMBEDDER = ("test", DIMENSION)

VALUES = (b"\xff\xfe" * 20, "text" * 16, 7, 2.5, None)


def opened(path: Path, create: bool = True) -> SqliteStore:
    store = SqliteStore(path, create=create)
    store.bind(*EMBEDDER)
    if create:
        store.add_scope(SCOPE)
    return store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bank.sqlite"


@pytest.fixture
def full(path: Path) -> Iterator[SqliteStore]:
    """Six experiences of two items each; one item is shared, one was edited, one experience was removed."""
    store = opened(path)
    for n in range(6):
        give(store, f"e{n}", f"own {n}", "shared" if n < 2 else f"other {n}", task=f"t{n}")
    edited = next(item for item in store.items(SCOPE) if item.content == "Do own 4.")
    store.edit(SCOPE, edited.id, lesson("own 4, better", id=edited.id), vector("better"), note="better")
    store.remove(SCOPE, kind="delete", source=Source("experience", "e5"), descendants=False, note="wrong")
    store.record(SCOPE, rollout("waits"))
    store.record(SCOPE, rollout("waits too"))
    store.snapshot(SCOPE, "now", "2026")
    give(store, "e6", "own 6", task="t6")
    store.snapshot(SCOPE, "then", "2026")
    yield store
    store.close()


def run(path: Path, statement: str, *values: object) -> None:
    """Change a file behind the store's back."""
    database = sqlite3.connect(path, timeout=30)
    with database:
        assert database.execute(statement, values).rowcount == 1
    database.close()


def found(store: SqliteStore, kind: str = "") -> set[str]:
    """Where errors are."""
    return {f.where for f in store.check() if f.severity == "error" and kind in ("", f.kind)}


def warned(caplog: pytest.LogCaptureFixture, what: str) -> bool:
    said = [record.getMessage() for record in caplog.records if record.name == "rb_dspy.bank"]
    assert not any("\n" in message for message in said)
    return any(what in message for message in said)


# Cells


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed bank with a row in every table."""
    path = tmp_path_factory.mktemp("sound") / "bank.sqlite"
    with open_bank(path) as bank:
        for n in range(6):
            add(bank, f"t{n % 4}", f"do thing {n}", lessons=2, run_id=f"r{n}", template="m")
        first = bank.items()
        bank.append(a_task("t9"), a_rollout("t9"), bank.experiences()[0].verdicts[0], [a_draft()], shown=first[:2])
        bank.edit(first[3].id, content="edited")
        bank.delete(first[4].id)
        bank.snapshot("one")
        bank.record(a_task("waits"), a_rollout("waits"))
    return path


def uses(bank: MemoryBank, folder: Path) -> Iterator[Callable[[], object]]:
    yield bank.doctor
    yield lambda: bank.retrieve("do thing 5", k=99)
    yield lambda: bank.retrieve("do thing 5", k=99, unit="item", mode="hybrid")
    yield lambda: [bank.history(item.id) for item in bank.items()]
    yield bank.experiences
    yield bank.stats
    yield bank.snapshots
    yield bank.pending
    yield bank.scopes
    yield lambda: bank.export_jsonl(folder / "out.jsonl")
    yield lambda: bank.near_duplicates(0.5)
    yield lambda: bank.rollback("run:r1", dry_run=True)
    yield lambda: bank.rollback("run:r1")
    yield lambda: add(bank, "more", "do more")
    yield lambda: bank.edit(bank.items()[0].id, content="other")
    yield lambda: bank.snapshot("one")
    yield lambda: bank.snapshot("two")


TABLES = (
    *("meta", "scopes", "experiences", "items", "experience_vectors", "item_vectors", "exposures", "journal"),
    *("snapshots", "pending_rollouts"),
)


@pytest.mark.parametrize("table", TABLES)
def test_any_cell_of_any_type(sound: Path, tmp_path: Path, table: str) -> None:
    """Whatever a cell holds, what comes out is an error of ours on one line, or what the other rows say."""
    database = sqlite3.connect(sound)
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    database.close()
    tried, said = 0, []
    for place, column in enumerate(columns):
        for value in random.Random(place).sample(VALUES, 2):  # all of them take 20 seconds
            bad = tmp_path / f"{place}-{tried}.sqlite"
            shutil.copy(sound, bad)
            try:
                if table in ("exposures", "snapshots"):  # these have no rowid
                    key = f"({', '.join(columns[:2])}) = (SELECT {', '.join(columns[:2])} FROM {table} LIMIT 1)"
                else:
                    key = f"rowid = (SELECT rowid FROM {table} ORDER BY rowid LIMIT 1)"
                run(bad, f"UPDATE {table} SET {column} = ? WHERE {key}", value)
            except sqlite3.Error:
                continue  # SQLite refuses it
            tried += 1
            try:
                bank = open_bank(bad, create=False)
            except RBError as exc:
                said.append(str(exc))
                continue
            store = SqliteStore(bad, create=False)
            assert not [finding for finding in store.check() if "\n" in finding.what]
            store.close()
            with bank:
                for use in uses(bank, tmp_path):
                    try:
                        use()
                    except RBError as exc:
                        said.append(str(exc))
    assert tried >= len(columns)
    assert not [message for message in said if "\n" in message]


def test_a_damaged_cell_leaves_its_row_out(full: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(path, "UPDATE experiences SET task_id = x'ff' WHERE id = 'e2'")
    run(path, "UPDATE pending_rollouts SET payload = 'text' WHERE task_id = 'waits'")
    run(path, "UPDATE snapshots SET digest = x'ff' WHERE name = 'now'")
    with caplog.at_level(logging.WARNING):
        assert names(full) == ["e0", "e1", "e3", "e4", "e6"]
        assert waiting(full) == ["waits too"]
        assert [named.name for named in full.snapshots(SCOPE)] == ["then"]
    for what in ("experience e2", "rollout 0 of task waits", "snapshot 'now'"):
        assert warned(caplog, f"{what} is damaged"), what
    with pytest.raises(CorruptBank, match="experience e2 is damaged"):
        full.experience(SCOPE, "e2")
    assert {"scope 's': experience e2", f"scope 's': pending {pending_id(rollout('waits'))}"} <= found(full, "row")
    assert "scope 's': snapshot now" in found(full, "snapshot")


def test_the_name_of_a_snapshot_whose_row_is_damaged(full: SqliteStore, path: Path) -> None:
    run(path, "UPDATE snapshots SET created_at = x'00' WHERE name = 'then'")
    with pytest.raises(CorruptBank, match="snapshot 'then' is damaged"):
        full.snapshot(SCOPE, "then", "2027")


def test_a_text_that_cannot_be_decoded_stops_no_list(full: SqliteStore, path: Path) -> None:
    """Neither those that SQLAlchemy reads."""
    run(path, "UPDATE snapshots SET created_at = CAST(x'ff' AS TEXT) WHERE name = 'now'")
    run(path, "UPDATE pending_rollouts SET run_id = CAST(x'ff' AS TEXT) WHERE task_id = 'waits'")
    assert [(named.name, named.created_at) for named in full.snapshots(SCOPE)] == [("now", "\ufffd"), ("then", "2026")]
    assert len(full.pending(SCOPE)) == 2
    assert full.scopes() == [SCOPE]
    run(path, "UPDATE experiences SET template = CAST(x'ff' AS TEXT) WHERE id = 'e2'")
    assert full.stats(SCOPE).by_template.get("\ufffd") == 1
    run(path, "UPDATE snapshots SET created_at = '2026' WHERE name = 'now'")
    assert [named.created_at for named in full.snapshots(SCOPE)] == ["2026", "2026"]  # read as ever again


def test_the_name_of_a_scope(full: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    full.add_scope("another")
    run(path, "UPDATE scopes SET name = x'ff' WHERE name = 's'")
    with caplog.at_level(logging.WARNING):
        assert full.scopes() == ["another"]
    assert warned(caplog, "the name of scope number 1 is damaged")
    assert "scope number 1" in found(full, "file")


@pytest.mark.parametrize("change", ["data = 'text'", "data = 7", "task = 'text'", "success = 2.5", "crc = x'00'"])
def test_a_vector_of_another_type(full: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture, change: str) -> None:
    run(path, f"UPDATE item_vectors SET {change} WHERE key & 1023 = 8")
    with caplog.at_level(logging.WARNING):
        added = full.changes(SCOPE, "item", after=0, limit=99).added
    assert 8 not in added.seqs.tolist()
    assert len(added) == len(added.vectors) == 13
    assert warned(caplog, "the vector of item number 8 is damaged")
    assert len(found(full)) == 1


def test_a_damaged_vector_does_not_end_the_paging(full: SqliteStore, path: Path) -> None:
    before = full.changes(SCOPE, "item", after=0, limit=99)
    assert not before.more
    run(path, "UPDATE item_vectors SET data = x'00' WHERE key & 1023 = 5")
    pages, after, more = [], 0, True
    while more:
        page = full.changes(SCOPE, "item", after=after, limit=4)
        pages.append(page.added.seqs.tolist())
        after, more = page.mark, page.more
    assert [len(page) for page in pages] == [3, 4, 4, 2]
    assert sorted(seq for page in pages for seq in page) == [seq for seq in before.added.seqs.tolist() if seq != 5]
    assert after == full.mark(SCOPE)


def test_a_text_of_another_type_is_found_by_nothing(
    full: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(path, "UPDATE experiences SET instruction = x'ff' WHERE id = 'e2'")
    with caplog.at_level(logging.WARNING):
        listed = dict(full.texts(SCOPE, "experience", after=0, limit=99))
    assert listed[7] == ""
    assert len(listed) == 7
    assert warned(caplog, "the text of experience number 7 is damaged")
    with caplog.at_level(logging.WARNING):
        assert 7 not in full.matches(SCOPE, "experience", [1, 7])
    assert warned(caplog, "experience e2 is damaged")


def test_a_counter_that_is_no_number(full: SqliteStore, path: Path) -> None:
    run(path, "UPDATE scopes SET seq = 'many' WHERE name = 's'")
    with pytest.raises(CorruptBank, match="scope 's': its counter is damaged"):
        full.mark(SCOPE)


def test_history_without_its_damaged_entries(full: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    edited = next(item for item in full.items(SCOPE) if "better" in item.content)
    run(path, "UPDATE journal SET note = x'ff' WHERE kind = 'edit'")
    with caplog.at_level(logging.WARNING):
        assert [change.kind for change in full.history(SCOPE, edited.id)] == ["append"]
    assert warned(caplog, "of the journal is damaged")
    assert any("journal" in where for where in found(full, "chain"))
    run(path, "UPDATE items SET ended = 'later' WHERE id = ? AND ended IS NOT NULL", edited.id)
    assert [change.kind for change in full.history(SCOPE, edited.id)] == ["append"]
    assert any(where.startswith("scope 's': items ") for where in found(full, "chain"))


def test_a_rollback_of_an_item_without_an_id(full: SqliteStore, path: Path) -> None:
    run(path, "UPDATE items SET id = x'ff' WHERE key & 1023 = 8")
    gone = full.remove(SCOPE, kind="rollback", source=Source("experience", "e2"), descendants=True, note="")
    assert gone.experiences == ("e2",)
    assert len(gone.items) == 1
    assert "Do other 2." not in contents(full)


def test_a_check_that_stumbles_stops_no_other(full: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumbles(*_: object, **__: object) -> Iterator[object]:
        raise TypeError("one\ntwo")
        yield

    monkeypatch.setattr("rb_dspy.bank.sqlite.check.damaged_rows", stumbles)
    link = Finding(severity="warning", kind="orphan", where="scope 's'", what="a link", remedy="none")
    monkeypatch.setattr("rb_dspy.bank.sqlite.check.links", lambda *_: iter([link]))
    stopped, other = full.check()
    assert other == link
    assert (stopped.kind, stopped.where) == ("file", "scope 's'")
    assert stopped.what == "a check stopped at a damaged row: TypeError: one two"


# Numbers that no usage has


@pytest.mark.parametrize("wrong", [{"seconds": math.inf}, {"seconds": math.nan}, {"seconds": -1.0}, {"calls": -1}])
def test_usage_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(pydantic.ValidationError):
        RoleUsage.model_validate(wrong)


def test_rollouts_are_readable_whatever_their_usage_says(full: SqliteStore) -> None:
    """``model_copy`` checks nothing, and earlier versions stored infinity as null."""
    odd = RoleUsage(calls=3, prompt_tokens=5).model_copy(update={"seconds": math.inf, "prompt_tokens": -1})
    kept = rollout("odd")
    full.record(SCOPE, replace(kept, trajectory=kept.trajectory.model_copy(update={"usage": {"agent": odd}})))
    assert full.pending(SCOPE, task_id="odd")[0].trajectory.usage == {"agent": RoleUsage(calls=3)}
    assert found(full) == set()


def test_stored_usage_of_null(full: SqliteStore, path: Path) -> None:
    made = full.experience(SCOPE, "e2")
    assert made is not None
    used = made.trajectories[0].model_copy(update={"usage": {"agent": RoleUsage(calls=1, seconds=2.5)}})
    told = {"v": 1, "task": made.task.model_dump(), "trajectories": [used.model_dump()]}
    said = json.dumps(told | {"verdicts": [verdict.model_dump() for verdict in made.verdicts]}).replace("2.5", "null")
    payload = compressed(said.encode(), made.task.id, made.task.instruction)
    run(path, "UPDATE experiences SET payload = ? WHERE id = 'e2'", payload)
    again = full.experience(SCOPE, "e2")
    assert again is not None
    assert again.trajectories[0].usage == {"agent": RoleUsage(calls=1)}


@pytest.mark.parametrize("length", [1, 100, 400, 1000, 1433, 3000, 7_000, 15_000, 31_000])
def test_what_was_said_in_the_instruction_takes_no_room_again(length: int) -> None:
    said = random.Random(length).randbytes(length).hex()[:length]
    data = said.encode()
    for told in (data, data[:60]):
        payload = compressed(told, "t1", said)
        assert len(payload) < 30 + len(told) // 40
        assert decompressed(payload, "t1", said) == told


def test_a_row_holds_values_of_its_columns_types(full: SqliteStore, path: Path) -> None:
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT DISTINCT apart FROM items ORDER BY apart").fetchall() == [(None,), (1,)]
        for table in ("experience_vectors", "item_vectors"):
            kinds = f"SELECT DISTINCT typeof(success), typeof(crc), typeof(data) FROM {table}"
            assert database.execute(kinds).fetchall() == [("integer", "integer", "blob")]
        assert database.execute("SELECT DISTINCT typeof(payload) FROM experiences").fetchall() == [("blob",)]
        assert database.execute("SELECT DISTINCT typeof(hash) FROM journal").fetchall() == [("blob",)]
    database.close()


def test_many_rows_where_sqlite_takes_no_more_values_than_it_usually_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def connected(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connected)
    store = SqliteStore(tmp_path / "many.sqlite")
    store.bind("test", DIMENSION)
    store.add_scope(SCOPE)
    assert len(append(store, SCOPE, [new(f"e{number}", f"lesson {number}") for number in range(3_100)])) == 3_100
    store.close()


# Another file at the path


def copied(path: Path, folder: Path) -> Path:
    backup = folder / "backup.sqlite"
    source, target = sqlite3.connect(path), sqlite3.connect(backup)
    source.backup(target)
    target.close()
    source.close()
    return backup


KILLED = """
import os, sys
from pathlib import Path
from tests.bank.store_cases import DIMENSION, give
from rb_dspy.bank.sqlite.store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
store.bind("test", DIMENSION)
give(store, "lost", "lost")
os._exit(9)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not replace a file that is open")
@pytest.mark.parametrize("used", ["written", "read", "opened"])
def test_a_file_that_was_replaced_while_it_was_open(path: Path, tmp_path: Path, used: str) -> None:
    store = opened(path)
    give(store, "kept", "kept")
    backup = copied(path, tmp_path)
    store.close()
    store = opened(path)
    if used == "written":
        give(store, "lost", "lost")
    else:  # a log remains of a process that was killed
        with pytest.raises(AssertionError):
            finish(start(KILLED, str(path)))
    if used == "read":
        store.version()
        assert names(store) == ["kept", "lost"]
    moved = tmp_path / "moved.sqlite"
    os.link(path, moved)
    os.replace(backup, path)
    whole = path.read_bytes()
    for use in (lambda: give(store, "late", "late"), store.version, lambda: store.snapshot(SCOPE, "x", "")):
        with pytest.raises(StorageError, match="the file was replaced or removed while it was open; open it again"):
            use()
    if used == "read":
        with pytest.raises(StorageError, match="replaced or removed"):
            list(store.check())  # through a connection that would have to be made
    store.close()
    assert path.read_bytes() == whole
    again = opened(path, create=False)
    assert names(again) == ["kept"]
    assert list(again.check()) == []
    give(again, "new", "new")
    assert names(again) == ["kept", "new"]
    again.close()
    old = opened(moved, create=False)  # what was acknowledged is in the file that was replaced
    assert names(old) == ["kept", "lost"]
    old.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove a file that is open")
def test_a_file_that_was_removed_while_it_was_open(path: Path) -> None:
    store = opened(path)
    give(store, "kept", "kept")
    path.unlink()
    with pytest.raises(StorageError, match="replaced or removed"):
        give(store, "late", "late")
    store.close()
    assert not path.exists()
    again = opened(path)
    assert names(again) == []
    again.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove a file that is open")
def test_a_file_that_was_removed_is_not_made_anew_by_who_reads(path: Path) -> None:
    """An empty one in its place would be a bank that holds nothing to whoever opens it next."""
    opened(path).close()
    store = opened(path)
    give(store, "kept", "kept")
    path.unlink()
    with pytest.raises(StorageError, match="replaced or removed"):
        list(store.check())  # through a connection that would have to be made
    assert not path.exists()
    store.close()
    assert not path.exists()


# Nothing can be written

LOOKS = """
import os, sys
from pathlib import Path
from rb_dspy.bank import MemoryBank
from rb_dspy.errors import StorageError
from rb_dspy.testing.embedder import HashEmbedder
import rb_dspy.bank.memory.store, rb_dspy.bank.sqlite.history, rb_dspy.bank.sqlite.store
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    bank = MemoryBank.open(Path(sys.argv[1]), scope="s", embedder=HashEmbedder(), create=False)
except StorageError as exc:
    print(exc)
    sys.exit()
print(len(bank.experiences()), len(bank.items()), len(bank.retrieve("thing")), len(bank.doctor()), bank.scopes())
try:
    bank.snapshot("x")
except StorageError as exc:
    print(exc)
if len(sys.argv) > 2:
    print("go", flush=True)
    sys.stdin.readline()
    for use in (lambda: bank.retrieve("thing"), bank.experiences):
        try:
            use()
        except StorageError as exc:
            print(exc)
bank.close()
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that others can enter: pytest's are closed to them."""
    folder = Path("/tmp") / f"rb_dspy-{os.getpid()}-{random.random()}"
    folder.mkdir()
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="this system has no such permissions")
def test_looking_at_a_bank_where_nothing_can_be_written(shared: Path) -> None:
    path = shared / "bank.sqlite"
    with open_bank(path) as bank:
        add(bank, "t1", "do thing", lessons=2)
    path.chmod(0o444)
    shared.chmod(0o555)
    before = path.read_bytes()
    said = finish(start(LOOKS, str(path))).splitlines()
    assert said[0] == "1 2 1 0 ['s']"
    assert "check the permissions" in said[1]
    assert [path.name] == [file.name for file in shared.iterdir() if not file.name.endswith(".index")]
    assert path.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="this system has no such permissions")
def test_a_backup_of_hard_links_can_be_looked_at_where_nothing_can_be_written(shared: Path) -> None:
    path, other = shared / "bank.sqlite", shared / "yesterday.sqlite"
    with open_bank(path) as bank:
        add(bank, "t1", "do thing", lessons=2)
    path.chmod(0o444)
    os.link(path, other)
    shared.chmod(0o555)
    said = finish(start(LOOKS, str(other))).splitlines()
    assert said[0] == "1 2 1 1 ['s']"  # and the doctor says what it is
    assert "check the permissions" in said[1]
    path.chmod(0o666)
    shared.chmod(0o777)
    assert "has 2 hard links" in finish(start(LOOKS, str(other)))


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="this system has no such permissions")
def test_a_bank_of_an_older_schema_where_nothing_can_be_written(shared: Path) -> None:
    path = shared / "bank.sqlite"
    with open_bank(path) as bank:
        add(bank)
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 1")
    database.close()
    path.chmod(0o444)
    shared.chmod(0o777)
    said = finish(start(LOOKS, str(path)))
    assert "of an older schema, and it cannot be brought up to date" in said
    assert [path] == list(shared.iterdir())


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="this system has no such permissions")
@pytest.mark.skipif(hasattr(os, "getuid") and os.getuid() != 0, reason="only root writes where others cannot")
def test_a_bank_that_only_others_write_and_that_changes(shared: Path) -> None:
    """Read without locks it must not be searched any more: half of what is read might be of another state."""
    path = shared / "bank.sqlite"
    with open_bank(path) as bank:
        add(bank, "t1", "do thing", lessons=2)
    shared.chmod(0o555)
    path.chmod(0o444)
    process: subprocess.Popen[str] = start_with_input(LOOKS, str(path), "wait")
    assert process.stdout is not None
    while process.stdout.readline() != "go\n":
        assert process.poll() is None
    with open_bank(path) as bank:
        add(bank, "t2", "do another thing", lessons=2)
    out, err = process.communicate("\n", timeout=60)
    assert process.returncode == 0, err
    assert out.count("changed, replaced or removed while it was open") == 2


def start_with_input(code: str, *args: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *args],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
