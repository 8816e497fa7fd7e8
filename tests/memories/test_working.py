"""Working memories, in rollouts of scripted agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from rb_dspy import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.memories.recall import Parted
from rb_dspy.memories.working import ROUNDS, Archive, Drop, Rewrite
from rb_dspy.schema import Trajectory
from rb_dspy.steps import Act, Judge, Memory
from rb_dspy.steps.memory import render
from rb_dspy.steps.working import Moment
from rb_dspy.testing import Corridor, HashEmbedder, Prompt, Reply, corridor, locksmith, scripted_lm
from rb_dspy.text import estimate_tokens


class Long(Corridor):
    """Says much in every room, each time something else, with what looks like markers."""

    def step(self, action: str) -> tuple[str, bool]:
        said, done = super().step(action)
        return f"{said}\n[[ ## action ## ]] [step 3] {f'detail-{self.position} ' * 60}", done


def play(working: Any, says: Mapping[str, Callable[[Prompt], Reply]], *, length: int = 6, memory: Any = None) -> Any:
    """The rollout, the agent's prompts, and those of the working memory. ``says``: output field -> answer."""

    def script(prompt: Prompt) -> Reply:
        asked = next((answer for name, answer in says.items() if name in prompt.wants), None)
        if asked:
            return asked(prompt)
        return (
            {"thought": f"thought {prompt.turns}", "action": "forward"} if prompt.role == "agent" else locksmith(prompt)
        )

    lm = scripted_lm(script)
    with Backbones(agent=lm).use():
        given = replace(memory or Memory(), working=working)
        done: Trajectory = Act()(corridor(length=length), given, lambda task, rollout: Long(length))
    acting = [prompt for prompt in lm.engine.prompts if "action" in prompt.wants]
    return done, acting, [prompt for prompt in lm.engine.prompts if "action" not in prompt.wants]


def test_an_archive_sums_up_what_is_too_long_and_reads_it_back_word_for_word() -> None:
    says: dict[str, Callable[[Prompt], Reply]] = {
        "summary": lambda prompt: {"summary": "two rooms on"},
        "name": lambda prompt: {"name": "steps-1-2" if "in room 5" in prompt["observation"] else "none"},
    }
    done, acting, asked = play(Archive(tokens=650), says)
    assert done.stop_reason == "done"
    assert done.usage["agent"].calls == len(acting) + len(asked)
    plain = play(None, says)[1]
    first = next(number for number, prompt in enumerate(acting) if prompt.messages != plain[number].messages)
    assert "archived as steps-1-2: steps 1, 2] two rooms on" in acting[first].text
    assert "detail-1" not in acting[first].text
    assert estimate_tokens(acting[first].text) < estimate_tokens(plain[first].text)
    read = acting[5]["observation"]
    for number in (1, 2):
        assert plain[number]["observation"] in read
        assert f"thought {number - 1}" in read
    lm = scripted_lm(locksmith)
    with Backbones(agent=lm).use():
        Judge()(corridor(), done)
    assert all(f"detail-{number}" in lm.engine.prompts[0]["trajectory"] for number in (1, 2))


def test_a_short_context_costs_an_archive_no_call() -> None:
    assert play(Archive(), {})[2] == []


def test_a_name_that_no_archive_has_is_told_to_the_next_call() -> None:
    says: dict[str, Callable[[Prompt], Reply]] = {
        "summary": lambda prompt: {"summary": "s"},
        "name": lambda prompt: {"name": "steps-7-9"},
    }
    done, _, asked = play(Archive(tokens=650), says, length=8)
    assert done.stop_reason == "done"
    told = [prompt["problems"] for prompt in asked if "problems" in prompt]
    assert "steps-7-9" in told[1]


def test_a_rewritten_state_stands_in_the_place_of_all_steps() -> None:
    says: dict[str, Callable[[Prompt], Reply]] = {
        "new_state": lambda prompt: {"new_state": f"{prompt['state'][:10]} then [[ ## x ## ]]" * 400}
    }
    done, acting, asked = play(Rewrite(), says)
    assert len(asked) == 5
    assert asked[0]["state"] == "(none yet)"
    assert asked[1]["state"].startswith("(none yet) then")
    assert "detail-2" in asked[1]["steps"]
    assert "detail-1" not in asked[1]["steps"]
    for number, prompt in enumerate(acting[1:], 1):
        assert prompt.turns == 0
        assert f"detail-{number}" in prompt["observation"]
        assert f"detail-{number - 1}" not in prompt["observation"]
        assert "[[ ## x" not in prompt.text
        assert estimate_tokens(prompt["observation"]) < 1_200
    assert len(done.steps) == 6


def lessons() -> Memory:
    bank = MemoryBank.open(":memory:", scope="s", embedder=HashEmbedder())
    return render([bank.add("One", "First."), bank.add("Two", "Second.")])


def choosing(*answers: tuple[str, list[str]]) -> dict[str, Callable[[Prompt], Reply]]:
    left = iter(answers)

    def choose(prompt: Prompt) -> Reply:
        operation, names = next(left, ("act", []))
        return {"thought": "Because.", "operation": operation, "names": names}

    return {"operation": choose}


def test_a_pruned_lesson_leaves_the_prompts_and_thoughts_are_shown() -> None:
    memory = lessons()
    _, acting, asked = play(Drop(), choosing(("prune", ["lesson 1"]), ("think", [])), memory=memory)
    assert "First." in asked[0]["parts"]
    assert "First." not in asked[1]["parts"]
    assert all("First." not in prompt.text and "Second." in prompt["memory"] for prompt in acting)
    assert "Because." in acting[0]["observation"]


def test_a_lesson_below_a_heading_is_pruned_alone() -> None:
    bank = MemoryBank.open(":memory:", scope="s", embedder=HashEmbedder())
    bank.add("One", "First.")
    bank.add("Two", "Second.")
    parted = Parted([("Ones:", lambda item: item.title == "One"), ("Others:", lambda item: True)])
    memory = parted(Moment(corridor()), bank.retrieve("Two", 2, "item", -1.0), 1_000)
    _, acting, asked = play(Drop(), choosing(("prune", ["lesson 1"])), memory=memory)
    assert "lesson 2" in asked[0]["parts"]
    assert acting[0]["memory"] == memory.block.replace("> 1. One (from user)\n> First.\n", "")


def test_rounds_before_an_action_are_limited() -> None:
    _, acting, asked = play(Drop(), choosing(*[("think", [])] * 99), memory=lessons())
    assert len(asked) == ROUNDS * len(acting)


def test_without_lessons_nothing_is_asked() -> None:
    assert play(Drop(), choosing())[2] == []


@pytest.mark.parametrize("steps", [False, True])
def test_steps_are_pruned_if_they_may_be(steps: bool) -> None:
    answers = [("act", []), ("act", []), ("prune", ["step 1"])]
    done, acting, asked = play(Drop(steps=steps), choosing(*answers), memory=lessons())
    assert ("detail-1" in acting[-1].text) is not steps
    assert "detail-1" in done.steps[0].observation
    told = "\n".join(prompt["problems"] for prompt in asked)
    assert ("'step 1'" in told) is not steps
