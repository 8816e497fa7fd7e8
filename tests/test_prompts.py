"""Prompts come back from their file as they were, and only for the signatures that they were compiled for."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import given, strategies as st

from rb_dspy import MaTTS, MemoryBank, MemoryDraft, ReasoningBank
from rb_dspy.errors import DspyTooOld, InputError, SignatureChanged
from rb_dspy.prompts import load_program, prompts_of, save_program, set_prompts, set_state, signatures_of, state_of
from rb_dspy.testing import HashEmbedder, scripted_lm
from tests.compile.helpers import apprentice, locks, program, scaled

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
TURN = {"task": "Öffne „das“ Tor.", "action_rules": "a code", "observation": "A keypad.\n\t✓"}
DRAFT = MemoryDraft(title="Look", description="Where a lock is.", content="Look at it, \U0001f512 and all.")


def demos() -> dict[str, list[Any]]:
    """Demonstrations with every type that our signatures have."""
    said = {"thought": "I try.", "action": "1"}
    history = dspy.History(messages=[{**TURN, **said, "valid_actions": ["1", "2"]}])
    return {
        "act.predict": [dspy.Example(history=history, observation="It stays shut.", valid_actions=["1"], **said)],
        "judge.predict": [dspy.Example(task="t", trajectory="r", final_state="f", reasons="so", label="failure")],
        "distill.success": [dspy.Example(task="t", memory_items=[DRAFT])],
        "contrast.predict": [dspy.Example(task="t", analysis="a", memory_items=[DRAFT])],
        "select.predict": [dspy.Example(task="t", candidates="c", analysis="a", choice=2)],
    }


def taught(student: Any, text: str = "Do it well.") -> Any:
    examples = demos()
    for name, predictor in student.named_predictors():
        predictor.signature = predictor.signature.with_instructions(f"For {name}: {text}")
        predictor.demos = examples.get(name, [])
    return student


def asked(student: Any) -> list[str]:
    """Every prompt of a run, to the byte."""
    lm = scripted_lm(apprentice)
    student.backbones = student.backbones.replace(agent=lm)
    with MemoryBank.open(None, scope="t", embedder=HashEmbedder()) as bank:
        student(task=locks(1, 1)[0], bank=bank)
    return sorted(prompt.text for prompt in lm.engine.prompts)


@given(texts=st.lists(TEXT, min_size=8, max_size=8), values=st.lists(TEXT, min_size=3, max_size=3))
def test_any_text_comes_back_from_the_file(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], values: list[str]
) -> None:
    path = tmp_path_factory.mktemp("state") / "p.json"
    student = scaled()
    for text, (_, predictor) in zip(texts, student.named_predictors(), strict=True):
        text = text.strip() and text  # dspy replaces white space by its own words
        predictor.signature = predictor.signature.with_instructions(text)
        predictor.demos = [dspy.Example(task=values[0], reasons=values[1], action=values[2])]
    save_program(student, path)
    fresh = scaled()
    load_program(fresh, path)
    assert prompts_of(fresh) == prompts_of(student)


@pytest.mark.parametrize("make", [program, scaled, partial(program, learn="one_call")])
def test_a_loaded_program_asks_the_same_to_the_byte(tmp_path: Path, make: Any) -> None:
    student = taught(make())
    save_program(student, tmp_path / "p.json")
    fresh = make()
    load_program(fresh, tmp_path / "p.json")
    assert asked(fresh) == asked(student)
    assert asked(fresh) != asked(make())
    act = fresh.act.predict.demos[0]
    assert isinstance(act.history, dspy.History)
    assert isinstance(fresh.distill.success.demos[0].memory_items[0], MemoryDraft | type(DRAFT).__base__)
    assert "scripted" not in (tmp_path / "p.json").read_text()


@pytest.mark.stress
def test_another_process_gets_the_same_hashes() -> None:
    imports = "from rb_dspy.prompts import signatures_of; from tests.compile.helpers import scaled"
    code = f"{imports}; print(signatures_of(scaled()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(signatures_of(scaled()))
    assert signatures_of(program()) != signatures_of(scaled())


def test_a_scaled_program_takes_the_prompts_of_a_plain_one_and_keeps_its_own(tmp_path: Path) -> None:
    save_program(taught(program()), tmp_path / "p.json")
    both = scaled()
    own = {
        name: each for name, each in prompts_of(both).items() if name.split(".")[0] in ("contrast", "select", "refine")
    }
    load_program(both, tmp_path / "p.json")
    after = prompts_of(both)
    assert after["judge.predict"]["instructions"].startswith("For judge.predict")
    assert {name: after[name] for name in own} == own
    save_program(taught(scaled()), tmp_path / "s.json")
    with pytest.raises(SignatureChanged, match=r"contrast\.predict"):
        load_program(program(), tmp_path / "s.json")
    state = state_of(scaled())
    del state["predictors"]["select.predict"]
    with pytest.raises(SignatureChanged, match=r"select\.predict"):
        set_state(scaled(), state)


@pytest.mark.parametrize("change", ["field", "type", "description", "limit", "order"])
def test_prompts_for_other_signatures_are_refused_and_nothing_changes(change: str) -> None:
    other, here = taught(program()), program()
    predictor = other.judge.predict
    field = predictor.signature
    predictor.signature = {
        "field": lambda: field.append("mood", dspy.OutputField(), str),
        "type": lambda: field.delete("label").append("label", dspy.OutputField(), int),
        "description": lambda: field.with_updated_fields("task", desc="another"),
        "limit": lambda: field.delete("reasons").append("reasons", dspy.OutputField(max_length=9), str),
        "order": lambda: field.delete("task").append("task", dspy.InputField(desc="x"), str),
    }[change]()
    before = prompts_of(here)
    with pytest.raises(SignatureChanged, match=r"judge\.predict; compile it again") as caught:
        set_state(here, state_of(other), source="p.json")
    assert "act.predict" not in str(caught.value)
    assert prompts_of(here) == before


def test_a_type_that_keeps_its_name_and_changes_its_fields_is_another_signature() -> None:
    class Note(dspy.Signature):
        """Note."""

        memory: MemoryDraft = dspy.OutputField()

    def renamed() -> Any:
        import pydantic

        return pydantic.create_model("MemoryDraft", __module__=MemoryDraft.__module__, title=(str, ...))

    mine = dspy.Predict(Note)
    other = dspy.Predict(Note.delete("memory").append("memory", dspy.OutputField(), renamed()))
    assert signatures_of(mine) != signatures_of(other)


def test_modules_that_dspy_takes_for_compiled_are_saved_too(tmp_path: Path) -> None:
    student = taught(program())
    student.judge._compiled = True
    save_program(student, tmp_path / "p.json")
    fresh = program()
    fresh.judge._compiled = True
    load_program(fresh, tmp_path / "p.json")
    assert fresh.judge.predict.signature.instructions.startswith("For judge.predict")


def test_a_newer_dspy_is_refused() -> None:
    state = state_of(program())
    state["versions"]["dspy"] = "99.0.0"
    with pytest.raises(DspyTooOld, match=r"99\.0"):
        set_state(program(), state)
    for versions in (None, [], {}, {"dspy": 3}, {"dspy": "9" * 5000}):
        with pytest.raises(InputError, match="which version of dspy"):
            set_state(program(), {**state_of(program()), "versions": versions})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": "other"}', b"\xff", b"[" * 10**6, pickle.dumps({})])
def test_another_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.json").write_bytes(content)
    with pytest.raises(InputError, match=r"p\.json") as caught:
        load_program(program(), tmp_path / "p.json")
    assert "\n" not in str(caught.value)


def test_a_file_of_another_version_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps({**state_of(program()), "version": 1}))
    with pytest.raises(InputError, match="version 1"):
        load_program(program(), tmp_path / "p.json")
    with pytest.raises(InputError, match=r"none\.json"):
        load_program(program(), tmp_path / "none.json")


@pytest.mark.parametrize(
    "damage",
    [
        {"predictors": None},
        {"predictors": {"act.predict": 3}},
        {"predictors": {"act.predict": {"signature": "x", "instructions": "y"}}},
        {"predictors": {"act.predict": {"signature": "x", "instructions": "\ud800", "demos": []}}},
    ],
)
def test_damaged_prompts_are_refused_and_nothing_changes(damage: dict[str, Any]) -> None:
    student = program()
    before = prompts_of(student)
    with pytest.raises(InputError, match="state: "):
        set_state(student, {**state_of(student), **damage})
    assert prompts_of(student) == before


def test_prompts_are_set_in_all_predictors_or_in_none() -> None:
    student = program()
    before = prompts_of(student)
    prompts = {name: {"instructions": f"For {name}.", "demos": []} for name in before}
    with pytest.raises(TypeError):
        set_prompts(student, {**prompts, "judge.predict": {"instructions": "Well.", "demos": [None]}})
    assert prompts_of(student) == before
    set_prompts(student, {"judge.predict": prompts["judge.predict"]})
    assert [name for name, each in prompts_of(student).items() if each != before[name]] == ["judge.predict"]


def test_a_program_of_ones_own_steps_has_names_for_its_predictors() -> None:
    student = ReasoningBank()
    student.judge = dspy.ChainOfThought("task, trajectory -> label")
    assert set(prompts_of(MaTTS(student))) >= {"judge.predict", "contrast.predict", "act.predict"}
