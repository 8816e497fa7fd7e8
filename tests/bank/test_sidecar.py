"""A saved index is used where it agrees with the store to the last byte, and otherwise as if it were not there."""

import errno
import json
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rb_dspy.bank.index.sidecar import Sidecar, beside
from rb_dspy.bank.index.vector import VectorIndex
from rb_dspy.bank.index.view import Filter, search
from rb_dspy.bank.parts import Changes, VectorBatch
from rb_dspy.bank.vectors import packed, unpacked
from rb_dspy.errors import StorageError

DIMENSION = 16


def changes(start: int, stop: int, ended: list[list[int]] | None = None) -> Changes:
    """Rows ``start`` to ``stop``, the same for every call."""
    seqs = np.arange(start, stop, dtype=np.int64)
    raw = np.stack([np.random.default_rng(int(seq)).standard_normal(DIMENSION) for seq in seqs]).astype(np.float32)
    raw /= np.linalg.norm(raw, axis=1, keepdims=True)
    vectors, _ = unpacked(b"".join(packed(row) for row in raw), DIMENSION)
    mark = max([stop - 1, *(pair[1] for pair in ended or [])])
    return Changes(
        mark, VectorBatch(seqs, seqs % 5 - 2, seqs % 2 == 0, vectors), np.array(ended or [], np.int64).reshape(-1, 2)
    )


def digest(mark: int) -> str:
    return f"history up to {mark}"


def an_index(rows: int = 300) -> VectorIndex:
    index = VectorIndex(DIMENSION, exact_up_to=100, tail=50)
    index.apply(changes(1, rows + 1))
    index.install(index.prepare())
    return index


def a_sidecar(folder: Path, scope: str = "s", **kwargs: Any) -> Sidecar:
    return Sidecar(folder, scope, kwargs.pop("unit", "item"), **{"embedder_id": "e", "dimension": DIMENSION} | kwargs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a saved index of 300 rows."""
    path = beside(tmp_path / "bank.sqlite")
    assert a_sidecar(path).save(an_index().view, digest)
    return path


def everything(index: VectorIndex) -> Any:
    query = changes(1, 2).added.vectors[0]
    view = index.view
    return (
        [(hit.seq, round(hit.score, 5)) for hit in search(view, query, 1000)],
        [hit.seq for hit in search(view, query, 1000, Filter([1], "success"))],
        len(view),
        view.mark,
    )


def test_what_was_saved_is_what_comes_back(folder: Path) -> None:
    loaded = a_sidecar(folder).load(digest)
    assert loaded is not None
    assert everything(loaded) == everything(an_index())
    # It goes on from there as the saved one does.
    whole = an_index()
    for index in (loaded, whole):
        index.apply(changes(301, 320, [[5, 320], [310, 321]]))
    assert everything(loaded) == everything(whole)


def test_rows_beside_the_parts_and_later_ends_come_from_the_store(tmp_path: Path) -> None:
    index = an_index()
    index.apply(changes(301, 331, [[7, 331]]))
    assert a_sidecar(tmp_path).save(index.view, digest)
    loaded = a_sidecar(tmp_path).load(digest)
    assert loaded is not None
    assert loaded.view.mark == 300
    assert len(loaded.view) == 300
    loaded.apply(changes(301, 331, [[7, 331]]))
    assert everything(loaded) == everything(index)


def test_ends_before_the_saved_number_are_saved(tmp_path: Path) -> None:
    index = VectorIndex(DIMENSION, exact_up_to=100, tail=50)
    index.apply(changes(1, 200))
    index.apply(Changes(200, changes(1, 2).added, np.array([[3, 200]])))
    index.apply(changes(201, 301))
    index.install(index.prepare())
    a_sidecar(tmp_path).save(index.view, digest)
    loaded = a_sidecar(tmp_path).load(digest)
    assert loaded is not None
    assert everything(loaded) == everything(index)
    assert not loaded.view.allowed([3])[0]
    assert loaded.view.at(199).allowed([3])[0]


def test_nothing_is_saved_by_who_may_only_read_the_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder would be theirs, and in its owner's way."""
    bank = tmp_path / "bank.sqlite"
    bank.touch()
    with monkeypatch.context() as another:
        real = os.access
        another.setattr(os, "access", lambda path, mode: Path(path) != bank and real(path, mode))
        assert not a_sidecar(beside(bank)).save(an_index().view, digest)
    assert [*tmp_path.iterdir()] == [bank]
    assert a_sidecar(beside(bank)).save(an_index().view, digest)


def test_nothing_is_saved_of_a_small_index(tmp_path: Path) -> None:
    index = VectorIndex(DIMENSION)
    index.apply(changes(1, 50))
    assert not a_sidecar(tmp_path / "x").save(index.view, digest)
    assert not (tmp_path / "x").exists()
    assert a_sidecar(tmp_path / "x").load(digest) is None


def test_a_part_is_written_once_and_old_files_go(tmp_path: Path) -> None:
    index, sidecar = an_index(), a_sidecar(tmp_path)
    assert sidecar.save(index.view, digest)
    assert not sidecar.save(index.view, digest)
    first = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    index.apply(changes(301, 361))
    index.install(index.prepare())
    assert len(index.view.parts) == 2
    assert sidecar.save(index.view, digest)
    second = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    assert len(second) == 4
    assert sum(first.get(name) == inode for name, inode in second.items()) == 1
    loading = a_sidecar(tmp_path)
    loaded = loading.load(digest)
    assert loaded is not None
    assert everything(loaded) == everything(index)
    assert not loading.save(loaded.view, digest)
    # What is mapped can still be searched when its file is replaced.
    other = an_index(400)
    a_sidecar(tmp_path).save(other.view, digest)
    assert everything(loaded) == everything(index)
    assert len(list(tmp_path.iterdir())) == 3


def refused(folder: Path, caplog: pytest.LogCaptureFixture, **kwargs: Any) -> str:
    """Why what is saved is not used: one line in the log."""
    caplog.clear()
    told = kwargs.pop("digest", digest)
    with caplog.at_level(logging.WARNING, logger="rb_dspy.bank"):
        assert a_sidecar(folder, **kwargs).load(told) is None
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    assert "\n" not in message
    return message


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 4
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "first byte": lambda path: flip(path, 0),
    "middle byte": lambda path: flip(path, 0.5),
    "last byte": lambda path: flip(path, 1),
    "garbage": lambda path: path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size)),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", ["faiss", "columns", "json"])
def test_damaged_files_are_not_used(folder: Path, kind: str, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    (path,) = folder.glob(f"*.{kind}")
    DAMAGE[damage](path)
    if (kind, damage) == ("json", "deleted"):
        assert a_sidecar(folder).load(digest) is None
    else:
        refused(folder, caplog)
    # A new one takes its place.
    assert a_sidecar(folder).save(an_index().view, digest)
    assert a_sidecar(folder).load(digest) is not None


@pytest.mark.parametrize("place", np.linspace(0, 1, 60).tolist())
def test_no_flipped_bit_of_the_manifest_gives_another_index(
    folder: Path, place: float, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = folder.glob("*.json")
    flip(path, place)
    loaded = a_sidecar(folder).load(digest)
    assert loaded is None or everything(loaded) == everything(an_index())


def test_others_indexes_are_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "embedder" in refused(folder, caplog, embedder_id="f")
    assert "dimension" in refused(folder, caplog, dimension=8)
    assert "history" in refused(folder, caplog, digest=lambda mark: f"another one up to {mark}")
    assert a_sidecar(folder, scope="t").load(digest) is None
    assert a_sidecar(folder, unit="experience").load(digest) is None
    mine, theirs = (a_sidecar(folder, scope=name)._files.manifest for name in "st")
    theirs.write_bytes(mine.read_bytes())
    assert "scope" in refused(folder, caplog, scope="t")


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "x.pkl", ""])
def test_a_manifest_names_no_other_files(folder: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (path,) = folder.glob("*.json")
    manifest = json.loads(path.read_text())
    manifest["parts"][0]["name"] = name
    path.write_text(json.dumps(manifest))
    assert "manifest" in refused(folder, caplog)


@pytest.mark.parametrize("scope", ["../up", "a/b", "con", "x" * 500, "日本", "\ud800", " ", "a\nb"])
def test_scopes_may_have_any_name(tmp_path: Path, scope: str) -> None:
    sidecar = a_sidecar(tmp_path / "i", scope)
    if "\ud800" in scope:  # no bank has such a scope; it is refused where scopes are made
        assert sidecar.load(digest) is None
        return
    assert sidecar.save(an_index().view, digest)
    assert a_sidecar(tmp_path / "i", scope).load(digest) is not None
    assert [path.name for path in tmp_path.iterdir()] == ["i"]


def test_discard_forgets_this_unit_only(folder: Path) -> None:
    a_sidecar(folder, unit="experience").save(an_index().view, digest)
    sidecar = a_sidecar(folder)
    sidecar.discard()
    assert sidecar.load(digest) is None
    assert a_sidecar(folder, unit="experience").load(digest) is not None
    assert len(list(folder.iterdir())) == 3
    sidecar.discard()


def test_what_died_processes_left_is_swept_and_what_others_write_is_not(folder: Path) -> None:
    key = next(folder.glob("*.json")).stem
    old, new = (folder / f"{key}-{digit * 16}.tmp" for digit in "01")
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    a_sidecar(folder).save(an_index(350).view, digest)
    assert not old.exists()
    assert new.exists()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(folder: Path) -> None:
    folder.chmod(0o500)
    with pytest.raises(StorageError, match="cannot be saved"):
        a_sidecar(folder).save(an_index(350).view, digest)
    assert a_sidecar(folder).load(digest) is not None


def test_where_folders_cannot_be_synced_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert a_sidecar(tmp_path / "i").save(an_index().view, digest)
    assert a_sidecar(tmp_path / "i").load(digest) is not None


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot be saved"):
        a_sidecar(tmp_path / "f").save(an_index().view, digest)


FULL = """
import resource, signal, sys
from pathlib import Path
from tests.bank.test_sidecar import a_sidecar, an_index, digest
from rb_dspy.errors import StorageError
index = an_index(3000)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in (0, 1000, 5000, 70_000, 100_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        a_sidecar(Path(sys.argv[1])).save(index.view, digest)
    except StorageError as exc:
        print("refused")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_a_full_disk_leaves_what_was_saved(folder: Path) -> None:
    code = [sys.executable, "-c", FULL, str(folder)]
    done = subprocess.run(code, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["refused"] * 5, done.stdout + done.stderr
    loaded = a_sidecar(folder).load(digest)
    assert loaded is not None
    assert everything(loaded) == everything(an_index())


@pytest.mark.parametrize("error", [OSError("the disk is full"), StorageError("the bank is closed")])
def test_a_save_that_fails_leaves_no_files(folder: Path, error: Exception) -> None:
    """Parts are large, and nothing sweeps a folder that nobody can save in."""
    before = sorted(folder.iterdir())

    def fails(mark: int) -> str:
        raise error

    for _ in range(2):
        with pytest.raises(StorageError, match=str(error)):
            a_sidecar(folder).save(an_index(350).view, fails)
    assert sorted(folder.iterdir()) == before
    assert a_sidecar(folder).load(digest) is not None


def test_two_that_save_at_once(tmp_path: Path) -> None:
    indexes = [an_index(300), an_index(400)]
    failures: list[str] = []

    def save(index: VectorIndex) -> None:
        for _ in range(15):
            a_sidecar(tmp_path).save(index.view, digest)

    def load() -> None:
        for _ in range(40):
            loaded = a_sidecar(tmp_path).load(digest)
            if loaded is not None and everything(loaded) not in expected:
                failures.append("another index")

    expected = [everything(index) for index in indexes]
    logging.getLogger("rb_dspy.bank").setLevel(logging.ERROR)  # files may go while they are being read
    threads = [threading.Thread(target=save, args=(index,)) for index in indexes] + [threading.Thread(target=load)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logging.getLogger("rb_dspy.bank").setLevel(logging.NOTSET)
    assert not failures
    last = a_sidecar(tmp_path).load(digest)
    assert last is not None
    assert everything(last) in expected
