"""What a model thought aloud before its answer is never taken for the answer, whatever it rehearsed."""

from __future__ import annotations

import json

import pytest
from dspy.utils.exceptions import AdapterParseError

from rb_dspy import signatures
from rb_dspy.backbones import Backbones
from rb_dspy.backbones.chat import ChatAdapter
from rb_dspy.backbones.grammar import GrammarAdapter
from rb_dspy.backbones.repair import RepairAdapter
from rb_dspy.schema import Step, Task, Trajectory
from rb_dspy.steps import Judge
from rb_dspy.testing import Prompt, Reply, scripted_lm


def chat(action: str, thought: str = "So.") -> str:
    return f"[[ ## thought ## ]]\n{thought}\n\n[[ ## action ## ]]\n{action}\n\n[[ ## completed ## ]]"


def as_json(action: str, thought: str = "So.") -> str:
    return json.dumps({"thought": thought, "action": action})


BLOCKS = [
    "<think>\n{}\n</think>\n",
    "\n <THINK>{}</THINK>",
    "<thinking>\n{}\n</thinking>\n\n",
    "[THINK]{}[/THINK]\n",
    "{}\n</think>\n",  # the template opened it
    "Hm. {}\n</think>\n\nHere it is:\n",
    "<think>I end with </think> and go on: {}\n</think>\n",
]
ADAPTERS = {"chat": (ChatAdapter(), chat), "grammar": (GrammarAdapter(), chat), "json": (RepairAdapter(), as_json)}
EVERY = pytest.mark.parametrize("name", ADAPTERS)


@EVERY
@pytest.mark.parametrize("block", BLOCKS)
def test_an_answer_that_was_rehearsed_is_not_the_answer(name: str, block: str) -> None:
    adapter, written = ADAPTERS[name]
    if name == "json" and ("Here it is" in block or block.startswith("{}")):
        block = "Perhaps {}\n</think>\n```json\n"
    told = block.format(written("0000", "Perhaps.")) + written("4711")
    assert adapter.parse(signatures.Act, told) == {"thought": "So.", "action": "4711"}


@EVERY
@pytest.mark.parametrize(
    "told",
    ["<think>\n{}", "<think>\n{}\n</think>", "<think>\n{}\n</think>\nDone.", " [THINK] {} Or else"],
)
def test_thinking_without_an_answer_is_none(name: str, told: str) -> None:
    adapter, written = ADAPTERS[name]
    with pytest.raises(AdapterParseError):
        adapter.parse(signatures.Act, told.format(written("0000")))


@EVERY
@pytest.mark.parametrize(
    "action", ["write </think>", "say '<think>x</think>'", "close </think>\nand go on", "[/THINK]"]
)
def test_an_answer_may_speak_of_the_mark(name: str, action: str) -> None:
    adapter, written = ADAPTERS[name]
    for told in (written(action, action), f"<think>{written('0000')}</think>\n{written(action, action)}"):
        assert adapter.parse(signatures.Act, told) == {"thought": action, "action": action}


def test_a_judge_that_thinks_aloud_is_understood_at_once() -> None:
    def script(prompt: Prompt) -> Reply:
        draft = "[[ ## reasons ## ]]\nNot sure.\n\n[[ ## label ## ]]\nsuccess"
        said = "[[ ## reasons ## ]]\nShut.\n\n[[ ## label ## ]]\nfailure\n\n[[ ## completed ## ]]"
        return f"<think>\nIn this form:\n{draft}\n</think>\n{said}"

    lm = scripted_lm(script)
    rollout = Trajectory(task_id="t", steps=(Step(action="push", observation="It stays shut."),))
    with Backbones(agent=lm).use():
        verdict = Judge()(Task(id="t", instruction="Open it."), rollout)
    assert (verdict.label, verdict.reasons) == ("failure", "Shut.")
    assert len(lm.engine.prompts) == 1
