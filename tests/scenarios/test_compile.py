"""Compiling prompts on a scripted world, saving and loading them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy import (
    Backbones,
    Compiled,
    MaTTS,
    MemoryBank,
    ReasoningBank,
    Streams,
    TaskStream,
    compile_program,
    errors,
    load_program,
    save_program,
)
from rb_dspy.testing import HashEmbedder, Prompt, Reply, scripted_lm
from tests.scenarios.world import Spy, keypad, keypad_rooms, play, program, role_of

MAKERS = ("Abus", "Yale", "Dom", "Evva", "Kaba", "Ikon", "Winkhaus", "Gege")


def agent(prompt: Prompt) -> Reply:
    """Knows the code where its prompt holds a demonstration, and for every third keypad by luck."""
    serial = int(prompt.text.rsplit("serial ", 1)[1].split(".")[0])
    shown = any(role == "assistant" for role, _ in prompt.messages)
    lucky = serial % 3 == 0
    return {"thought": "Backwards.", "action": f"code{serial}" if shown or lucky else str(serial)}


def stream(name: str, makers: tuple[str, ...]) -> TaskStream:
    tasks = [(maker, 10 * MAKERS.index(maker) + number) for maker in makers for number in range(4)]
    return TaskStream(name, tuple(keypad(serial, code=f"code{serial}", maker=maker) for maker, serial in tasks))


def lessonless(prompt: Prompt) -> Reply:
    if role_of(prompt) == "distiller":
        return {
            "analysis": "Hm.",
            "memory_items": [{"title": "Look", "description": "Always.", "content": "Look first."}],
        }
    return agent(prompt) if role_of(prompt) == "agent" else play(prompt)


def school(script: Any = lessonless) -> ReasoningBank:
    return ReasoningBank(backbones=Backbones(agent=scripted_lm(script)), environments=keypad_rooms())


def prompts(run: Any) -> dict[str, Any]:
    return {name: (each.signature.instructions, len(each.demos)) for name, each in run.named_predictors()}


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    streams = Streams(stream("compile", MAKERS[:3]), stream("dev", MAKERS[3:5]), stream("held-out", MAKERS[5:]))
    student = school()
    before = prompts(student)
    made = compile_program(
        student, streams, optimizer="bootstrap", step="agent", budget=40, embedder=HashEmbedder(), orders=1
    )
    assert prompts(student) == before, "the program itself is not changed"
    return made


def test_a_demonstration_makes_the_agent_better_on_tasks_that_it_never_saw(compiled: Compiled) -> None:
    held_out = compiled.held_out
    assert held_out.before < 0.6
    assert held_out.after == 1.0
    assert dict(compiled.program.named_predictors())["act.predict"].demos
    assert "act.predict" in compiled.changed
    assert 0 < compiled.metric_calls <= compiled.budget == 40


def test_no_language_model_is_in_what_is_saved_and_the_result_applies_to_another_program(
    compiled: Compiled, tmp_path: Path
) -> None:
    compiled.save(tmp_path / "made.json")
    assert "scripted/lm" not in json.dumps(json.loads((tmp_path / "made.json").read_text()).get("state"))
    spy = Spy(script=lessonless)
    fresh = Compiled.load(tmp_path / "made.json").apply(school(spy))
    assert prompts(fresh) == prompts(compiled.program)
    with MemoryBank.open(None, scope="t", embedder=HashEmbedder()) as bank:
        assert fresh(task=keypad(97, code="code97"), bank=bank).answer == "code97"


def test_prompts_that_are_saved_and_loaded_are_the_same_to_the_byte(tmp_path: Path) -> None:
    def asked(run: Any, spy: Spy) -> list[str]:
        run.backbones = Backbones(agent=scripted_lm(spy))
        with MemoryBank.open(None, scope="t", embedder=HashEmbedder()) as bank:
            run(task=keypad(1), bank=bank)
        return sorted(prompt.text for prompt in spy.prompts)

    taught = program()
    for name, predictor in taught.named_predictors():
        predictor.signature = predictor.signature.with_instructions(f"For {name}: \u00df, \u201cquoted\u201d.\n\nGo.")
    dict(taught.named_predictors())["judge.predict"].demos = [
        dspy.Example(task="t", trajectory="r", final_state="f", reasons="so", label="failure")
    ]
    save_program(taught, tmp_path / "p.json")
    fresh = program()
    load_program(fresh, tmp_path / "p.json")
    assert prompts(fresh) == prompts(taught)
    assert asked(fresh, Spy()) == asked(taught, Spy())


def test_prompts_of_a_plain_program_load_into_a_scaled_one(tmp_path: Path) -> None:
    taught = program()
    predictor = dict(taught.named_predictors())["judge.predict"]
    predictor.signature = predictor.signature.with_instructions("Look twice.")
    save_program(taught, tmp_path / "p.json")
    scaled = MaTTS(program(), k=2)
    load_program(scaled, tmp_path / "p.json")
    assert dict(scaled.named_predictors())["judge.predict"].signature.instructions == "Look twice."


@pytest.mark.parametrize("change", ["a field more", "another type"])
def test_prompts_for_other_signatures_are_refused_and_nothing_is_changed(tmp_path: Path, change: str) -> None:
    other = program()
    predictor = dict(other.named_predictors())["judge.predict"]
    if change == "a field more":
        predictor.signature = predictor.signature.append("mood", dspy.OutputField(), str)
    else:
        predictor.signature = predictor.signature.delete("label").append("label", dspy.OutputField(), int)
    save_program(other, tmp_path / "p.json")
    fresh = program()
    before = prompts(fresh)
    with pytest.raises(errors.SignatureChanged):
        load_program(fresh, tmp_path / "p.json")
    assert prompts(fresh) == before


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"kind": "other"}'])
def test_a_file_that_is_no_program_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "p.json").write_text(content)
    with pytest.raises(errors.InputError):
        load_program(program(), tmp_path / "p.json")


def test_what_cannot_be_compiled_is_refused_before_a_model_is_asked() -> None:
    spy = Spy(script=lessonless)
    streams = Streams(stream("compile", MAKERS[:3]), stream("dev", MAKERS[3:5]), stream("held-out", MAKERS[5:]))
    for wrong in ({"optimizer": "no such"}, {"step": "no such"}, {"budget": 0}):
        given: dict[str, Any] = {"optimizer": "bootstrap", "embedder": HashEmbedder(), **wrong}
        with pytest.raises(errors.InputError):
            compile_program(school(spy), streams, **given)
    assert spy.prompts == []
