"""What a check decides by: two words that no praise is taken for, and what was saved by the words of before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy import MaTTS, MemoryBank, ReasoningBank
from rb_dspy.compile.state import load_program, prompts_of, save_program, signatures_of
from rb_dspy.errors import SignatureChanged
from rb_dspy.schema import Check, Step, Trajectory, Verdict
from rb_dspy.steps.view import view
from rb_dspy.testing import HashEmbedder, Lock
from tests.worlds import backbones, lock

SAID = {"task": "t", "trajectory": "r", "final_state": "f", "findings": "It is shut."}
DEMOS = [dspy.Example(**SAID, decision="revise"), dspy.Example(**SAID, decision="confirm")]
CHECKS = ("refine.first", "refine.again")


def scaled() -> MaTTS:
    return MaTTS(ReasoningBank(backbones=backbones()), k=2, mode="sequential")


def taught() -> MaTTS:
    made = scaled()
    made.refine.first.demos = DEMOS
    made.refine.again.signature = made.refine.again.signature.with_instructions("Look, then say `confirm` or `revise`.")
    return made


def of_before(text: str) -> str:
    """What was saved, as it was when the word was another."""
    (field,) = (each for each in signatures_of(scaled())["refine.first"] if each["name"] == "decision")
    return text.replace("revise", "correct").replace(field["schema"], "294f32b037b8880e72be")


def test_no_check_is_asked_whether_the_work_is_correct() -> None:
    made = scaled()
    for name in CHECKS:
        fields = {field["name"]: field["type"] for field in signatures_of(made)[name]}
        assert fields["decision"] == "Literal['confirm', 'revise']"
        assert "correct" not in prompts_of(made)[name]["instructions"]
    checks = (Check(after=0, findings="It is shut.", decision="revise"),)
    assert "[check of the work so far: revise] It is shut." in view(Trajectory(task_id="t", checks=checks), 400)


def test_a_check_that_was_stored_by_the_word_of_before_is_read() -> None:
    stored = Trajectory(task_id="t", steps=(Step(action="0"),), checks=(Check(after=1, decision="confirm"),))
    told = stored.model_dump(mode="json") | {"checks": [{"after": 1, "findings": "Shut.", "decision": "correct"}]}
    read = Trajectory.model_validate_json(json.dumps(told))
    assert read.checks == (Check(after=1, findings="Shut.", decision="revise"),)
    assert Trajectory.model_validate(read.model_dump()) == read


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_bank_that_holds_the_word_of_before_is_sound(tmp_path: Path) -> None:
    before = Check.model_construct(after=1, findings="Shut.", decision="correct")
    task = lock("a", 1)
    rollout = Trajectory(task_id=task.id, steps=(Step(action="0"),)).model_copy(update={"checks": (before,)})
    with MemoryBank.open(tmp_path / "b.sqlite", scope="s", embedder=HashEmbedder()) as bank:
        kept = bank.append(task, rollout, Verdict(label="failure"), [], run_id="r")
    with MemoryBank.open(tmp_path / "b.sqlite", scope="s", embedder=HashEmbedder()) as bank:
        (check,) = bank.get(kept.id).trajectories[0].checks
        assert check.decision == "revise"
        assert bank.doctor() == []


def test_a_module_of_somebodys_own_may_say_the_word_of_before(bank: MemoryBank) -> None:
    class Own(dspy.Module):
        def forward(self, **inputs: Any) -> Any:
            return dspy.Prediction(findings="It is shut.", decision="correct")

    made = MaTTS(ReasoningBank(backbones=backbones(), environments=Lock.make), k=2, mode="sequential")
    made.refine.first = Own()
    (check,) = made(task=lock("a", 1), bank=bank).trajectories[0].checks
    assert (check.decision, check.findings) == ("revise", "It is shut.")


def rb_state(path: Path, made: MaTTS) -> None:
    save_program(made, path)


def dspy_state(path: Path, made: MaTTS) -> None:
    made.save(str(path))


KINDS: dict[str, tuple[Callable[[Path, MaTTS], None], Callable[[MaTTS, Path], Any]]] = {
    "rb_dspy": (rb_state, load_program),
    "dspy": (dspy_state, lambda made, path: made.load(str(path))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_were_compiled_for_the_word_of_before_are_read(tmp_path: Path, kind: str) -> None:
    save, load = KINDS[kind]
    path = tmp_path / "made.json"
    save(path, taught())
    path.write_text(of_before(path.read_text()))
    assert "revise" not in path.read_text()
    back = scaled()
    load(back, path)
    assert prompts_of(back) == prompts_of(taught())
    assert signatures_of(back) == signatures_of(taught())
    assert [demo["decision"] for demo in back.refine.first.demos] == ["revise", "confirm"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_now_comes_back_as_it_is(tmp_path: Path, kind: str) -> None:
    save, load = KINDS[kind]
    made, told = scaled(), 'Look whether it is "correct", then say "confirm" or "revise".'
    made.refine.first.signature = made.refine.first.signature.with_instructions(told)
    made.judge.predict.signature = made.judge.predict.signature.with_instructions('Say "correct" where it is.')
    save(tmp_path / "made.json", made)
    back = scaled()
    load(back, tmp_path / "made.json")
    assert prompts_of(back) == prompts_of(made)


def test_any_other_type_of_a_decision_is_refused_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    save_program(taught(), path)
    path.write_text(path.read_text().replace("Literal['confirm', 'revise']", "Literal['yes', 'no']"))
    with pytest.raises(SignatureChanged, match=r"refine\.first: field 'decision' has another type"):
        load_program(scaled(), path)
