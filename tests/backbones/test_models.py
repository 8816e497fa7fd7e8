"""Model files: assembled from wheels of our own making, resumed, shared, checked, refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rb_dspy.backbones import models
from rb_dspy.backbones.download import Partial, bring
from rb_dspy.backbones.models import ModelSpec, WheelPart
from rb_dspy.backbones.wheels import written_before
from rb_dspy.errors import InputError, MissingDependency, ModelFileError

PARTS = (b"first" * 400_000, b"second" * 300_000)
CONTENT = b"".join(PARTS)


def make_spec(content: bytes = CONTENT, size: int | None = None) -> ModelSpec:
    wheels = tuple(WheelPart(requirement=f"rbfake-part{i}==1.0", member=f"rbfake_part{i}/data.bin") for i in (1, 2))
    return ModelSpec(
        name="fake",
        file="fake.gguf",
        size=len(content) if size is None else size,
        sha256=hashlib.sha256(content).hexdigest(),
        licence="none",
        context=512,
        wheels=wheels,
    )


def make_wheel(index: Path, part: int, data: bytes, member: str = "data.bin") -> None:
    name = f"rbfake_part{part}"
    index.mkdir(exist_ok=True)
    with zipfile.ZipFile(index / f"{name}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/__init__.py", "raise SystemExit('a carrier was imported')")
        wheel.writestr(f"{name}/{member}", data)
        info = f"{name}-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


class Log:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int, str]] = []

    def __call__(self, done: int, total: int, text: str) -> None:
        self.calls.append((done, total, text))

    @property
    def downloads(self) -> int:
        return sum(text.startswith("downloading") for _, _, text in self.calls)


def fetch(spec: ModelSpec, folder: Path, index: Path, log: Log | None = None) -> Path:
    pip_args = ("--no-index", "--find-links", str(index))
    return bring(spec, folder, source=None, report=log or Log(), hub=True, pip_args=pip_args)


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


@pytest.fixture
def index(tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    for number, data in enumerate(PARTS, 1):
        make_wheel(folder, number, data)
    return folder


def test_parts_become_one_file(tmp_path: Path, index: Path) -> None:
    log = Log()
    path = fetch(make_spec(), tmp_path / "models", index, log)
    assert path.read_bytes() == CONTENT
    assert left_behind(tmp_path / "models") == ["fake.gguf"]
    done = [call[0] for call in log.calls]
    assert done == sorted(done)
    assert log.calls[-1][:2] == (len(CONTENT), len(CONTENT))
    assert log.downloads == 2


def test_a_whole_file_is_not_fetched_again_and_a_damaged_one_is(tmp_path: Path, index: Path) -> None:
    path = fetch(make_spec(), tmp_path / "models", index)
    log = Log()
    fetch(make_spec(), tmp_path / "models", tmp_path / "no-index", log)
    assert log.calls == []
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    path.write_bytes(b"x" * len(CONTENT))
    bring(make_spec(), tmp_path / "models", source=own, report=log, hub=False, pip_args=())
    assert path.read_bytes() == CONTENT


def test_wrong_bytes_are_refused_and_leave_nothing(tmp_path: Path, index: Path) -> None:
    with pytest.raises(ModelFileError, match="nothing was kept"):
        fetch(make_spec(b"?" * len(CONTENT)), tmp_path / "models", index)
    assert left_behind(tmp_path / "models") == []


@pytest.mark.parametrize("size", [len(CONTENT), len(CONTENT) - 5, len(CONTENT) + 5])
def test_wrong_sizes_are_refused_and_leave_nothing(tmp_path: Path, size: int) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    with pytest.raises(ModelFileError, match="nothing was kept"):
        bring(make_spec(b"other", size), tmp_path / "models", source=own, report=Log(), hub=False, pip_args=())
    assert left_behind(tmp_path / "models") == []


def test_an_interrupted_get_continues(tmp_path: Path, index: Path) -> None:
    folder = tmp_path / "models"
    second = index / "rbfake_part2-1.0-py3-none-any.whl"
    hidden = second.rename(tmp_path / second.name)
    with pytest.raises(MissingDependency, match="rbfake-part2") as caught:
        fetch(make_spec(), folder, index)
    assert "\n" not in str(caught.value)
    with (folder / "fake.gguf.partial").open("ab") as torn:
        torn.write(b"half of a part")
    (index / "rbfake_part1-1.0-py3-none-any.whl").unlink()  # it must not be needed again
    hidden.rename(second)
    log = Log()
    assert fetch(make_spec(), folder, index, log).read_bytes() == CONTENT
    assert log.downloads == 1
    assert left_behind(folder) == ["fake.gguf"]


def test_a_journal_that_does_not_fit_its_file_starts_afresh(tmp_path: Path, index: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "fake.gguf.partial").write_bytes(b"rubbish")
    journal = {"parts": 1, "bytes": 10**9, "sha256": make_spec().sha256}
    (folder / "fake.gguf.partial.json").write_text(json.dumps(journal))
    assert fetch(make_spec(), folder, index).read_bytes() == CONTENT


@pytest.mark.parametrize("journal", ["", "{", "[]", "null", '{"parts": 1}', '{"parts": 1, "bytes": 3, "sha256": ""}'])
def test_a_torn_journal_counts_for_nothing(tmp_path: Path, journal: str) -> None:
    partial = Partial(make_spec(), tmp_path)
    partial.path.write_bytes(b"rubbish")
    partial.journal.write_text(journal)
    assert written_before(partial) == (0, 0)


def test_a_wheel_without_its_member_is_named(tmp_path: Path, index: Path) -> None:
    make_wheel(index, 2, b"", member="other.bin")
    with pytest.raises(ModelFileError, match=r"rbfake-part2==1\.0.*rbfake_part2/data\.bin"):
        fetch(make_spec(), tmp_path / "models", index)


def test_two_processes_take_turns(tmp_path: Path, index: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.backbones.test_models import *; log = Log();"
        "fetch(make_spec(), Path(sys.argv[1]), Path(sys.argv[2]), log); print(log.downloads)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "models"), str(index)]
    root = Path(__file__).parents[2]
    both = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    counts = sorted(process.communicate()[0].strip() for process in both)
    assert counts == ["0", "2"]  # one downloaded both parts, the other found the file
    assert left_behind(tmp_path / "models") == ["fake.gguf"]


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    path = bring(make_spec(), tmp_path / "models", source=own, report=Log(), hub=False, pip_args=())
    assert path.read_bytes() == CONTENT
    own.write_bytes(CONTENT[:-1] + b"?")
    path.unlink()
    with pytest.raises(ModelFileError, match="nothing was kept"):
        bring(make_spec(), tmp_path / "models", source=own, report=Log(), hub=False, pip_args=())
    assert left_behind(tmp_path / "models") == []
    with pytest.raises(InputError, match="No such file"):
        bring(make_spec(), tmp_path / "models", source=tmp_path / "nope", report=Log(), hub=False, pip_args=())


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"disk of .* is full"):
        fetch(make_spec(size=10**18), tmp_path / "models", tmp_path)


def begun(folder: Path, index: Path) -> None:
    """Leave the first of both parts, as an interrupted download does."""
    (index / "rbfake_part2-1.0-py3-none-any.whl").rename(index / "hidden")
    with pytest.raises(MissingDependency):
        fetch(make_spec(), folder, index)
    (index / "hidden").rename(index / "rbfake_part2-1.0-py3-none-any.whl")


def test_a_copy_that_fails_costs_nothing_of_what_wheels_have_brought(tmp_path: Path, index: Path) -> None:
    begun(tmp_path / "models", index)
    own = tmp_path / "own.gguf"
    own.write_bytes(b"?" * len(CONTENT))
    with pytest.raises(ModelFileError, match="nothing was kept"):
        bring(make_spec(), tmp_path / "models", source=own, report=Log(), hub=False, pip_args=())
    log = Log()
    assert fetch(make_spec(), tmp_path / "models", index, log).read_bytes() == CONTENT
    assert log.downloads == 1


def test_a_file_that_is_there_leaves_nothing_of_other_sources(tmp_path: Path, index: Path) -> None:
    begun(tmp_path / "models", index)
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    bring(make_spec(), tmp_path / "models", source=own, report=Log(), hub=False, pip_args=())
    assert left_behind(tmp_path / "models") == ["fake.gguf"]


@pytest.mark.parametrize(("begun", "said"), [("", "disk of .* is full"), (".copy", "nothing was kept")])
def test_what_a_source_has_begun_is_room_for_itself_alone(tmp_path: Path, begun: str, said: str) -> None:
    size = shutil.disk_usage(tmp_path).free + 50 * 10**9
    with (tmp_path / f"fake.gguf{begun}.partial").open("wb") as sparse:
        sparse.truncate(100 * 10**9)
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    with pytest.raises(ModelFileError, match=said):
        bring(make_spec(size=size), tmp_path, source=own, report=Log(), hub=False, pip_args=())


def test_the_catalogue() -> None:
    specs = models.catalogue()
    assert [spec.name for spec in specs] == ["qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "smollm2-135m"]
    for spec in specs:
        assert len(spec.sha256) == 64
        assert all(part.member.split("/")[0].replace("_", "-") in part.requirement for part in spec.wheels)
    with pytest.raises(InputError, match="smollm2-135m"):
        models.find("smollm")


def test_absent_damaged_and_present(tmp_path: Path) -> None:
    name = "smollm2-135m"
    with pytest.raises(MissingDependency, match=f"rb-dspy models get {name}"):
        models.model_path(name, directory=tmp_path)
    path = tmp_path / models.find(name).file
    path.write_bytes(b"GGUF")
    assert models.status(name, directory=tmp_path) == "damaged"
    with pytest.raises(ModelFileError, match=f"rb-dspy models get {name}"):
        models.model_path(name, directory=tmp_path)
    with path.open("r+b") as file:
        file.truncate(models.find(name).size)
    assert models.status(name, directory=tmp_path) == "present"
    assert models.status(name, directory=tmp_path, verify=True) == "damaged"


@pytest.mark.model
def test_the_real_file_is_whole(small_model: Path) -> None:
    assert models.status("smollm2-135m", verify=True) == "present"
    assert models.model_path("smollm2-135m") == small_model
