"""What a cap of tokens cut off is not taken for whole: it is asked for again, and of lessons the last is left out."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy import MemoryBank, ReasoningBank
from rb_dspy.backbones import Backbones
from rb_dspy.schema import Step, Task, Trajectory, Verdict
from rb_dspy.steps import Contrast, Distill, Distilled, Judge
from rb_dspy.testing import HashEmbedder, Lock, Prompt, ScriptedEngine, scripted_lm

SAID = "✂"
"""At the end of what a script says: the cap of tokens ends the answer there."""

TASK = Task(id="t", instruction="Open it.")
ROLLOUT = Trajectory(task_id="t", steps=(Step(action="push", observation="It stays shut."),))
FIRST = {"title": "Look first", "description": "When in doubt.", "content": "Look behind the mirror.", "evidence": [1]}
SECOND = {
    "title": "Refund late",
    "description": "When refunding.",
    "content": "Never refund without a look at the order.",
}
SECOND |= {"evidence": [1]}
END = "\n\n[[ ## completed ## ]]"


class Capped(ScriptedEngine):
    """Says why an answer ended."""

    def complete(self, request: lm15.Request) -> lm15.Response:
        found = super().complete(request)
        text = found.text or ""
        if not text.endswith(SAID):
            return found
        return dataclasses.replace(
            found, message=lm15.Message.assistant(text.removesuffix(SAID)), finish_reason="length"
        )


class AsyncCapped:
    def __init__(self, engine: Capped) -> None:
        self.engine = engine

    async def complete(self, request: lm15.Request) -> lm15.Response:
        return self.engine.complete(request)


def capped(script: Callable[[Prompt], str], **kwargs: Any) -> Any:
    engine = Capped(script)
    settings = {"cache": False, "num_retries": 0, **kwargs}
    return dspy.LM("scripted/lm", engine=engine, async_engine=AsyncCapped(engine), **settings)


def chat(**fields: Any) -> str:
    return "\n\n".join(
        f"[[ ## {name} ## ]]\n{value if isinstance(value, str) else json.dumps(value)}"
        for name, value in fields.items()
    )


def wants_json(prompt: Prompt) -> bool:
    return "[[ ## completed ## ]]" not in prompt.system


def told(first: str, repair: str = "none") -> Callable[[Prompt], str]:
    return lambda prompt: repair if wants_json(prompt) else first


@pytest.fixture(params=["threads", "asyncio"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    def called(step: Any, *args: Any, **kwargs: Any) -> Any:
        if request.param == "asyncio":
            return asyncio.run(step.acall(*args, **kwargs))
        return step(*args, **kwargs)

    return called


def judged(call: Callable[..., Any], lm: Any) -> tuple[str, int]:
    with Backbones(agent=lm).use():
        label = call(Judge(), TASK, ROLLOUT).label
    return label, len(lm.engine.prompts)


def test_an_action_that_was_cut_off_is_not_done(call: Callable[..., Any]) -> None:
    def script(prompt: Prompt) -> str:
        if "action" in prompt.wants:
            said = {"thought": "The lesson says so.", "action": "4711"}
            return json.dumps(said) if wants_json(prompt) else chat(**said)[:-2] + SAID
        if "label" in prompt.wants:
            return chat(reasons="It opens.", label="success") + END
        return chat(analysis="So.", memory_items=[FIRST]) + END

    task = Task(id="lock", instruction="Open the lock.", env="lock", env_args={"code": "4711"})
    program = ReasoningBank(backbones=Backbones(agent=capped(script)), environments=Lock.make)
    with MemoryBank.open(None, scope="test", embedder=HashEmbedder()) as bank:
        done = call(program, task=task, bank=bank)
    assert [step.action for step in done.trajectory.steps] == ["4711"]
    assert done.usage["agent"].calls == 2


def test_where_the_repair_is_cut_off_too_the_rollout_ends(call: Callable[..., Any]) -> None:
    def script(prompt: Prompt) -> str:
        return ('{"thought": "So.", "action": "47' if wants_json(prompt) else chat(thought="So.", action="47")) + SAID

    task = Task(id="lock", instruction="Open the lock.", env="lock", env_args={"code": "4711"})
    program = ReasoningBank(backbones=Backbones(agent=capped(script)), environments=Lock.make)
    with MemoryBank.open(None, scope="test", embedder=HashEmbedder()) as bank:
        done = call(program, task=task, bank=bank, learn=False)
    assert (done.trajectory.steps, done.trajectory.stop_reason) == ((), "unreadable")


@pytest.mark.parametrize(
    ("said", "label", "calls"),
    [
        (chat(reasons="It opens.", label="success"), "failure", 2),  # who knows what was to follow
        (chat(reasons="It opens.", label="success") + "\n\n[[ ##", "success", 1),
        (chat(reasons="It opens.", label="success") + END[:-1], "success", 1),
        (chat(reasons="It opens.", label="success") + END + "\n\nAnd anoth", "success", 1),
        (chat(reasons="It opens.", label="success", reason="Mo"), "success", 1),
        ("<think>" + chat(reasons="It opens.", label="success") + END, "failure", 2),
        ("<think>Hm.</think>" + chat(reasons="It opens.", label="success"), "failure", 2),
        (chat(reasons="It op"), "failure", 2),
    ],
)
def test_a_label_counts_where_it_is_whole(said: str, label: str, calls: int, call: Callable[..., Any]) -> None:
    repair = json.dumps({"reasons": "Shut.", "label": "failure"})
    assert judged(call, capped(told(said + SAID, repair))) == (label, calls)
    assert judged(call, capped(told(said + SAID, repair + "\n\nAnd so" + SAID))) == (label, calls)
    cut = (label, calls) if calls == 1 else ("unknown", calls)
    assert judged(call, capped(told(said + SAID, repair[:-1] + SAID))) == cut


def test_it_is_known_of_an_answer_from_the_cache_too(call: Callable[..., Any]) -> None:
    said, repair = chat(reasons="It opens.", label="success"), json.dumps({"reasons": "Shut.", "label": "failure"})
    lm = capped(told(said + SAID, repair), cache=True)
    with dspy.context(disable_history=True):
        assert [judged(call, lm) for _ in range(2)] == [("failure", 2)] * 2


@pytest.mark.parametrize(
    "adapter", [dspy.JSONAdapter(), dspy.ChatAdapter(), dspy.XMLAdapter()], ids=lambda a: type(a).__name__
)
def test_an_adapter_of_the_callers_gets_a_repair_too(adapter: dspy.Adapter, call: Callable[..., Any]) -> None:
    forms = {
        dspy.JSONAdapter: '{"reasons": "It opens.", "label": "success"',
        dspy.ChatAdapter: chat(reasons="It opens.", label="success"),
        dspy.XMLAdapter: "<reasons>It opens.</reasons><label>success</label>",
    }
    good = {"reasons": "Shut.", "label": "failure"}
    asked: list[Prompt] = []

    def script(prompt: Prompt) -> str:
        asked.append(prompt)
        if len({each.system for each in asked}) == 1:
            return forms[type(adapter)] + SAID
        return json.dumps(good) if wants_json(prompt) else chat(**good) + END

    with dspy.context(adapter=adapter):
        assert judged(call, capped(script)) == ("failure", 2)


LESSONS = json.dumps([FIRST, SECOND])
CUTS = [LESSONS[: LESSONS.index(" a look at")], LESSONS[:-2], LESSONS[: LESSONS.index("Refund late")]]


def drafted(call: Callable[..., Any], step: str, lm: Any) -> Distilled:
    with Backbones(agent=lm).use():
        if step == "contrast":
            return call(Contrast(), TASK, [ROLLOUT, ROLLOUT])
        return call(Distill(), TASK, ROLLOUT, Verdict(label="success"))


@pytest.mark.parametrize("step", ["distill", "contrast"])
@pytest.mark.parametrize("cut", CUTS)
def test_of_lessons_that_were_cut_off_the_last_is_left_out(step: str, cut: str, call: Callable[..., Any]) -> None:
    lm = capped(told(chat(analysis="So.", memory_items=cut) + SAID))
    repaired = capped(told("Hm." + SAID, f'{{"analysis": "So.", "memory_items": {cut}{SAID}'))
    for each, calls in ((lm, 1), (repaired, 2)):
        found = drafted(call, step, each)
        assert [draft.title for draft in found.drafts] == ["Look first"]
        assert found.note.endswith("dropped: one without title or content")
        assert len(each.engine.prompts) == calls


@pytest.mark.parametrize("step", ["distill", "contrast"])
@pytest.mark.parametrize("cut", ["", "[", json.dumps([SECOND])[:-40], json.dumps(SECOND)[:-40], "Hm"])
def test_the_only_lesson_is_not_stored_in_part(step: str, cut: str, call: Callable[..., Any]) -> None:
    lm = capped(
        told(chat(analysis="So.", memory_items=cut) + SAID, f'{{"analysis": "So.", "memory_items": {cut}{SAID}')
    )
    found = drafted(call, step, lm)
    assert found.drafts == ()
    assert "could not be read, nor its repair: the answer was cut off where its tokens ended" in found.note
    assert len(lm.engine.prompts) == 2


@pytest.mark.parametrize("cut", ["[" * 3000, '{"a":' * 3000], ids=["lists", "objects"])
def test_what_is_nested_too_deeply_where_it_was_cut_off_is_no_bug(cut: str, call: Callable[..., Any]) -> None:
    lm = capped(
        told(chat(analysis="So.", memory_items=cut) + SAID, f'{{"analysis": "So.", "memory_items": {cut}{SAID}')
    )
    found = drafted(call, "distill", lm)
    assert found.drafts == ()
    assert found.note.startswith("not distilled: the distiller's answer could not be read, nor its repair")


@pytest.mark.parametrize("disabled", [False, True])
def test_a_history_is_kept_where_it_is_wanted_and_there_only(disabled: bool, call: Callable[..., Any]) -> None:
    lm = scripted_lm(lambda _: {"reasons": "It opens.", "label": "success"})
    with dspy.context(disable_history=disabled):
        assert judged(call, lm) == ("success", 1)
    assert len(lm.history) == (not disabled)


@pytest.mark.filterwarnings("ignore:Implementing custom LMs:DeprecationWarning")
def test_a_model_of_somebody_elses_class_is_asked_as_it_is(call: Callable[..., Any]) -> None:
    class Counting(dspy.LM):
        calls = 0

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return super().__call__(*args, **kwargs)

        async def acall(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return await super().acall(*args, **kwargs)

    engine = Capped(lambda _: chat(reasons="It opens.", label="success") + END)
    lm = Counting("scripted/lm", engine=engine, async_engine=AsyncCapped(engine), cache=False)
    assert judged(call, lm) == ("success", 1)
    assert lm.calls == 1
