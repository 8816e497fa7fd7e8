"""Killed, cut short, filled up, flipped: what was acknowledged is there, and what is damaged is named."""

import json
import logging
import os
import random
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rb_dspy.bank.parts import UNITS, Source
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import BankError, CorruptBank, EmbedderMismatch, StorageError
from rb_dspy.schema import MemoryItem
from tests.bank.helpers import finish, start
from tests.bank.store_cases import DIMENSION, SCOPE, append, contents, embed, give, lesson, names, new, rollout, vector

EMBEDDER = ("test", DIMENSION)


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
        shown = [lesson(f"own {n - 1}").id] if n else []
        give(store, f"e{n}", f"own {n}", "shared" if n < 2 else f"other {n}", task=f"t{n}", shown=shown)
    (edited,) = [item for item in store.items(SCOPE) if item.content == "Do own 4."]
    store.edit(SCOPE, edited.id, lesson("own 4, better", id=edited.id), vector("better"), note="better")
    store.remove(SCOPE, kind="delete", source=Source("experience", "e5"), descendants=False, note="wrong")
    store.record(SCOPE, rollout("waits"))
    store.snapshot(SCOPE, "now", "2026")
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


def warned(caplog: pytest.LogCaptureFixture, what: str) -> int:
    return sum(what in record.getMessage() for record in caplog.records if record.name == "rb_dspy.bank")


def item_of(store: SqliteStore, experience: str, place: int = 0) -> MemoryItem:
    made = store.experience(SCOPE, experience)
    assert made is not None
    return made.items[place]


# Killed

APPENDS = """
import os, sys
from pathlib import Path
from tests.bank.store_cases import DIMENSION, SCOPE, give
from rb_dspy.bank.sqlite.store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
store.bind("test", DIMENSION)
store.add_scope(SCOPE)
for n in range(int(sys.argv[3])):
    if n == 3 and len(sys.argv) > 4:
        os.environ["RB_DSPY_FAILPOINT"] = sys.argv[4]
    name = f"{sys.argv[2]}-{n}"
    give(store, name, f"one of {name}", f"two of {name}", f"lesson {n % 7} of many", task=name)
    os.write(1, f"{name}\\n".encode())
store.close()
"""


@pytest.mark.parametrize(
    ("where", "stored"), [("before-begin", 3), ("after-insert", 3), ("before-commit", 3), ("after-commit", 4)]
)
def test_killed_at(path: Path, where: str, stored: int) -> None:
    killed = start(APPENDS, str(path), "w", "9", where)
    acknowledged = killed.communicate(timeout=60)[0].split()
    assert killed.returncode == -signal.SIGKILL
    assert acknowledged == ["w-0", "w-1", "w-2"]
    store = opened(path, create=False)
    assert names(store) == [f"w-{n}" for n in range(stored)]
    assert list(store.check()) == []
    for n in range(9):  # the run goes on where it was, and repeats nothing
        name = f"w-{n}"
        made = give(store, name, f"one of {name}", f"two of {name}", f"lesson {n % 7} of many", task=name)
        assert len(made.items) == 3
    assert len(names(store)) == 9
    assert store.mark(SCOPE) == 36
    assert list(store.check()) == []
    store.close()


WRITERS, APPENDED, KILLS = 8, 500, 50

KILLED = """
import json, os, random, signal, sys, time
from pathlib import Path
from tests.bank.store_cases import DIMENSION, SCOPE, give
from rb_dspy.bank.sqlite.store import SqliteStore
path, writers, appends, kills = Path(sys.argv[1]), *map(int, sys.argv[2:])

def write(writer, begin, pipe):
    store = SqliteStore(path)
    store.bind("test", DIMENSION)
    store.add_scope(SCOPE)
    for n in range(begin, appends):
        name = f"w{writer}-{n}"
        give(store, name, f"one of {name}", f"lesson {n % 7} of many", task=name)
        os.write(pipe, f"{n}\\n".encode())
    store.close()

def begin(writer):  # forked before anything is opened, since a thousand imports would take minutes
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            write(writer, acknowledged[writer], theirs)
            os._exit(0)
        except BaseException as exc:
            print(repr(exc), file=sys.stderr, flush=True)
            os._exit(1)
    os.close(theirs)
    running[pid] = writer, ours

def ended(pid):
    writer, pipe = running.pop(pid)
    with os.fdopen(pipe) as lines:
        for line in lines:
            if line.endswith("\\n"):
                acknowledged[writer] = int(line) + 1
    return writer

dice, running, acknowledged = random.Random(7), {}, [0] * writers
for writer in range(writers):
    begin(writer)
while running:
    time.sleep(dice.uniform(0.0, 0.15))
    if kills:
        pid = dice.choice(sorted(running))
        os.kill(pid, signal.SIGKILL)
        code = os.waitpid(pid, 0)[1]
        kills -= os.WIFSIGNALED(code)
        begin(ended(pid))  # it goes on after what it was told is stored
        continue
    for pid in list(running):
        if os.waitpid(pid, os.WNOHANG)[0]:
            ended(pid)
print(json.dumps(acknowledged))
"""


@pytest.mark.stress
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_eight_writers_and_fifty_kills(path: Path) -> None:
    """Acknowledged is stored, once and whole; what was not is absent or whole; and the chain holds."""
    process = start(KILLED, str(path), *map(str, (WRITERS, APPENDED, KILLS)))
    out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out) == [APPENDED] * WRITERS
    store = opened(path, create=False)
    stored = store.experiences(SCOPE, after=0, limit=1_000_000)
    assert len(stored) == WRITERS * APPENDED
    assert {experience.id for experience in stored} == {f"w{w}-{n}" for w in range(WRITERS) for n in range(APPENDED)}
    assert {len(experience.items) for experience in stored} == {2}
    assert store.mark(SCOPE) == 3 * len(stored)
    for unit, many in zip(UNITS, (1, 2), strict=True):
        assert len(store.changes(SCOPE, unit, after=0, limit=1_000_000).added) == many * len(stored)
    assert store.count(SCOPE) == len(stored) + 7
    assert list(store.check()) == []
    store.close()


def test_a_bank_that_another_process_is_about_to_write_is_waited_for(
    full: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look takes no lock, so it may find half of what the first to open a new bank writes."""
    monkeypatch.setattr("rb_dspy.bank.sqlite.look._STILL_SECONDS", 30.0)  # the writer may be late on a busy machine
    full.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    writer = threading.Timer(0.1, path.write_bytes, [whole])
    writer.start()
    store = opened(path)
    assert store.count(SCOPE) > 0
    store.close()
    writer.join()


def test_a_bank_that_stays_cut_short_is_damaged(full: SqliteStore, path: Path) -> None:
    full.close()
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(CorruptBank, match="damaged or cut short"):
        opened(path)


REINDEXES = """
import os, sys
from pathlib import Path
from tests.bank.store_cases import DIMENSION, embed
from rb_dspy.bank.sqlite.store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
store.bind("test", DIMENSION)
os.environ["RB_DSPY_FAILPOINT"] = "mid-reindex"
store.reindex("other", DIMENSION, embed)
"""


def test_a_reindex_that_was_killed_changed_nothing(full: SqliteStore, path: Path) -> None:
    before = full.changes(SCOPE, "item", after=0, limit=99)
    killed = start(REINDEXES, str(path))
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    after = full.changes(SCOPE, "item", after=0, limit=99)
    assert (after.added.vectors == before.added.vectors).all()
    assert [(f.severity, f.kind) for f in full.check() if "reindex" in f.what] == [("warning", "index")]
    give(full, "meanwhile", "new")
    assert full.reindex("other", DIMENSION, embed) == 21
    assert found(full) == set()


def test_other_processes_see_a_reindex(full: SqliteStore, path: Path) -> None:
    """Who opened the bank with the embedder before gets an error, instead of mixing two spaces."""
    other = opened(path)
    full.reindex(
        "other", 4, lambda texts: embed(texts)[:, :4] / (embed(texts)[:, :4] ** 2).sum(1, keepdims=True) ** 0.5
    )
    for use in (
        lambda: give(other, "late", "late"),
        lambda: other.changes(SCOPE, "item", after=0, limit=9),
        lambda: other.edit(
            SCOPE, item_of(other, "e3").id, lesson("x", id=item_of(other, "e3").id), vector("x"), note=""
        ),
    ):
        with pytest.raises(EmbedderMismatch, match=r"belongs to the embedder other \(4 dimensions\) by now"):
            use()
    assert other.bind(*EMBEDDER) == ("other", 4)
    with pytest.raises(EmbedderMismatch):  # asking again does not make this one belong to it
        give(other, "later", "later")
    anew = SqliteStore(path)
    anew.bind("other", 4)
    assert anew.changes(SCOPE, "item", after=0, limit=9).added.vectors.shape[1] == 4
    anew.close()
    ended = full.changes(SCOPE, "item", after=0, limit=99).ended
    assert len(ended) == 3  # endings outlive it
    assert found(full) == set()
    other.close()


# Filled up and cut short

DISK_FULL = """
import resource, signal, sys
from pathlib import Path
from tests.bank.store_cases import DIMENSION, SCOPE, give, names
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = SqliteStore(Path(sys.argv[1]))
store.bind("test", DIMENSION)
store.add_scope(SCOPE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
done = 0
try:
    while True:
        give(store, f"e{done}", f"one of {done}", f"two of {done}")
        done += 1
except StorageError as exc:
    assert "\\n" not in str(exc) and "safe" in str(exc), exc
assert len(names(store)) == done and len(store.items(SCOPE)) == 2 * done
try:
    give(store, "again", "again")
except StorageError:
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
give(store, "room", "room")
print(done)
store.close()
"""


def test_disk_full(path: Path) -> None:
    done = int(finish(start(DISK_FULL, str(path))))
    assert done > 3
    store = opened(path, create=False)
    assert {f"e{n}" for n in range(done)} | {"room"} <= set(names(store))
    assert list(store.check()) == []
    store.close()


def test_a_full_database_refuses_and_stays_readable(full: SqliteStore) -> None:
    def limited(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the number of pages it has

    before = names(full)
    full._write(limited)
    lessons = [f"lesson {n} " * 150 for n in range(100)]
    with pytest.raises(StorageError, match="the disk is full; what was stored before is safe"):
        give(full, "more", *lessons)
    assert names(full)[: len(before)] == before
    assert found(full) == set()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.95])
def test_cut_short(full: SqliteStore, path: Path, share: float) -> None:
    full.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    cut = path.read_bytes()
    with pytest.raises(CorruptBank, match=r"damaged|not a bank"):
        SqliteStore(path)
    assert path.read_bytes() == cut
    assert list(path.parent.iterdir()) == [path]


def test_a_copy_of_a_closed_bank_is_whole(full: SqliteStore, path: Path, tmp_path: Path) -> None:
    expected = full.experiences(SCOPE, after=0, limit=99)
    full.close()
    shutil.copy(path, tmp_path / "copy.sqlite")
    copy = opened(tmp_path / "copy.sqlite", create=False)
    assert copy.experiences(SCOPE, after=0, limit=99) == expected
    assert list(copy.check()) == []
    copy.close()


NOBODY = """
import os, sys
from pathlib import Path
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import StorageError
from tests.bank.store_cases import DIMENSION, SCOPE, give, names
import rb_dspy.bank.memory.store, rb_dspy.bank.sqlite.history  # before there is no reading of files any more
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
store = SqliteStore(Path(sys.argv[1]), create=False)
store.bind("test", DIMENSION)
print(*names(store))
try:
    give(store, "late", "late")
except StorageError as exc:
    print(exc)
"""


def test_a_file_that_cannot_be_written(path: Path) -> None:
    shared = Path("/tmp") / f"rb_dspy-{os.getpid()}-{random.random()}"  # others cannot enter pytest's folders
    shared.mkdir(mode=0o777)
    try:
        shared.chmod(0o777)
        store = opened(shared / "bank.sqlite")
        give(store, "kept", "kept")
        store.close()
        (shared / "bank.sqlite").chmod(0o444)
        said = finish(start(NOBODY, str(shared / "bank.sqlite"))).splitlines()
        assert said[0] == "kept"
        assert "cannot be written; check the permissions" in said[1]
    finally:
        shutil.rmtree(shared)


# Flipped

FLIPS = {
    "text": ("UPDATE items SET content = 'Do something else.' WHERE id = ? AND ended IS NULL", "item"),
    "text that is no text": ("UPDATE items SET content = CAST(x'ff' AS TEXT) WHERE id = ? AND ended IS NULL", "item"),
    "text that is a number": ("UPDATE items SET title = 7 WHERE id = ? AND ended IS NULL", "item"),
    "digest": ("UPDATE items SET digest = '0' WHERE id = ? AND ended IS NULL", "item"),
    "payload": ("UPDATE experiences SET payload = substr(payload, 1, 50) WHERE id = ?", "experience"),
    "payload, one bit": (
        "UPDATE experiences SET payload = CAST(substr(payload, 1, 30) || x'00' || substr(payload, 32) AS BLOB)"
        " WHERE id = ?",
        "experience",
    ),
    "instruction": ("UPDATE experiences SET instruction = 'do harm' WHERE id = ?", "experience"),
    "task": ("UPDATE experiences SET task_id = 'another' WHERE id = ?", "experience"),
}


@pytest.mark.parametrize("what", FLIPS)
def test_a_damaged_row_is_named_and_the_others_are_read(
    full: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    statement, kind = FLIPS[what]
    id = item_of(full, "e2").id if kind == "item" else "e2"
    run(path, statement, id)
    assert f"scope 's': {kind} {id}" in found(full, "row")
    ask = full.item if kind == "item" else full.experience
    with caplog.at_level(logging.WARNING), pytest.raises(CorruptBank, match=rf"{id}.* is damaged") as caught:
        ask(SCOPE, id)
    assert "\n" not in str(caught.value)
    caplog.clear()
    if kind == "item":
        assert "Do own 2." not in contents(full)
        assert len(contents(full)) == 8
        assert names(full) == ["e0", "e1", "e2", "e3", "e4"]
        assert full.matches(SCOPE, "item", range(1, 30)).keys() == {2, 3, 5, 6, 9, 11, 12, 15, 20}
        assert [i.content for i in full.matches(SCOPE, "experience", [7])[7].items] == ["Do other 2."]
    else:
        assert names(full) == ["e0", "e1", "e3", "e4"]
        assert [e.id for e in full.experiences(SCOPE, after=0, limit=3)] == ["e0", "e1", "e3"]
        assert len(contents(full)) == 9
    assert warned(caplog, f"{id}") >= 1
    give(full, "after", "new")
    assert "after" in names(full)


def test_an_item_whose_other_row_is_sound_can_be_read(full: SqliteStore, path: Path) -> None:
    shared = item_of(full, "e0", 1)
    assert [p.experience_id for p in shared.provenances] == ["e0", "e1"]
    run(path, "UPDATE items SET content = 'x' WHERE id = ? AND experience & 1023 = 1", shared.id)
    assert [p.experience_id for p in item_of(full, "e1", 1).provenances] == ["e1"]
    assert found(full, "row") == {f"scope 's': item {shared.id}"}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "change",
    [
        "data = x'00'",
        "data = zeroblob(length(data))",
        "data = CAST(substr(data, 1, 3) || x'01' || substr(data, 5) AS BLOB)",
        "crc = 7",
        "task = 7",
        "success = 1 - success",
    ],
)
def test_a_damaged_vector(
    full: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture, unit: str, change: str
) -> None:
    seq, id = (7, "e2") if unit == "experience" else (8, item_of(full, "e2").id)
    before = full.changes(SCOPE, unit, after=0, limit=99).added.seqs.tolist()  # type: ignore[arg-type]
    run(path, f"UPDATE {unit}_vectors SET {change} WHERE key & 1023 = ?", seq)
    assert found(full) == {f"scope 's': {unit} {id}"}
    with caplog.at_level(logging.WARNING):
        after = full.changes(SCOPE, unit, after=0, limit=99).added  # type: ignore[arg-type]
    if change.startswith(("data", "crc")):
        assert after.seqs.tolist() == [number for number in before if number != seq]
        assert len(after) == len(after.vectors) == len(after.tasks) == len(after.successes)
        assert warned(caplog, f"the vector of {unit} number {seq} is damaged") == 1
    assert full.mend(*EMBEDDER, embed) == 1
    assert found(full) == set()


SILENT = {  # consistent changes, which no row shows by itself
    "text and digest": (
        "UPDATE items SET content = 'Do harm.', digest = ? WHERE id = ? AND ended IS NULL",
        "experience e2",
    ),
    "verdict": ("UPDATE experiences SET label = 'failure' WHERE id = 'e2'", "experience e2"),
    "origin": ("UPDATE experiences SET origin = 'me' WHERE id = 'e2'", "experience e2"),
    "note": ("UPDATE experiences SET note = 'well done' WHERE id = 'e2'", "experience e2"),
    "what was shown": ("UPDATE exposures SET item_id = 'x' WHERE experience & 1023 = 7", "experience e2"),
    "an ending taken back": ("UPDATE experiences SET ended = NULL WHERE id = 'e5'", "delete of e5"),
    "an ending made up": ("UPDATE experiences SET ended = 3 WHERE id = 'e2'", "experiences 7"),
    "a hash": ("UPDATE journal SET hash = zeroblob(32) WHERE key & 1023 = 7", "experience e2"),
    "an entry gone": ("DELETE FROM journal WHERE key & 1023 = 7", "experience e2"),
    "the last entry gone": ("DELETE FROM journal WHERE kind = 'delete'", "its journal"),
    "an append's note in its history": ("UPDATE journal SET note = 'x' WHERE key & 1023 = 7", "entry 7 of the journal"),
    "an append's time in its history": ("UPDATE journal SET created_at = '1' WHERE key & 1023 = 7", "entry 7 of"),
    "an edit's note": ("UPDATE journal SET note = 'no reason' WHERE kind = 'edit'", "item "),
    "the head": ("UPDATE scopes SET chain = x'00'", "its journal"),
    "an experience gone": ("DELETE FROM experiences WHERE id = 'e2'", "number 7"),
}


@pytest.mark.parametrize("what", SILENT)
def test_a_silent_change_breaks_the_chain(full: SqliteStore, path: Path, what: str) -> None:
    assert found(full) == set()
    statement, where = SILENT[what]
    given = (lesson("x").digest, item_of(full, "e2").id) if "?" in statement else ()
    run(path, statement, *given)
    assert any(name.startswith(f"scope 's': {where}") for name in found(full, "chain"))


LINKS = {
    "an item without its experience": (
        "UPDATE items SET experience = 77 WHERE key & 1023 = 8",
        "orphan",
        "table items",
    ),
    "an item without its vector": ("DELETE FROM item_vectors WHERE key & 1023 = 8", "vector", "item m"),
    "a vector of nothing": ("DELETE FROM items WHERE key & 1023 = 8", "orphan", "item number 8"),
    "a vector that lives on": ("UPDATE item_vectors SET ended = NULL WHERE key & 1023 = 17", "vector", "item m"),
    "nothing to show": ("UPDATE experience_vectors SET ended = NULL WHERE key & 1023 = 16", "vector", "experience e5"),
    "a counter that fell back": ("UPDATE scopes SET seq = 5", "row", "its counter"),
    "a counter that is no number": ("UPDATE scopes SET seq = ''", "row", "its counter"),
    "a counter among the next scope's numbers": ("UPDATE scopes SET seq = seq + (1 << 40)", "row", "its counter"),
    "a snapshot that cannot be read": ("UPDATE snapshots SET created_at = x'ff'", "snapshot", "snapshot now"),
    "a snapshot of another history": ("UPDATE snapshots SET digest = 'x'", "snapshot", "snapshot now"),
    "rollouts": ("UPDATE pending_rollouts SET payload = x'00'", "row", "pending e"),
}


@pytest.mark.parametrize("what", LINKS)
def test_what_does_not_belong_together(full: SqliteStore, path: Path, what: str) -> None:
    statement, kind, where = LINKS[what]
    run(path, statement)
    assert any(where in name for name in found(full, kind))
    for finding in full.check():
        assert finding.remedy
        assert "\n" not in finding.what


def test_a_counter_among_the_next_scopes_numbers(full: SqliteStore, path: Path) -> None:
    run(path, LINKS["a counter among the next scope's numbers"][0])
    with pytest.raises(CorruptBank, match="its counter"):
        full.mark(SCOPE)


def test_a_damaged_page(full: SqliteStore, path: Path) -> None:
    for n in range(40):
        give(full, f"more {n}", *(f"lesson {n} {k} " * 40 for k in range(5)))
    full.close()
    content = bytearray(path.read_bytes())
    for at in range(len(content) // 2, len(content) // 2 + 8192):
        content[at] ^= 0xFF
    path.write_bytes(content)
    try:
        store = opened(path, create=False)
    except BankError:
        return
    assert "file" in {f.kind for f in store.check()}
    store.close()


def test_the_clock_may_go_backwards(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path)
    times = iter(["2026-01-02", "2026-01-01", "1970-01-01"])
    monkeypatch.setattr("rb_dspy.bank.sqlite.edits.now", lambda: next(times))
    made = give(store, "e", "a", "b")
    for n, item in enumerate(made.items):
        store.edit(SCOPE, item.id, lesson(f"c {n}", id=item.id), vector("c"), note="")
    store.remove(SCOPE, kind="delete", source=Source("experience", "e"), descendants=False, note="")
    assert [change.created_at for change in store.history(SCOPE, made.items[1].id)][1:] == ["2026-01-01", "1970-01-01"]
    assert [change.seq for change in store.history(SCOPE, made.items[1].id)] == [1, 6, 8]
    assert list(store.check()) == []
    store.close()


def test_long_texts_and_empty_ones(path: Path) -> None:
    store = opened(path)
    huge = new("huge", "a" * 1_900)
    step = huge.trajectories[0].steps[0].model_copy(update={"observation": "long " * 2_000_000})
    rollouts = (huge.trajectories[0].model_copy(update={"steps": (step,)}),)
    (made,) = append(store, SCOPE, [replace(huge, trajectories=rollouts)])
    assert made.trajectories == rollouts
    assert store.experience(SCOPE, "huge") == made
    assert path.stat().st_size + Path(f"{path}-wal").stat().st_size < 2_000_000
    assert list(store.check()) == []
    store.close()
