"""Model files from a hub: whole, in pieces, and from servers that are not what they should be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from rb_dspy.backbones.download import CHUNK, bring
from rb_dspy.backbones.models import HubFile, ModelSpec
from rb_dspy.errors import MissingDependency, ModelFileError
from tests.backbones.test_models import Log, left_behind, make_spec

WHOLE = b"".join(bytes([number]) * CHUNK for number in range(5))


class Hub:
    """What a server gives: ``content``, in ranges if it knows them, and no more than ``most`` bytes at a time."""

    def __init__(self) -> None:
        self.content = WHOLE
        self.ranges = True
        self.most: list[int] = []
        self.asked: list[str | None] = []


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    served = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers["Range"]
            served.asked.append(asked)
            begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and served.ranges else 0
            self.send_response(206 if asked and served.ranges else 200)
            self.send_header("Content-Length", str(len(served.content) - begin))
            self.end_headers()
            self.wfile.write(served.content[begin:][: served.most.pop(0) if served.most else None])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        # Where the hub is, and whether it may be asked: constants, which its environment variables set at import.
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        template = f"http://127.0.0.1:{server.server_address[1]}" + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield served
        server.shutdown()
        thread.join()


def spec_of(content: bytes = WHOLE) -> ModelSpec:
    file = HubFile(repo="some/model", revision="0" * 40, file="model.gguf")
    return make_spec(content).model_copy(update={"hub": file, "wheels": ()})


def get(folder: Path, log: Log | None = None) -> Path:
    return bring(spec_of(), folder, source=None, report=log or Log(), hub=True, pip_args=())


def test_a_connection_that_breaks_is_made_again_where_it_broke(tmp_path: Path, hub: Hub) -> None:
    hub.most = [2 * CHUNK, CHUNK]
    log = Log()
    assert get(tmp_path, log).read_bytes() == WHOLE
    assert hub.asked == [None, f"bytes={2 * CHUNK}-", f"bytes={3 * CHUNK}-"]
    assert left_behind(tmp_path) == ["fake.gguf"]
    done = [call[0] for call in log.calls]
    assert done == sorted(done)


def test_another_call_goes_on_where_one_was_given_up(tmp_path: Path, hub: Hub) -> None:
    hub.most = [3 * CHUNK, 0]  # the second brings nothing
    with pytest.raises(MissingDependency, match="hub: "):
        get(tmp_path)
    assert left_behind(tmp_path) == ["fake.gguf.hub.partial"]
    hub.asked.clear()
    assert get(tmp_path).read_bytes() == WHOLE
    assert hub.asked == [f"bytes={3 * CHUNK}-"]


def test_a_server_without_ranges_gives_all_again(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "fake.gguf.hub.partial").write_bytes(WHOLE[:CHUNK])
    hub.ranges = False
    assert get(tmp_path).read_bytes() == WHOLE
    assert hub.asked == [f"bytes={CHUNK}-"]


@pytest.mark.parametrize(("left", "asked"), [(WHOLE, []), (WHOLE + b"?", [None])])
def test_what_was_left_may_be_all_or_too_much(tmp_path: Path, hub: Hub, left: bytes, asked: list[str | None]) -> None:
    (tmp_path / "fake.gguf.hub.partial").write_bytes(left)
    assert get(tmp_path).read_bytes() == WHOLE
    assert hub.asked == asked


def test_bytes_left_that_are_wrong_are_refused_and_do_not_stay(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "fake.gguf.hub.partial").write_bytes(b"?" * CHUNK)
    with pytest.raises(ModelFileError, match="nothing was kept"):
        get(tmp_path)
    assert left_behind(tmp_path) == []
    assert get(tmp_path).read_bytes() == WHOLE


def test_a_page_in_place_of_the_file_costs_nothing_of_what_was_left(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "fake.gguf.hub.partial").write_bytes(WHOLE[:CHUNK])
    hub.content, hub.ranges = b"log in first", False
    with pytest.raises(MissingDependency, match="it offers 12 bytes, not"):
        get(tmp_path)
    assert (tmp_path / "fake.gguf.hub.partial").read_bytes() == WHOLE[:CHUNK]
