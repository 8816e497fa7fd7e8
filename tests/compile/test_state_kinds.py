"""What ``save_program`` and ``Compiled.save`` write is loaded by one function, and refused for the same reasons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import load_program, save_program
from rb_dspy.cli.built import saved
from rb_dspy.compile.result import Compiled
from rb_dspy.compile.state import prompts_of, read_state, set_state, state_of
from rb_dspy.errors import DspyTooOld, InputError, SignatureChanged
from rb_dspy.program import ReasoningBank
from rb_dspy.testing import scripted_lm
from tests.compile.school import compiled, program
from tests.compile.teacher import pupil

KINDS = ("program", "compiled")


@pytest.fixture(scope="module")
def made() -> Compiled:
    return compiled(program=program(scripted_lm(pupil, model="canary/model")), optimizer="bootstrap", stage="judge")


@pytest.fixture(params=KINDS)
def file(request: pytest.FixtureRequest, made: Compiled, tmp_path: Path) -> Path:
    path = tmp_path / f"{request.param}.json"
    if request.param == "compiled":
        made.save(path)
    else:
        save_program(made.program, path)
    return path


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The file with another state."""
    data = json.loads(path.read_text())
    change(data.get("state", data))
    path.write_text(json.dumps(data))
    return path


def test_both_kinds_give_a_program_the_prompts_and_the_command_line_reads_the_same(file: Path, made: Compiled) -> None:
    back, again = program(), program()
    assert prompts_of(back) != made.prompts_after
    load_program(back, file)
    assert prompts_of(back) == made.prompts_after
    set_state(again, json.loads(file.read_text()))
    assert prompts_of(again) == made.prompts_after
    state, report = saved(file)
    assert state == read_state(file) == state_of(made.program)
    assert (report is None) == (file.stem == "program")
    assert report is None or report.scores == made.scores


def test_neither_holds_a_language_model_a_key_or_an_address(file: Path) -> None:
    text = file.read_text()
    for secret in ("canary", "scripted", "api_key", "api_base", "http"):
        assert secret not in text


def test_both_are_refused_for_other_signatures_by_the_name_of_what_differs(file: Path) -> None:
    other = program()
    signature = other.judge.predict.signature
    other.judge.predict.signature = signature.with_updated_fields("label", desc="Well?")
    before = prompts_of(other)
    with pytest.raises(
        SignatureChanged, match=rf"{file.name}: .*judge\.predict: field 'label' has another description"
    ):
        load_program(other, file)
    assert prompts_of(other) == before
    with pytest.raises(SignatureChanged, match=r"contrast\.predict is not in this program"):
        load_program(ReasoningBank(), file)
    plain = ReasoningBank()
    load_program(plain, file, partial=True)
    assert prompts_of(plain)["judge.predict"] == prompts_of(program_of(file))["judge.predict"]


def program_of(file: Path) -> Any:
    made = program()
    load_program(made, file)
    return made


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda state: state["versions"].update(dspy="99.1.0"), DspyTooOld, r"saved with dspy 99\.1\.0"),
        (lambda state: state.update(version=7), InputError, "install a newer rb_dspy"),
        (lambda state: state.update(format="other"), InputError, "not a rb_dspy program"),
        (lambda state: state.update(format=["other"]), InputError, "not a rb_dspy program"),
        (lambda state: state.update(predictors=None), InputError, "predictors cannot be read"),
        (lambda state: state.clear(), InputError, "not a rb_dspy program"),
    ],
)
def test_both_are_refused_for_a_state_that_cannot_be_used(
    file: Path, change: Callable[[dict[str, Any]], None], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        load_program(program(), changed(file, change))


def test_a_report_of_a_newer_version_is_refused(made: Compiled, tmp_path: Path) -> None:
    made.save(tmp_path / "made.json")
    data = json.loads((tmp_path / "made.json").read_text())
    (tmp_path / "made.json").write_text(json.dumps({**data, "version": 9}))
    with pytest.raises(InputError, match="version 9 of the format"):
        load_program(program(), tmp_path / "made.json")
    with pytest.raises(InputError, match="not a rb_dspy program"):
        set_state(program(), {**data, "state": None})
