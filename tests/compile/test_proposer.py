"""Who proposes prompts to gepa is asked again where nothing new comes, and what brings nothing new costs no run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy.compile.optimizers import MINIBATCH
from rb_dspy.compile.proposer import TRIES, Proposer
from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.compile.school import compiled
from tests.compile.teacher import teacher

NOW = "Judge the rollout.\nBe fair."
CANDIDATE = {"judge.predict": NOW, "act.predict": "Act."}
SEEN = {name: [{"Inputs": {"task": "a lock"}, "Generated Outputs": {}, "Feedback": "Wrong."}] for name in CANDIDATE}


def proposed(
    script: Callable[[Prompt], Reply], components: tuple[str, ...] = ("judge.predict",), **settings: Any
) -> tuple[dict[str, str], list[Prompt], int]:
    """What is proposed, what was asked for it, and how often nothing came."""
    lm, nothing = scripted_lm(script, **settings), []
    proposer = Proposer(lm, lambda: nothing.append(None))
    with dspy.context(lm=lm):
        found = proposer(CANDIDATE, SEEN, list(components))
    return found, lm.engine.prompts, len(nothing)


def same(prompt: Prompt) -> Reply:
    return {"new_instruction": f"  {' '.join(prompt['current_instruction'].split())}\n"}


def test_another_instruction_is_taken_as_it_comes() -> None:
    found, asked, nothing = proposed(lambda _: {"new_instruction": "Judge by the last observation."})
    assert found == {"judge.predict": "Judge by the last observation."}
    (prompt,) = asked
    assert (prompt.temperature, prompt.seed, nothing) == (None, None, 0)
    assert "additional_instructions" not in prompt


def test_the_one_that_there_is_is_not_taken_and_asked_for_again_more_clearly() -> None:
    def second(prompt: Prompt) -> Reply:
        return {"new_instruction": "Another."} if "additional_instructions" in prompt else same(prompt)

    found, asked, nothing = proposed(second)
    assert found == {"judge.predict": "Another."}
    assert [prompt.temperature for prompt in asked] == [None, 1.0]
    assert nothing == 0


def test_each_try_is_another_sample() -> None:
    """At temperature 0, or with one seed, a local model would say the same for ever."""

    def last(prompt: Prompt) -> Reply:
        return {"new_instruction": "Another."} if prompt.seed == TRIES - 1 else same(prompt)

    found, asked, _ = proposed(last, temperature=0.0)
    assert found == {"judge.predict": "Another."}
    assert [(prompt.seed, prompt.temperature) for prompt in asked] == [(None, 0.0), (1, 1.0), (2, 1.0)]


def test_what_brings_nothing_new_is_left_out_and_counted() -> None:
    def act_only(prompt: Prompt) -> Reply:
        return {"new_instruction": "Act well."} if prompt["current_instruction"] == "Act." else same(prompt)

    found, asked, nothing = proposed(act_only, ("judge.predict", "act.predict", "no such predictor"))
    assert (found, nothing) == ({"act.predict": "Act well."}, 1)
    assert len(asked) == TRIES + 1


def test_a_model_that_takes_no_temperature_is_given_none() -> None:
    _, asked, nothing = proposed(same, max_completion_tokens=100)
    assert [prompt.temperature for prompt in asked] == [None] * TRIES
    assert nothing == 1


def test_what_the_model_raises_is_raised() -> None:
    def down(prompt: Prompt) -> Reply:
        raise lm15.ServerError("overloaded")

    with pytest.raises(dspy.LMError, match="overloaded"):
        proposed(down)


def test_gepa_spends_nothing_on_the_prompt_that_there_is() -> None:
    def copies(prompt: Prompt) -> Reply:
        return same(prompt) if "new_instruction" in prompt.wants else teacher(prompt)

    made = compiled(optimizer="gepa", stage="judge", reflection=scripted_lm(copies), budget=40)
    assert made.proposals_failed > 0
    assert len(made.candidates) == 1
    looks = (made.metric_calls - made.examples["dev"]) / MINIBATCH
    # One look at a minibatch each, and no second one at what would be the same prompt.
    assert made.proposals_failed > looks / 2 + 1


@pytest.mark.parametrize("answer", [{"new_instruction": "  \n "}, {"new_instruction": "\ud83d"}, "Be fair.", ""])
def test_an_answer_that_is_none_is_asked_for_again(answer: Reply) -> None:
    """gepa would swallow what is raised, and nobody would know that its model cannot do this."""
    found, asked, nothing = proposed(lambda _: answer)
    assert (found, len(asked), nothing) == ({}, TRIES, 1)
    found, *_ = proposed(lambda prompt: {"new_instruction": "Another."} if prompt.seed else answer)
    assert found == {"judge.predict": "Another."}


def test_control_characters_become_visible() -> None:
    found, *_ = proposed(lambda _: {"new_instruction": "Look.\n\tOnce\0, \x1b[31mtwice."})
    assert found == {"judge.predict": "Look.\n\tOnce\u2400, \u241b[31mtwice."}


def test_what_cannot_be_read_is_told_from_what_is_nothing_new(caplog: pytest.LogCaptureFixture) -> None:
    unread: list[str] = []
    lm = scripted_lm(lambda _: f"Sure!\nHere is {'a better prompt' * 40}")
    proposer = Proposer(lm, lambda: None, unread.append)
    with dspy.context(lm=lm):
        for _ in range(5):
            proposer(CANDIDATE, SEEN, ["judge.predict"])
    assert len(unread) == 5
    assert unread[0].startswith("Sure! Here is a better prompt")
    assert len(unread[0]) == 201
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(
        "who proposes prompts answers in a form that cannot be read; the last answer began 'Sure!"
    )
    unread.clear()
    lm = scripted_lm(same)
    with dspy.context(lm=lm):
        assert Proposer(lm, lambda: None, unread.append)(CANDIDATE, SEEN, ["judge.predict"]) == {}
    assert unread == []


def test_a_compile_counts_what_could_not_be_read() -> None:
    def mumbles(prompt: Prompt) -> Reply:
        return "Sure! Here it is" if "new_instruction" in prompt.wants else teacher(prompt)

    made = compiled(optimizer="gepa", stage="judge", reflection=scripted_lm(mumbles), budget=40)
    assert made.proposals_failed == made.proposals_unreadable > 0
    assert made.unreadable_proposal == "Sure! Here it is"
