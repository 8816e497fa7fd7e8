"""JSON Lines: what is written is read again, and a bad line is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rb_dspy import jsonl
from rb_dspy.errors import InputError
from rb_dspy.jsonl import encode, read_objects


def read(path: Path, data: bytes) -> list[tuple[int, dict[str, Any]]]:
    path.write_bytes(data)
    return list(read_objects(path))


def test_written_objects_are_read_again(tmp_path: Path) -> None:
    values: list[dict[str, Any]] = [
        {"a": "naïve 🎉 \u2028 \n"},
        {"b": [1e308, -0.0, None, True, 2**70]},
        {"c": "\ud800"},
    ]
    lines = read(tmp_path / "f", b"".join(map(encode, values)))
    assert lines == list(enumerate(values, 1))
    assert encode({"\ud83d\ude00": 1}) == encode({"😀": 1})


def test_what_other_programs_add_is_skipped(tmp_path: Path) -> None:
    assert read(tmp_path / "f", b'\xef\xbb\xbf{"a":1}\r\n\n  \n{"b":2}') == [(1, {"a": 1}), (4, {"b": 2})]


@pytest.mark.parametrize(
    "line",
    [b"{", b"[1]", b"3", b'{"a": "\xff"}', b'{"a": ' + b"1" * 5000 + b"}", b"[" * 100_000, b'{"a":' * 100_000],
    ids=["cut", "list", "number", "not UTF-8", "digits", "brackets", "tables"],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(InputError, match=r"f:2: ") as caught:
        read(tmp_path / "f", b'{"a":1}\n' + line + b"\n")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_a_file_without_objects_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError):
        read(tmp_path / "f", data)
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError):
            list(read_objects(place))


def test_a_line_too_long_is_neither_read_nor_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = encode({"a": "xyz"})
    monkeypatch.setattr(jsonl, "MAX_LINE", len(line))
    assert read(tmp_path / "f", encode({"a": "xyz"})) == [(1, {"a": "xyz"})]
    monkeypatch.setattr(jsonl, "MAX_LINE", len(line) - 1)
    with pytest.raises(InputError, match="f:1: "):
        read(tmp_path / "f", line)
    with pytest.raises(InputError):
        encode({"a": "xyz"})


@pytest.mark.parametrize("value", [{1, 2}, 10**5000], ids=["set", "digits"])
def test_what_is_no_json_is_not_written(value: object) -> None:
    with pytest.raises(InputError):
        encode({"a": value})
