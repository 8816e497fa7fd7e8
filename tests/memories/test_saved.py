"""A saved program and its memory."""

from __future__ import annotations

from pathlib import Path

from tests.memories.worlds import program


def test_prompts_of_a_memory_are_saved_and_those_that_a_file_lacks_stay(tmp_path: Path) -> None:
    one, other, lessons = program("reme"), program("reme"), program("bank")
    text = "Say what was learned, in one sentence."
    for each in (one, lessons):
        each.judge.predict.signature = each.judge.predict.signature.with_instructions(text)
    one.teach.success.signature = one.teach.success.signature.with_instructions(text)
    one.save(str(tmp_path / "reme.json"))
    lessons.save(str(tmp_path / "bank.json"))
    other.load(str(tmp_path / "bank.json"))
    assert other.judge.predict.signature.instructions == text
    assert other.teach.success.signature.instructions != text
    other.load(str(tmp_path / "reme.json"))
    assert other.teach.success.signature.instructions == text
