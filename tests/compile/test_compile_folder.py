"""A folder that a compile cannot work in is refused before anybody is asked, with the reason why."""

from __future__ import annotations

from pathlib import Path

import pytest
from dspy import lm15

from rb_dspy.compile.result import Compiled
from rb_dspy.errors import BackboneError, InputError, RBError
from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.compile.school import compiled, program
from tests.compile.teacher import pupil, teacher


def refused(folder: str | Path) -> RBError:
    """What is raised where nobody may be asked."""

    def nobody(prompt: Prompt) -> Reply:
        raise AssertionError(prompt)

    with pytest.raises(RBError) as caught:
        compiled(
            program=program(scripted_lm(nobody)),
            reflection=scripted_lm(lambda prompt: {"reply": "ready"}),
            folder=folder,
        )
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_lock_that_is_no_file_is_said(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    assert str(refused(tmp_path)) == f"{tmp_path}: cannot be written: Is a directory; give another folder"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="Linux has this folder, in which nobody can make a file")
def test_a_folder_that_takes_no_files_is_not_taken_for_one_in_use() -> None:
    found = refused("/proc")
    assert str(found) == "/proc: cannot be written: no file can be made in it; give another folder"
    assert not isinstance(found, InputError)


def test_a_description_that_describes_nothing_is_said(tmp_path: Path) -> None:
    described = tmp_path / "compile.json"
    described.write_text('{"format": "rb_dspy compile", "version": 1, "identity": "mine"}')
    assert str(refused(tmp_path)) == (f"{described}: has str for identity; expected an object; give another folder")


def keyless(prompt: Prompt) -> Reply:
    raise lm15.AuthError("bad key")


def test_a_folder_in_which_nobody_answered_is_taken_over_and_one_with_answers_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    with pytest.raises(BackboneError, match="nothing was spent"):
        compiled(reflection=scripted_lm(keyless, model="some/first"), optimizer="gepa", stage="judge", folder=folder)
    (folder / "answers.jsonl").touch()

    def stops(prompt: Prompt) -> Reply:
        if prompt.wants:
            raise KeyboardInterrupt
        return "ready"

    with pytest.raises(KeyboardInterrupt):
        compiled(reflection=scripted_lm(stops, model="some/second"), program=program(scripted_lm(stops)),
                 optimizer="gepa", stage="judge", folder=folder)  # fmt: skip
    with pytest.raises(InputError) as caught:
        compiled(reflection=scripted_lm(teacher, model="some/third"), program=program(scripted_lm(pupil, model="a/b")),
                 optimizer="gepa", stage="judge", budget=61, folder=folder)  # fmt: skip
    assert str(caught.value) == (
        f"{folder}: holds another compile, with other models than a/b, some/third, budget (60 there, 61 here); give"
        " another folder, delete this one, or give the same arguments"
    )


def test_a_compile_that_is_there_is_found_done(tmp_path: Path) -> None:
    def once() -> Compiled:
        return compiled(
            program=program(scripted_lm(pupil, model="a/b")),
            reflection=scripted_lm(teacher, model="c/d"),
            optimizer="gepa",
            stage="judge",
            folder=tmp_path,
        )

    first, again = once(), once()
    assert (first.found_done, again.found_done) == (False, True)
    assert again.usage == first.usage
    first.save(tmp_path / "first.json")
    again.save(tmp_path / "again.json")
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    assert not Compiled.load(tmp_path / "again.json").found_done
