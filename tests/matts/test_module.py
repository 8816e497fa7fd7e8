"""MaTTS as optimizers see it: its trace, its predictors, its copies and its state."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.config import MattsConfig, MattsMode, SelectConfig
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.testing import Prompt
from rb_dspy.testing.embedder import HashEmbedder
from tests.matts.helpers import MODES, House, Script, booth_of, booth_task, called, role_of, scaled, slow_lm

NAMES = [
    "act.predict",
    "judge.predict",
    "distill.success",
    "distill.failure",
    "contrast.predict",
    "select.predict",
    "refine.first",
    "refine.again",
]


def _fresh() -> MemoryBank:
    return MemoryBank.open(None, scope="test", embedder=HashEmbedder())


def _told(run: MaTTS, trace: Sequence[Any]) -> list[tuple[str, str]]:
    """Each call in a trace: the predictor's name, and the booth that it was about."""
    names = {id(predictor): name for name, predictor in run.named_predictors()}
    told = []
    for predictor, inputs, _ in trace:
        text = inputs.get("observation") or inputs.get("trajectory") or ""
        told.append((names[id(predictor)], booth_of(text) if text else ""))
    return told


@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
async def test_the_trace_holds_every_call_in_an_order_that_no_latency_changes(asynchronous: bool) -> None:
    seen = []
    for slowest in ("0", "3"):

        def delay(prompt: Prompt, slowest: str = slowest) -> float:
            if role_of(prompt) in ("agent", "judge"):
                number = int(booth_of(prompt.text))
                return 0.01 * (4 - number if slowest == "0" else 1 + number)
            return 0.0

        run = scaled(slow_lm(Script({"1": "right"}), delay), House(steps=2), k=4)
        with dspy.context(trace=[]):
            await called(run, asynchronous, task=booth_task(), bank=_fresh())
            seen.append(_told(run, dspy.settings.trace))
    rollouts = [(name, str(number)) for number in range(4) for name in ("act.predict", "act.predict", "judge.predict")]
    assert seen[0] == [*rollouts, ("contrast.predict", ""), ("select.predict", "")]
    assert seen[1] == seen[0]


@pytest.mark.parametrize("mode", MODES)
def test_the_trace_holds_exactly_the_calls_that_were_made(bank: MemoryBank, mode: MattsMode) -> None:
    run = scaled(k=3, mode=mode)
    with dspy.context(trace=[]):
        done = run(task=booth_task(), bank=bank)
        assert len(dspy.settings.trace) == sum(used.calls for used in done.usage.values())


def test_the_trace_of_a_caller_keeps_what_it_had_and_stays_within_its_limit(bank: MemoryBank) -> None:
    run = scaled(k=4)
    with dspy.context(trace=["mine"], max_trace_size=5):
        run(task=booth_task(), bank=bank)
        kept = list(dspy.settings.trace)
    rollout = ["act.predict", "judge.predict"]
    assert [name for name, _ in _told(run, kept)] == ["judge.predict", *rollout, "contrast.predict", "select.predict"]
    with dspy.context(trace=["mine"]):
        run(task=booth_task(2), bank=bank)
        assert dspy.settings.trace[0] == "mine"
        assert len(dspy.settings.trace) == 1 + 4 + 4 + 2


def test_the_votes_of_several_orders_are_in_the_trace_too(bank: MemoryBank) -> None:
    run = scaled(k=3, config=MattsConfig(select=SelectConfig(orders=3)))
    with dspy.context(trace=[]):
        run(task=booth_task(), bank=bank)
        assert [name for name, _ in _told(run, dspy.settings.trace)].count("select.predict") == 3


def test_every_predictor_is_found_under_its_name() -> None:
    assert [name for name, _ in scaled().named_predictors()] == NAMES


def test_no_two_predictors_have_the_same_instructions() -> None:
    for one, other in itertools.combinations(scaled().predictors(), 2):
        assert one.signature.instructions != other.signature.instructions
        assert not one.signature.equals(other.signature)  # what GEPA matches records by


def test_a_copy_shares_backbones_and_no_prompt(bank: MemoryBank) -> None:
    run = scaled(k=2)
    copied = copy.deepcopy(run)
    for name, predictor in copied.named_predictors():
        predictor.signature = predictor.signature.with_instructions(f"Now {name}.")
    assert copied.backbones is run.backbones
    assert not any(predictor.signature.instructions.startswith("Now ") for predictor in run.predictors())
    copied(task=booth_task(), bank=bank)
    used = {str(prompt.system).split("Now ")[-1].split(".")[0] for prompt in run.backbones.lm("agent").engine.prompts}
    assert used == {"act", "judge", "contrast", "select"}


def test_a_state_goes_through_json_into_another(tmp_path: Path) -> None:
    run = scaled()
    for name, predictor in run.named_predictors():
        predictor.signature = predictor.signature.with_instructions(f"Now {name}.")
        predictor.demos = [dspy.Example(task="t", analysis=name)]
    run.save(tmp_path / "state.json")
    assert "scripted/lm" not in (tmp_path / "state.json").read_text()
    other = scaled()
    other.load(tmp_path / "state.json")
    assert [predictor.signature.instructions for predictor in other.predictors()] == [f"Now {name}." for name in NAMES]
    assert [predictor.demos[0]["analysis"] for predictor in other.predictors()] == NAMES
    assert json.loads(json.dumps(run.dump_state())) == json.loads(json.dumps(other.dump_state()))


def _instruct(program: dspy.Module, words: str) -> None:
    for name, predictor in program.named_predictors():
        predictor.signature = predictor.signature.with_instructions(f"{words} {name}.")


@pytest.mark.parametrize("through_a_file", [False, True], ids=["state", "file"])
def test_what_a_reasoning_bank_was_compiled_to_fits_into_matts(tmp_path: Path, through_a_file: bool) -> None:
    program, run = ReasoningBank(), scaled()
    theirs = {name for name, _ in program.named_predictors()}
    assert theirs < set(NAMES)
    _instruct(program, "Compiled:")
    _instruct(run, "Mine:")
    if through_a_file:
        program.save(tmp_path / "state.json")
        run.load(tmp_path / "state.json")
    else:
        run.load_state(program.dump_state())
    instructions = {name: predictor.signature.instructions for name, predictor in run.named_predictors()}
    assert instructions == {name: f"{'Compiled:' if name in theirs else 'Mine:'} {name}." for name in NAMES}
    assert MaTTS(program).judge is program.judge


def test_a_state_that_lacks_what_every_program_has_is_refused() -> None:
    state = ReasoningBank().dump_state()
    del state["judge.predict"]
    with pytest.raises(KeyError):
        scaled().load_state(state)
