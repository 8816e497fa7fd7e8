"""Model files: joined from wheels made here, taken from a hub, shared, checked, refused."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from rb_dspy.backbones import download, models
from rb_dspy.backbones.models import HubRepo, ModelSpec, WheelPart
from rb_dspy.errors import InputError, MissingDependency, ModelFileError

PARTS = (b"first" * 4_000, b"second" * 3_000)
CONTENT = b"".join(PARTS)


def make_spec(content: bytes = CONTENT, *, wheels: int = 2, hub: bool = False) -> ModelSpec:
    return ModelSpec(
        name="fake",
        file="fake.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        license="none",
        context=512,
        hub=HubRepo(repo="someone/fake", revision="0" * 40) if hub else None,
        wheels=tuple(
            WheelPart(requirement=f"rbfake-part{i}==1.0", member=f"rbfake_part{i}/data.bin")
            for i in range(1, wheels + 1)
        ),
    )


def make_wheel(index: Path, part: int, data: bytes, member: str = "data.bin") -> Path:
    name = f"rbfake_part{part}"
    path = index / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/__init__.py", "raise SystemExit('a carrier was imported')")
        wheel.writestr(f"{name}/{member}", data)
        info = f"{name}-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks for wheels."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, data in enumerate(PARTS, 1):
        make_wheel(folder, number, data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where models are stored."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    models.default_directory().mkdir(parents=True)
    return models.default_directory()


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_parts_become_one_file_and_callers_take_turns(folder: Path, index: Path) -> None:
    reports: list[list[tuple[int, int, str]]] = [[], []]

    def bring(log: list[tuple[int, int, str]]) -> Path:
        return download.get(make_spec(), progress=lambda *report: log.append(report))

    with ThreadPoolExecutor(2) as pool:
        assert {path.read_bytes() for path in pool.map(bring, reports)} == {CONTENT}
    assert left_in(folder) == ["fake.gguf"]
    waited, worked = sorted(reports, key=len)
    assert waited == []
    assert [step[:2] for step in worked] == [(done, len(CONTENT)) for done in (0, len(PARTS[0]), len(CONTENT))]


def test_an_interrupted_download_keeps_the_parts_it_has(folder: Path, index: Path) -> None:
    second = index / "rbfake_part2-1.0-py3-none-any.whl"
    content = second.read_bytes()
    second.unlink()
    with pytest.raises(MissingDependency, match="rbfake-part2") as missing:
        download.get(make_spec())
    assert "\n" not in str(missing.value)
    assert not (folder / "fake.gguf").exists()
    second.write_bytes(content)
    (index / "rbfake_part1-1.0-py3-none-any.whl").unlink()  # it must not be needed again
    assert download.get(make_spec()).read_bytes() == CONTENT
    assert left_in(folder) == ["fake.gguf"]


def test_wheels_with_wrong_bytes_are_refused_and_leave_nothing(folder: Path, index: Path) -> None:
    make_wheel(index, 1, b"?")
    with pytest.raises(ModelFileError, match=make_spec().sha256[:16]):
        download.get(make_spec())
    assert left_in(folder) == []
    make_wheel(index, 1, b"", member="other.bin")
    with pytest.raises(ModelFileError, match=r"rbfake_part1/data\.bin"):
        download.get(make_spec(wheels=1))
    make_wheel(index, 1, CONTENT + b"more")
    with pytest.raises(ModelFileError, match="larger than the model"):
        download.get(make_spec(wheels=1))
    make_wheel(index, 1, CONTENT)
    assert download.get(make_spec(wheels=1)).read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"more", CONTENT[:-1] + b"?"])
def test_a_file_of_ones_own_is_copied_if_it_is_the_model(tmp_path: Path, folder: Path, content: bytes) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(content)
    with pytest.raises(ModelFileError):
        download.get(make_spec(), source=own)
    assert left_in(folder) == []
    own.write_bytes(CONTENT)
    assert download.get(make_spec(), source=own).read_bytes() == CONTENT
    with pytest.raises(InputError):
        download.get(make_spec(), source=tmp_path / "nowhere")
    assert (folder / "fake.gguf").read_bytes() == CONTENT


def test_a_whole_file_stays_and_a_damaged_one_is_replaced(folder: Path, index: Path) -> None:
    (folder / "fake.gguf").write_bytes(b"x" * len(CONTENT))
    assert download.get(make_spec(wheels=0)).read_bytes()[:1] == b"x"  # of the right size, and not verified
    assert download.get(make_spec(), verify=True).read_bytes() == CONTENT
    assert download.get(make_spec(wheels=0), verify=True).read_bytes() == CONTENT


def test_a_folder_that_cannot_be_written_is_one_clear_error(folder: Path) -> None:
    folder.rmdir()
    folder.write_text("a file")
    with pytest.raises(ModelFileError, match=str(folder)):
        download.get(make_spec())


@pytest.fixture
def hub() -> Iterator[str]:
    """The address of a hub with the one file."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", f'"{hashlib.sha256(CONTENT).hexdigest()}"')
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(CONTENT)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("reachable", [True, False])
def test_the_hub_is_asked_first_and_wheels_next(
    folder: Path, index: Path, hub: str, reachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = hub if reachable else "http://127.0.0.1:9"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    texts: list[str] = []
    path = download.get(make_spec(hub=True), progress=lambda done, total, text: texts.append(text))
    assert path.read_bytes() == CONTENT
    assert any("part" in text for text in texts) is not reachable
    assert left_in(folder) == ["fake.gguf"]


@pytest.mark.model
def test_the_real_file_is_whole() -> None:
    path = download.get("smollm2-135m")
    assert models.status("smollm2-135m", verify=True) == "present"
    assert models.model_path("smollm2-135m") == path
