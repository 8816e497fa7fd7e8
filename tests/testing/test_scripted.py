"""The scripted language model: what it takes prompts apart into, and what an answer of it may be."""

from __future__ import annotations

from typing import Any, Literal

import dspy
import pytest

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InfrastructureError
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Task
from rb_dspy.testing import Answer, Corridor, Prompt, Reply, ScriptedEngine, corridor, locksmith, scripted_lm

ASKS = "A sign says:\n\nRespond with a word.\n\nRespond with the corresponding output fields\n\nor do not."


class Signs(Corridor):
    """What it shows holds the words with which an adapter asks for an answer."""

    def reset(self, task: Task) -> str:
        return ASKS

    def step(self, action: str) -> tuple[str, bool]:
        return ASKS, super().step(action)[1]


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()], ids=["chat", "json"])
def test_a_field_is_whole_whatever_stands_in_it(bank: MemoryBank, adapter: Any) -> None:
    seen: list[list[str]] = []

    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            seen.append(prompt.all("observation"))
        return locksmith(prompt)

    def make(task: Task, rollout_id: str) -> Signs:
        return Signs(3)

    with dspy.context(adapter=adapter):
        ReasoningBank(backbones=Backbones(agent=scripted_lm(script)), environments=make)(task=corridor(), bank=bank)
    assert seen == [[ASKS], [ASKS] * 2, [ASKS] * 3]


def asked(lm: Any) -> dict[str, Any]:
    (found,) = lm("Say hello.")
    return found if isinstance(found, dict) else {"text": found}


FINISHES: tuple[Literal["stop", "length", "content_filter", "error"], ...] = (
    "stop",
    "length",
    "content_filter",
    "error",
)


@pytest.mark.parametrize("finish", FINISHES)
async def test_an_answer_says_why_it_ended_and_what_it_cost_also_under_asyncio(finish: Any) -> None:
    lm = scripted_lm(lambda prompt: Answer("Hello.", finish=finish, usage=(70, None)))
    assert asked(lm) == {"text": "Hello."}
    await lm.acall("Say hello.")
    for entry in lm.history:
        assert entry["response"].finish_reason == finish
        assert entry["usage"]["prompt_tokens"] == 70
        assert not entry["usage"].get("completion_tokens")


def test_fields_are_an_answers_as_they_are_a_replys() -> None:
    class Twice(dspy.Signature):
        """Twice the number."""

        number: int = dspy.InputField()
        twice: int = dspy.OutputField()

    for adapter in (dspy.ChatAdapter(), dspy.JSONAdapter()):
        engine = ScriptedEngine(lambda prompt: Answer({"twice": 2 * int(prompt["number"])}, finish="length"))
        with dspy.context(lm=dspy.LM("x/y", engine=engine, cache=False), adapter=adapter):
            assert dspy.Predict(Twice)(number=21).twice == 42


def test_an_answer_may_be_calls_of_tools_or_a_thought_alone() -> None:
    calls = scripted_lm(lambda prompt: Answer(tool_calls=[("look", {"at": "map"}), ("go", {})], finish="tool_call"))
    found = asked(calls)
    assert [call["function"]["name"] for call in found["tool_calls"]] == ["look", "go"]
    assert found["tool_calls"][0]["function"]["arguments"] == '{"at": "map"}'
    assert len({call["id"] for call in found["tool_calls"]}) == 2
    assert not found["text"]
    thinks = asked(scripted_lm(lambda prompt: Answer(thought="Hm, hm.")))
    assert not thinks["text"]
    assert "Hm, hm." in str(thinks)


@pytest.mark.parametrize("given", [None, 7, ["a"]])
def test_a_script_that_gives_something_else_is_told_so(bank: MemoryBank, given: Any) -> None:
    said = rf"the script returned a {type(given).__name__}; expected the output fields by name, a text, or an"
    for reply in (given, Answer(given)):
        program = ReasoningBank(backbones={"agent": scripted_lm(lambda prompt, r=reply: r)}, environments=Corridor.make)
        with pytest.raises(InfrastructureError, match=said):
            program(task=corridor(), bank=bank)


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()], ids=["chat", "json"])
@pytest.mark.parametrize("answer", ["answer", "label", "choice"])
def test_the_calls_of_an_own_agent_are_the_agents(bank: MemoryBank, adapter: Any, answer: str) -> None:
    roles: list[str] = []

    def script(prompt: Prompt) -> Reply:
        roles.append(prompt.role)
        if "next_tool_name" in prompt.wants:
            return {"next_thought": "Done.", "next_tool_name": "finish", "next_tool_args": {}}
        if prompt.role == "agent":
            return {"reasoning": "So it is.", answer: "4711"}
        return locksmith(prompt)

    def look() -> str:
        """Look."""
        return "a lock"

    agent = dspy.ReAct(f"task, lessons -> {answer}", tools=[look])
    program = ReasoningBank(backbones={"agent": scripted_lm(script)}, agent=agent, score=lambda task, answer: True)
    with dspy.context(adapter=adapter):
        program(task=Task(id="t", instruction="Open the lock."), bank=bank)
    assert roles == ["agent", "agent", "judge", "distiller"]
